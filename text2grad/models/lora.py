"""LoRA adapters by a training's settings: a new one, or one that goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from text2grad.errors import InputError
from text2grad.models.loading import explaining, is_adapter

if TYPE_CHECKING:
    from peft import LoraConfig


class LoraSettings(Protocol):
    """Any settings with these fields."""

    model: str
    lora_r: int
    lora_alpha: int
    lora_dropout: float
    lora_target_modules: list[str]


def lora_config(settings: LoraSettings, **options: Any) -> LoraConfig:
    """PEFT's configuration of the adapter that the settings describe.

    Args:
        options: further settings of PEFT, such as ``task_type`` (a causal LM by default).
    """
    from peft import LoraConfig

    targets = settings.lora_target_modules
    return LoraConfig(
        r=settings.lora_r,
        lora_alpha=settings.lora_alpha,
        lora_dropout=settings.lora_dropout,
        target_modules="all-linear" if targets == ["all-linear"] else targets,
        **{"task_type": "CAUSAL_LM", **options},
    )


@contextmanager
def adapting() -> Iterator[None]:
    """PEFT's complaint that ``--lora_target_modules`` names no layer, as an ``InputError``."""
    try:
        yield
    except ValueError as error:
        if "Target modules" not in str(error):
            raise
        raise InputError(f"--lora_target_modules: {error}") from None


def go_on_with_adapter(settings: LoraSettings) -> None:
    """Where the model to train is an adapter, its rank, scale and layers stay what it was made with."""
    if not is_adapter(settings.model):
        return
    from peft import LoraConfig

    if not settings.lora_r:
        raise InputError(f"--lora_r 0: {settings.model} is an adapter; merge it first (nl_reward_model/merge_lora.py)")
    with explaining(settings.model):  # of another method's adapter, too, which has no rank
        adapter = LoraConfig.from_pretrained(settings.model)
        settings.lora_r, settings.lora_alpha = adapter.r, adapter.lora_alpha
    named = adapter.target_modules  # names, or a pattern
    settings.lora_target_modules = [named] if isinstance(named, str) else sorted(named)
