"""How feedback's decoder reads: prompts, then a few tokens at a time of which some are taken back."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from text2grad.models.adapters import base_model
from text2grad.models.decoder import Decoder, Rows, Together


class PackedModel:
    """A model that ``text2grad.models.decoder`` supports.

    Its methods are those of :class:`AnyModel`.

    Args:
        width: ids that a row reads in a pass, at most.
    """

    takes_back = True

    def __init__(self, model: PreTrainedModel, width: int):
        self._decoder, self._width = Decoder(base_model(model)), width
        self._together: Together | None = None  # kept from batch to batch: its graph costs as much as ten passes

    def begin(self, prompts: Sequence[Sequence[int]], shared: int, room: int) -> Tensor:
        if self._decoder.embedding.is_cuda:
            if self._together is None or not self._together.restart(prompts, room):
                self._together = Together(self._decoder, prompts, room, self._width)
            self._rows: Rows = self._together
        else:
            self._rows = Rows(self._decoder, prompts, room=128)
        return self._decoder.head(self._rows.prefill())

    def extend(self, ids: Sequence[Sequence[int]]) -> Tensor:
        return self._decoder.head(self._rows.extend(ids))

    def accept(self, counts: Sequence[int]) -> None:
        self._rows.accept(counts)

    def keep(self, rows: list[int]) -> None:
        self._rows.keep(rows)


def keeps_all(model: PreTrainedModel) -> bool:
    """Whether masks alone decide what a token sees: sliding windows and recurrent states count positions themselves."""
    return all(type(layer) is DynamicLayer for layer in DynamicCache(config=model.config).layers)


class AnyModel:
    """A causal LM through transformers' cache; the prefix is computed once.

    Args:
        prefix: ids that prompts begin with.
        pad: the id that fills shorter rows.
        device: where the model computes, where that is not where its weights are.

    Attributes:
        takes_back: whether rows may :meth:`accept` less than they read.
    """

    def __init__(self, model: PreTrainedModel, prefix: Sequence[int], pad: int, device: torch.device | str):
        self._model, self._prefix, self._pad, self._device = model, list(prefix), pad, device
        self.takes_back = keeps_all(model)
        self._sharded = any(hasattr(parameter, "ds_id") for parameter in model.parameters())
        self._prefix_cache: DynamicCache | None = None

    def begin(self, prompts: Sequence[Sequence[int]], shared: int, room: int) -> Tensor:
        """Read the prompts, whose first ``shared`` ids are the prefix's, and to which ``room`` ids may be added.

        Returns:
            The logits of what follows, ``[rows, V]``.
        """
        shared = shared if self.takes_back else 0
        rest = [list(ids[shared:]) for ids in prompts]
        width = max(map(len, rest))
        mask = [[1] * shared + [0] * (width - len(ids)) + [1] * len(ids) for ids in rest]
        self._mask = torch.tensor(mask, device=self._device)
        self._cache = self._prefilled(shared, len(rest))
        inputs = [[self._pad] * (width - len(ids)) + ids for ids in rest]
        return self._read(torch.tensor(inputs, device=self._device), 1)[:, 0]

    def extend(self, ids: Sequence[Sequence[int]]) -> Tensor:
        """Read one or more further ids in every row; logits of what follows each, row after row, ``[ids, V]``."""
        width = max(map(len, ids))
        inputs = torch.tensor([[*each, *[self._pad] * (width - len(each))] for each in ids], device=self._device)
        real = torch.tensor([[1] * len(each) + [0] * (width - len(each)) for each in ids], device=self._device)
        self._mask = torch.cat([self._mask, real], dim=1)
        seen = None
        if self.takes_back and self._model.config._attn_implementation == "sdpa":
            # From the mask of columns transformers makes the same, but asks the device at each pass whether it has to.
            columns = torch.arange(self._mask.shape[1], device=self._device)
            seen = self._mask[:, None, None].bool() & (columns <= columns[-width:, None])
        logits = self._read(inputs, width, seen)
        there = torch.tensor([row * width + place for row, each in enumerate(ids) for place in range(len(each))])
        return logits.flatten(0, 1)[there.to(self._device)]

    def accept(self, counts: Sequence[int]) -> None:
        """So many of the ids that were last read belong to each row."""
        width = self._mask.shape[1] - self._last
        for row, count in enumerate(counts):
            self._mask[row, width + count :] = 0

    def keep(self, rows: list[int]) -> None:
        """Drop all other rows."""
        indices = torch.tensor(rows, device=self._device)
        self._cache.reorder_cache(indices)  # recurrent states, too, and layers on several devices
        self._mask = self._mask[indices]

    def _read(self, inputs: Tensor, last: int, seen: Tensor | None = None) -> Tensor:
        """The logits of the last columns; ``seen``: which columns each of them attends to, ``[rows, 1, last, all]``."""
        self._last = last
        logits = self._model(
            input_ids=inputs,
            attention_mask=self._mask if seen is None else seen,
            position_ids=(self._mask.cumsum(-1) - 1).clamp(min=0)[:, -inputs.shape[1] :],
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=last,
        ).logits[:, -last:]
        if self._sharded:  # each pass needs all ranks, so they must choose the same tokens: rank 0's
            dist.broadcast(logits := logits.contiguous(), 0)
        return logits

    def _prefilled(self, shared: int, rows: int) -> DynamicCache:
        cache = DynamicCache(config=self._model.config)
        if shared:
            if self._prefix_cache is None:
                self._prefix_cache = DynamicCache(config=self._model.config)
                ids = torch.tensor([self._prefix], device=self._device)
                self._model(input_ids=ids, past_key_values=self._prefix_cache, use_cache=True, logits_to_keep=1)
            for layer, known in zip(cache.layers, self._prefix_cache.layers, strict=True):
                layer.update(*(part[:, :, :shared].expand(rows, -1, -1, -1) for part in (known.keys, known.values)))
        return cache
