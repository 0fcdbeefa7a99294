"""Block terms: exact ones equal the dense numbers, estimated ones lie within their errors."""

from functools import partial

import pytest
import torch

from curvature.quadratics import SIZES, dense_terms, no_tick, problem, space
from references import STANDARD_ERRORS, assert_close, standard_scores
from risegrad.curvature.damage import Calibration, evaluate
from risegrad.curvature.estimates import (
    GradientTerms,
    Probes,
    exposure_scales,
    gradient_terms,
    jackknife,
)
from risegrad.curvature.products import DenseOperator

FIELDS = list(GradientTerms.__dataclass_fields__)


@pytest.mark.parametrize("kind", ["psd", "indefinite"])
@pytest.mark.parametrize("columns", [1, 3])
def test_exact_terms(kind, columns):
    h, g, past = problem(kind)
    operator, spent = DenseOperator(h, space(), columns), []
    found = gradient_terms(operator, g, past, spent.append)
    expected, _ = dense_terms(h, g, past)
    for name in FIELDS:
        assert_close(getattr(found, name), getattr(expected, name))
    assert operator.products == sum(spent) == len(SIZES)


@pytest.mark.parametrize("groups", [(8,), (4, 4)])
def test_probes_are_unbiased_for_all_blocks_and_pairs(groups):
    h, g, past = problem()
    operator = DenseOperator(h, space(), columns=3)
    _, expected = dense_terms(h, g, past)
    scales = torch.tensor([0.5, 1.0, 2.0, 1.5], dtype=torch.float64)
    draws = []
    for seed in range(600):
        probes = Probes(scales)
        for count in groups:
            probes.add(operator, count, seed, no_tick)
        draws.append(probes.terms())
    for name in ("trace", "norms"):
        values = torch.stack([getattr(draw, name) for draw in draws])
        scores = standard_scores(values, getattr(expected, name))
        # The block of one coordinate has a sign as its only probe: what it sees of itself is exact.
        assert (scores.nan_to_num(0) < STANDARD_ERRORS).all(), name
    assert probes.count == 8


@pytest.mark.parametrize("groups", [(9,), (5, 4)])
def test_leaving_out_a_probe_is_never_having_drawn_it(groups):
    h, _, _ = problem()
    operator = DenseOperator(h, space())
    probes = Probes(torch.ones(4, dtype=torch.float64))
    for count in groups:
        probes.add(operator, count, 0, no_tick)
    smaller = Probes(torch.ones(4, dtype=torch.float64))
    for count in (*groups[:-1], groups[-1] - 1):
        smaller.add(operator, count, 0, no_tick)
    left = probes.without(probes.count - 1)
    assert_close(left.trace, smaller.terms().trace)
    assert_close(left.norms, smaller.terms().norms)


def test_stated_errors_cover_the_truth():
    """Over many seeds: no bias beyond the errors, and errors neither too small nor far too big."""
    h, g, past = problem()
    operator = DenseOperator(h, space(), columns=8)
    formula = partial(evaluate, c=Calibration.of(space()), eta=0.3)
    exact = formula(*dense_terms(h, g, past))
    scales = exposure_scales(space(), dense_terms(h, g, past)[0].g2)
    misses = {name: [] for name in ("rise", "rise_std", "gap", "lambda_avg",
                                    "change_rise", "change_rise_std")}  # fmt: skip
    for seed in range(30):
        gradient = gradient_terms(operator, g, past, no_tick)
        probes = Probes(scales)
        probes.add(operator, 16, 1000 + seed, no_tick)
        values, errors = jackknife(partial(formula, gradient), probes)
        for name, scores in misses.items():
            scores.append(((values[name] - exact[name]) / errors[name]).item())
    for name, scores in misses.items():
        scores = torch.tensor(scores)
        assert scores.abs().quantile(0.95) < 3.5, name
        assert 0.4 < scores.std() < 1.5, name


def test_exact_sources_have_no_error():
    h, g, past = problem()
    operator = DenseOperator(h, space())
    gradient = gradient_terms(operator, g, past, no_tick)
    probes = Probes(torch.ones(4, dtype=torch.float64))
    probes.add(operator, 8, 0, no_tick)
    formula = partial(evaluate, c=Calibration.of(space()), eta=1.0)
    _, errors = jackknife(partial(formula, gradient), probes)
    assert errors["fo"] == 0
    assert errors["scaled_fo"] == 0
    assert errors["rise"] > 0


def test_scales_have_a_floor():
    scales = exposure_scales(space(), torch.tensor([0.0, 1.0, 4.0, 1.0], dtype=torch.float64))
    assert (scales > 0).all()
    assert scales[2] == (4 / (3 + 1 + 1)) ** 0.5
    assert (exposure_scales(space(), torch.zeros(4, dtype=torch.float64)) == 1).all()
