"""An LLM behind an OpenAI-compatible endpoint as a critic: GPT-4o, an open model, or a served reward model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from text2grad.critics.quote_grammar import quote_grammar
from text2grad.critics.reward_model.critic import DESCRIPTION_FILE, PROMPT_FILE, RewardModelDescription
from text2grad.critics.reward_model.prompt import DoesNotFit, RewardPrompt
from text2grad.endpoints.client import ChatClient, ChatError, Reply
from text2grad.endpoints.spending import Usage
from text2grad.errors import InputError, when_interrupted
from text2grad.feedback import VARIANTS, Feedback, FeedbackError, json_objects, reply_schema
from text2grad.prompts import load_prompt, prompt_path
from text2grad.safety.gate import as_storable, shown, storable
from text2grad.safety.redaction import redacted
from text2grad.tasks import Record, Task, get_task

Check = Callable[[Feedback], str | None] | None
"""Says what is wrong with feedback, or None."""
_REFUSED = ("refusal", "content_filter")


@dataclass(frozen=True)
class ChatFeedback:
    """What the model says about one response, and what asking for it took.

    Attributes:
        usage: tokens and cost of all requests that it took.
        first, complaint: where the model was asked again, what its first reply held and why that would not do.
        reasoning: the chain of thought, where the reply holds one.
    """

    feedback: Feedback | FeedbackError
    usage: Usage = field(default_factory=Usage)
    first: Feedback | FeedbackError | None = None
    complaint: str = ""
    reasoning: str = ""


class ChatCritic:
    """A critic that asks a chat model, many responses at once.

    Args:
        spec: ``openai:MODEL`` or ``http(s)://HOST:PORT/v1#MODEL``.
        prompt: a prompt file; the task's annotation prompt of that variant by default. For a served reward model the
            ``reward_prompt.txt`` in its folder: x is then shortened as in its training, and a reply may be as long as
            the feedback it was trained to write, where ``options`` do not say otherwise.
        variant: one of ``VARIANTS``: what the prompt asks for. By default ``cot``; for a prompt file, its name where
            that is a variant's and else ``no_cot``.
        feedback_field: the field of a record in which a person's feedback is (variant ``human_feedback``).
        constrained: ``none``; or ``quotes``: vLLM then decodes by a grammar whose spans are quotes of the response.
        client_class, options: the client, and what it takes (:class:`~text2grad.endpoints.client.ChatClient`).
    """

    remote = has_opinions = True

    def __init__(
        self,
        spec: str,
        task: Task | str,
        prompt: str | Path | None = None,
        variant: str | None = None,
        feedback_field: str | None = None,
        client_class: type[ChatClient] = ChatClient,
        constrained: str = "none",
        **options: Any,
    ):
        task = get_task(task)
        if variant is None:
            stem = Path(prompt).stem if prompt else "cot"
            variant = stem if stem in VARIANTS else "no_cot"
        if variant not in VARIANTS:
            raise InputError(f"there is no prompt variant {variant!r}; choose one of {', '.join(VARIANTS)}")
        if constrained != "none" and variant == "dense":
            raise InputError("scores have no grammar of quotes; leave --critic_constrained or the variant dense out")
        path = prompt or prompt_path(task, "annotation", variant)
        required = ("prompt", "response", "feedback") if variant == "human_feedback" else ("prompt", "response")
        self.prompt = load_prompt(path, required, ("prompt", "response", "feedback", *task.extra_prompt_fields))
        if (feedback_field or "feedback" in self.prompt.names) and variant != "human_feedback":
            raise InputError(f"{self.prompt.source}: only the variant human_feedback reads a person's feedback")
        self.fit: Callable[[dict[str, str]], dict[str, str]] = dict
        if described := _served_reward_model(Path(path), task):
            description, reward_prompt = described
            task = description.task_learnt(task)
            variant = variant if description.critique else "spans"
            options = {"max_tokens": description.max_new_tokens} | options
            if reward_prompt:
                self.fit = partial(reward_prompt.fit, room=description.max_length - 1)
        self.client = client_class.from_spec(spec, **options)
        self.name, self.version = redacted(spec), {"prompt": self.prompt.fingerprint}
        self.task, self.variant, self.constrained = task, variant, constrained
        self.feedback_field = feedback_field or task.human_feedback_field
        self.schema = reply_schema(task.fields, variant)
        self.fields = (task.without_critique() if variant == "spans" else task).fields

    def __call__(
        self, prompts: Sequence[str], responses: Sequence[str], records: Sequence[Record] | None = None, number: int = 0
    ) -> list[Feedback | FeedbackError]:
        """Feedback in order; a request that failed is a ``FeedbackError``.

        Args:
            number: of the opinion; the cache keeps them apart.
        """
        ask = partial(self.feedback_on, scope=f"opinion {number}" if number else "")
        about = records if records is not None else [None] * len(prompts)
        workers = max(1, min(self.client.concurrency, len(prompts)))
        with when_interrupted(self.client.stop), ThreadPoolExecutor(workers) as pool:
            return [given.feedback for given in pool.map(ask, prompts, responses, about)]

    def feedback_on(
        self, prompt: str, response: str, record: Record | None = None, check: Check = None, scope: str = ""
    ) -> ChatFeedback:
        """Feedback on one response. Asks once more, saying why, if the reply cannot be read or ``check`` objects to it.

        Args:
            record: where placeholders beyond prompt and response come from (tests, their log, a person's feedback).
            check: what is wrong with feedback, or None.
            scope: the record's id, for the client's cache.
        """
        try:
            fields = self.fit(self._fields(prompt, response, record))
        except DoesNotFit as error:
            return ChatFeedback(FeedbackError(str(error)))
        messages = [{"role": "user", "content": self.prompt.fill(fields)}]
        critique = self.human_feedback(record) if self.variant == "human_feedback" else None
        try:
            first, complaint, reply = self._ask(messages, response, critique, check, scope)
        except ChatError as error:
            return ChatFeedback(FeedbackError(str(error), error.passing))
        if isinstance(first, FeedbackError) and reply.finish_reason in _REFUSED:
            self.client.forget(messages, self._form(response), scope)
        if not complaint or reply.finish_reason in _REFUSED:
            return ChatFeedback(first, reply.usage, reasoning=_reasoning(reply))

        messages += [
            {"role": "assistant", "content": as_storable(reply.text) or "(nothing)"},
            {"role": "user", "content": as_storable(_again(complaint))},
        ]
        try:
            second, _, repeated = self._ask(messages, response, critique, check, scope)
        except ChatError as error:
            if error.passing:
                return ChatFeedback(FeedbackError(str(error), passing=True), reply.usage)
            second, repeated = FeedbackError(str(error)), Reply("")
        usage = reply.usage + repeated.usage
        if isinstance(second, FeedbackError) and isinstance(first, FeedbackError) and repeated.usage.requests:
            for asked in (messages[:1], messages):
                self.client.forget(asked, self._form(response), scope)
        if isinstance(second, FeedbackError) and isinstance(first, Feedback):
            return ChatFeedback(first, usage, first, complaint, _reasoning(reply))
        return ChatFeedback(second, usage, first, complaint, _reasoning(repeated))

    def _ask(
        self, messages: list[dict[str, str]], response: str, critique: str | None, check: Check, scope: str
    ) -> tuple[Feedback | FeedbackError, str, Reply]:
        """One request: ``(feedback, what is wrong with it or "", reply)``."""
        reply = self.client.complete(messages, self._form(response), scope=scope)
        try:
            if reply.finish_reason in _REFUSED:
                raise FeedbackError(f"the model refused to judge ({reply.finish_reason}): {reply.text[:80]!r}")
            feedback = self.fields.parse(reply.text, critique)
            if self.variant == "dense" and not feedback.scores:
                raise FeedbackError(f"the reply holds no {self.task.fields.scores!r}")
            strange = [span for span in (*feedback.good, *feedback.poor) if span not in response]
            if self.constrained != "none" and strange:
                told = f"{shown(strange[0])} is no quote"
                raise FeedbackError(f"the server ignores structured_outputs (docs/serve.md): {told}")
        except FeedbackError as error:
            cut = f" (cut off after {reply.usage.completion_tokens} tokens)" if reply.finish_reason == "length" else ""
            return FeedbackError(f"{error}{cut}"), f"{error}{cut}", reply
        return feedback, (check(feedback) if check else None) or "", reply

    def _form(self, response: str) -> dict[str, Any] | str:
        """What a reply about this response must be: a JSON schema, or a grammar."""
        if self.constrained == "none":
            return self.schema
        return quote_grammar(self.fields, self.variant, response, self.task.rewarded(response))

    def _fields(self, prompt: str, response: str, record: Record | None) -> dict[str, str]:
        """The placeholders' values. A record that holds another response lends only what fits any response."""
        fields = dict.fromkeys(self.task.extra_prompt_fields, "")
        if record is not None:
            fields |= self.task.prompt_fields(self.task.about(record, response))
        if self.variant == "human_feedback":
            fields["feedback"] = self.human_feedback(record)
        return {**fields, "prompt": prompt.strip(), "response": response}

    def human_feedback(self, record: Record | None) -> str:
        """A person's feedback on the response that the record holds; ``InputError`` where its field holds no text."""
        text = (record or {}).get(self.feedback_field)
        if not isinstance(text, str) or not text.strip():
            raise InputError(
                f"it has no person's feedback, as a text, in its field {self.feedback_field!r}; name another "
                "--feedback_field, or a prompt that needs none"
            )
        return text.strip()


def _served_reward_model(path: Path, task: Task) -> tuple[RewardModelDescription, RewardPrompt | None] | None:
    """What a served reward model's folder, in which this prompt file is, says of its training; None for other prompts.

    The prompt with tokenizer and length is None where the folder has no tokenizer.
    """
    if path.name != PROMPT_FILE or not (path.parent / DESCRIPTION_FILE).is_file():
        return None
    description, text = RewardModelDescription.load(path.parent, task)
    if not (path.parent / "tokenizer_config.json").is_file():
        return description, None
    from text2grad.models import load_tokenizer

    task, tokenizer = description.task_learnt(task), load_tokenizer(str(path.parent))
    return description, RewardPrompt(text, task, tokenizer, description.prompt_max_length, description.shorten)


def _again(complaint: str) -> str:
    shorter = " Be much shorter." if "cut off" in complaint else ""
    return (
        f"That reply cannot be used: {complaint}.{shorter} Write the whole JSON object again, in the form asked for, "
        "with every quote copied exactly."
    )


def _reasoning(reply: Reply) -> str:
    objects, _ = json_objects(reply.text)
    reasoning = objects[-1].get("reasoning") if objects else None
    return reasoning.strip() if isinstance(reasoning, str) and storable(reasoning) else ""
