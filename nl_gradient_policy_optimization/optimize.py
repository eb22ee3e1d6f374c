"""Set a run up from its settings, train it, and leave its result in ``RUN/policy``."""

from __future__ import annotations

import importlib.metadata
from dataclasses import asdict
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import GradientAccumulationPlugin, set_seed
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import PreTrainedTokenizerBase

from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.policy import REFERENCE_ADAPTER, PolicyScorer, base_model
from nl_gradient_policy_optimization.rewards import CriticRewards, RewardSource
from nl_gradient_policy_optimization.trainer import NLGradientTrainer, encode_prompt
from nl_gradient_policy_optimization.weights import save_model
from text2grad.critics import load_critic
from text2grad.errors import InputError
from text2grad.models import is_adapter, load_model, load_tokenizer, merge_adapter
from text2grad.records import check_writable, load_records, save_json
from text2grad.tasks import Record, Task, get_task


def optimize(task: str | Task, config: PolicyConfig, rewards: RewardSource | None = None) -> NLGradientTrainer:
    """Train a policy on a task, and export it.

    Args:
        rewards: where rewards come from; by default the critic that the settings name.
    """
    trainer = prepare(task, config, rewards)
    trainer.train()
    trainer.accelerator.end_training()
    export(trainer)
    return trainer


def prepare(task: str | Task, config: PolicyConfig, rewards: RewardSource | None = None) -> NLGradientTrainer:
    """Everything up to the first step: settings checked, data read, models loaded, ``run.json`` written."""
    task = get_task(task)
    config.check()
    run = Path(config.output_dir)
    check_writable(run / "run.json")
    records = load_records(config.data_path, task, responses=False)
    tokenizer = load_tokenizer(config.model)
    prompts = short_enough(records, task, tokenizer, config)
    accelerator = make_accelerator(config)
    if rewards is None:
        rewards = CriticRewards(load_critic(config.critic, task), task, tokenizer, config)
    trainer = NLGradientTrainer(config, task, make_policy(config), tokenizer, prompts, rewards, accelerator)
    if accelerator.is_main_process:
        save_json(run / "run.json", describe(task, config))
    return trainer


def make_accelerator(config: PolicyConfig) -> Accelerator:
    micro_batches = config.rollouts_per_device // (config.minibatches * config.micro_batch_size)
    trackers = [name for name in config.report_to if name != "none"]
    accelerator = Accelerator(
        gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=micro_batches, sync_with_dataloader=False),
        log_with=trackers or None,
        project_dir=config.output_dir,
    )
    accelerator.init_trackers("tracking")
    return accelerator


def make_policy(config: PolicyConfig) -> PolicyScorer:
    """The policy with its adapter (or all of its weights) ready to train, and the reference beside it."""
    set_seed(config.seed)
    reference = None
    if is_adapter(config.model):
        model = load_model(config.model, config.dtype, trainable=True)
        model.add_adapter(REFERENCE_ADAPTER, model.peft_config["default"])
        own = dict(model.named_parameters())
        for name, parameter in own.items():
            if f".{REFERENCE_ADAPTER}." in name:
                parameter.data.copy_(own[name.replace(f".{REFERENCE_ADAPTER}.", ".default.")].data)
                parameter.requires_grad_(False)
    elif config.lora_r:
        targets = config.lora_target_modules
        adapter = LoraConfig(
            r=config.lora_r,
            lora_alpha=config.lora_alpha,
            lora_dropout=config.lora_dropout,
            target_modules=targets[0] if targets == ["all-linear"] else targets,
            task_type="CAUSAL_LM",
        )
        model = get_peft_model(load_model(config.model, config.dtype), adapter)
    else:
        # All weights are trained: small steps vanish in bfloat16, so they are kept in float32 unless told otherwise.
        dtype = torch.float32 if config.dtype == "auto" else config.dtype
        model = load_model(config.model, dtype)
        reference = load_model(config.reference or config.model, dtype).requires_grad_(False)
    if config.gradient_checkpointing:
        base = base_model(model)
        base.gradient_checkpointing_enable({"use_reentrant": False})
        if hasattr(model, "peft_config"):
            base.enable_input_require_grads()
    return PolicyScorer(model, reference, config.temperature, config.head_chunk)


def short_enough(
    records: dict[str, Record], task: Task, tokenizer: PreTrainedTokenizerBase, config: PolicyConfig
) -> dict[str, Record]:
    """The records whose prompt fits; the others are named, never cut."""
    lengths = {key: len(encode_prompt(task.prompt(record), task, tokenizer)) for key, record in records.items()}
    kept = {
        key: task.training_prompts(record)
        for key, record in records.items()
        if lengths[key] <= config.max_prompt_tokens
    }
    if not kept:
        raise InputError(
            f"{config.data_path}: every prompt is longer than --max_prompt_tokens {config.max_prompt_tokens} "
            f"(the shortest has {min(lengths.values())}); raise it"
        )
    if len(kept) < len(records):
        left_out = [key for key in records if key not in kept]
        shown = ", ".join(left_out[:5]) + (", …" if len(left_out) > 5 else "")
        print(f"{len(left_out)} of {len(records)} prompts are longer than --max_prompt_tokens: left out ({shown})")
    return kept


def describe(task: Task, config: PolicyConfig) -> dict:
    """``run.json``."""
    packages = ("torch", "transformers", "peft", "accelerate", "text2grad")
    return {
        "task": task.name,
        "method": config.method,
        "seed": config.seed,
        "critic": config.critic,
        "model": config.model,
        "config": asdict(config),
        "versions": {name: importlib.metadata.version(name) for name in packages},
    }


def export(trainer: NLGradientTrainer) -> None:
    """``RUN/policy``: an ordinary adapter (or model), its tokenizer, and the value head in a file of its own."""
    if trainer.accelerator.is_main_process:
        folder = trainer.run / "policy"
        save_model(trainer.scorer.model, folder)
        trainer.tokenizer.save_pretrained(folder)
        save_file(trainer.value_head.state_dict(), folder / "value_head.safetensors")
        if trainer.config.merge and is_adapter(str(folder)):
            merge_adapter(str(folder), trainer.run / "merged")
    trainer.accelerator.wait_for_everyone()
