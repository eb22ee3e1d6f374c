"""What a task is: its record format, its prompts' inputs, what its labels are worth, and which text is judged."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from text2grad.errors import InputError
from text2grad.feedback import Feedback, FeedbackFields

Record = dict
Interval = tuple[int, int]


@dataclass(frozen=True)
class LabelValues:
    """The pseudo-reward of a token in a poor span, in a good span, and in judged text that no span claims."""

    poor: float
    good: float
    default: float


class Task(ABC):
    """One task. Every method takes one record, as it stands in the task's JSON file."""

    name: str
    fields: FeedbackFields
    values: LabelValues
    is_code: bool = False
    """Responses are programs: a quote that is a whole line stands for every such line."""

    @abstractmethod
    def prompt(self, record: Record) -> str:
        """x: the post, the question, the request."""

    @abstractmethod
    def response(self, record: Record) -> str:
        """y: the text that feedback is about."""

    @abstractmethod
    def with_response(self, record: Record, response: str) -> Record:
        """A copy of the record that holds another response."""

    @abstractmethod
    def id_of(self, record: Record) -> str:
        """A stable id for a record of a list file."""

    def reference(self, record: Record) -> str | None:
        """A human (or known correct) answer, where the record has one."""
        return None

    def judged(self, response: str) -> list[Interval]:
        """The character intervals of the response that are judged; tokens outside get 0."""
        return [(0, len(response))]

    def messages(self, prompt: str) -> list[dict[str, str]]:
        """The chat that asks a policy for a response to x (``<task>.policy.txt`` beside this file, edited in place)."""
        template = (Path(__file__).parent / f"{self.name}.policy.txt").read_text(encoding="utf-8").strip()
        return [{"role": "user", "content": template.replace("${prompt}", prompt.strip())}]

    def prompt_fields(self, record: Record) -> dict[str, str]:
        """What a prompt file may name as ``${prompt}``, ``${response}``, …"""
        return {"prompt": self.prompt(record).strip(), "response": self.response(record)}

    def check(self, record: Record) -> None:
        """Raise ``InputError`` (without file and id, which the reader adds) where the record is not this task's."""
        if not self.prompt(record).strip():
            raise InputError("its prompt is empty")
        if not self.response(record).strip():
            raise InputError("its response is empty")

    def parse_feedback(self, text: str) -> Feedback:
        """Feedback from model text; raises ``FeedbackError``, which says what is wrong and where."""
        return self.fields.parse(text)

    def render_feedback(self, feedback: Feedback) -> str:
        """z = [c; A(y)] as one text."""
        return self.fields.render(feedback)

    def feedback(self, record: Record) -> Feedback | None:
        """The feedback an annotated record carries; None where it carries none."""
        if self.fields.critique not in record:
            return None
        return self.fields.from_dict(record, "the record")

    def with_feedback(self, record: Record, feedback: Feedback, annotation: dict) -> Record:
        """The record plus its feedback and how it came about."""
        return {**record, **self.fields.to_dict(feedback), "annotation": annotation}

    def training_prompts(self, record: Record) -> Record:
        """What stage 3 needs of a record: everything but feedback on an older response."""
        dropped = {self.fields.critique, self.fields.good, self.fields.poor, self.fields.scores, "annotation"}
        return {key: value for key, value in record.items() if key not in dropped}


def text_field(record: Record, *names: str) -> str:
    """The first of ``names`` that the record has, as text; ``InputError`` names what is missing."""
    for name in names:
        if name in record:
            if not isinstance(record[name], str):
                raise InputError(f"its field {name!r} is not a text but {type(record[name]).__name__}")
            return record[name]
    wanted = " or ".join(map(repr, names))
    raise InputError(f"it has no field {wanted}; it has {', '.join(sorted(record)) or 'no fields at all'}")


def content_id(base: str, content: str) -> str:
    """``base`` plus a short hash, for files in which one question has several responses."""
    return f"{base}#{hashlib.sha256(content.encode('utf-8', 'surrogatepass')).hexdigest()[:10]}"
