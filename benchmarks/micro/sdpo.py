"""SDPO by TRL's own trainer, whose teacher reads the critique of each rollout (``text2grad.integrations.trl``)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from datasets import Dataset
from trl.experimental.sdpo import SDPOConfig

from benchmarks.micro.grpo import GENERATIONS, Examine
from benchmarks.micro.nl_reward_model import record_of
from benchmarks.micro.protocol import HeldOutEvaluation, Protocol
from benchmarks.micro.task import PROFILES
from nl_gradient_policy_optimization.config import PolicyConfig
from text2grad.critics import Critic, Feedback, FeedbackError
from text2grad.integrations.trl import LiveFeedbackSDPOTrainer
from text2grad.models import load_model, load_tokenizer
from text2grad.records import load_json


class FromPrompts:
    """A critic of profiles that reads the notes from the prompt, since TRL's rows hold nothing else."""

    def __init__(self, critic: Critic):
        self.critic, self.name = critic, critic.name

    def __call__(
        self, prompts: Sequence[str], responses: Sequence[str], records: Sequence[dict] | None = None
    ) -> list[Feedback | FeedbackError]:
        return self.critic(prompts, responses, [record_of(prompt, prompt) for prompt in prompts])


def sdpo_settings(config: PolicyConfig) -> SDPOConfig:
    """As many responses, passes and steps as ``config`` has, and SDPO's own loss, as in its paper.

    Jensen-Shannon divergence on the policy's top 100 tokens with a tail, and a teacher whose weights are a moving
    average. No other rollout is shown to it: the critique is all that it reads.
    """
    return SDPOConfig(
        output_dir=config.output_dir,
        seed=config.seed,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        max_steps=config.max_steps * config.ppo_epochs,
        num_iterations=config.ppo_epochs,
        per_device_train_batch_size=config.rollouts_per_device,
        num_generations=GENERATIONS,
        max_completion_length=config.max_new_tokens,
        temperature=config.temperature,
        learning_rate=config.learning_rate,
        lr_scheduler_type="constant",
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
        beta=config.kl_coef,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        distillation_mode="topk_logits",
        distillation_topk=config.teacher_top_k,
        distillation_alpha=0.5,
        distillation_add_tail=True,
        teacher_model_kind="ema",
        teacher_update_rate=config.teacher_rate,
        use_successful_as_teacher=False,
        include_environment_feedback=True,
        reprompt_template="{prompt}{feedback}",
        feedback_template="\n\n{feedback_raw}",
    )


def train_sdpo(config: PolicyConfig, critic: Critic, protocol: Protocol) -> list[dict[str, float]]:
    """Train with as many responses, passes and steps as the other methods; returns the curve of held-out quality."""
    tokenizer = load_tokenizer(config.model)
    model = load_model(config.model, torch.float32)
    examine = Examine(HeldOutEvaluation(tokenizer, config, protocol), protocol, model)
    rows = [{"prompt": PROFILES.messages(PROFILES.prompt(record))} for record in load_json(config.data_path)]
    trainer = LiveFeedbackSDPOTrainer(
        model,
        critic=FromPrompts(critic),
        args=sdpo_settings(config),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        callbacks=[examine],
    )
    trainer.train()
    return examine.curve
