"""Stage 1: a critic over a file of responses (paper, section 3.3 and algorithm 2). Any task, any critic.

python rm_data_anno/annotate.py --task my_task.py --data_path responses.json --critic openai:gpt-4o
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import MISSING, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from rm_data_anno import fidelity
from rm_data_anno.batch_api import BatchClient, check_none_out, complete_in_batches
from rm_data_anno.validation import Validated, load_unannotated, validate
from text2grad.configs import parse_for, setting
from text2grad.critics import CRITIC_FORMS, Critic, load_critic, version_of
from text2grad.critics.chat import ChatCritic, ChatFeedback
from text2grad.critics.programs.kodcode.critic import CodeCritic
from text2grad.endpoints import is_endpoint
from text2grad.endpoints.client import ChatClient
from text2grad.endpoints.reply_cache import ReplyCache
from text2grad.endpoints.settings import Endpoint
from text2grad.errors import InputError, command
from text2grad.feedback import VARIANTS, Feedback, FeedbackError
from text2grad.journal import Outcome, map_records
from text2grad.prompts import variant_asked
from text2grad.records import Records, output_for, save_failures, save_json, save_records, save_text
from text2grad.sandbox import Sandbox
from text2grad.sandbox.unit_tests import VERDICTS, with_log
from text2grad.tasks import Record, Task, get_task
from text2grad.tasks.commands import quoted, say_next, stage_command

DEFAULT_CRITIC = "openai:gpt-4o"


@dataclass(kw_only=True)
class ChatOptions(Endpoint):
    """What only critics behind an API take."""

    model: str | None = setting(None, "a model of OpenAI's, or of the server at --base_url; --critic names both in one")
    base_url: str | None = setting(None, "the endpoint up to /v1; OpenAI's, or OPENAI_BASE_URL, by default")
    prompt: str | None = setting(
        None,
        "cot (default), no_cot, human_feedback or dense (the task's prompts/), or a file of your own, which asks for "
        "what the one of its name does, or else no_cot",
        "--prompt_file",
    )
    feedback_field: str | None = setting(None, "the field with a person's feedback, for human_feedback")
    temperature: float = setting(0.0, "sampling temperature")
    max_new_tokens: int = setting(2048, "tokens that a reply may have; dense labels need many", "--max_tokens")
    batch_api: bool = setting(False, "use OpenAI's Batch API, at half the price")
    batch_poll_seconds: float = setting(60.0, "how often to ask for a batch; 0: end after sending it", at_least=0)


@dataclass(kw_only=True)
class AnnotateConfig(ChatOptions):
    """Which responses, and who gives feedback on them."""

    data_path: str = setting(
        MISSING, "responses, in the task's format: a file, or a data set of the hub", "--dataset_path", "--responses"
    )
    output_path: str | None = setting(None, "default: beside the data, named .annotated.json", "--output_file")
    critic: str | None = setting(
        None, f"who gives feedback: {CRITIC_FORMS}; {DEFAULT_CRITIC} by default", "--annotator"
    )
    critique: bool = setting(True, "false: spans alone, without a critique (the paper's section 4.5)")
    retry_failed: bool = setting(False, "try the records again that failed in earlier runs")
    max_failures: float = setting(
        0.0, "share of records that may fail before the exit code is 1", at_least=0, at_most=1
    )
    allow_changed: bool = setting(
        False, "go on with another model, prompt or temperature; each record and the report say which"
    )
    test_seconds: float = setting(10.0, "time that unit tests may take, of a response whose record has no log of them")
    allow_unsafe: bool = setting(False, "run unit tests where this system cannot isolate them")

    @property
    def critic_spec(self) -> str:
        """The critic that ``critic`` names, or ``base_url`` and ``model``. ``chat`` is the default's former name."""
        if self.critic not in (None, "chat"):
            if is_endpoint(self.critic) and (self.base_url or self.model):
                raise InputError(f"--critic {self.critic}: names endpoint and model; leave --base_url and --model out")
            return self.critic
        model = self.model or DEFAULT_CRITIC.removeprefix("openai:")
        return f"{self.base_url}#{model}" if self.base_url else f"openai:{model}"


def annotate(task: str | Task, config: AnnotateConfig) -> None:
    """Annotate a file: every record ends in the output with its feedback, or in ``<output>.failed.json`` with a reason.

    Unit tests without a log are run first; their log goes into the output. Beside the output: ``.journal.jsonl`` (what
    makes a second run go on), ``.report.json`` and ``.report.md``; for critics behind an API ``.replies.jsonl`` (all
    that was paid for), and for batches ``.batches.json`` and ``.tests.jsonl`` (the logs that their questions show).

    Raises:
        InputError: before anything is written.
        SystemExit: code 1 where more records failed than ``max_failures`` allows, or the run ended early.
    """
    task = get_task(task)
    sandbox = _sandbox(task, config)
    records = load_unannotated(config.data_path, task)
    output = output_for(config.data_path, config.output_path, "annotated")
    work = _Annotation.load(task, config, records, output, sandbox)
    with closing(work), work.client.interruptible() if work.client else nullcontext():
        outcome = map_records(
            records,
            work,
            journal=_beside(output, "journal.jsonl"),
            settings=work.settings,
            batch_size=len(records) if config.batch_api else work.batch_size,
            workers=config.concurrency if work.client and not config.batch_api else work.workers,
            retry_failed=config.retry_failed,
            allow_changed=config.allow_changed,
            result_type=dict,
            description=f"annotating {task.name}",
            status=work.status,
        )
    outcome.stopped = outcome.stopped or work.stopped
    _write(task if config.critique else task.without_critique(), records, outcome, output, work, config.max_failures)


def _sandbox(task: Task, config: AnnotateConfig) -> Sandbox | None:
    """Where the records' unit tests run; None where records have none."""
    if task.has_unit_tests:
        return Sandbox(seconds=config.test_seconds, allow_unsafe=config.allow_unsafe)
    if config.allow_unsafe or config.test_seconds != AnnotateConfig.test_seconds:
        raise InputError(f"--test_seconds, --allow_unsafe: records of {task.name} have no unit tests; leave them out")
    return None


class _Annotation:
    """The work on each record: complete it, get feedback on it, validate that feedback."""

    def __init__(
        self, task: Task, critic: Critic, sandbox: Sandbox | None, settings: dict[str, Any], logs: Path | None = None
    ):
        self.task, self.critic, self.logs = task, critic, logs
        self.prepare = partial(with_log, sandbox=sandbox, task=task) if sandbox else None
        self.tests = {"test_seconds": sandbox.seconds, "verdicts": VERDICTS} if sandbox else {}
        self.settings = {"stage": "annotation", "task": task.name, **settings, **self.tests}
        self.chat = critic if isinstance(critic, ChatCritic) else None
        self.client: ChatClient | None = self.chat.client if self.chat else None
        self.cache = self.client.cache if self.client else None
        self.stopped = ""  # why batches ended early
        alone = self.chat or (getattr(critic, "by_item", False) and not task.has_unit_tests)
        self.workers, self.batch_size = getattr(critic, "concurrency", 0), 1 if alone else 8  # of a served critic
        if isinstance(critic, CodeCritic):  # tests that hang hold up their own record alone
            self.workers, self.batch_size = os.cpu_count() or 1, 1
        self._pool = ThreadPoolExecutor(os.cpu_count())  # for what runs on this machine

    @classmethod
    def load(cls, task: Task, config: AnnotateConfig, records: Records, output: Path, sandbox: Sandbox | None) -> Self:
        spec = config.critic_spec
        if not is_endpoint(spec):
            for option in fields(ChatOptions):
                if getattr(config, option.name) != option.default:
                    raise InputError(f"--{option.name}: is for critics behind an API, not for {spec}")
            options = {"sandbox": sandbox} if sandbox and spec == "programmatic" else {}
            critic = load_critic(spec, task, **options)
            decides: dict[str, Any] = {"annotator": critic.name} | version_of(critic)
            return cls(task, critic, sandbox, decides if config.critique else {**decides, "critique": False})

        critic = _chat_critic(spec, task, config)
        if critic.variant == "human_feedback":
            for record_id, record in records.items():  # before any of them is paid for
                try:
                    critic.human_feedback(record)
                except InputError as error:
                    raise InputError(f"{records.path}: record {record_id!r}: {error}") from None
        if not config.batch_api:
            if config.batch_poll_seconds != AnnotateConfig.batch_poll_seconds:
                raise InputError("--batch_poll_seconds: is for batches; add --batch_api true, or leave it out")
            check_none_out(_beside(output, "batches.json"))
        critic.client.remember(ReplyCache(_beside(output, "replies.jsonl")))
        settings: dict[str, Any] = {"annotator": "chat", "model": critic.client.model, "variant": critic.variant}
        settings |= {"prompt": critic.prompt.fingerprint, "temperature": config.temperature}
        if critic.variant == "human_feedback":
            settings["feedback_field"] = critic.feedback_field
        if isinstance(critic.client, BatchClient):
            critic.client.open(_beside(output, "batches.json"), settings, config.allow_changed)
        return cls(task, critic, sandbox, settings, _beside(output, "tests.jsonl") if config.batch_api else None)

    def __call__(self, ids: list[str], batch: list[Record]) -> list[dict | Exception | None]:
        """The fields that annotation adds to each record, or why it could not; None where no answer came yet."""
        prepared = self._prepared(ids, batch)
        given: list[ChatFeedback | None]
        if self.chat:
            questions = [partial(self._ask, self.chat, *pair) for pair in zip(ids, prepared, strict=True)]
            if isinstance(self.client, BatchClient):
                given, self.stopped = complete_in_batches(self.client, questions)
            else:
                given = [ask() for ask in questions]
        else:
            prompts, responses = map(self.task.prompt, prepared), map(self.task.response, prepared)
            given = [ChatFeedback(feedback) for feedback in self.critic(list(prompts), list(responses), prepared)]
        return [
            None if feedback is None else self._added(record_id, before, record, feedback)
            for record_id, before, record, feedback in zip(ids, batch, prepared, given, strict=True)
        ]

    def _prepared(self, ids: list[str], batch: list[Record]) -> list[Record]:
        """The records with their logs; those that a batch is asked about are kept beside the output.

        Tests that run again may print something else, and with another log it is another question than the one asked.
        """
        if not (prepare := self.prepare):
            return batch
        if not self.logs:
            return list(self._pool.map(prepare, batch))

        def run(_: list[str], values: list[Any]) -> list[dict[str, Any]]:
            return [
                {key: value for key, value in prepare(record).items() if record.get(key) != value}
                for record, _ in values
            ]

        logs = map_records(
            {record_id: [record, self.tests] for record_id, record in zip(ids, batch, strict=True)},
            run,
            journal=self.logs,
            settings={"stage": "tests"},
            workers=os.cpu_count() or 1,
            result_type=dict,
            description="running tests",
        ).whole()
        return [record | logs.results[record_id] for record_id, record in zip(ids, batch, strict=True)]

    def _ask(self, critic: ChatCritic, record_id: str, record: Record) -> ChatFeedback:
        prompt, response = self.task.prompt(record), self.task.response(record)
        return critic.feedback_on(
            prompt, response, record, lambda feedback: self._validate(feedback, record).complaint(), scope=record_id
        )

    def _validate(self, feedback: Feedback, record: Record) -> Validated:
        return validate(feedback, self.task.response(record), self.task)

    def _added(self, record_id: str, before: Record, record: Record, given: ChatFeedback) -> dict | Exception:
        if isinstance(given.feedback, FeedbackError):
            if self.cache and not given.feedback.passing:
                self.cache.void(record_id)
            return given.feedback
        checked = self._validate(given.feedback, record)
        validation = checked.to_dict()
        if given.complaint:
            first = self._validate(given.first, record).to_dict() if isinstance(given.first, Feedback) else {}
            validation["first"] = {"complaint": given.complaint, **first}
        annotation = {"annotator": self.critic.name, "validation": validation}
        if self.chat:
            annotation |= {"model": self.chat.client.model, "prompt": self.chat.variant, "usage": given.usage.to_dict()}
        if given.reasoning:
            annotation["reasoning"] = given.reasoning
        kept = checked.feedback if self.settings.get("critique", True) else replace(checked.feedback, critique="")
        after = self.task.with_feedback(record, kept, annotation)
        bare = self.task.without_older(before)
        return {key: value for key, value in after.items() if key not in bare or bare[key] != value}

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        if self.cache:
            self.cache.close()

    def status(self) -> dict[str, Any]:
        """For the progress bar."""
        if not self.client:
            return {}
        if self.client.price.listed:
            return {"cost": f"${self.client.budget.spent:.4f}"}
        return {"tokens": self.client.usage.prompt_tokens + self.client.usage.completion_tokens}

    def spending(self) -> dict[str, Any]:
        """All that was paid for this output, replies that led nowhere included."""
        if not self.client or not self.cache:
            return {}
        lost = {"lost_usd_at_most": round(self.client.budget.lost, 6)} if self.client.budget.lost else {}
        return {"paid": self.cache.usage.to_dict() | lost}


def _chat_critic(spec: str, task: Task, config: AnnotateConfig) -> ChatCritic:
    variant = config.prompt if config.prompt in VARIANTS else None
    return ChatCritic(
        spec,
        task,
        prompt=None if variant else config.prompt,
        variant=variant_asked(variant, config.critique),
        feedback_field=config.feedback_field,
        client_class=BatchClient if config.batch_api else ChatClient,
        constrained="none",
        temperature=config.temperature,
        max_tokens=config.max_new_tokens,
        **config.client_options(),
        **({"poll_seconds": config.batch_poll_seconds} if config.batch_api else {}),
    )


def _beside(output: Path, ending: str) -> Path:
    return output.with_name(f"{output.name}.{ending}")


def _write(task: Task, records: Records, outcome: Outcome, output: Path, work: _Annotation, allowed: float) -> None:
    annotated = {key: task.without_older(records[key]) | added for key, added in outcome.results.items()}
    if annotated or output.exists():  # of an earlier call, perhaps with other records
        save_records(output, records.like(annotated))
    failed = save_failures(output, outcome.failures)
    left = len(records) - len(annotated) - len(outcome.failures)
    report = fidelity.annotation_report(task, annotated, outcome.failures) | work.spending()
    report["records"] |= {"left": left} if left else {}
    report |= {"changes": outcome.changes} if outcome.changes else {}
    save_json(_beside(output, "report.json"), report)
    shown = report if annotated else {name: report[name] for name in ("records", "failures")}
    table = fidelity.report_table({output.name: shown})
    save_text(_beside(output, "report.md"), table)
    print(table)
    print(f"{len(annotated)} of {len(records)} records annotated: {output}")
    if outcome.failures:
        print(f"{len(outcome.failures)} failed (--retry_failed tries them again), reasons: {failed}", file=sys.stderr)
    if outcome.stopped:
        print(f"{left} left: {outcome.stopped}; run the same command again to continue", file=sys.stderr)
    if outcome.stopped or len(outcome.failures) / len(records) > allowed:
        raise SystemExit(1)
    say_next(
        f"train a reward model, {stage_command('reward_model', task)} --data_path {quoted(output)} "
        f"--output_dir runs/{task.name}/reward_model{'' if task.fields.with_critique else ' --critique false'}"
    )


@command
def main(name: str = "") -> None:
    """For the scripts of a task, or with ``--task`` for any."""
    annotate(*parse_for(name, AnnotateConfig))


if __name__ == "__main__":
    main()
