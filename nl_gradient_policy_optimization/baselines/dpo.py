"""Direct preference optimisation on chosen and rejected pairs (``pairs.py``), as in its original formulation.

    python nl_gradient_policy_optimization/baselines/dpo.py --task slf5k --data_path pairs.json --model runs/sft \\
        --output_dir runs/dpo

The reference is the model it starts from. With an adapter that is its frozen copy, or the model without it.
"""

from __future__ import annotations

from dataclasses import dataclass

from trl import DPOConfig, DPOTrainer

from nl_gradient_policy_optimization.baselines.finetuning import (
    Encoded,
    FineTuning,
    begun,
    encode,
    finish,
    run,
    split,
)
from nl_gradient_policy_optimization.baselines.preferences import Pair, load_pairs
from nl_gradient_policy_optimization.export import evaluation_command
from text2grad.configs import parse
from text2grad.errors import command
from text2grad.models import is_adapter, load_model, load_tokenizer
from text2grad.tasks import Task, get_task


@dataclass
class DPOSettings(FineTuning, DPOConfig):
    """Settings of DPO; ``beta`` and ``loss_type`` are TRL's."""


class PairTrainer(DPOTrainer):
    """``DPOTrainer`` on token ids that are ready: the prompt's are those that the policy is sampled with."""

    def _prepare_dataset(self, dataset, *_):
        return dataset


def items_of(pairs: dict[str, Pair]) -> dict[str, tuple[str, list[str]]]:
    """``(x, [chosen, rejected])`` by id."""
    return {key: (pair.prompt, [pair.chosen, pair.rejected]) for key, pair in pairs.items()}


def example(encoded: Encoded) -> dict[str, list[int]]:
    chosen, rejected = encoded.answers
    return {"prompt_ids": encoded.prompt, "chosen_ids": chosen, "rejected_ids": rejected}


def train(config: DPOSettings) -> None:
    """Train, and leave the adapter (or model) in ``config.output_dir``."""
    task = get_task(config.task)
    items = items_of(load_pairs(config.data_path))
    with begun(config, "dpo", items) as more:
        if more:
            fine_tune(config, task, items)


def fine_tune(config: DPOSettings, task: Task, items: dict[str, tuple[str, list[str]]]) -> None:
    tokenizer = load_tokenizer(config.model)
    training, validation = split(items, encode(items, task, tokenizer, config), example, config)
    full = not config.lora and not is_adapter(config.model)
    trainer = PairTrainer(
        model=load_model(config.model, config.weight_dtype, trainable=True),
        ref_model=load_model(config.model, config.weight_dtype) if full else None,
        args=config,
        train_dataset=training,
        eval_dataset=validation,
        processing_class=tokenizer,
        peft_config=None if is_adapter(config.model) else config.adapter(),
    )
    finish(config, "dpo", run(trainer, config), evaluation_command(task, config.output_dir))


@command
def main() -> None:
    train(parse(DPOSettings))


if __name__ == "__main__":
    main()
