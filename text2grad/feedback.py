"""Natural-language feedback on one response, and its text form z = [c; A(y)] (paper, section 3.4).

z is one JSON object, critique first, so that the spans are written in the light of the critique::

    {"textual_feedback": "Names the cause, but invents a date.", "good_spans": ["…"], "poor_spans": ["…"]}

What no quote can hold follows where the critic gives it: what the response lacks, and a verdict on the whole::

    {…, "missing": ["what the writer asks"], "verdict": 0.3}

Without a critique (the ablation of section 4.5), z = A(y): the same object with its two lists alone.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from text2grad.safety.gate import UnreadableError, shown, storable, unique_keys, whole_number

VARIANTS = ("cot", "no_cot", "spans", "human_feedback", "dense")
"""What is asked for: reasoning, critique and spans; critique and spans; spans alone (the ablation of section 4.5);
spans for a critique that a person wrote (algorithm 2's other branch); a critique and a score for every word (the dense
baseline of appendix I.1)."""


_OBJECT = re.compile(r"\{[ \t\n\r]*")
_BACKSLASH = re.compile(r"""(\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})|\\('?)""")
"""An escape of JSON's; or a lone backslash, which is read as itself, and left out before an apostrophe."""
_LONGEST_REPLY = 1_000_000  # characters
_MOST_ATTEMPTS = 1000  # braces of a reply that begin no whole object
_MOST_READ = 20_000_000  # characters read in such attempts, for objects that begin inside one another


class FeedbackError(ValueError):
    """A text that should hold feedback does not. The message says what is wrong and where.

    Attributes:
        passing: there is no text at all, since whoever was asked is away: to be asked again later.
    """

    def __init__(self, message: str, passing: bool = False):
        super().__init__(message)
        self.passing = passing


@dataclass(frozen=True)
class Feedback:
    """A critique c and the quotes A(y) of the response that it is about.

    ``good`` and ``poor`` are the two span slots; what each is worth is the task's to say (for code, ``poor`` holds
    the wrong code at −1 and ``good`` the improvable code at 0). ``scores`` is the dense form of the ablations
    (appendix I.1): pieces of the response in reading order, each with a value in [−1, 1]. Where nobody was asked for a
    critique, it is empty.

    ``missing`` names what the response lacks, each item a short phrase. ``score`` is the critic's verdict on the whole
    response, in [−1, 1]; None where it gave none (:func:`verdict` then derives one from the spans).
    """

    critique: str
    good: list[str] = field(default_factory=list)
    poor: list[str] = field(default_factory=list)
    scores: list[tuple[str, float]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    score: float | None = None


@dataclass(frozen=True)
class Verdict:
    """How good a whole response is, in [−1, 1], and whether the critic gave it or it was derived from the spans."""

    value: float
    source: Literal["given", "derived"]


def balance(right: float, wrong: float, missing: float) -> float:
    """2·right / (2·right + wrong + missing), mapped from [0, 1] to [−1, 1]; 0 where nothing was found at all.

    It is F1, in which what is wrong lowers precision and what is missing lowers recall. So a longer response gains by
    what it adds, a shorter one by what it need not say, and neither by its length.
    """
    total = 2 * right + wrong + missing
    return 4 * right / total - 1 if total > 0 else 0.0


def verdict(feedback: Feedback, unquoted_is_right: bool = False) -> Verdict:
    """The critic's verdict on the whole response, or else one derived from its spans and from what it calls missing.

    Derived from spans it is their :func:`balance`, each quote and each missing thing counting one. Derived from dense
    ``scores`` it is their mean.

    Args:
        unquoted_is_right: text outside of spans is right (code): all of it counts as one right thing, and what ``good``
            holds is not praise.
    """
    if feedback.score is not None:
        return Verdict(feedback.score, "given")
    if feedback.scores and not (feedback.good or feedback.poor):
        return Verdict(sum(score for _, score in feedback.scores) / len(feedback.scores), "derived")
    right = 1 if unquoted_is_right else len(feedback.good)
    return Verdict(balance(right, len(feedback.poor), len(feedback.missing)), "derived")


@dataclass(frozen=True)
class FeedbackFields:
    """The names a task gives to critique, good and poor spans, in its records and in z alike.

    Attributes:
        score: of the verdict on the whole response.
        with_critique: whether z has a critique; without one it is the spans alone.
        with_verdict: whether z ends with what is missing and the verdict, where feedback has them.
    """

    critique: str
    good: str
    poor: str
    scores: str = "scores"
    missing: str = "missing"
    score: str = "verdict"
    with_critique: bool = True
    with_verdict: bool = True

    @property
    def variant(self) -> str:
        """The one of ``VARIANTS`` whose reply is z, with nothing before it."""
        return "no_cot" if self.with_critique else "spans"

    @property
    def whole(self) -> str:
        """How z goes on after the spans, for a reward model's prompt: ``${whole}``."""
        asked = self.with_critique and self.with_verdict
        return f', "{self.missing}": ["..."], "{self.score}": -1..1' if asked else ""

    def to_dict(self, feedback: Feedback) -> dict:
        """Without the critique where there is none, or none is wanted; z that is the spans alone ends with them."""
        critique = {self.critique: feedback.critique} if self.with_critique and feedback.critique else {}
        spans = {self.good: list(feedback.good), self.poor: list(feedback.poor)}
        scores = {self.scores: [list(pair) for pair in feedback.scores]} if feedback.scores else {}
        given = feedback.missing or feedback.score is not None
        if not (given and self.with_critique and self.with_verdict):
            return {**critique, **spans, **scores}
        score = {} if feedback.score is None else {self.score: feedback.score}
        return {**critique, **spans, **scores, self.missing: list(feedback.missing), **score}

    def render(self, feedback: Feedback) -> str:
        """z: the JSON text that a reward model learns to write."""
        return json.dumps(self.to_dict(feedback), ensure_ascii=False)

    def from_dict(self, value: dict, where: str = "the feedback", critique_needed: bool = False) -> Feedback:
        """Check and convert one decoded object; keys may differ in case, spaces and underscores.

        Args:
            critique_needed: refuse spans or scores without a critique.
        """
        by_name = {normalised(key): item for key, item in value.items()}
        dense = by_name.get(normalised(self.scores))
        if not critique_needed:
            by_name.setdefault(normalised(self.critique), "")
        needed = (self.critique,) if dense is not None else (self.critique, self.good, self.poor)
        missing = [name for name in needed if normalised(name) not in by_name]
        if missing:
            raise FeedbackError(f"{where} lacks {', '.join(map(repr, missing))}; it has {shown(sorted(value))}")
        critique = by_name[normalised(self.critique)]
        if not isinstance(critique, str) or not (critique.strip() or (critique == "" and not critique_needed)):
            raise FeedbackError(f"{self.critique!r} of {where} is not a text but {shown(critique)}")
        _check_encodable(critique, self.critique)
        score = by_name.get(normalised(self.score))
        if score is not None and not is_score(score):
            raise FeedbackError(f"{self.score!r} of {where} is not a number in -1..1 but {shown(score)}")
        lists = (self.good, self.poor, self.missing)
        good, poor, lacking = (self._texts(by_name.get(normalised(name)), name) for name in lists)
        score = None if score is None else float(score)
        return Feedback(critique.strip(), good, poor, self._scores(dense), lacking, score)

    def parse(self, text: str, critique: str | None = None) -> Feedback:
        """Read feedback back from what a model wrote.

        Prose and code fences around the object are allowed; where several complete objects carry the fields, the
        last one counts (a model that reasons first may draft). A cut-off object is an error, never a guess.

        Args:
            critique: the critique, where it is given (a person wrote it) and the model was asked for spans alone.

        Raises:
            FeedbackError: no complete object, a missing field, or a field of the wrong type.
        """
        objects, none_because = json_objects(text)
        if not objects:
            raise FeedbackError(none_because)
        first = self.critique if self.with_critique and critique is None else self.good
        candidates = [value for value in objects if normalised(first) in map(normalised, value)]
        chosen = (candidates or objects)[-1]
        if critique is not None:
            chosen = {**chosen, self.critique: critique}
        if not self.with_critique:  # what it writes beside the spans all the same is not what was asked for
            others = {normalised(name) for name in (self.critique, self.scores, self.missing, self.score)}
            chosen = {key: item for key, item in chosen.items() if normalised(key) not in others}
        return self.from_dict(chosen, critique_needed=self.with_critique)

    def _texts(self, value: object, name: str) -> list[str]:
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise FeedbackError(f"{name!r} is not a list of texts but {shown(value)}")
        for text in value:
            _check_encodable(text, name)
        return [text for text in value if text.strip()]

    def _scores(self, value: object) -> list[tuple[str, float]]:
        pairs: Any = [] if value is None else value
        if not isinstance(pairs, list):
            raise FeedbackError(f"{self.scores!r} is not a list of [piece, score] pairs but {shown(value)}")
        for pair in pairs:
            if not (
                isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[0], str) and is_score(pair[1])
            ):
                raise FeedbackError(f"{self.scores!r} holds {shown(pair)}; each item is [piece, score in -1..1]")
            _check_encodable(pair[0], self.scores)
        return [(piece, float(score)) for piece, score in pairs if piece.strip()]


def reply_schema(fields: FeedbackFields, variant: str) -> dict[str, Any]:
    """The JSON schema of a reply, by the rules of strict structured output: all fields required, none besides."""
    texts: dict[str, Any] = {"type": "array", "items": {"type": "string"}}
    score: dict[str, Any] = {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "number"}]}}
    text: dict[str, Any] = {"type": "string"}
    spans = {fields.good: texts, fields.poor: texts}
    missing = {fields.missing: texts} if fields.with_verdict else {}
    whole = {**missing, fields.score: {"type": "number"}} if fields.with_verdict else {}
    properties = {
        "cot": {"reasoning": text, fields.critique: text, **spans, **whole},
        "no_cot": {fields.critique: text, **spans, **whole},
        "spans": spans,
        "human_feedback": {**spans, **missing},
        "dense": {fields.critique: text, fields.scores: {"type": "array", "items": score}},
    }[variant]
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def normalised(key: str) -> str:
    """A field's name without what models write differently: case, spaces and hyphens."""
    return "_".join(key.lower().replace("_", " ").replace("-", " ").split())


def is_score(value: object) -> bool:
    """Whether a value is a number in −1..1."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -1 <= value <= 1


def _check_encodable(text: str, name: str) -> None:
    if not storable(text):
        raise FeedbackError(f"{name!r} contains a lone surrogate, which no file can store: {shown(text)}")


def json_objects(text: str) -> tuple[list[dict], str]:
    """All outermost JSON objects in ``text``, and why there are none where there are none.

    The time it takes is bounded: by the length of the text, and by the number of braces that begin no object.
    """
    if len(text) > _LONGEST_REPLY:
        return [], f"the reply has {len(text)} characters, more than {_LONGEST_REPLY}"
    if not storable(text):
        return [], f"the reply contains a lone surrogate, which no file can store: {shown(text)}"
    decoder = json.JSONDecoder(strict=False, object_pairs_hook=unique_keys, parse_int=whole_number)
    objects: list[dict] = []
    problem = f"no JSON object in the reply ({shown(text)})" if text.strip() else "the reply is empty"
    last = len(text.rstrip()) - 1
    position, attempts, read = 0, 0, 0
    while opening := _OBJECT.search(text, position):
        start, position = opening.start(), opening.start() + 1
        if text[opening.end() : opening.end() + 1] not in ('"', "}"):  # what the decoder would say, without its price
            cut = opening.end() >= last
            expected = "Expecting property name enclosed in double quotes"
            problem = f"{'the JSON is cut off' if cut else 'broken JSON'} at character {opening.end()}: {expected}"
            continue
        attempts += 1
        if attempts > _MOST_ATTEMPTS or read > _MOST_READ:
            return objects, "the reply holds too many braces that begin no whole object"
        try:
            value, position = decoder.raw_decode(text, start)
            objects.append(value)
            attempts -= 1
        except UnreadableError as error:
            problem, read = f"the object cannot be read: {error}", read + len(text) - start
        except RecursionError:
            return objects, "the reply nests objects too deeply to read"
        except json.JSONDecodeError as error:
            if error.msg.startswith("Invalid \\"):  # code that is quoted as it is: \d for \\d, \' for '
                return json_objects(_BACKSLASH.sub(lambda found: found[1] or found[2] or r"\\", text))
            cut = error.pos >= last or "Unterminated" in error.msg
            problem = f"{'the JSON is cut off' if cut else 'broken JSON'} at character {error.pos}: {error.msg}"
            read += error.pos - start
    return objects, problem


def without_quotes(critique: str, quotes: Sequence[str]) -> str:
    """The critique with an ellipsis in place of each quote: for a reader who should not copy what it criticises.

    Quotes of one short word stay. They may be any word of the critique, too.
    """
    for quote in sorted({" ".join(quote.split()) for quote in quotes}, key=len, reverse=True):
        if len(quote) > 3:
            pattern = r"\s+".join(map(re.escape, quote.split()))
            critique = re.sub(rf"(?<!\w){pattern}(?!\w)", "…", critique)
    return critique
