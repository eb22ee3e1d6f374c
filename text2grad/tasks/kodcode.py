"""KodCode: Python functions with unit tests. Only the code of a response is judged."""

from __future__ import annotations

import json
import re

from text2grad.feedback import FeedbackFields
from text2grad.tasks.base import Interval, LabelValues, Record, Task, content_id, text_field

_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[^\n`]*\n(.*?)(?:^[ \t]*\1[ \t]*$|\Z)", re.DOTALL | re.MULTILINE)


class KodCode(Task):
    name = "kodcode"
    fields = FeedbackFields(critique="code_feedback", good="improvement_code", poor="wrong_code")
    values = LabelValues(poor=-1.0, good=0.0, default=1.0)
    is_code = True

    def prompt(self, record: Record) -> str:
        return text_field(record, "question")

    def response(self, record: Record) -> str:
        return text_field(record, "solution")

    def with_response(self, record: Record, response: str) -> Record:
        return {**record, "solution": response, "log": ""}

    def id_of(self, record: Record) -> str:
        base = str(record.get("question_id") or content_id("question", self.prompt(record)))
        return content_id(base, self.response(record))

    def judged(self, response: str) -> list[Interval]:
        """The insides of the fenced blocks; the whole response where there are none."""
        return [match.span(2) for match in _FENCE.finditer(response)] or [(0, len(response))]

    def code(self, response: str) -> str:
        """The program inside a response, ready to run."""
        return "\n".join(response[start:end] for start, end in self.judged(response))

    def prompt_fields(self, record: Record) -> dict[str, str]:
        log = record.get("log") or ""
        shown = log if isinstance(log, str) else json.dumps(log, ensure_ascii=False, indent=1)
        return {**super().prompt_fields(record), "test": str(record.get("test") or ""), "log": shown}
