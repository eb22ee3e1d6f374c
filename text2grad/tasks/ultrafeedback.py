"""UltraFeedback: open-domain questions. A list of records whose ``response`` is a user and an assistant message."""

from __future__ import annotations

from text2grad.errors import InputError
from text2grad.feedback import FeedbackFields
from text2grad.tasks.base import LabelValues, Record, Task, content_id, text_field


class UltraFeedback(Task):
    name = "ultrafeedback"
    fields = FeedbackFields(critique="textual_feedback", good="good_spans", poor="poor_spans")
    values = LabelValues(poor=-1.0, good=1.0, default=0.0)

    def prompt(self, record: Record) -> str:
        return text_field(record, "prompt")

    def response(self, record: Record) -> str:
        return text_field(self._answer(record), "content")

    def with_response(self, record: Record, response: str) -> Record:
        user = {"content": self.prompt(record), "role": "user"}
        return {**record, "response": [user, {"content": response, "role": "assistant"}]}

    def id_of(self, record: Record) -> str:
        base = str(record.get("prompt_id") or content_id("prompt", self.prompt(record)))
        return content_id(base, self.response(record))

    @staticmethod
    def _answer(record: Record) -> Record:
        if "response" not in record:
            raise InputError(f"it has no field 'response'; it has {', '.join(sorted(record)) or 'no fields at all'}")
        turns = record["response"]
        answers = (
            [turn for turn in turns if isinstance(turn, dict) and turn.get("role") == "assistant"]
            if isinstance(turns, list)
            else []
        )
        if not answers:
            raise InputError("its field 'response' is not a list of messages with one of role 'assistant'")
        return answers[-1]
