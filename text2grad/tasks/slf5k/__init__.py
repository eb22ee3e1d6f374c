"""SLF5K: summaries of Reddit posts. ``{"t3_…": {"post" (or "Post"), "generated_summary", "ideal_human_summary"?}}``."""

from collections.abc import Mapping
from pathlib import Path

from text2grad.tasks.base import Record, Task, content_id, settings_files, text_field


class SLF5K(Task):
    name = "slf5k"
    id_fields = ("id",)
    prompt_noun = "post"
    max_response_tokens = 128
    programmatic_critic = "text2grad.critics.programs.slf5k.critic:SummaryCritic"
    format_help = "see the slf5k format in README.md"
    folder = Path(__file__).parent
    places: Mapping[str, str] = {**Task.places, **settings_files("slf5k")}

    def prompt(self, record: Record) -> str:
        post = text_field(record, "post", "Post", "prompt").strip()
        return post.removesuffix("TL;DR:").rstrip()

    def response(self, record: Record) -> str:
        return text_field(record, "generated_summary")

    def with_response(self, record: Record, response: str) -> Record:
        return {**record, "generated_summary": response}

    def reference(self, record: Record) -> str | None:
        return text_field(record, "ideal_human_summary") if record.get("ideal_human_summary") else None

    def id_of(self, record: Record) -> str:
        if record.get("id") not in (None, ""):
            return str(record["id"])
        return content_id("post", self.prompt(record) + (self.response_if_any(record) or ""))
