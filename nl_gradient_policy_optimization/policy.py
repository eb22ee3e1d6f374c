"""The policy as the trainer sees it: log-probabilities, entropy and KL of given responses.

Only response positions go through the vocabulary head, and only ``chunk`` of them at a time: no tensor of shape
``[B, T, V]`` exists, neither for the entropy nor for the full KL. By default a chunk is as long as the vocabulary lets
it be, so that memory does not grow with either. Scores are float32 or better, also where weights have 16 bits: rounded
ones would move importance ratios by up to a tenth.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PretrainedConfig, PreTrainedModel

from text2grad.losses.kl import expectation, full_kl, sampled_kl
from text2grad.models import base_model
from text2grad.models.head import WithGradient, chunk_length, is_frozen, vocabulary_head

REFERENCE_ADAPTER = "reference"


class Scores(NamedTuple):
    """What a policy says of responses, ``[B, T]``, 0 on padding; None: not asked for.

    Attributes:
        logprobs: log π(y_t | x, y_<t).
        entropy: of π at each position; zeros where it was not asked for.
        hidden: the detached states that predict each token, ``[B, T, H]``.
        ref_logprobs, kl: log π_ref, and the KL to the reference.
        top_ids: the likeliest tokens of the vocabulary at each position, ``[B, T, K]``.
        at: the log-probabilities of given tokens, ``[B, T, K]``, or of ending, ``[B, T, ends]``.
    """

    logprobs: Tensor
    entropy: Tensor
    hidden: Tensor
    ref_logprobs: Tensor | None = None
    kl: Tensor | None = None
    top_ids: Tensor | None = None
    at: Tensor | None = None


class PolicyScorer(nn.Module):
    """Wraps a causal LM (or its PEFT model) for scoring; distributed training wraps this module.

    Args:
        reference: for full fine-tuning, the frozen reference. With an adapter none is needed: the reference is the
            model without its adapter, or with the frozen copy ``reference`` of an adapter that goes on training.
        temperature: divides the logits everywhere, as in sampling.
        chunk: response positions per pass through the vocabulary head; 0: as many as keep their scores below
            ``SCORES_IN_MEMORY``.
    """

    def __init__(
        self, model: nn.Module, reference: PreTrainedModel | None = None, temperature: float = 1.0, chunk: int = 0
    ):
        super().__init__()
        self.model: Any = model  # with or without a PEFT wrapper
        self._reference = [reference]  # in a list: its weights are not this module's to train, shard or save
        self.temperature = temperature
        self._kept: tuple[tuple[Tensor, Tensor], list[int], Tensor] | None = None
        self.chunk = chunk or chunk_length(self.config)

    @property
    def base(self) -> PreTrainedModel:
        """The causal LM itself, adapter layers inside."""
        return base_model(self.model)

    @property
    def config(self) -> PretrainedConfig:
        return self.base.config

    @property
    def precision(self) -> torch.dtype:
        """Of everything computed per token: float32, or float64 for a float64 model."""
        return torch.float64 if self.base.dtype == torch.float64 else torch.float32

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        response_mask: Tensor,
        kl: str | None = None,
        entropy: bool = False,
        top_k: int = 0,
        at: Tensor | None = None,
        ends: Sequence[int] = (),
        as_reference: bool = False,
        keep: bool = False,
    ) -> Scores:
        """Score the responses at the end of ``input_ids``.

        Args:
            input_ids, attention_mask: ``[B, P + T]``, prompts padded on the left, responses on the right.
            response_mask: ``[B, T]``.
            kl: also compare with the reference, by this kind (no gradient).
            top_k: also return the ids of so many tokens of the vocabulary, the likeliest at each position.
            at: ids of the vocabulary at each position, ``[B, T, K]``; also return their log-probabilities.
            ends: the same ids at every position, in place of ``at``.
            as_reference: score by the reference instead of the policy.
            keep: the next pass with gradients, if it is over the same tokens by the same weights, begins with the
                states of this one, graph and all.
        """
        with self._as_reference() if as_reference else nullcontext(self.base) as base:
            chosen, length = response_mask.bool(), response_mask.shape[1]
            targets = input_ids[:, -length:][chosen]
            if ends:
                at = torch.tensor(ends, device=input_ids.device).expand(*response_mask.shape, -1)
            asked = [at[chosen]] if at is not None else []
            hidden = self._states(base, (input_ids, attention_mask), length, keep)
            if kl is not None:
                with self._as_reference() as reference:
                    reference_hidden = _hidden_states(reference, input_ids, attention_mask, length)[chosen]
            options = {"base": base, "entropy": entropy, "top_k": top_k}
            own = hidden[chosen]
            if kl == "full":
                found = self._in_chunks(self._against_reference, [own, reference_hidden, targets, *asked], **options)
            elif torch.is_grad_enabled() and not (entropy or top_k or asked) and is_frozen(base):
                logprobs = WithGradient.apply(
                    own, targets, lambda *piece: self._statistics(*piece, **options)["logprobs"], self.chunk
                )
                found = {"logprobs": logprobs, "entropy": torch.zeros_like(logprobs)}
            else:
                found = self._in_chunks(self._statistics, [own, targets, *asked], **options)
            if kl is not None and kl != "full":
                pair = [reference_hidden, targets]
                with self._as_reference() as reference:
                    theirs = self._in_chunks(self._statistics, pair, base=reference, entropy=False)
                found["ref_logprobs"] = theirs["logprobs"]
                found["kl"] = sampled_kl(kl, found["logprobs"], found["ref_logprobs"])
            columns = {name: _scatter(values, chosen) for name, values in found.items()}
            return Scores(hidden=(hidden * chosen[..., None]).detach(), **columns)

    def _states(self, base: PreTrainedModel, inputs: tuple[Tensor, Tensor], length: int, keep: bool) -> Tensor:
        """:func:`_hidden_states`, or those that the pass which scored has kept."""
        if torch.is_grad_enabled() and self._kept is not None:
            (seen, versions, hidden), self._kept = self._kept, None
            if versions == _versions(base) and all(map(torch.equal, seen, inputs)):
                return hidden
        with torch.set_grad_enabled(keep or torch.is_grad_enabled()):
            hidden = _hidden_states(base, *inputs, length)
        if keep:
            self._kept = inputs, _versions(base), hidden
        return hidden.detach() if keep else hidden

    @contextmanager
    def _as_reference(self) -> Iterator[PreTrainedModel]:
        """The model whose π_ref is; the policy itself with other adapter weights, where it has an adapter."""
        if self._reference[0] is not None:
            yield self._reference[0]
        elif REFERENCE_ADAPTER in self.model.peft_config:
            self.model.base_model.set_adapter(REFERENCE_ADAPTER, inference_mode=True)
            try:
                yield self.model.get_base_model()
            finally:
                self.model.base_model.set_adapter("default")
        else:
            with self.model.disable_adapter():
                yield self.model.get_base_model()

    def _in_chunks(self, function: Callable, tensors: list[Tensor], **options) -> dict[str, Tensor]:
        most = self._most_chunks(-(-len(tensors[0]) // self.chunk))
        columns = (tensor.tensor_split(most) if most else tensor.split(self.chunk) for tensor in tensors)
        pieces = list(zip(*columns, strict=True))
        recompute = torch.is_grad_enabled() and len(pieces) > 1
        call = partial(checkpoint, function, use_reentrant=False) if recompute else function
        parts = [call(*piece, **options) for piece in pieces]
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def _most_chunks(self, count: int) -> int:
        """The largest ``count`` of all ranks, where ZeRO-3 shards the head; else 0.

        Each use of a sharded head gathers it on all ranks. One with fewer chunks would leave the others waiting.
        """
        if not hasattr(self.base.get_output_embeddings().weight, "ds_id"):
            return 0
        most = torch.tensor(count, device=self.base.device)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        return int(most)

    def _statistics(
        self,
        hidden: Tensor,
        targets: Tensor,
        at: Tensor | None = None,
        *,
        base: PreTrainedModel,
        entropy: bool,
        top_k: int = 0,
    ) -> dict[str, Tensor]:
        """``[N, H], [N] -> [N]`` of :class:`Scores`: log-probability of the targets, entropy, and what is asked for."""
        logits = self._tempered(vocabulary_head(base)(hidden))
        logprobs = -F.cross_entropy(logits, targets, reduction="none")
        found = {"logprobs": logprobs, "entropy": torch.zeros_like(logprobs)}
        if top_k:
            found["top_ids"] = logits.topk(min(top_k, logits.shape[-1])).indices
        if entropy or at is not None:
            normaliser = logits.logsumexp(-1, keepdim=True)
            if at is not None:
                found["at"] = logits.gather(-1, at) - normaliser
            if entropy:
                found["entropy"] = normaliser.squeeze(-1) - expectation(torch.exp(logits - normaliser), logits)
        return found

    def _against_reference(
        self,
        hidden: Tensor,
        reference_hidden: Tensor,
        targets: Tensor,
        at: Tensor | None = None,
        *,
        base: PreTrainedModel,
        entropy: bool,
        top_k: int = 0,
    ) -> dict[str, Tensor]:
        """``[N, H], [N, H], [N] -> [N]``: :meth:`_statistics`, the reference's log-probability, the full KL."""
        log_probs = self._tempered(vocabulary_head(base)(hidden)).log_softmax(-1)
        plain = self._reference[0] is None and type(base.get_output_embeddings()) is nn.Linear  # without an adapter
        with nullcontext(base) if plain else self._as_reference() as reference:
            ref_log_probs = self._tempered(vocabulary_head(reference)(reference_hidden)).log_softmax(-1)
        logprobs, ref_logprobs = (each.gather(-1, targets[:, None]).squeeze(-1) for each in (log_probs, ref_log_probs))
        found = {
            "logprobs": logprobs,
            "entropy": -expectation(log_probs.exp(), log_probs) if entropy else torch.zeros_like(logprobs),
            "ref_logprobs": ref_logprobs,
            "kl": full_kl(log_probs, ref_log_probs),
        }
        if top_k:
            found["top_ids"] = log_probs.topk(min(top_k, log_probs.shape[-1])).indices
        if at is not None:
            found["at"] = log_probs.gather(-1, at)
        return found

    def _tempered(self, logits: Tensor) -> Tensor:
        return logits if self.temperature == 1 else logits / self.temperature


def _hidden_states(base: PreTrainedModel, input_ids: Tensor, attention_mask: Tensor, length: int) -> Tensor:
    """The decoder's last states that predict the last ``length`` tokens: ``[B, length, H]``."""
    decoder = base.base_model
    inputs: dict[str, Any] = {"input_ids": input_ids, "attention_mask": attention_mask}
    accepted = inspect.signature(decoder.forward).parameters
    if "position_ids" in accepted:
        inputs["position_ids"] = (attention_mask.cumsum(-1) - 1).clamp(min=0)
    if "use_cache" in accepted:
        inputs["use_cache"] = False
    return decoder(**inputs).last_hidden_state[:, -length - 1 : -1]


def _versions(model: nn.Module) -> list[int]:
    """PyTorch's counts of each weight's changes in place: equal as long as no optimiser has stepped.

    What is written to ``weight.data`` is not counted. DeepSpeed may do so, so that ``Learner.keeps_graph`` wants one
    process without it.
    """
    return [weight._version for weight in model.parameters()]


def _scatter(values: Tensor, chosen: Tensor) -> Tensor:
    """Values of the chosen positions back in ``[B, T]`` (``[B, T, K]``), zeros on the others."""
    empty = torch.zeros((*chosen.shape, *values.shape[1:]), dtype=values.dtype, device=values.device)
    return empty.masked_scatter(chosen.view(*chosen.shape, *(1 for _ in values.shape[1:])), values)
