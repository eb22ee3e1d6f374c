"""Intervals and agreement, against scipy, closed forms and published examples."""

import math

import numpy as np
import pytest
from scipy import stats

from text2grad.statistics import RESAMPLES, bootstrap, fleiss_kappa, mean_interval, paired_difference

pytestmark = pytest.mark.fast


def test_bootstrap_agrees_with_scipy_on_a_ratio():
    rng = np.random.default_rng(1)
    rows = np.column_stack([rng.integers(0, 20, 80), rng.integers(20, 40, 80)])
    ours = bootstrap(rows)
    options = {"paired": True, "method": "percentile", "n_resamples": 4000, "rng": np.random.default_rng(2)}
    ratio = lambda a, b, axis: a.sum(axis) / b.sum(axis)  # noqa: E731
    theirs = stats.bootstrap((rows[:, 0], rows[:, 1]), ratio, **options).confidence_interval
    assert ours.value == pytest.approx(rows[:, 0].sum() / rows[:, 1].sum())
    assert ours.low == pytest.approx(theirs.low, abs=0.002)
    assert ours.high == pytest.approx(theirs.high, abs=0.002)


def test_few_seeds_get_student_s_interval():
    values = [0.71, 0.78, 0.74, 0.80, 0.69]
    theirs = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    estimate = mean_interval(values)
    assert (estimate.low, estimate.high) == pytest.approx((theirs.low, theirs.high))
    assert str(mean_interval([0.5])) == "0.500" and mean_interval([0.5]).to_dict()["low"] is None


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    rng = np.random.default_rng(3)
    covered = 0
    for _ in range(200):
        hits = rng.random(60) < 0.3
        estimate = bootstrap([(hit, 1) for hit in hits])
        covered += estimate.low <= 0.3 <= estimate.high
    assert 0.88 <= covered / 200 <= 0.99


def test_records_that_belong_together_widen_the_interval():
    rng = np.random.default_rng(4)
    values = np.repeat(rng.random(20), 10)  # ten records of each prompt, all alike
    rows = [(value, 1) for value in values]
    alone, together = bootstrap(rows), bootstrap(rows, groups=np.repeat(np.arange(20), 10).tolist())
    assert together.value == pytest.approx(alone.value) and together.n == 20
    assert (together.high - together.low) == pytest.approx(math.sqrt(10) * (alone.high - alone.low), rel=0.25)


def test_paired_differences_are_tighter_than_unpaired_ones():
    rng = np.random.default_rng(5)
    base = rng.random(100)
    first, second = [(value + 0.02, 1) for value in base], [(value, 1) for value in base]
    paired = paired_difference(first, second)[0]
    assert paired.value == pytest.approx(0.02)
    assert paired.low == pytest.approx(0.02) and paired.high == pytest.approx(0.02)
    with pytest.raises(ValueError, match="cannot be paired"):
        paired_difference(first, second[:-1])


def test_nothing_gives_no_figure_rather_than_zero():
    nothing = bootstrap(np.zeros((0, 2)))
    assert nothing.to_dict() == {"value": None, "low": None, "high": None, "n": 0}
    assert bootstrap([(0, 0), (0, 0)]).to_dict()["value"] is None
    assert str(bootstrap([(1, 2)])) == "0.500"  # one record has no interval, and proves no difference
    assert paired_difference([(1, 2)], [(2, 2)])[1] == 1


def test_fleiss_kappa_on_the_example_of_fleiss_style_tables():
    # ten items, fourteen judges, five labels: the worked example that textbooks and encyclopedias give (0.210)
    table = [
        [0, 0, 0, 0, 14], [0, 2, 6, 4, 2], [0, 0, 3, 5, 6], [0, 3, 9, 2, 0], [2, 2, 8, 1, 1], [7, 7, 0, 0, 0],
        [3, 2, 6, 3, 0], [2, 5, 3, 2, 2], [6, 5, 2, 1, 0], [0, 2, 2, 3, 7],
    ]  # fmt: skip
    assert fleiss_kappa(table) == pytest.approx(0.2099, abs=1e-4)
    assert math.isnan(fleiss_kappa([[3, 0], [3, 0]]))
    with pytest.raises(ValueError, match="same number of judges"):
        fleiss_kappa([[3, 0], [1, 1]])


def test_a_clear_difference_has_a_small_p_and_no_difference_has_p_one():
    better, worse = [(1.0, 1.0)] * 30, [(0.0, 1.0)] * 30
    _, p = paired_difference(better, worse)
    assert p == 2 * (0 + 1) / (RESAMPLES + 1)  # no resample on the other side of zero
    assert paired_difference(better, better)[1] == 1.0
    assert paired_difference(better[:3], worse[:3])[1] == 0.25  # all three better: so chance has it once in four times
