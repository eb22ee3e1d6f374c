"""SLF5K: summaries of Reddit posts. ``{"t3_…": {"post" (or "Post"), "generated_summary", "ideal_human_summary"?}}``."""

from __future__ import annotations

from text2grad.feedback import FeedbackFields
from text2grad.tasks.base import LabelValues, Record, Task, content_id, text_field


class SLF5K(Task):
    name = "slf5k"
    fields = FeedbackFields(critique="textual_feedback", good="good_spans", poor="poor_spans")
    values = LabelValues(poor=-1.0, good=1.0, default=0.0)

    def prompt(self, record: Record) -> str:
        post = text_field(record, "post", "Post").strip()
        return post.removesuffix("TL;DR:").rstrip()

    def response(self, record: Record) -> str:
        return text_field(record, "generated_summary")

    def with_response(self, record: Record, response: str) -> Record:
        return {**record, "generated_summary": response}

    def reference(self, record: Record) -> str | None:
        return record.get("ideal_human_summary") or None

    def id_of(self, record: Record) -> str:
        return str(record.get("id") or content_id("post", self.prompt(record) + self.response(record)))
