"""What a task is: its record format, its labels' values, the text that can get a reward, and where its prompts are.

A new task is one file with one subclass of :class:`Task` (docs/own_task_and_critic.md). Only ``name`` and the three
abstract methods are required; every other attribute has a default.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from string import Template

from text2grad.errors import InputError
from text2grad.feedback import Feedback, FeedbackFields, Verdict, normalised, verdict

Record = dict
Interval = tuple[int, int]

PROJECT = Path(__file__).resolve().parents[2]
"""The repository's root, where the stages' folders are. An installed package has none of them."""


@dataclass(frozen=True)
class LabelValues:
    """The pseudo-reward of a token in a poor span, in a good span, and in other text that can get a reward."""

    poor: float
    good: float
    default: float


@dataclass(frozen=True)
class SpanWords:
    """What reports call the spans in a task's two slots, and the value of δ in each."""

    good: str = "good"
    poor: str = "poor"
    values: str = "+1 in good spans, −1 in poor spans, 0 in all other text"


class Task(ABC):
    """One task. Every method takes one record, as it is in the task's file."""

    name: str
    fields: FeedbackFields = FeedbackFields(critique="textual_feedback", good="good_spans", poor="poor_spans")
    values: LabelValues = LabelValues(poor=-1.0, good=1.0, default=0.0)
    span_words: SpanWords = SpanWords()
    is_code: bool = False
    """Responses are programs: a quote that is a whole line means every such line."""

    id_fields: tuple[str, ...] = ("id", "prompt_id", "question_id")
    """The fields of a record that may hold its prompt's id; the first that does counts."""
    prompt_noun: str = "prompt"
    """What ids begin with where a record has none."""
    extra_prompt_fields: tuple[str, ...] = ()
    """What prompt files may name besides ``${prompt}`` and ``${response}``; :meth:`prompt_fields` fills them."""
    human_feedback_field: str = "feedback"
    """The field of a record that holds a person's feedback; a record that gets another response loses it."""
    max_response_tokens: int = 512
    """The longest response that evaluation asks a policy for."""
    passes_or_fails: bool = False
    """Responses are right or wrong as a whole: by default ``--algorithm verdict`` goes by the verdict alone."""

    programmatic_critic: str = ""
    """The critic ``programmatic``, as ``package.module:NAME`` or ``file.py:NAME``; empty where there is none."""
    has_unit_tests: bool = False
    """Records may hold unit tests (``test``) that a response's :meth:`code` is run against, and their log (``log``)."""
    known_value_from: str = ""
    """What :meth:`known_value` reads, in words. Empty: records do not say which response is better."""
    no_steps: str = ""
    """Why the responses have no steps for a process reward model; empty where they have."""
    format_help: str = "docs/own_task_and_critic.md says what a record needs"
    """The remedy in errors about records."""

    folder: Path | None = None
    """What ``places`` are relative to: the folder of the task's file; None means the repository's root."""
    places: Mapping[str, str] = {
        "annotation": "prompts/annotation",
        "reward_model": "prompts/reward_model",
        "policy": "prompts/policy.txt",
        "judge": "prompts/judge.txt",
        "reflect": "prompts/reflect.txt",
        "teacher": "prompts/teacher.txt",
        "reward_model_config": "reward_model.yaml",
        "policy_config": "policy.yaml",
    }
    """Where the task's prompts and settings are. The first two are folders with one file per variant."""
    source: str = ""
    """Where ``get_task`` finds this task again; empty for the tasks of the package."""

    @abstractmethod
    def prompt(self, record: Record) -> str:
        """x: the post, the question, the request."""

    @abstractmethod
    def response(self, record: Record) -> str:
        """y: the text that feedback is about."""

    @abstractmethod
    def with_response(self, record: Record, response: str) -> Record:
        """A copy of the record that holds another response."""

    def response_if_any(self, record: Record) -> str | None:
        """y, where the record has one; None for a prompt without a response, with a reference or without."""
        try:
            return self.response(record)
        except (InputError, LookupError):
            return None

    def prompt_id(self, record: Record) -> str:
        """A stable id of the record's prompt: its own, or one made of the prompt's text."""
        for name in self.id_fields:
            if record.get(name) not in (None, ""):
                return str(record[name])
        return content_id(self.prompt_noun, self.prompt(record))

    def id_of(self, record: Record) -> str:
        """A stable id of a record of a list file, where one prompt may have several responses."""
        return content_id(self.prompt_id(record), self.response_if_any(record) or self.reference(record) or "")

    def place(self, kind: str, name: str = "") -> Path:
        """The file or folder of a kind (see ``places``); with a name, the prompt of that name in the folder."""
        inherited = (vars(each).get("places", {}) for each in type(self).__mro__)
        path = (self.folder or PROJECT) / next(places[kind] for places in (self.places, *inherited) if kind in places)
        return path / f"{name}.txt" if name else path

    def about(self, record: Record, response: str) -> Record:
        """The record if it is about this response; else a copy that is (a rollout's, in training)."""
        return record if self.response_if_any(record) == response else self.with_response(record, response)

    def known_value(self, record: Record) -> float | None:
        """How good the record itself says its response is (``known_value_from``); None where it says nothing."""
        return None

    def undecided(self, record: Record) -> bool:
        """Whether the record's unit tests could not be judged, so that its response may be right or wrong."""
        return False

    def reference(self, record: Record) -> str | None:
        """A human (or known correct) answer, where the record has one."""
        return None

    def rewarded(self, response: str) -> list[Interval]:
        """The character intervals of the response that can get a reward; tokens outside get 0."""
        return [(0, len(response))]

    def code(self, response: str) -> str:
        """The program inside a response, ready to run."""
        return response

    def messages(self, prompt: str) -> list[dict[str, str]]:
        """The chat that asks a policy for a response to x: the text of the place ``policy``, or only x."""
        try:
            template = Template(self.place("policy").read_text(encoding="utf-8-sig").strip())
        except FileNotFoundError:
            template = Template("${prompt}")
        except UnicodeDecodeError as error:
            raise InputError(f"{self.place('policy')}: not UTF-8 at byte {error.start}; save it as UTF-8") from None
        if "prompt" not in (names := set(template.get_identifiers())):
            raise InputError(f"{self.place('policy')}: lacks ${{prompt}}; put it where that text belongs")
        if unknown := sorted(names - {"prompt"}):
            raise InputError(f"{self.place('policy')}: names ${{{unknown[0]}}}; it may name ${{prompt}} ($$ writes $)")
        return [{"role": "user", "content": template.safe_substitute(prompt=prompt.strip())}]

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

    def without_critique(self) -> Task:
        """The same task with a z of spans only (the ablation of section 4.5)."""
        spans_only = copy(self)
        spans_only.fields = replace(self.fields, with_critique=False)
        return spans_only

    def without_verdict(self) -> Task:
        """The same task with a z that ends with the spans: for a reward model that was trained without verdicts."""
        older = copy(self)
        older.fields = replace(self.fields, with_verdict=False)
        return older

    def verdict(self, feedback: Feedback) -> Verdict:
        """How good the whole response is: what the critic says, or else what its spans imply."""
        return verdict(feedback, unquoted_is_right=self.values.default > 0)

    def is_annotated(self, record: Record) -> bool:
        """Whether the record carries feedback, good or broken."""
        return self.fields.critique in record or {self.fields.good, self.fields.poor} <= set(record)

    def feedback(self, record: Record) -> Feedback | None:
        """The feedback an annotated record carries; None where it carries none."""
        return self.fields.from_dict(record, "the record") if self.is_annotated(record) else None

    def with_feedback(self, record: Record, feedback: Feedback, annotation: dict) -> Record:
        """The record plus its feedback and how it came about. What an older annotation said is gone."""
        older = {self.fields.critique: ""} if self.fields.critique in record else {}  # of other spans
        return {**self.without_older(record), **older, **self.fields.to_dict(feedback), "annotation": annotation}

    def without_older(self, record: Record) -> Record:
        """The record without those parts of its feedback that newer feedback may lack."""
        annotated = self.is_annotated(record)  # else fields of such names are the task's own
        stale = {self.fields.scores, self.fields.missing, self.fields.score} if annotated else set()
        return {key: value for key, value in record.items() if key not in stale}

    def check_room(self, record: Record) -> None:
        """``InputError`` (without file and id) where a record has, of its own, a field that annotation writes."""
        parts = {self.fields.good, self.fields.poor, self.fields.scores, self.fields.missing, self.fields.score}
        taken = set(map(normalised, parts | {"annotation"}))
        own = sorted(key for key in record if normalised(key) in taken)
        if own and not self.is_annotated(record):
            raise InputError(f"it is not annotated and has a field {own[0]!r}; rename that field, annotation writes it")

    def training_prompts(self, record: Record) -> Record:
        """The record without what was said of its response: a critic's feedback, a person's, the log of its tests."""
        dropped = {self.fields.critique, self.fields.good, self.fields.poor, self.human_feedback_field}
        dropped |= {"annotation"} if self.is_annotated(record) else set()
        dropped |= {"log", "log_weaker"} if self.has_unit_tests else set()
        return {key: value for key, value in self.without_older(record).items() if key not in dropped}


def text_field(record: Record, *names: str) -> str:
    """The first of ``names`` that the record has, as text; ``InputError`` names what is missing."""
    for name in names:
        if name in record:
            if not isinstance(record[name], str):
                raise InputError(f"its field {name!r} is not a text but {type(record[name]).__name__}")
            return record[name]
    wanted = " or ".join(map(repr, names))
    raise InputError(f"it has no field {wanted}; it has {', '.join(sorted(record))[:300] or 'no fields at all'}")


def settings_files(task: str) -> dict[str, str]:
    """The ``places`` of a released task's settings, which its stages keep."""
    return {
        "reward_model_config": str(PROJECT / "nl_reward_model" / task / "config.yaml"),
        "policy_config": str(PROJECT / "nl_gradient_policy_optimization" / task / "config.yaml"),
    }


def content_id(base: str, content: str) -> str:
    """``base`` plus a short hash, for files in which one question has several responses."""
    return f"{base}#{hashlib.sha256(content.encode('utf-8', 'surrogatepass')).hexdigest()[:10]}"
