"""Critics: R(x, y) = (c, A(y)) (paper, section 3.3); one interface for LLMs, reward models, programs and your own."""

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from text2grad.endpoints import is_endpoint
from text2grad.errors import InputError, StopRunError
from text2grad.feedback import Feedback, FeedbackError, FeedbackFields
from text2grad.records import fingerprint
from text2grad.safety.gate import fault as unstorable
from text2grad.safety.gate import shown
from text2grad.tasks import Record, Task, get_task
from text2grad.tasks.loading import fault, load_object, names_object

CRITIC_FORMS = (
    "programmatic, a reward model's folder, openai:MODEL, http://HOST/v1#MODEL, served:http://HOST:PORT (text2grad "
    "serve), or your own: package.module:FUNCTION or file.py:FUNCTION"
)
"""What a critic's spec may be, for help texts and errors."""

SERVED = "served:"
_FIELDS = FeedbackFields("critique", "good", "poor", score="score")  # the attributes of feedback, as its fields
_ITEM, _BATCH = ("prompt", "response", "record"), ("prompts", "responses", "records")


class Critic(Protocol):
    """Gives feedback on responses. ``name`` goes into logs and annotated records.

    A critic whose ``remote`` is true works on other processors: policies are trained on while it does.
    """

    name: str

    def __call__(
        self, prompts: Sequence[str], responses: Sequence[str], records: Sequence[Record] | None = None
    ) -> list[Feedback | FeedbackError]:
        """One item per response, in order; feedback that failed is a ``FeedbackError`` that says why.

        Args:
            prompts: x of each response: the post, the question (``task.prompt(record)``).
            records: the whole records, for critics that use more of them (unit tests, a human's feedback).
        """
        ...


def load_critic(spec: str, task: str | Task, **options: Any) -> Critic:
    """A critic from a short text.

    Args:
        spec: ``programmatic``; ``openai:MODEL``; ``http://HOST:PORT/v1#MODEL`` (any OpenAI-compatible server, a served
            reward model too); the folder of a trained reward model; or your own function,
            ``package.module:FUNCTION`` or ``file.py:FUNCTION`` (see :func:`as_critic`).
        task: the task, or its name.
        options: passed to the critic (for a reward model: ``device``, ``batch_size``, …; your own class's); ``sandbox``
            only to a program that takes one.

    Raises:
        InputError: the text has none of these forms, or names nothing that exists.
    """
    task = get_task(task)
    if spec == "programmatic":
        if not task.programmatic_critic:
            raise InputError(
                f"{task.name} has no programmatic critic; give another critic, as file.py:FUNCTION if need be, or the "
                "rules for open questions, text2grad.critics.programs.ultrafeedback.critic:AnswerCritic"
            )
        program = load_object(task.programmatic_critic, task.folder)
        if not isinstance(program, type) or "sandbox" not in inspect.signature(program).parameters:
            options.pop("sandbox", None)
        return as_critic(program, spec, **options)
    if is_endpoint(spec):
        from text2grad.critics.chat import ChatCritic

        return ChatCritic(spec, task, **options)
    if is_served(spec):
        from text2grad.critics.served import ServedCritic

        return ServedCritic(spec.removeprefix(SERVED), task, **options)
    if names_object(spec) and not Path(spec).is_dir():
        return as_critic(load_object(spec), spec, **options)
    if not Path(spec).exists():
        raise InputError(f"there is no critic {spec!r}; give {CRITIC_FORMS}")
    from text2grad.critics.reward_model.critic import RewardModelCritic

    return RewardModelCritic.load(spec, task, **options)


def names_critic(spec: str) -> bool:
    """Whether :func:`load_critic` would find something by this name; nothing is loaded."""
    file = spec.partition(":")[0]
    if Path(spec).is_dir() or file.endswith(".py"):
        return Path(file).exists()
    return spec == "programmatic" or is_endpoint(spec) or is_served(spec) or names_object(spec)


def is_served(spec: str) -> bool:
    """Whether a text names a critic behind ``text2grad serve``: ``served:http://HOST:PORT``."""
    return spec.startswith(SERVED)


def check_new_responses(critic: Critic) -> None:
    """Refuse a critic that cannot give feedback on responses that no record holds."""
    if getattr(critic, "variant", "") == "human_feedback":
        raise InputError(
            f"{critic.name}, variant human_feedback: a person's feedback is about the record's response, not about new "
            "ones; choose cot, no_cot or dense, or train a reward model on feedback of people"
        )


def as_critic(judge: Any, name: str = "", **options: Any) -> Critic:
    """A critic from anything that can be called as one; this package's own are passed through.

    Args:
        judge: a function of ``(prompt, response)`` or ``(prompt, response, record)``, which is asked about one response
            at a time; a function of ``(prompts, responses)`` or ``(prompts, responses, records)``, which is asked about
            a batch; an object with such a ``__call__``; or a class, which is made with ``options`` first.
        name: what logs and records call it; the function's or the class's own name by default.

    Raises:
        InputError: its parameters have other names, its class cannot be made, or there are options and no class.
    """
    if options and not isinstance(judge, type):
        raise InputError(f"{name or judge}: takes no options ({', '.join(options)}); give a class, or leave them out")
    try:
        found = judge(**options) if isinstance(judge, type) else judge
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{name or judge}: cannot be made: {fault(error, _file_of(judge))}; correct it") from error
    named = found if inspect.isroutine(found) else type(found)
    if hasattr(found, "name") and named.__module__.startswith("text2grad."):
        return found
    return OwnCritic(found, name or getattr(found, "name", "") or f"{named.__module__}:{named.__qualname__}")


class OwnCritic:
    """A user's function as a critic: what it returns is checked, and errors name it.

    Attributes:
        version: changes with the function's file. Journals hold it, so that a run never mixes two versions.
        by_item: whether it is asked about one response at a time.
    """

    def __init__(self, function: Callable, name: str):
        self.function, self.name, self.remote = function, name, getattr(function, "remote", False)
        try:
            parameters = tuple(inspect.signature(function).parameters)
        except (TypeError, ValueError):
            raise InputError(f"{name}: is {type(function).__name__}, which cannot be called as a critic") from None
        self.version = {"critic_version": made} if (made := _file_hash(function, name)) else {}
        self._count = len(parameters)
        self.by_item = parameters in (_ITEM, _ITEM[:2])
        if not self.by_item and parameters not in (_BATCH, _BATCH[:2]):
            raise InputError(
                f"{name}: takes ({', '.join(parameters)}); a critic takes (prompt, response) for one response, or "
                "(prompts, responses) for a batch, and record or records as a third parameter if it needs them"
            )

    def __call__(
        self, prompts: Sequence[str], responses: Sequence[str], records: Sequence[Record] | None = None
    ) -> list[Feedback | FeedbackError]:
        columns = (list(prompts), list(responses), list(records or [{}] * len(prompts)))[: self._count]
        rows = zip(*columns, strict=True)
        given = [self._ask(*row) for row in rows] if self.by_item else self._ask(*columns)
        if isinstance(given, FeedbackError):
            given = [given] * len(prompts)
        if not isinstance(given, list | tuple) or len(given) != len(prompts):
            told = f"{len(given)} items" if isinstance(given, list | tuple) else type(given).__name__
            raise InputError(f"{self.name}: returned {told} for {len(prompts)} responses; return a list, one item each")
        return [self._checked(item) for item in given]

    def _checked(self, item: Any) -> Feedback | FeedbackError:
        """An item, read as a model's reply is; a lone surrogate may be the response's, all else is the function's."""
        if isinstance(item, FeedbackError):
            return item
        if not isinstance(item, Feedback):
            raise InputError(
                f"{self.name}: returned {type(item).__name__}; return text2grad.feedback.Feedback(critique, good, "
                "poor), or FeedbackError where it has nothing to say"
            )
        fields = {name: list(value) if isinstance(value, tuple) else value for name, value in vars(item).items()}
        if problem := unstorable(fields, finite=False):
            return FeedbackError(f"{self.name}: its feedback cannot be kept: {problem}")
        try:
            return _FIELDS.from_dict(fields)
        except FeedbackError as error:
            raise InputError(f"{self.name}: returned feedback that cannot be used: {error}") from None

    def _ask(self, *row: Any) -> Any:
        try:
            return self.function(*row)
        except FeedbackError as error:
            return error
        except (InputError, StopRunError):
            raise
        except (Exception, SystemExit) as error:
            response = shown(row[1] if self.by_item else "".join(row[1][:1]))
            raise InputError(
                f"{self.name}: {fault(error, _file_of(self.function))} (on the response {response}); correct it, or "
                "return a FeedbackError where it cannot judge"
            ) from error


def _file_of(function: Callable) -> str:
    try:
        return inspect.getfile(function if inspect.isroutine(function) or inspect.isclass(function) else type(function))
    except (OSError, TypeError):  # typed at a prompt
        return ""


def _file_hash(function: Callable, name: str) -> str:
    """Of the file that its name says, where that is one: a decorated function's own may be another's."""
    said = Path(name.rpartition(":")[0])
    try:
        file = said if said.is_file() else Path(_file_of(function))
        return fingerprint(file.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return ""


def version_of(critic: Critic) -> dict[str, str]:
    """What a journal's settings hold next to a critic's name: a user's function as it is, an endpoint's prompt."""
    return getattr(critic, "version", {})
