"""PRM-PPO: rewards at the ends of steps, right or wrong, in place of δ on quoted tokens (appendix N).

A summary's steps are its sentences, and clauses of three words or more; a program's are its statements. The paper has
GPT-4o cut and label them; here the cutting is a rule, so that the same response always has the same steps, and the
labels come from a critic: a step that any poor span touches is wrong (−1), every other one is right (+1).

For a process reward model of its own, turn stage 1's annotations into labels of whole steps
(``baselines/step_labels.py``), train on them with stage 2, and give that model's folder as ``--critic``.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

from nl_gradient_policy_optimization.algorithms.text2grad import Text2Grad
from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.rewards import ChangedRewards, RewardSource
from nl_gradient_policy_optimization.rollouts import Rollout, RolloutFeedback
from text2grad.critics.programs.english import sentence_ends, words
from text2grad.critics.programs.kodcode.blame import line_intervals
from text2grad.errors import InputError
from text2grad.feedback import Feedback
from text2grad.grounding import trimmed
from text2grad.tasks import Interval, Task
from text2grad.token_rewards import span_intervals

_CLAUSE_END = re.compile(
    r"[;:]\s+|\s[–—-]{1,2}\s|—"
    r"|,\s+(?=(?:and|but|so|or|yet|because|although|though|while|which|who|since|when|if|unless|after|before)\b)",
    re.IGNORECASE,
)
_SHORTEST_CLAUSE = 3  # words


@dataclass
class Steps(Text2Grad):
    """PPO on the rewards of steps."""

    name = "steps"
    label = "prm_ppo"

    def check(self, config: PolicyConfig) -> None:
        super().check(config)
        if config.scheme != "uniform":
            raise InputError(f"--algorithm steps rewards the ends of steps; leave --scheme {config.scheme} out")
        if config.critic_votes > 1:
            raise InputError("--algorithm steps labels steps by the quotes of one critique; leave --critic_votes out")

    def wrap(self, rewards: RewardSource, task: Task, config: PolicyConfig) -> RewardSource:
        split_steps("", task)  # refuses a task without steps
        source = ChangedRewards(rewards, config, partial(by_steps, task))
        source.name = f"steps of {rewards.name}"
        return source


def by_steps(task: Task, rollout: Rollout, given: RolloutFeedback) -> RolloutFeedback:
    """The feedback with rewards of steps: its quotes say which are wrong, its δ stay for the metrics."""
    feedback = Feedback(given.critique, given.good, given.poor)
    steps = split_steps(rollout.response, task)
    labels = label_steps(steps, rollout.response, feedback, task)
    return replace(given, rewards=at_step_ends(steps, labels, rollout.spans))


def split_steps(text: str, task: Task) -> list[Interval]:
    """Character intervals of the steps, in order; every judged character but white space is in exactly one.

    Raises:
        InputError: the task's responses have no steps.
    """
    if task.no_steps:
        raise InputError(f"PRM-PPO is not for {task.name}: {task.no_steps}")
    steps = []
    for start, end in task.rewarded(text):
        cuts = _statement_starts(text[start:end]) if task.is_code else _clause_starts(text[start:end])
        edges = sorted({0, *cuts, end - start})
        steps += [trimmed(text, start + low, start + high) for low, high in pairwise(edges)]
    return [(low, high) for low, high in steps if high > low]


def label_steps(steps: Sequence[Interval], text: str, feedback: Feedback, task: Task) -> list[float]:
    """+1 for a right step, −1 for one that a poor span touches."""
    poor, _ = span_intervals(feedback, text, task)
    return [-1.0 if any(low < end and start < high for low, high in poor) else 1.0 for start, end in steps]


def at_step_ends(steps: Sequence[Interval], labels: Sequence[float], spans: Sequence[Interval]) -> list[float]:
    """One reward per token: each step's label on the token that writes its last character, 0 on all others.

    Args:
        spans: each token's characters (``token_spans``).
    """
    rewards = [0.0] * len(spans)
    for (_, end), label in zip(steps, labels, strict=True):
        last = max(token for token, (low, high) in enumerate(spans) if low < end <= high)
        rewards[last] += label
    return rewards


def _clause_starts(text: str) -> Iterator[int]:
    """Where sentences begin, and clauses that leave three words or more on both sides."""
    ends = [match.end() for _, match in sentence_ends(text, words(text))]
    yield from ends
    for low, high in pairwise([0, *ends, len(text)]):
        begun = low
        for match in _CLAUSE_END.finditer(text, low, high):
            enough = len(text[begun : match.start()].split()) >= _SHORTEST_CLAUSE
            if enough and len(text[match.end() : high].split()) >= _SHORTEST_CLAUSE:
                yield match.end()
                begun = match.end()


def _statement_starts(code: str) -> Iterator[int]:
    """Where statements begin: simple ones whole, of compound ones the head; lines, where the code does not parse.

    Docstrings, comments, ``else`` and ``finally`` stay with the statement before them.
    """
    lines = line_intervals(code)
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        yield from (start for start, end in lines if code[start:end].strip())
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt | ast.ExceptHandler) and not _is_docstring(node):
            first = min([node, *getattr(node, "decorator_list", [])], key=lambda part: part.lineno)
            start, end = lines[first.lineno - 1]
            before = code[start:end].encode()[: first.col_offset].decode()
            yield start + (len(before) if before.strip(" \t@") else 0)


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
