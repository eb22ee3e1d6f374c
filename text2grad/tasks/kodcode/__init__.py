"""KodCode: Python functions with unit tests. Only the code of a response gets a reward."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

from text2grad.errors import InputError
from text2grad.feedback import FeedbackFields
from text2grad.safety.gate import UnreadableError, read_json
from text2grad.tasks.base import Interval, LabelValues, Record, SpanWords, Task, settings_files, text_field

_FENCE = re.compile(
    r"^[ \t]*+(`{3,}+|~{3,}+)[ \t]*+([\w+#.-]*+)[^\n`]*+\n(.*?)(?:^[ \t]*+\1[ \t\r]*+$|\Z)", re.DOTALL | re.MULTILINE
)
_PYTHON = re.compile(r"(?:python|py)[\d.]*|pycon|ipython", re.IGNORECASE)  # with or without a version


class KodCode(Task):
    name = "kodcode"
    fields = FeedbackFields(critique="code_feedback", good="improvement_code", poor="wrong_code")
    values = LabelValues(poor=-1.0, good=0.0, default=1.0)
    span_words = SpanWords(
        "improvable", "wrong", "−1 in wrong code, 0 in improvable code and prose, +1 in all other code"
    )
    is_code = True
    passes_or_fails = True
    id_fields = ("question_id", "id")
    prompt_noun = "question"
    extra_prompt_fields = ("test", "log")
    programmatic_critic = "text2grad.critics.programs.kodcode.critic:CodeCritic"
    has_unit_tests = True
    known_value_from = "unit tests"
    format_help = "see the kodcode format in README.md"
    folder = Path(__file__).parent
    places: Mapping[str, str] = {**Task.places, **settings_files("kodcode")}

    def prompt(self, record: Record) -> str:
        return text_field(record, "question", "prompt")

    def response(self, record: Record) -> str:
        return text_field(record, "solution")

    def with_response(self, record: Record, response: str) -> Record:
        return {**record, "solution": response, "log": ""}

    def known_value(self, record: Record) -> float | None:
        """1 where the record's log says that its unit tests passed, 0 where it says that they failed."""
        passed = _log_of(record).get("passed")
        return float(passed) if isinstance(passed, bool) else None

    def undecided(self, record: Record) -> bool:
        return _log_of(record).get("error_type") == "Undecided"

    def check(self, record: Record) -> None:
        super().check(record)
        tests = record.get("test") or ""
        if not isinstance(tests, str) or (tests.strip() and not re.search(r"\bdef test|\bclass ", tests)):
            raise InputError("its field 'test' has no test function; write it as the text of a pytest file")

    def rewarded(self, response: str) -> list[Interval]:
        """The insides of the blocks that are fenced as Python, or of those without a language where there are none.

        A response without either is code as a whole, save blocks of other languages and of output.
        """
        blocks = list(_FENCE.finditer(response))
        python = [match.span(3) for match in blocks if _PYTHON.fullmatch(match[2])]
        if code := python or [match.span(3) for match in blocks if not match[2]]:
            return code
        edges = [0, *(edge for match in blocks for edge in match.span()), len(response)]
        around = [(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True)]
        return [(start, end) for start, end in around if response[start:end].strip()] or [(0, len(response))]

    def code(self, response: str) -> str:
        """The program inside a response, ready to run. What stands in a list is indented as a whole."""
        blocks = [response[start:end] for start, end in self.rewarded(response)]
        return "\n".join(dedent(block) if block[:1] in (" ", "\t") else block for block in blocks)

    def prompt_fields(self, record: Record) -> dict[str, str]:
        log = "" if self.undecided(record) else record.get("log") or ""
        shown = log if isinstance(log, str) else json.dumps(log, ensure_ascii=False, indent=1)
        return {**super().prompt_fields(record), "test": str(record.get("test") or ""), "log": shown}


def _log_of(record: Record) -> Mapping[str, Any]:
    """The log of a record's unit tests, where it is one that a program can read; else empty."""
    log = record.get("log")
    if isinstance(log, str) and log.lstrip().startswith("{"):
        try:
            log = read_json(log)
        except UnreadableError:
            return {}
    return log if isinstance(log, Mapping) else {}
