"""A grammar of z for one response, whose spans can only be quotes of it: for llguidance, here or in a server.

A quote has one spelling, that of ``render_feedback``. A list may repeat a quote, and nothing closes the object when the
tokens run out: in this process :mod:`text2grad.critics.reward_model.quotes` sees to both.
"""

import json
import re
from collections.abc import Iterable

from text2grad.feedback import FeedbackFields, reply_schema
from text2grad.tasks import Interval

_HALF = re.compile("[\ud800-\udfff]")  # of a surrogate pair, which no file can hold
_TEXT = r"""
TEXT: "\"" FIRST CHARACTER{0,3999} "\""
PHRASE: "\"" FIRST CHARACTER{0,119} "\""
FIRST: /[^\s"\\\x00-\x1f]|\\["\\\/]/
CHARACTER: /[^"\\\x00-\x1f]|\\["\\\/bfnrt]|\\u00[01][0-9a-f]/
VERDICT: /-?(0(\.[0-9]{1,4})?|1(\.0{1,4})?)/
texts: "[" (PHRASE (", " PHRASE){0,31})? "]"
"""


def quote_grammar(fields: FeedbackFields, variant: str, response: str, judged: Iterable[Interval]) -> str:
    """The replies of a variant (``VARIANTS``) about one response, laid out as z, in llguidance's dialect of Lark.

    Args:
        judged: the intervals of the response that a quote must lie inside (``task.rewarded(response)``).
    """
    names = list(reply_schema(fields, variant)["properties"])
    kinds = {fields.good: "quotes", fields.poor: "quotes", fields.missing: "texts", fields.score: "VERDICT"}
    reply = '"}"'
    for name in reversed(names):  # what z may end without opens a bracket: (", missing" … (", verdict" …)?)?
        literal = json.dumps(f"{', ' if name != names[0] else '{'}{json.dumps(name, ensure_ascii=False)}: ")
        rest = reply.removesuffix('"}"')
        whole = f"{literal} {kinds.get(name, 'TEXT')} {rest}".strip()
        reply = f'({whole})? "}}"' if name in (fields.missing, fields.score) else f'{whole} "}}"'
    head = '%llguidance {"no_forcing": true}'  # else fixed parts would have to be in one tokenisation, perhaps not z's
    return f'{head}\nstart: " "? {reply}\n{_TEXT.strip()}\n{_quotes([response[a:b] for a, b in judged])}'


def _quotes(pieces: list[str]) -> str:
    """The rule of a list of quotes, each a substring of one of the pieces that is more than white space."""
    pieces = [part for piece in pieces for part in _HALF.split(piece) if part.strip()]
    if not pieces:
        return 'quotes: "[]"\n'
    blanks = ['""', *(json.dumps(spelled(character)) for character in set("".join(pieces)) if character.isspace())]
    chunks = [json.dumps({"substring_chunks": [*map(spelled, piece)]}) for piece in pieces]
    lines = [f"PIECE_{number}: %regex {text}" for number, text in enumerate(chunks)]
    lines += [f"BLANKS: ({' | '.join(sorted(blanks))})*"]
    lines += [f"SOLID: ({' | '.join(f'PIECE_{number}' for number in range(len(pieces)))}) & ~BLANKS"]
    lines += ['QUOTE: "\\"" SOLID "\\""', 'quotes: "[" (QUOTE (", " QUOTE){0,31})? "]"']
    return "\n".join(lines) + "\n"


def spelled(text: str) -> str:
    """A text as ``render_feedback`` writes it inside a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
