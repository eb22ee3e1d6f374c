"""Critics that need no model: one file per task."""

from __future__ import annotations

from text2grad.critics import Critic
from text2grad.errors import InputError
from text2grad.tasks import Task


def program_for(task: Task, **options) -> Critic:
    """The program that judges a task's responses."""
    if task.name == "slf5k":
        from text2grad.critics.programs.slf5k.critic import SummaryCritic

        return SummaryCritic(**options)
    if task.name == "kodcode":
        from text2grad.critics.programs.kodcode.critic import CodeCritic

        return CodeCritic(**options)
    if task.name == "ultrafeedback":
        from text2grad.critics.programs.ultrafeedback.critic import AnswerCritic

        return AnswerCritic(**options)
    raise InputError(f"there is no programmatic critic for {task.name}")
