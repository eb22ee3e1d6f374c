"""What a run leaves behind: ``RUN/policy``, an ordinary adapter (or model) that any PEFT tool loads, and its card."""

from __future__ import annotations

from pathlib import Path

from nl_gradient_policy_optimization.trainer import NLGradientTrainer
from nl_gradient_policy_optimization.weights import gathered, save_model, trainable
from text2grad.models import is_adapter, merge_adapter
from text2grad.records import save_text
from text2grad.safety.redaction import redacted

_TEXT2GRAD = """with natural-language gradients ([Text2Grad](https://arxiv.org/abs/2505.22338)): a critic wrote feedback
on each sampled response, and the tokens it quoted were rewarded or penalised."""
TRAINED = {
    "ppo_scalar": "by PPO on one number per response: a scalar reward model's score, given on the last token.",
    "ppo_last_sum": "by PPO on one number per response: the sum of the critic's δ, given on the last token.",
    "ppo_last_mean": "by PPO on one number per response: the mean of the critic's δ, given on the last token.",
    "prm_ppo": "by PPO on process rewards: each step of a response was judged, its last token rewarded or penalised.",
}
"""How the baselines' policies came about; any other ``method`` is a name for Text2Grad with settings of one's own."""


def export(trainer: NLGradientTrainer) -> None:
    """Write policy, tokenizer, value head (a file of its own) and model card; with ``merge`` the whole model too."""
    folder, model = trainer.run / "policy", trainer.scorer.model
    with gathered(trainer.model, trainable(model)):
        if trainer.accelerator.is_main_process:
            save_model(model, folder)
    if trainer.accelerator.is_main_process:
        trainer.tokenizer.save_pretrained(folder)
        if trainer.value_function:
            trainer.value_function.save(folder, with_optimizer=False)
        save_text(folder / "README.md", model_card(trainer))
        if trainer.config.merge and is_adapter(str(folder)):
            merge_adapter(str(folder), trainer.run / "merged")
    trainer.accelerator.wait_for_everyone()


def model_card(trainer: NLGradientTrainer) -> str:
    """Data, critic, settings and measured results, in the form that hubs read."""
    config, rows = trainer.config, trainer.metrics_log.rows()
    first, last = rows[0], rows[-1]
    kl = f"kl/{config.kl}"
    shown = {
        "mean δ per token": ("delta/mean", "+.3f"),
        "share of praised tokens": ("delta/positive", ".3f"),
        "share of criticised tokens": ("delta/negative", ".3f"),
        "KL to the reference, nats per response": (kl, ".3f"),
        "entropy, nats per token": ("entropy", ".3f"),
        "response length, tokens": ("length/mean", ".1f"),
    }
    table = "\n".join(
        f"| {label} | {first[name]:{form}} | {last[name]:{form}} |" for label, (name, form) in shown.items()
    )
    settings = "\n".join(
        f"- {name}: {getattr(config, name)}"
        for name in (
            "learning_rate", "optimizer", "lora_r", "lora_alpha", "ppo_epochs", "gamma", "lam", "clip_range",
            "kl", "kl_coef", "kl_target", "scheme", "reward_placement", "max_new_tokens", "temperature", "seed",
        )
    )  # fmt: skip
    kind = "adapter" if hasattr(trainer.scorer.model, "peft_config") else "model"
    return f"""---
base_model: {config.model}
library_name: {"peft" if kind == "adapter" else "transformers"}
pipeline_tag: text-generation
tags: [text2grad, {config.method}, {trainer.task.name}]
---

# {config.model}, after {last["step"]} steps of {config.method} on {trainer.task.name}

This {kind} was trained {TRAINED.get(config.method, _TEXT2GRAD)}

- data: {Path(config.data_path).name}, {len(trainer.ids)} prompts
- critic: {redacted(trainer.rewards.name)}
- rollouts: {last["rollouts"]}
{settings}

Measured on the rollouts of training (sampled at temperature {config.temperature:g}), not on held-out data:

| | first step | last step |
| --- | --- | --- |
{table}

The value function is in `value_head.safetensors`; it is needed to go on training, not to use the policy.
"""
