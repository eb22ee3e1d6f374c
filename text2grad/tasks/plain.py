"""Any prompt, any text as its response: for data that is none of the paper's tasks. ``{"prompt", "response"}``."""

from text2grad.tasks.base import Record, Task, text_field


class PlainTask(Task):
    """Labels are good (+1), poor (−1) and 0. Your own task in one line: ``TASK = PlainTask("poems")``.

    Records: ``{"prompt", "response"}``, and where there is one ``"id"`` (of the prompt) and ``"reference"`` (a good
    response by a person). Where only prompts matter, ``response`` may be missing.
    """

    def __init__(self, name: str = "plain", passes_or_fails: bool = False):
        self.name, self.passes_or_fails = name, passes_or_fails

    def prompt(self, record: Record) -> str:
        return text_field(record, "prompt")

    def response(self, record: Record) -> str:
        return text_field(record, "response")

    def with_response(self, record: Record, response: str) -> Record:
        return {**record, "response": response}

    def reference(self, record: Record) -> str | None:
        return text_field(record, "reference") if record.get("reference") else None
