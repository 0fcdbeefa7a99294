"""Means, deviations and intervals against numpy and scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from riselab.common.intervals import Estimate, differ_from_zero, estimate, t_quantile


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 9, 10, 29, 30, 99, 1000])
@pytest.mark.parametrize("confidence", [0.5, 0.8, 0.9, 0.95, 0.99, 0.999])
def test_t_quantile_is_scipys(confidence: float, degrees: int) -> None:
    expected = stats.t.ppf((1 + confidence) / 2, degrees)
    assert t_quantile(confidence, degrees) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize(("confidence", "degrees"), [(0.0, 2), (1.0, 2), (0.95, 0)])
def test_t_quantile_refuses_what_has_none(confidence: float, degrees: int) -> None:
    with pytest.raises(ValueError, match="must"):
        t_quantile(confidence, degrees)


@pytest.mark.parametrize("count", [2, 3, 5, 12])
def test_deviation_and_interval_are_those_of_numpy_and_scipy(count: int) -> None:
    values = np.random.default_rng(count).normal(3, 2, count)
    found = estimate(values.tolist())
    assert found is not None
    assert found.mean == pytest.approx(values.mean())
    assert found.sd == pytest.approx(values.std(ddof=1))
    expected = stats.t.interval(0.95, count - 1, values.mean(), stats.sem(values))
    assert (found.low, found.high) == pytest.approx(expected)
    less = found.times(0.01)
    assert (less.low, less.high) == pytest.approx([0.01 * end for end in expected])


def test_paired_verdict_agrees_with_scipys_paired_t_test() -> None:
    random = np.random.default_rng(0)
    for shift in np.linspace(-2, 2, 41):
        a, b = random.normal(shift, 1, 5), random.normal(0, 1, 5)
        ours = estimate((a - b).tolist())
        assert ours is not None
        assert ours.excludes_zero == (stats.ttest_rel(a, b).pvalue < 0.05)


def test_few_or_no_values() -> None:
    assert estimate([]) is None
    assert estimate([None]) is None
    one = estimate([2.0])
    assert one == Estimate(2.0, None, 1)
    assert (one.low, one.high, one.excludes_zero) == (None, None, False)
    same = estimate([1.5, 1.5, 1.5])
    assert same == Estimate(1.5, 0.0, 3)
    assert (same.low, same.high, same.excludes_zero) == (1.5, 1.5, True)
    assert not math.isnan(same.mean)


def test_several_means_are_judged_as_holm_does() -> None:
    """Against p values of scipy, step by step."""
    random = np.random.default_rng(3)
    called = 0
    for _ in range(40):
        shifts = random.choice([0.0, 1.0, 3.0], size=8)
        samples = [random.normal(shift, 1, 4) for shift in shifts]
        p = [stats.ttest_1samp(sample, 0).pvalue for sample in samples]
        expected = [False] * 8
        for step, place in enumerate(np.argsort(p)):
            if p[place] > 0.05 / (8 - step):
                break
            expected[place] = True
        assert differ_from_zero([estimate(sample.tolist()) for sample in samples]) == expected
        called += sum(expected)
    assert 0 < called < 200


def test_what_has_no_interval_is_neither_called_nor_counted() -> None:
    near = estimate([0.9, 1.0, 1.4])
    assert differ_from_zero([near, None, estimate([3.0])]) == [True, False, False]
    assert differ_from_zero([near, near, near]) == [False] * 3
    assert differ_from_zero([estimate([2.0, 2.0]), estimate([0.0, 0.0])]) == [True, False]
    assert differ_from_zero([]) == []


def test_one_table_in_twenty_has_a_false_call_and_not_one_row() -> None:
    random = np.random.default_rng(4)
    trials = 400
    false = sum(
        any(differ_from_zero([estimate(row) for row in random.normal(0, 1, (10, 3)).tolist()]))
        for _ in range(trials)
    )
    assert false / trials < 0.05 + 3 * (0.05 * 0.95 / trials) ** 0.5
