"""More blocks than pairs can be kept for: the totals are the same, the pairs are not there."""

from functools import partial

import pytest
import torch
from torch import nn

from curvature.networks import batches, network
from curvature.quadratics import SIZES, dense_terms, no_tick, problem, space
from references import STANDARD_ERRORS, assert_close, standard_scores
from risegrad.core.shapers import Rise
from risegrad.curvature import ProductBudget
from risegrad.curvature.estimates.damage_moments import Calibration, evaluate
from risegrad.curvature.estimates.gradient_terms import exact_gradient_terms, signed_gradient_terms
from risegrad.curvature.estimates.probe_terms import Probes, ProbeTerms
from risegrad.curvature.operators import parameter_space
from risegrad.curvature.operators.products import DenseOperator
from risegrad.foresight import Measurement, diagnose


@pytest.fixture
def many(monkeypatch):
    monkeypatch.setattr(parameter_space, "MOST_PAIRED", 2)


def weights(g2):
    return g2 / (space().numbers("q") + space().numbers("d") + 1)


def test_exact_sums_give_the_same_totals(many):
    h, g, past = problem("indefinite")
    gradient, probes = dense_terms(h, g, past)
    found = exact_gradient_terms(DenseOperator(h, space(), 3), g, past, no_tick).terms()
    w = weights(gradient.g2)
    summed = ProbeTerms(
        probes.trace, probes.norms.diagonal(), w @ probes.norms @ w, probes.norms.sum()
    )
    formula = partial(evaluate, c=Calibration.of(space()), eta=0.3)
    expected, values = formula(gradient, probes), formula(found, summed)
    assert set(expected) - set(values) == {"block.C", "block.raw_C"}
    for name, value in values.items():
        assert_close(value, expected[name])


def test_signed_sums_are_unbiased(many):
    h, g, past = problem("indefinite")
    operator = DenseOperator(h, space(), columns=4)
    draws = [
        signed_gradient_terms(operator, g, past, 6, seed, no_tick).terms() for seed in range(500)
    ]
    exact = exact_gradient_terms(operator, g, past, no_tick).terms()
    for of in (lambda t: t.ghg, lambda t: t.hg2, lambda t: t.sums.cross, lambda t: t.sums.pulls):
        values = torch.stack([of(draw) for draw in draws])
        assert (standard_scores(values, of(exact)) < STANDARD_ERRORS).all()


def test_probed_sums_are_unbiased():
    h, g, past = problem()
    gradient, dense = dense_terms(h, g, past)
    w = weights(gradient.g2)
    operator = DenseOperator(h, space(), columns=3)
    draws = []
    for seed in range(500):
        probes = Probes(torch.tensor([0.5, 1.0, 2.0, 1.5], dtype=torch.float64), w)
        for count in (4, 4):
            probes.add(operator, count, seed, no_tick)
        draws.append(probes.terms())
    truth = {"trace": dense.trace, "norms": dense.norms.diagonal(),
             "weighted": w @ dense.norms @ w, "whole": dense.norms.sum()}  # fmt: skip
    for name, expected in truth.items():
        values = torch.stack([getattr(draw, name) for draw in draws])
        scores = standard_scores(values, expected)
        assert (scores.nan_to_num(0) < STANDARD_ERRORS).all(), name


def test_leaving_out_is_never_having_drawn(many):
    h, g, past = problem()
    operator = DenseOperator(h, space())
    nine, eight = (signed_gradient_terms(operator, g, past, k, 0, no_tick) for k in (9, 8))
    left, smaller = nine.without(8), eight.terms()
    for of in (lambda t: t.ghg, lambda t: t.hg2, lambda t: t.sums.cross, lambda t: t.sums.pulls):
        assert_close(of(left), of(smaller))
    made = []
    for counts in ((5, 4), (5, 3)):
        probes = Probes(torch.ones(4, dtype=torch.float64), weights(dense_terms(h, g, past)[0].g2))
        for count in counts:
            probes.add(operator, count, 0, no_tick)
        made.append(probes)
    left, smaller = made[0].without(8), made[1].terms()
    for name in ("trace", "norms", "weighted", "whole"):
        assert_close(getattr(left, name), getattr(smaller, name))


def test_the_same_diagnosis_with_and_without_pairs(monkeypatch):
    """All but the coupling scores; exact directions, so that only the probes are random."""
    how = Measurement(budget=ProductBudget(probes=24, adam_draws=0))
    made = []
    for most in (1024, 2):
        monkeypatch.setattr(parameter_space, "MOST_PAIRED", most)
        made.append(diagnose(network(), batches(), batches((5,), 7), measurement=how))
    kept, summed = made
    assert kept.products == summed.products
    for name in ("fo", "rise", "rise_std", "covariance_noise_std", "trace_sq"):
        one, other = getattr(kept.totals, name), getattr(summed.totals, name)
        assert other.value == pytest.approx(one.value, rel=1e-9)
        assert other.error == pytest.approx(one.error, rel=1e-6)
    assert all(block.C is None and block.raw_C is None for block in summed.blocks)
    assert all(block.C is not None for block in kept.blocks)
    assert "None" not in str(summed)


def test_thousands_of_blocks():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 120), nn.Tanh(), nn.Linear(120, 12))
    old, new = ([(torch.randn(n, 30), torch.randint(12, (n,)))] for n in (12, 8))
    budget = ProductBudget(probes=16, adam_draws=0)
    few = diagnose(model, old, new, measurement=Measurement(budget=ProductBudget(adam_draws=0)))
    many = diagnose(model, old, new, rise=Rise(blocks=4), measurement=Measurement(budget=budget))
    assert len(many.blocks) > parameter_space.MOST_PAIRED
    shared = many.products - sum(rule.products for rule in many.rules)
    assert shared <= budget.signs + 4 + budget.probes + budget.flat_scores
    scored = {block.name for block in many.blocks if block.R is not None}
    largest = sorted(many.blocks, key=lambda block: -abs(block.S.value))[: budget.flat_scores]
    assert scored == {block.name for block in largest}
    assert many.totals.fo.value == pytest.approx(few.totals.fo.value, rel=1e-4)
    assert len(SIZES) < len(many.blocks)
    assert many.totals.rise.relative_error < 0.5
