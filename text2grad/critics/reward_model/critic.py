"""A trained natural-language reward model in process, which writes z = [c; A(y)] (paper, section 3.4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from os.path import commonprefix
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict

from text2grad.critics.reward_model.prompt import DoesNotFit, RewardPrompt, completion_ids
from text2grad.errors import InputError
from text2grad.feedback import Feedback, FeedbackError
from text2grad.prompts import Prompt, load_prompt
from text2grad.records import fingerprint, load_json, save_json, save_text
from text2grad.safety.schema import checked
from text2grad.tasks import Record, Task, get_task, task_of
from text2grad.token_text import decoded

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from text2grad.critics.reward_model.quotes import QuoteMatcher
    from text2grad.models.answering import OwnRandomness

PROMPT_FILE = "reward_prompt.txt"
DESCRIPTION_FILE = "reward_model.json"
_MOST_BEGINNINGS = 4  # that may stand for verdicts


@dataclass
class RewardModelDescription:
    """What a reward model's folder says about itself (``reward_model.json``, next to ``reward_prompt.txt``)."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    task: str
    base_model: str
    prompt_max_length: int
    max_length: int
    shorten: str
    max_new_tokens: int
    """Tokens that feedback needs at most, from the longest it was trained on."""
    examples: list[str] = field(default_factory=list)
    """Some feedback that it was trained to write; guesses at what it writes next begin with it."""
    settings: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    task_source: str = ""
    """Where a user's own task is loaded from."""
    changes: list[dict[str, Any]] = field(default_factory=list)
    """Settings that were changed while it was trained, and from which step on."""
    critique: bool = True
    """Whether it writes a critique before its spans."""
    verdict: bool = False
    """Whether it ends with what is missing and the verdict."""

    def save(self, folder: str | Path, prompt: Prompt) -> None:
        save_text(Path(folder) / PROMPT_FILE, prompt.text + "\n")
        save_json(Path(folder) / DESCRIPTION_FILE, asdict(self))

    @classmethod
    def load(cls, folder: str | Path, task: Task | str | None = None) -> tuple[RewardModelDescription, Prompt]:
        """The description and the prompt.

        Raises:
            InputError: not a reward model's folder, or one of another task than ``task``.
        """
        path = Path(folder) / DESCRIPTION_FILE
        if not path.is_file() or not (Path(folder) / PROMPT_FILE).is_file():
            raise InputError(
                f"{folder}: no reward model ({DESCRIPTION_FILE} and {PROMPT_FILE} are missing); give the folder that "
                "nl_reward_model/<task>/train_rm.py wrote, or one of its checkpoints"
            )
        description = checked(cls, load_json(path), path, "train the model again")
        if task is not None and get_task(task).name != description.task:
            raise InputError(
                f"{folder}: judges {description.task}, not {get_task(task).name}; give a model of that task"
            )
        return description, load_prompt(Path(folder) / PROMPT_FILE)

    def task_learnt(self, task: Task | str | None = None) -> Task:
        """The task, with z in the form that the model was trained to write."""
        found = get_task(task) if task is not None else task_of(asdict(self))
        found = found if self.verdict else found.without_verdict()
        return found if self.critique else found.without_critique()


class RewardModelCritic:
    """Judges with a model in this process. Make one with :meth:`load`.

    Args:
        prompt: how feedback is asked for.
        max_length: tokens of prompt and feedback together.
        max_new_tokens: tokens of feedback on one response at most.
        batch_size: responses whose feedback is decoded together.
        constrained: ``none``; or ``quotes``, whose text always has the fields and whose spans are quotes of the
            response (``text2grad.critics.reward_model.quotes``).
        lookahead: tokens guessed per forward pass (see ``text2grad.critics.reward_model.decoding``); 0 turns it off.
        examples: feedback on other responses, which guesses begin with.
        device: where the model computes, where that is not where its weights are.
        expected_verdict: not the verdict that it writes, but the mean over the tokens by which ``examples`` begin to
            differ, each worth the mean verdict of those that go on with it.
        temperature: of its second and further opinions (``text2grad.critics.asking``); the first is greedy.
    """

    has_opinions = True

    def __init__(
        self,
        model,
        prompt: RewardPrompt,
        *,
        name: str,
        max_length: int,
        max_new_tokens: int,
        batch_size: int = 8,
        constrained: str = "none",
        lookahead: int = 8,
        examples: Sequence[str] = (),
        device: torch.device | str | None = None,
        temperature: float = 0.0,
        expected_verdict: bool = False,
    ):
        from text2grad.critics.reward_model.decoding import FeedbackDecoder
        from text2grad.models.adapters import base_model

        self.name, self.prompt, self.task = name, prompt, prompt.task
        self.version = {"prompt": prompt.prompt.fingerprint}
        self.temperature, self.batch_size = temperature, batch_size
        positions = getattr(base_model(model).config.get_text_config(), "max_position_embeddings", None)
        self.max_length, self.max_new_tokens = min(max_length, positions or max_length), max_new_tokens
        known = [(completion_ids(prompt.tokenizer, z), prompt.task.parse_feedback(z)) for z in examples]
        typical = _typical(prompt, known)
        after, self._worth = _beginnings(prompt.task, known, name) if expected_verdict else ([], {})
        watched = after, list(self._worth)
        self.decoder = FeedbackDecoder(model, prompt.tokenizer, prompt.prefix, typical, lookahead, device, watched)
        self._matcher: Callable[[str], QuoteMatcher | None] = lambda response: None
        if constrained == "quotes":
            from text2grad.critics.reward_model.quotes import QuoteConstraint

            self._matcher = QuoteConstraint(prompt.tokenizer, prompt.task).matcher
        elif constrained != "none":
            raise InputError(f"constrained: {constrained!r} does not exist; quotes keeps the JSON's fields, too")

    @classmethod
    def load(
        cls,
        folder: str | Path,
        task: Task | str | None = None,
        device: str | None = None,
        dtype: str = "auto",
        described: tuple[RewardModelDescription, Prompt] | None = None,
        model: PreTrainedModel | None = None,
        max_new_tokens: int | None = None,
        **options: Any,
    ) -> RewardModelCritic:
        """The critic that a folder of stage 2 holds (LoRA adapter, merged or full model, or a checkpoint of one).

        Args:
            device: ``cuda``, ``cuda:1``, ``cpu``; the GPU by default where there is one.
            dtype: what ``load_model`` takes; ``auto`` is the fastest that the device computes natively.
            described: another description and prompt than the folder's.
            model: its weights, where they are loaded already.
            max_new_tokens: the description's where None or 0.
            options: what the class takes.

        Raises:
            InputError: the folder holds no reward model, or one for another task.
        """
        from text2grad.models import best_device, folded, load_model, load_tokenizer, weights_fingerprint

        folder = Path(folder)
        description, text = described or RewardModelDescription.load(folder, task)
        tokenizer = load_tokenizer(str(folder))
        learnt = description.task_learnt(task)
        prompt = RewardPrompt(text, learnt, tokenizer, description.prompt_max_length, description.shorten)
        model = model or load_model(str(folder), dtype, device or best_device())
        model = folded(model)  # an adapter beside it costs two more small products per layer and token
        model.requires_grad_(False)
        return cls(
            model,
            prompt,
            name=f"{folder.resolve().name}@{weights_fingerprint(str(folder))}",
            max_length=description.max_length,
            max_new_tokens=max_new_tokens or description.max_new_tokens,
            examples=description.examples,
            **options,
        )

    def __call__(
        self, prompts: Sequence[str], responses: Sequence[str], records: Sequence[Record] | None = None, number: int = 0
    ) -> list[Feedback | FeedbackError]:
        """Feedback on each response, in order; see ``text2grad.critics.Critic``."""
        written = self._written(prompts, responses, records, number)
        return [self._expected(self.parse(text), sure) for text, sure in written]

    def _expected(self, feedback: Feedback | FeedbackError, sure: list[float]) -> Feedback | FeedbackError:
        """With the expected verdict, unless the model begins in a way of its own."""
        if isinstance(feedback, FeedbackError) or sum(sure) < 0.5:
            return feedback
        worth = sum(p * value for p, value in zip(sure, self._worth.values(), strict=True)) / sum(sure)
        return replace(feedback, score=round(worth, 4))

    def _draws(self, number: int, ids: list[int]) -> OwnRandomness:
        """The randomness of an opinion on one prompt and response."""
        from text2grad.models.answering import OwnRandomness

        seed = int(fingerprint([number, ids])[:8], 16)
        return OwnRandomness([seed], self.temperature, 1.0, str(self.decoder.device))

    def parse(self, text: str | FeedbackError) -> Feedback | FeedbackError:
        """What the model wrote as feedback, or why it is none."""
        if isinstance(text, FeedbackError):
            return text
        try:
            return self.task.parse_feedback(text)
        except FeedbackError as error:
            return error

    def fields(self, x: str, y: str, record: Record | None = None) -> dict[str, str]:
        """The values of the prompt file's placeholders. A record of another response lends what fits any response."""
        fields = {"prompt": x.strip(), "response": y}
        return fields if record is None else self.task.prompt_fields(self.task.about(record, y)) | fields

    def write(
        self, prompts: Sequence[str], responses: Sequence[str], records: Sequence[Record] | None = None, number: int = 0
    ) -> list[str | FeedbackError]:
        """What the model writes about each response, as text; an error for a response that does not fit.

        Args:
            number: of the opinion; 0 is greedy.
        """
        return [text for text, _ in self._written(prompts, responses, records, number)]

    def _written(
        self, prompts: Sequence[str], responses: Sequence[str], records: Sequence[Record] | None, number: int
    ) -> list[tuple[str | FeedbackError, list[float]]]:
        """That, and the probabilities of the tokens by which feedback may begin."""
        results: list[tuple[str | FeedbackError, list[float]]] = [(FeedbackError("no feedback yet"), [])] * len(
            responses
        )
        rows, encoded = [], []
        for row, (x, y) in enumerate(zip(prompts, responses, strict=True)):
            try:
                fields = self.fields(x, y, records[row] if records else None)
                encoded.append(self.prompt.ids(fields, self.max_length - 1))
                rows.append(row)
            except DoesNotFit as error:
                results[row] = FeedbackError(str(error)), []
        limits = [min(self.max_new_tokens, self.max_length - len(ids)) for ids in encoded]
        matchers = [self._matcher(responses[row]) for row in rows]
        draws = [self._draws(number, ids) for ids in encoded] if number else None
        sources = [(prompts[row], responses[row]) for row in rows]
        written = self.decoder(encoded, limits, self.batch_size, matchers, draws, sources)
        for row, ids, sure in zip(rows, written, self.decoder.sure, strict=True):
            results[row] = decoded(self.prompt.tokenizer, ids), sure
        return results


_Known = list[tuple[list[int], Feedback]]
"""Feedback that the model learnt, as the tokenizer writes it and as it is read."""


def _typical(prompt: RewardPrompt, known: _Known) -> list[tuple[list[int], str, str]]:
    """Feedback that guesses begin with, the bare format at least; its quotes stand for what it is about."""
    bare = prompt.task.render_feedback(Feedback("It is good.", ["one", "two"], ["three", "four"]))
    first = completion_ids(prompt.tokenizer, bare), prompt.task.parse_feedback(bare)
    return [(ids, " ".join(each.good), " ".join(each.good + each.poor)) for ids, each in (first, *known)]


def _beginnings(task: Task, known: _Known, name: str) -> tuple[list[int], dict[int, float]]:
    """The ids that all of it begins with, and the mean verdict of those that go on with each token.

    Raises:
        InputError: it begins in one way, or in too many for these to be verdicts.
    """
    after = list(commonprefix([ids for ids, _ in known]))
    verdicts: dict[int, list[float]] = {}
    for ids, feedback in known:
        verdicts.setdefault([*ids, -1][len(after)], []).append(task.verdict(feedback).value)
    if not 2 <= len(verdicts) <= _MOST_BEGINNINGS:
        raise InputError(
            f"{name}: the feedback it learnt begins in {len(verdicts)} ways, which say no verdict; leave "
            "--critic_expected_verdict out"
        )
    return after, {token: fmean(values) for token, values in verdicts.items()}
