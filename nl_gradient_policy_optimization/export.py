"""What a run leaves behind: ``RUN/policy``, an ordinary adapter (or model) that any PEFT tool loads, and its card."""

from pathlib import Path

from tabulate import tabulate

from nl_gradient_policy_optimization.run_record import config_of
from nl_gradient_policy_optimization.trainer import NLGradientTrainer
from nl_gradient_policy_optimization.weights import gathered, save_model, trainable
from text2grad.journal.checksums import save_checksums
from text2grad.journal.run_folder import RUN_FILE, changes_shown
from text2grad.models import base_of, card_header, card_loading
from text2grad.records import load_json, save_text
from text2grad.tasks import Task
from text2grad.tasks.commands import quoted

_SETTINGS = (
    "learning_rate", "optimizer", "lora_r", "lora_alpha", "ppo_epochs", "gamma", "lam", "clip_range",
    "kl", "kl_coef", "kl_target", "scheme", "algorithm", "max_new_tokens", "temperature", "seed",
)  # fmt: skip
_VALUES = """
The value function is in `value_head.safetensors`; it is needed to go on training, not to use the policy.
"""


def export(trainer: NLGradientTrainer) -> None:
    """Write policy, tokenizer, value head (a file of its own) and model card."""
    folder, model = trainer.run / "policy", trainer.learner.scorer.model
    with gathered(trainer.learner.model, trainable(model)):
        if trainer.accelerator.is_main_process:
            save_model(model, folder)
    if trainer.accelerator.is_main_process:
        trainer.save_beside(folder)
        if trainer.learner.value_function:
            trainer.learner.value_function.save(folder, with_optimizer=False)
        save_checksums(folder)
        save_text(folder / "README.md", model_card(trainer))
    trainer.accelerator.wait_for_everyone()


def evaluation_command(task: Task, model: Path | str) -> str:
    """The command that lets a policy answer held-out prompts, from the repository's root."""
    return (
        f"python evaluation/generate.py --task {quoted(task.source or task.name)} --model {quoted(model)} "
        "--data_path HELD_OUT.json --output_path ANSWERS.json"
    )


def model_card(trainer: NLGradientTrainer) -> str:
    """Data, critic, settings and measured results, in the form that hubs read; as ``run.json`` has them."""
    about, rows = load_json(trainer.run / RUN_FILE), trainer.metrics_log.rows()
    config = config_of(about).flat()
    method, model = about["method"], about["model"]
    base = base_of(model)
    adapter = hasattr(trainer.learner.scorer.model, "peft_config")
    header = card_header(base, adapter, [name for name in (method, about["task"]) if name != "text2grad"])
    settings = "\n".join(f"- {name}: {config[name]}" for name in _SETTINGS)
    settings += changes_shown(about.get("changes", []))
    return f"""{header}
# {model}, after {trainer.finished_steps} steps of {method} on {about["task"]}

This {"adapter" if adapter else "model"} was trained by `--algorithm {config["algorithm"]}` of the trainer of
[Text2Grad](https://arxiv.org/abs/2505.22338): a critic gave feedback on each sampled response.

- data: {Path(about["data"]["path"]).name}, {about["data"]["prompts"]} prompts
- critic: {about.get("critic_name", about["critic"])}
- rollouts: {trainer.rollout_count}
{settings}

Measured on the rollouts of training (sampled at temperature {config["temperature"]:g}), not on held-out data:

{_results(rows) if rows else "(metrics.jsonl was lost)"}

{card_loading(base, adapter)}{_VALUES if trainer.learner.value_function else ""}"""


def _results(rows: list[dict]) -> str:
    """First and last step as a table; each step's KL is of the kind that it was measured by."""
    ends = [
        {**row, "kl": next(value for name, value in row.items() if name.startswith("kl/") and name != "kl/coef")}
        for row in (rows[0], rows[-1])
    ]
    shown = {
        "mean δ per token": ("delta/mean", "+.3f"),
        "share of praised tokens": ("delta/positive", ".3f"),
        "share of criticised tokens": ("delta/negative", ".3f"),
        "KL to the reference, nats per response": ("kl", ".3f"),
        "entropy, nats per token": ("entropy", ".3f"),
        "response length, tokens": ("length/mean", ".1f"),
    }
    cells = [[label, *(f"{row[name]:{form}}" for row in ends)] for label, (name, form) in shown.items()]
    return tabulate(cells, ["", "first step", "last step"], tablefmt="github", disable_numparse=True)
