"""What advantages make of length: the push towards going on, in answers whose sentences are known to be good or bad.

A sentence has eight tokens; after each the policy stops with probability 0.3. The push is the mean advantage of the
token that goes on minus that of the end token, in standard deviations of all advantages.
"""

import random
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from text2grad.advantages import gae, verdict_advantages, whiten
from text2grad.feedback import balance

pytestmark = pytest.mark.fast

TOKENS, MOST, ANSWERS = 8, 6, 2000  # tokens of a sentence, sentences of an answer at most


@dataclass
class Toy:
    """Answers and what a critic says of them.

    Attributes:
        deltas, mask: ``[B, T]``.
        scores, missing: ``[B]``, the verdict, and how much was left unsaid.
        end_probs: ``[B, T]``, how probable stopping was.
        choices: row, position, whether the answer stops there, and how many sentences were right by then.
    """

    deltas: Tensor
    mask: Tensor
    scores: Tensor
    missing: Tensor
    end_probs: Tensor
    choices: list[tuple[int, int, bool, int]]

    def verdict_advantages(self, group_size: int = 1, deltas: Tensor | None = None) -> Tensor:
        """By this critic, or one that says the same of the whole and quotes otherwise."""
        quoted = self.deltas if deltas is None else deltas
        return verdict_advantages(quoted, self.mask, self.scores, self.missing, self.end_probs, group_size)[0]

    def push(self, advantages: Tensor, told: range = range(MOST + 1)) -> float:
        """Of the choices after which so much is told."""
        chosen = [(stops, advantages[row, at]) for row, at, stops, right in self.choices if right in told]
        stop, go = (torch.stack([a for stops, a in chosen if stops == wanted]).mean() for wanted in (True, False))
        return float((go - stop) / advantages[self.mask > 0].std())


def answers(good: float, poor: float, points: int = 0) -> Toy:
    """Sentences are right with probability ``good`` and wrong with ``poor``.

    Args:
        points: how many right sentences say all; later ones are wrong, and the verdict is F1. 0: the verdict is the
            mean quality of the sentences, so that an answer's quality does not depend on its length.
    """
    rng = random.Random(0)
    deltas = torch.zeros(ANSWERS, TOKENS * MOST + 1)
    toy = Toy(deltas, torch.zeros_like(deltas), torch.zeros(ANSWERS), torch.zeros(ANSWERS), deltas.clone(), [])
    for row in range(ANSWERS):
        right = wrong = 0
        for sentence in range(MOST):
            start, drawn = sentence * TOKENS, rng.random()
            complete = 0 < points <= right
            if drawn < good and not complete:
                toy.deltas[row, start : start + TOKENS] = 1
                right += 1
            elif drawn < good + poor or complete:
                toy.deltas[row, start + 2 : start + 8] = -1
                wrong += 1
            end, stops = start + TOKENS, rng.random() < 0.3
            if sentence + 1 < MOST:
                toy.choices.append((row, end, stops, right))
                toy.end_probs[row, end] = 0.3
            if stops or sentence + 1 == MOST:
                break
        toy.mask[row, : end + 1] = 1
        said = balance(right, wrong, points - right) if points else (right - wrong) / (sentence + 1)
        toy.scores[row], toy.missing[row] = said, max(0, points - right)
    return toy


def paper(toy: Toy) -> Tensor:
    """The paper's advantages, with a value head that explains nothing."""
    return whiten(gae(toy.deltas, torch.zeros_like(toy.deltas), toy.mask, 1.0, 0.95)[0], toy.mask)


WORLDS = [(0.7, 0.1), (0.43, 0.57), (0.05, 0.95)]  # mean δ +0.6, 0 and −0.6


@pytest.mark.parametrize(("good", "poor"), WORLDS)
@pytest.mark.parametrize("group_size", [1, 4])
@pytest.mark.parametrize(
    "missing",
    [torch.zeros(ANSWERS), torch.ones(ANSWERS), torch.arange(ANSWERS).float() % 3],
    ids=["nothing", "as much in each", "by chance"],
)
def test_length_is_left_alone_where_quality_does_not_depend_on_it(good, poor, group_size, missing):
    toy = answers(good, poor)
    toy.missing = missing
    assert abs(toy.push(toy.verdict_advantages(group_size))) < 0.2


def test_the_papers_advantages_pay_for_praise_and_charge_for_blame():
    praised, blamed = answers(*WORLDS[0]), answers(*WORLDS[2])
    assert praised.push(paper(praised)) > 0.8 and blamed.push(paper(blamed)) < -0.8


@pytest.mark.parametrize("group_size", [1, 4])
def test_going_on_gains_while_something_is_missing_and_stopping_when_all_is_said(group_size):
    toy = answers(0.6, 0.1, points=3)
    advantages = toy.verdict_advantages(group_size)
    assert toy.push(advantages, told=range(3)) > 0.2
    assert toy.push(advantages, told=range(3, MOST)) < -0.2


@pytest.mark.parametrize("critic", ["praises everything", "blames everything", "praises the long"])
def test_a_critic_that_says_the_same_of_everything_moves_no_length(critic):
    toy = answers(0.4, 0.4)
    value = -1.0 if critic == "blames everything" else 1.0
    deltas = toy.mask * value
    if critic == "praises the long":  # its spans do, its verdict does not
        deltas = toy.mask * (toy.mask.sum(1, keepdim=True) > 3 * TOKENS)
    assert abs(toy.push(toy.verdict_advantages(deltas=deltas))) < 0.2
