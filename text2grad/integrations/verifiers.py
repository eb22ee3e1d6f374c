"""A taskset for verifiers (written for 0.4) whose reward is a critic's verdict on each rollout.

    # my_env.py: verifiers finds a taskset as a top-level module
    from text2grad.integrations.verifiers import FeedbackTaskset
    __all__ = ["FeedbackTaskset"]

    vf-eval my-env --env.taskset.data-path posts.json --env.taskset.task.task slf5k \\
        --env.taskset.task.critic served:http://HOST:8765 --env.agent.harness.id null --model NAME

verifiers takes one number per rollout, so what the critic quoted is kept in the trace's ``info``.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

import verifiers.v1 as vf

from text2grad.errors import InputError
from text2grad.integrations.core import TokenJudge
from text2grad.records import load_records
from text2grad.tasks import get_task


class FeedbackTaskConfig(vf.TaskConfig):
    critic: str = "programmatic"
    """Any critic's spec (``--critic`` of the other stages)."""
    task: str = "plain"
    """The task that reads the records: slf5k, kodcode, ultrafeedback, plain, or your own."""


class FeedbackConfig(vf.TasksetConfig):
    data_path: str = ""
    """The task's records, of which the prompts are used."""
    task: FeedbackTaskConfig = FeedbackTaskConfig()


class FeedbackData(vf.TaskData):
    record: dict[str, Any] = {}  # noqa: RUF012 (pydantic copies it)


class FeedbackTask(vf.Task[FeedbackData, vf.State, FeedbackTaskConfig]):
    """One prompt. A rollout whose feedback failed ends with an error, so that no trainer learns from it."""

    @vf.reward
    async def verdict(self, trace: vf.Trace) -> float:
        """In [−1, 1]: what the critic says of the whole response, or else what its spans imply."""
        judge = shared_judge(self.config.critic, self.config.task)
        found = await judge.one(self.data.prompt_text, trace.last_reply, self.data.record)
        said = found.feedback
        if found.verdict is None or said is None:
            raise InputError(f"{self.data.id}: no feedback ({found.error})")
        trace.info["text2grad"] = {"critique": said.critique, "good": said.good, "poor": said.poor}
        return found.verdict


class FeedbackTaskset(vf.Taskset[FeedbackTask, FeedbackConfig]):
    def load(self) -> Iterator[FeedbackTask]:
        task = get_task(self.config.task.task)
        if not self.config.data_path:
            raise InputError("--env.taskset.data-path: names no file; give the task's records")
        for key, record in load_records(self.config.data_path, task, responses=False).items():
            yield FeedbackTask(FeedbackData(id=key, prompt=task.prompt(record), record=dict(record)), self.config.task)


@cache
def shared_judge(critic: str, task: str) -> TokenJudge:
    """One for all tasks: rollouts that end about the same time are asked about together."""
    return TokenJudge(critic, task)
