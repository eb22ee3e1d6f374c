"""UltraFeedback: open-domain questions. A list of records whose ``response`` is a user and an assistant message."""

import math
import re
from collections.abc import Mapping
from pathlib import Path

from text2grad.errors import InputError
from text2grad.tasks.base import Record, Task, settings_files, text_field

_OF_A_RESPONSE = ("is_chosen", "score", "critique")
"""What a record says of the response that it holds."""


class UltraFeedback(Task):
    name = "ultrafeedback"
    id_fields = ("prompt_id", "id")
    human_feedback_field = "critique"
    programmatic_critic = "text2grad.critics.programs.ultrafeedback.critic:AnswerCritic"
    known_value_from = "is_chosen or score"
    no_steps = (
        "its answers are long and open, without reasoning steps that could be right or wrong one by one, and labelling "
        "them would cost 6 to 8 times the tokens (appendix N); the paper leaves it out as well"
    )
    format_help = "see the ultrafeedback format in README.md"
    folder = Path(__file__).parent
    places: Mapping[str, str] = {**Task.places, **settings_files("ultrafeedback")}

    def prompt(self, record: Record) -> str:
        return text_field(record, "prompt")

    def response(self, record: Record) -> str:
        return text_field(self._answer(record), "content")

    def with_response(self, record: Record, response: str) -> Record:
        user = {"content": self.prompt(record), "role": "user"}
        asked = {name: value for name, value in record.items() if name not in _OF_A_RESPONSE}
        return {**asked, "response": [user, {"content": response, "role": "assistant"}]}

    def known_value(self, record: Record) -> float | None:
        """1 for the chosen response and 0 for the rejected one; without that mark, the record's score.

        A CSV file holds both as texts.
        """
        if (mark := str(record.get("is_chosen")).lower()) in ("true", "false"):
            return float(mark == "true")
        try:
            score = float(str(record.get("score")))
        except ValueError:
            return None
        return score if math.isfinite(score) else None

    @staticmethod
    def _answer(record: Record) -> Record:
        if "response" not in record:
            raise InputError(f"it has no field 'response'; it has {', '.join(sorted(record)) or 'no fields at all'}")
        turns = record["response"]
        if isinstance(turns, str):  # a table can hold no messages
            if re.match(r"\s*\[\{.*\brole\b.*\bassistant\b", turns, re.DOTALL):
                raise InputError("its field 'response' holds messages as a text; save the file as .json or .parquet")
            return {"content": turns}
        messages = turns if isinstance(turns, list) else []
        answers = [turn for turn in messages if isinstance(turn, dict) and turn.get("role") == "assistant"]
        if not answers:
            raise InputError("its field 'response' is not a list of messages with one of role 'assistant'")
        return answers[-1]
