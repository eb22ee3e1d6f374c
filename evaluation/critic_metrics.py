"""A critic's feedback on a system's responses, in the terms of training: δ per token."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluation.results import Figure
from text2grad.critics import load_critic, version_of
from text2grad.critics.unit_test_logs import log_completion
from text2grad.feedback import FeedbackError, verdict
from text2grad.journal import map_records
from text2grad.models import model_identity
from text2grad.tasks import Record, Task
from text2grad.token_rewards import scheme_of, token_rewards

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def figures_by_critic(
    records: Mapping[str, Record],
    task: Task,
    spec: str,
    tokenizer: PreTrainedTokenizerBase,
    journal: str | Path,
    retry_failed: bool = False,
) -> tuple[dict[str, Figure], dict[str, Any]]:
    """Mean δ per token, shares of poor and good tokens, share of quotes found, missing things, verdict on the whole.

    Responses are encoded by ``tokenizer``, so that systems with different tokenizers compare. The first
    four are over the tokens (or quotes) of all responses together: a long response weighs more than a short one.

    Args:
        spec: ``programmatic``, a reward model's folder, or an endpoint (:func:`~text2grad.critics.load_critic`).
        journal: remembers the feedback, so that none is requested twice.

    Returns:
        the figures by name; and for the result file the feedback by record id, and why the critic failed where it did.
    """
    critic = load_critic(spec, task)
    complete = log_completion(critic, task)
    if spec == "programmatic":
        Path(journal).unlink(missing_ok=True)  # it costs nothing, and its rules change with the code

    def work(ids: list[str], batch: list[Record]) -> list[dict | FeedbackError]:
        prompts, responses = [task.prompt(record) for record in batch], [task.response(record) for record in batch]
        answers = critic(prompts, responses, complete(batch))
        return [item if isinstance(item, FeedbackError) else task.fields.to_dict(item) for item in answers]

    outcome = map_records(
        records,
        work,
        journal=journal,
        settings={
            "critic": model_identity(spec) if Path(spec).is_dir() else spec,
            "task": task.name,
            **version_of(critic),
        },
        batch_size=8,
        retry_failed=retry_failed,
        description=f"feedback of {critic.name}",
    ).whole()
    delta: dict[str, tuple[float, int]] = {}
    poor, good, found = dict(delta), dict(delta), dict(delta)
    missing: dict[str, float] = {}
    verdicts: dict[str, float] = {}
    for key, stored in outcome.results.items():
        response = task.response(records[key])
        ids = tokenizer.encode(response, add_special_tokens=False) if response.strip() else []  # silence has no δ
        given = task.fields.from_dict(stored)
        rewards = token_rewards(ids, tokenizer, given, task, scheme_of(given))
        count = len(ids)
        delta[key] = (sum(rewards.values), count)
        poor[key] = (sum(value < 0 for value in rewards.values), count)
        good[key] = (sum(value > 0 for value in rewards.values), count)
        found[key] = (rewards.matched, rewards.matched + rewards.unmatched)
        missing[key] = len(given.missing)
        if given.score is not None:
            verdicts[key] = verdict(given).value
    figures = {
        "mean_delta": Figure(delta),
        "poor_tokens": Figure(poor),
        "good_tokens": Figure(good),
        "spans_found": Figure(found),
        "critic_failures": Figure.mean({key: float(key in outcome.failures) for key in records}),
    }
    if verdicts or any(missing.values()):  # else the critic knows of neither
        figures |= {"missing": Figure.mean(missing), "verdict": Figure.mean(verdicts)}
    return figures, {"feedback": outcome.results, "critic_failures": outcome.failures}
