"""The policy's weights: optimiser, checkpoint state, and the adapter or model that a run leaves behind."""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from peft import set_peft_model_state_dict
from safetensors.torch import load_file
from torch import nn
from torch.optim import Optimizer

from nl_gradient_policy_optimization.config import PolicyConfig


def trainable(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def trainable_bytes(module: nn.Module) -> int:
    """Bytes of the trained weights (under ZeRO-3 too, where a rank holds only a part of them)."""
    return sum(getattr(p, "ds_numel", p.numel()) * p.element_size() for p in trainable(module))


def without_dropout(model: nn.Module) -> None:
    """Turn off the model's own dropout, which would be noise in π/π_old; an adapter's stays as it was asked for."""
    for name, module in model.named_modules():
        if ".lora_" in name:
            continue
        for key, value in list(vars(module).items()):
            if isinstance(value, float) and ("drop" in key or (key == "p" and isinstance(module, nn.Dropout))):
                setattr(module, key, 0.0)


def make_optimizer(policy: nn.Module, config: PolicyConfig) -> Optimizer:
    parameters, rate = trainable(policy), config.learning_rate
    if config.optimizer == "adafactor":
        from transformers.optimization import Adafactor

        return Adafactor(
            parameters, lr=rate, weight_decay=config.weight_decay, scale_parameter=False, relative_step=False
        )
    return torch.optim.AdamW(parameters, lr=rate, weight_decay=config.weight_decay)


def clip_gradient(accelerator: Accelerator, model: Any, limit: float, scale: float = 1.0) -> float:
    """The norm of the policy's gradient over all ranks, before it is clipped; ``scale``: what it was multiplied by."""
    for weight in trainable(model) if scale != 1 else ():
        if weight.grad is not None:
            weight.grad /= scale
    norm = accelerator.clip_grad_norm_(model.parameters(), limit)
    if norm is None:  # DeepSpeed has clipped and stepped already
        norm = model.get_global_grad_norm()
    return float(norm)


def save_policy(accelerator: Accelerator, model: Any, optimizer: Any, folder: Path) -> None:
    """Weights and optimiser, as accelerate wraps them, into a checkpoint folder; every rank calls it.

    ``policy`` in it is a whole model or adapter, which can be evaluated. DeepSpeed goes on from its own files.
    """
    policy = accelerator.unwrap_model(model).model
    with gathered(model, trainable(policy)):
        if accelerator.is_main_process:
            save_model(policy, folder / "policy")
    if accelerator.distributed_type == "DEEPSPEED":
        model.save_checkpoint(str(folder), tag="engine", exclude_frozen_parameters=True)
    elif accelerator.is_main_process:
        torch.save(optimizer.optimizer.state_dict(), folder / "optimizer.pt")


def keep_policy(run: Path, step: int) -> None:
    """``RUN/policies/N``: the policy of checkpoint N, which stays when that is deleted. Hard links, where possible."""
    final, partial = run / "policies" / str(step), run / "policies" / f"{step}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(run / f"checkpoint-{step}" / "policy", partial, copy_function=_link)
    shutil.rmtree(final, ignore_errors=True)
    os.replace(partial, final)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copy2(source, target)


def load_policy(accelerator: Accelerator, model: Any, optimizer: Any, folder: Path) -> None:
    """The inverse of :func:`save_policy`, bit for bit."""
    if accelerator.distributed_type == "DEEPSPEED":
        model.load_checkpoint(str(folder), tag="engine", load_module_strict=False)
        return
    policy = accelerator.unwrap_model(model).model
    if hasattr(policy, "peft_config"):
        set_peft_model_state_dict(policy, load_file(folder / "policy" / "adapter_model.safetensors"))
    else:
        state: dict[str, torch.Tensor] = {}
        for shard in sorted((folder / "policy").glob("*.safetensors")):
            state |= load_file(shard)
        missing, unexpected = policy.load_state_dict(state, strict=False)
        if unexpected or set(missing) - set(policy.all_tied_weights_keys):
            raise RuntimeError(f"{folder / 'policy'} does not fit the model: {missing + unexpected}")
    optimizer.optimizer.load_state_dict(torch.load(folder / "optimizer.pt", weights_only=True))


def save_model(policy: Any, folder: Path) -> None:
    """An ordinary PEFT adapter, or an ordinary model folder."""
    if hasattr(policy, "peft_config"):
        policy.save_pretrained(folder, selected_adapters=["default"])
    else:
        policy.save_pretrained(folder)


@contextmanager
def gathered(model: nn.Module, parameters: Sequence[nn.Parameter], free_running: bool = False) -> Iterator[None]:
    """Whole weights on every rank inside the block, where ZeRO-3 has sharded them; else nothing happens.

    Args:
        model: the DeepSpeed engine (or any other model).
        free_running: also switch off the hooks that gather layer by layer, so that ranks need not stay in step.
    """
    if not any(hasattr(parameter, "ds_id") for parameter in parameters):
        yield
        return
    import deepspeed
    from trl.models.utils import add_hooks, remove_hooks

    with deepspeed.zero.GatheredParameters(list(parameters)):
        if free_running:
            remove_hooks(model)
        yield
        if free_running:
            add_hooks(model)


@contextmanager
def unsharded() -> Iterator[None]:
    """Load a model whole on every rank, though ZeRO-3 is on."""
    from transformers.integrations import deepspeed as integration

    before = integration._hf_deepspeed_config_weak_ref
    integration.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        integration._hf_deepspeed_config_weak_ref = before
