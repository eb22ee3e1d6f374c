"""A chat model as a judge: asked each question once, its replies kept, its verdicts read."""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

from text2grad.configs import setting
from text2grad.endpoints.client import ChatClient, ChatError
from text2grad.endpoints.reply_cache import ReplyCache
from text2grad.endpoints.settings import Endpoint
from text2grad.errors import InputError
from text2grad.feedback import json_objects
from text2grad.journal import Outcome, map_records
from text2grad.records import check_output
from text2grad.safety.gate import fault
from text2grad.safety.redaction import redacted

WINNERS = ("first", "second", "tie")
SCHEMA = {
    "type": "object",
    "properties": {"reasoning": {"type": "string"}, "winner": {"type": "string", "enum": list(WINNERS)}},
    "required": ["reasoning", "winner"],
    "additionalProperties": False,
}


@dataclass
class JudgeConfig(Endpoint):
    """Who judges."""

    judge: str = setting(MISSING, "openai:MODEL, or http://HOST:PORT/v1#MODEL")
    judge_max_new_tokens: int = setting(1024, "longest judgement in tokens", "--judge_tokens")
    retry_failed: bool = setting(False, "ask again what failed in an earlier run")
    allow_changed: bool = setting(
        False, "go on with another judge or other settings; the result says from which judgement on"
    )


@dataclass
class Judge:
    """A chat model that is asked questions by id, each once, with its replies kept on disk."""

    config: JudgeConfig
    client: ChatClient

    def ask(
        self,
        questions: Mapping[str, str],
        read: Callable[[str], Any],
        *,
        journal: str | Path,
        settings: Mapping[str, Any],
        schema: Mapping[str, Any] | None = None,
        description: str = "judge",
    ) -> Outcome:
        """The judgement of each question, as ``read`` makes it from the reply.

        Args:
            read: raises ``ValueError`` for a reply that holds no judgement; that question then counts as failed.

        Raises:
            InputError: the run had to stop early (money, an outage); what is finished stays finished.
        """

        def work(ids: list[str], texts: list[str]) -> list[Any]:
            (key,), (text,) = ids, texts
            messages = [{"role": "user", "content": text}]
            try:
                reply = self.client.complete(messages, schema, scope=key)
                return [read(reply.text)]
            except InputError:
                raise  # a refused key, a wrong address: no other question will fare better
            except ValueError as error:
                self.client.forget(messages, schema, key)  # a later try asks again
                return [error]
            except ChatError as error:
                return [error]

        config = self.config
        return map_records(
            questions,
            work,
            journal=journal,
            settings={"judge": redacted(config.judge), "judge_tokens": config.judge_max_new_tokens, **settings},
            workers=config.concurrency,
            retry_failed=config.retry_failed,
            allow_changed=config.allow_changed,
            description=description,
            status=lambda: {"usd": round(self.client.budget.spent, 4)},
        ).whole()


@contextmanager
def open_judge(config: JudgeConfig, output_path: str | Path) -> Iterator[Judge]:
    """The judge, with its paid replies in a file next to ``output_path``, which is checked before anything is paid."""
    check_output(output_path)
    with closing(ReplyCache(f"{output_path}.replies.jsonl")) as cache:
        options = {"max_tokens": config.judge_max_new_tokens, "cache": cache, **config.client_options()}
        client = ChatClient.from_spec(config.judge, **options)
        with client.interruptible():
            yield Judge(config, client)


def read_verdict(text: str) -> dict[str, str]:
    """``{"winner", "reasoning"}`` of a judge's reply; ``ValueError`` where it names no winner."""
    objects, none_because = json_objects(text)
    named = [item for item in objects if "winner" in item]
    if not named:
        raise ValueError(none_because if not objects else f"the judge's reply names no winner: {text[-200:]!r}")
    if problem := fault(named[-1]):
        raise ValueError(f"the judge's reply cannot be kept: {problem}")
    winner = str(named[-1]["winner"]).strip().lower()
    if winner not in WINNERS:
        raise ValueError(f"the judge's winner is {winner!r}, not one of {', '.join(WINNERS)}")
    return {"winner": winner, "reasoning": str(named[-1].get("reasoning", ""))}


def orders_of(keys: list[str], orders: str, seed: int) -> dict[str, list[str]]:
    """Pair id -> the orders to judge it in: ``ab`` shows the system first, ``ba`` the baseline."""
    if orders == "both":
        return {key: ["ab", "ba"] for key in keys}
    return {key: [random.Random(f"{seed}:{key}").choice(["ab", "ba"])] for key in keys}
