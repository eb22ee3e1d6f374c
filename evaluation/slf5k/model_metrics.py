"""Metrics that a model computes: BERTScore by an encoder, perplexity by a causal LM. Each returns a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm.auto import tqdm

from evaluation.optional_packages import optional_package
from evaluation.results import Figure
from text2grad.errors import InputError
from text2grad.models import best_device, load_model, load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Texts = Mapping[str, str]


def bertscore(responses: Texts, references: Texts, encoder: str, layer: int | None = None) -> Figure:
    """BERTScore F1 (Zhang et al. 2020) by bert-score, no idf, no rescaling, mean over records.

    Args:
        encoder: hub id or folder. ``roberta-large`` is what bert-score takes for English; scores of different
            encoders or layers are not comparable.
        layer: whose output is compared; by default what bert-score recommends for a model it knows, else the last.
    """
    bert_score = optional_package("bert_score")
    from transformers import AutoConfig

    known = bert_score.utils.model2layers.get(encoder)
    if known is None or layer is not None:
        try:
            config = AutoConfig.from_pretrained(encoder, trust_remote_code=False)
        except (OSError, ValueError) as error:
            raise InputError(
                f"{encoder}: cannot be loaded as an encoder ({' '.join(str(error).split())[:200]})"
            ) from None
        if layer is not None and not 0 < layer <= config.num_hidden_layers:
            raise InputError(f"--bertscore_layer {layer}: {encoder} has layers 1 to {config.num_hidden_layers}")
        known = layer or config.num_hidden_layers
    scorer = bert_score.BERTScorer(model_type=encoder, num_layers=known, device=best_device())
    tokenizer, limit = scorer._tokenizer, scorer._model.config.max_position_embeddings
    # Tokenizers without a limit of their own hand a number to the tokenizer library that it cannot hold.
    tokenizer.model_max_length = min(tokenizer.model_max_length, limit)
    keys = list(references)
    *_, f1 = scorer.score([responses[key] for key in keys], [references[key] for key in keys], batch_size=32)
    return Figure.mean(dict(zip(keys, f1.tolist(), strict=True)))


def perplexity(responses: Texts, model_name: str, batch_size: int = 8) -> Figure:
    """exp of the mean negative log-likelihood per token of the responses by themselves, without their post.

    The first token counts where the model has a beginning-of-text token to predict it from. Longer texts weigh more.
    """
    tokenizer = load_tokenizer(model_name)
    device = best_device()
    model = load_model(model_name, "float32" if device == "cpu" else "auto", device)
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    start = [tokenizer.bos_token_id] if tokenizer.bos_token_id is not None else []
    ids = {key: (start + tokenizer.encode(text, add_special_tokens=False))[:limit] for key, text in responses.items()}
    ordered = sorted((key for key in ids if len(ids[key]) > 1), key=lambda key: -len(ids[key]))
    rows: dict[str, tuple[float, float]] = {}
    with tqdm(total=len(ordered), desc=f"perplexity under {Path(model_name).name}", unit="record") as bar:
        for first in range(0, len(ordered), batch_size):
            batch = ordered[first : first + batch_size]
            for key, nll in zip(batch, _nll(model, [ids[key] for key in batch], tokenizer.pad_token_id), strict=True):
                rows[key] = (nll, len(ids[key]) - 1)
            bar.update(len(batch))
    return Figure({key: rows[key] for key in responses if key in rows}, "exp_ratio")


def _nll(model: PreTrainedModel, texts: Sequence[list[int]], pad: int) -> list[float]:
    """Σ_t −log p(token_t | before) of each text, t from 1."""
    import torch

    width = max(map(len, texts))
    ids = torch.tensor([text + [pad] * (width - len(text)) for text in texts], device=model.device)
    mask = torch.tensor([[1] * len(text) + [0] * (width - len(text)) for text in texts], device=model.device)
    with torch.inference_mode():
        logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1].float()
    losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
    return (losses * mask[:, 1:]).sum(-1).tolist()
