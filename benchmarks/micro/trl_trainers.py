"""GRPO by TRL's own trainer, with the same critic, responses, passes and steps as the other methods."""

from collections.abc import Mapping
from typing import Any

import torch
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from benchmarks.micro.protocol import HeldOutEvaluation, Protocol
from benchmarks.micro.task import PROFILES
from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.rewards import EMPTY_REWARD
from text2grad.critics import Critic, FeedbackError
from text2grad.integrations.core import TokenJudge
from text2grad.models import load_model, load_tokenizer, lora_config
from text2grad.records import load_json
from text2grad.tasks import Record, Task


class SummedDeltas:
    """TRL's reward of responses: the sum of the δ that the critic gives each. A critic that fails ends the run.

    Attributes:
        rows: TRL's training data.
        lengths: tokens that the responses had.
    """

    __name__ = "summed_deltas"

    def __init__(self, critic: Critic, task: Task, records: Mapping[str, Record], tokenizer: PreTrainedTokenizerBase):
        self.judge, self.records = TokenJudge(critic, task, tokenizer, empty_reward=EMPTY_REWARD), records
        self.rows = [{"prompt": task.messages(task.prompt(record)), "id": key} for key, record in records.items()]
        self.lengths: set[int] = set()

    def __call__(self, completion_ids: list[list[int]], id: list[str], **_: Any) -> list[float]:
        self.lengths.update(map(len, completion_ids))
        records = [self.records[key] for key in id]
        judged = self.judge([self.judge.task.prompt(record) for record in records], completion_ids, records)
        if failed := [each.error for each in judged if each.failed]:
            raise FeedbackError(failed[0])
        return [float(sum(each.rewards)) for each in judged]


def grpo_trainer(
    config: PolicyConfig, model: PreTrainedModel, reward: SummedDeltas, watching: TrainerCallback, **options: Any
) -> GRPOTrainer:
    """TRL's trainer with as many responses, passes and steps as ``config`` has, on a CPU.

    Args:
        watching: what follows the steps.
        options: further settings of ``GRPOConfig``.
    """
    settings = GRPOConfig(
        output_dir=config.output_dir,
        seed=config.seed,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        max_steps=config.max_steps * config.ppo_epochs,
        num_iterations=config.ppo_epochs,
        num_generations=config.rollouts_per_prompt,
        per_device_train_batch_size=config.rollouts_per_device,
        max_completion_length=config.max_new_tokens,
        temperature=config.temperature,
        learning_rate=config.learning_rate,
        lr_scheduler_type="constant",
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
        beta=config.kl_coef,
        epsilon=config.clip_range,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        **options,
    )
    return GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=settings,
        train_dataset=Dataset.from_list(reward.rows),
        processing_class=reward.judge.tokenizer,
        peft_config=lora_config(config) if config.lora_r else None,
        callbacks=[watching],
    )


class Examine(TrainerCallback):
    """The curve of held-out quality during a run of one of TRL's trainers."""

    def __init__(self, evaluate: HeldOutEvaluation, protocol: Protocol, model: PreTrainedModel):
        self.evaluate, self.protocol, self.model = evaluate, protocol, model
        self.curve = [evaluate(model, 0)]

    def on_step_end(self, args, state, control, **kwargs):
        step, rest = divmod(state.global_step, self.protocol.epochs)
        if rest == 0 and step % self.protocol.evaluate_every == 0:
            self.curve.append(self.evaluate(self.model, step))


def train_grpo(config: PolicyConfig, critic: Critic, protocol: Protocol) -> list[dict[str, float]]:
    """The curve of held-out quality of TRL's GRPOTrainer, whose reward is the sum of the same δ."""
    tokenizer = load_tokenizer(config.model)
    model = load_model(config.model, torch.float32)
    records = {record["id"]: record for record in load_json(config.data_path)}
    examine = Examine(HeldOutEvaluation(tokenizer, config, protocol), protocol, model)
    grpo_trainer(config, model, SummedDeltas(critic, PROFILES, records, tokenizer), examine).train()
    return examine.curve
