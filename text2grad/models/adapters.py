"""What PEFT leaves on a model: its wrapper around the whole, and adapter layers in place of linear ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel


def base_model(model: Any) -> PreTrainedModel:
    """A model without its PEFT wrapper (adapter layers stay in it)."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def without_adapter(module: Any) -> Any:
    """The linear layer inside of an adapter's."""
    return module.get_base_layer() if hasattr(module, "get_base_layer") else module


def folded(model: Any) -> PreTrainedModel:
    """A model with its adapter folded in; a vocabulary that both ends share is untied where only one is adapted."""
    from torch import nn

    if not hasattr(model, "merge_and_unload"):
        return model
    base = base_model(model)
    ends = [base.get_output_embeddings(), base.get_input_embeddings()]
    head, table = map(without_adapter, ends)
    if [head, table] != ends and getattr(head, "weight", None) is table.weight:
        head.weight = nn.Parameter(head.weight.detach().clone(), False)
        base.config.tie_word_embeddings = False
    return model.merge_and_unload()


def only_products(module: nn.Module) -> bool:
    """Whether :func:`merged_weight` is all that an adapter does here."""
    from peft.tuners.lora.layer import Linear as LoraLinear
    from peft.tuners.tuners_utils import BaseTunerLayer

    if not isinstance(module, BaseTunerLayer):
        return True
    return isinstance(module, LoraLinear) and not (module.lora_variant or any(module.lora_bias.values()))


def merged_weight(module: Any) -> Tensor:
    """A linear layer's weight with its active LoRA adapters added."""
    weight = without_adapter(module).weight.detach()
    for adapter in getattr(module, "active_adapters", ()):
        if adapter in getattr(module, "lora_A", {}) and not module.disable_adapters:
            weight = (weight.float() + module.get_delta_weight(adapter).float()).to(weight.dtype)
    return weight
