"""Can this model be a teacher? One batch says whether it understands the critiques of its own responses.

    python nl_gradient_policy_optimization/probe_teacher.py --task slf5k --model smollm2 \\
        --data_path quickstart/data/posts_validation.json --critic programmatic

The model answers so many prompts, the critic criticises, and the model scores its answers twice more: after reading
the critique, and after reading the critique of another answer. Δ is what reading changed in a token's log-probability.
The AUC says how often Δ is higher on a praised token than on a blamed one: ½ is chance, 1 is a perfect teacher. What
shuffled critiques reach has nothing to do with what the critique says.
"""

from dataclasses import asdict, dataclass, fields, replace
from tempfile import TemporaryDirectory
from typing import Any

import torch
from sklearn.metrics import roc_auc_score

from nl_gradient_policy_optimization.algorithms.teacher import gaps
from nl_gradient_policy_optimization.batch import Batch
from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.optimize import prepare
from nl_gradient_policy_optimization.rewards import RewardSource
from nl_gradient_policy_optimization.trainer import NLGradientTrainer
from text2grad.configs import TaskConfig, check_given, parse, setting
from text2grad.critics.settings import CriticChoice
from text2grad.errors import InputError, command
from text2grad.losses.teacher import span_sums
from text2grad.records import check_output, save_json
from text2grad.tasks import Task, get_task


@dataclass
class ProbeConfig(CriticChoice, TaskConfig):
    """The model, its prompts, and who criticises."""

    model: str = setting("", "the policy that would be its own teacher: hub id, folder, adapter folder", "--model_path")
    data_path: str = setting("", "the task's records; only their prompts are used", "--dataset_path", "--input_file")
    teacher_prompt: str = setting("", "file of what the teacher reads; by default the task's prompts/teacher.txt")
    responses: int = setting(32, "responses to sample, one to each prompt")
    micro_batch_size: int = setting(8, "responses in one forward pass")
    max_prompt_tokens: int = setting(640, "longer prompts are left out", "--prompt_max_length")
    max_new_tokens: int = setting(128, "longest response in tokens", "--max_response_tokens", "--max_tokens")
    dtype: str = setting("auto", "of the model's weights", "--precision")
    seed: int = setting(42, "decides prompts and sampling")
    output_path: str = setting("", "write the figures to this file, too", "--output_file", "--output")


def probe(config: ProbeConfig, task: Task | None = None, rewards: RewardSource | None = None) -> dict[str, Any]:
    """The figures of one batch, on real and on shuffled critiques."""
    shared = {each.name for each in fields(PolicyConfig.flags())} & {each.name for each in fields(config)}
    if config.responses < 2 or config.responses % config.micro_batch_size:
        raise InputError("--responses must be 2 or more, and a multiple of --micro_batch_size")
    with TemporaryDirectory() as folder:
        settings = PolicyConfig.of(
            **{name: getattr(config, name) for name in shared},
            output_dir=folder,
            algorithm="teacher",
            rollouts_per_device=config.responses,
            lora_r=16,
            kl="k3",
            report_to=["none"],
        )
        trainer = prepare(task or get_task(config.task), settings, rewards)
        sampled = trainer.take_feedback(trainer.collector.collect(1))
        batch = sampled.select([row for row, rollout in enumerate(sampled.rollouts) if rollout.counts])
        report: dict[str, Any] = {"responses": len(sampled), "with_feedback": len(batch)}
        report |= {"real": measured(trainer, batch), "shuffled": measured(trainer, shuffled(batch))}
        trainer.accelerator.end_training()
    return report


def shuffled(batch: Batch) -> Batch:
    """Each rollout with its own labels, and the critique of the next one with the quotes that are taken out of it."""
    received, other = [each.received for each in batch.rollouts], batch.select(range(len(batch)))
    other.rollouts = [
        replace(rollout, feedback=replace(rollout.received, critique=following.critique, poor=following.poor))
        for rollout, following in zip(batch.rollouts, [*received[1:], *received[:1]], strict=True)
    ]
    return other


def measured(trainer: NLGradientTrainer, batch: Batch) -> dict[str, float]:
    """AUC of Δ against the labels, by tokens and by whole spans, and its means."""
    batch = trainer.algorithm.on_batch(batch)
    labels, gap = (batch.deltas * batch.extra["taught"][:, None]).double(), gaps(batch).double()
    spans = span_sums(labels, gap)
    begins = labels.sign() != torch.nn.functional.pad(labels.sign(), (1, 0))[:, :-1]
    result: dict[str, float] = {"read": int(batch.extra["taught"].sum())}
    for name, values, chosen in (("token", gap, labels != 0), ("span", spans, (labels != 0) & begins)):
        good, poor = values[chosen & (labels > 0)], values[chosen & (labels < 0)]
        if len(good) == 0 or len(poor) == 0:
            raise InputError(
                f"the critic praised {len(good)} and blamed {len(poor)} {name}s; it takes both: raise --responses"
            )
        result |= {
            f"{name}_auc": float(roc_auc_score(labels[chosen] > 0, values[chosen])),
            f"{name}s": len(good) + len(poor),
            f"{name}_gap_good": float(good.mean()),
            f"{name}_gap_poor": float(poor.mean()),
        }
    return result


def shown(report: dict[str, Any]) -> str:
    lines = [f"{report['with_feedback']} of {report['responses']} responses with feedback"]
    for kind in ("real", "shuffled"):
        row = report[kind]
        lines.append(
            f"{kind} critiques: AUC {row['token_auc']:.3f} of {row['tokens']} tokens, {row['span_auc']:.3f} of "
            f"{row['spans']} spans; mean Δ of a span {row['span_gap_good']:+.3f} where praised, "
            f"{row['span_gap_poor']:+.3f} where blamed"
        )
    return "\n".join(lines)


@command
def main() -> None:
    config = parse(ProbeConfig)
    check_given(config, "model", "data_path")
    if config.output_path:
        check_output(config.output_path)
    report = probe(config)
    print(shown(report))
    if config.output_path:
        save_json(config.output_path, {"settings": asdict(config), **report})


if __name__ == "__main__":
    main()
