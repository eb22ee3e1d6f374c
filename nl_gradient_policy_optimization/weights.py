"""The policy's weights: optimiser, checkpoint state, and the adapter or model that a run leaves behind."""

from __future__ import annotations

from pathlib import Path

import torch
from accelerate import Accelerator
from peft import get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file
from torch import nn
from torch.optim import Optimizer

from nl_gradient_policy_optimization.config import PolicyConfig


def trainable(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def trainable_bytes(module: nn.Module) -> int:
    """Bytes of the trained weights (under ZeRO-3 too, where a rank holds only a part of them)."""
    return sum(getattr(p, "ds_numel", p.numel()) * p.element_size() for p in trainable(module))


def make_optimizer(policy: nn.Module, config: PolicyConfig) -> Optimizer:
    parameters, rate = trainable(policy), config.learning_rate
    if config.optimizer == "adafactor":
        from transformers.optimization import Adafactor

        return Adafactor(
            parameters, lr=rate, weight_decay=config.weight_decay, scale_parameter=False, relative_step=False
        )
    return torch.optim.AdamW(parameters, lr=rate, weight_decay=config.weight_decay)


def save_policy(accelerator: Accelerator, model: nn.Module, optimizer: Optimizer, folder: Path) -> None:
    """Weights and optimiser into a checkpoint folder; every rank calls it."""
    if accelerator.distributed_type == "DEEPSPEED":
        model.save_checkpoint(str(folder), tag="engine", exclude_frozen_parameters=True)
        return
    if accelerator.is_main_process:
        save_model(accelerator.unwrap_model(model).model, folder / "policy")
        torch.save(optimizer.optimizer.state_dict(), folder / "optimizer.pt")


def load_policy(accelerator: Accelerator, model: nn.Module, optimizer: Optimizer, folder: Path) -> None:
    """The inverse of :func:`save_policy`, bit for bit."""
    if accelerator.distributed_type == "DEEPSPEED":
        model.load_checkpoint(str(folder), tag="engine", load_module_strict=False)
        return
    policy = accelerator.unwrap_model(model).model
    if hasattr(policy, "peft_config"):
        set_peft_model_state_dict(policy, load_file(folder / "policy" / "adapter_model.safetensors"))
    else:
        state = {}
        for shard in sorted((folder / "policy").glob("*.safetensors")):
            state |= load_file(shard)
        missing, unexpected = policy.load_state_dict(state, strict=False)
        if unexpected or set(missing) - set(policy.all_tied_weights_keys):
            raise RuntimeError(f"{folder / 'policy'} does not fit the model: {missing + unexpected}")
    optimizer.optimizer.load_state_dict(torch.load(folder / "optimizer.pt", weights_only=True))


def save_model(policy: nn.Module, folder: Path) -> None:
    """An ordinary PEFT adapter, or an ordinary model folder."""
    if hasattr(policy, "peft_config"):
        policy.save_pretrained(folder, selected_adapters=["default"])
    else:
        policy.save_pretrained(folder)


__all__ = [
    "get_peft_model_state_dict",
    "load_policy",
    "make_optimizer",
    "save_model",
    "save_policy",
    "trainable",
    "trainable_bytes",
]
