"""The commands of the stages for a task, as the end of one stage names the next."""

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from text2grad.tasks.base import PROJECT, Task

NEXT = "TEXT2GRAD_NEXT"
"""Set to 0 by scripts that run all stages: what comes next is theirs to say."""

SERVE = "bash nl_gradient_policy_optimization/serve_vllm.sh"
"""Starts a vLLM server; plain vLLM refuses the grammar of --critic_constrained quotes."""

_SCRIPTS = {
    "annotation": ("rm_data_anno/{}/dual_feedback_annotation_RM.py", "rm_data_anno/annotate.py"),
    "reward_model": ("nl_reward_model/{}/train_rm.py", "nl_reward_model/train_rm.py"),
    "feedback": ("nl_reward_model/{}/evaluation/2_infer.py", "nl_reward_model/infer.py"),
    "metrics": ("nl_reward_model/{}/evaluation/3_metrics.py", "nl_reward_model/measures/metrics.py"),
    "policy": ("nl_gradient_policy_optimization/{}/train.py", "nl_gradient_policy_optimization/optimize.py"),
}
"""Each stage's script for a task that has one, and the script for any task."""


def stage_command(stage: str, task: Task | str, source: str = "") -> str:
    """``python SCRIPT``, with ``--task`` where the task has no script.

    Args:
        task: a task; or its name, where a file names it, which also says its ``source``.
    """
    name, source = (task, source) if isinstance(task, str) else (task.name, task.source)
    own, general = _SCRIPTS[stage]
    if (PROJECT / own.format(name)).is_file():
        return f"python {own.format(name)}"
    place = "" if (PROJECT / general).is_file() else "in a checkout of the repository, "
    return f"{place}python {general} --task {quoted(source or name)}"


def quoted(*words: str | Path) -> str:
    """Paths and names as a command line has them, which may hold spaces."""
    return shlex.join(map(str, words))


def own_task(task: Task) -> str:
    """`` --task FILE.py`` for a task of the user's own, to be added to a command that reads files about it."""
    return f" --task {quoted(task.source)}" if task.source else ""


def flag_values(args: Sequence[str], *flags: str) -> tuple[list[str], list[str]]:
    """What a command line gives a flag, by any of its spellings ("" where nothing follows), and the other arguments."""
    values, others, left = list[str](), list[str](), iter(args)
    for arg in left:
        name, equals, value = arg.partition("=")
        if name in flags:
            values.append(value if equals else next(left, ""))
        else:
            others.append(arg)
    return values, others


def given(*flags: str) -> str:
    """What the command line gives one of these spellings of a flag, before it is parsed; empty where it gives none."""
    return next(reversed(flag_values(sys.argv[1:], *flags)[0]), "")


def say_next(text: str) -> None:
    """Print what comes next, as the last line of a stage."""
    if os.environ.get(NEXT) != "0":
        print(f"next: {text}")
