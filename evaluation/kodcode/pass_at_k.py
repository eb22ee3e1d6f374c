"""pass@k: the chance that at least one of k samples of a problem is right (Chen et al. 2021, unbiased estimator)."""

from collections.abc import Mapping, Sequence, Sized
from math import comb

from evaluation.results import Figure
from text2grad.errors import InputError


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """1 − C(n − c, k) / C(n, k) for n samples of which c are right."""
    if not 0 <= correct <= samples or not 1 <= k <= samples:
        raise ValueError(f"pass@{k} of {samples} samples, {correct} right, is not defined")
    return 1 - comb(samples - correct, k) / comb(samples, k)


def check_k(samples: Mapping[str, Sized], ks: Sequence[int]) -> None:
    """``InputError`` where a problem has fewer samples than some k. Call it before they are tested."""
    fewest = min(map(len, samples.values()))
    if max(ks) > fewest:
        raise InputError(f"--k {max(ks)}: a problem has only {fewest} samples; generate more with --num_samples")


def pass_figures(verdicts: Mapping[str, Sequence[bool]], ks: Sequence[int], prefix: str = "") -> dict[str, Figure]:
    """``pass@k`` for each k, the mean over problems; ``verdicts`` holds one verdict per sample by problem."""
    return {
        f"{prefix}pass@{k}": Figure.mean(
            {problem: pass_at_k(len(passed), sum(passed), k) for problem, passed in verdicts.items()}
        )
        for k in ks
    }
