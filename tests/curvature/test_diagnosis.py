"""A diagnosis against the theory's dense formulas, and against what really happens."""

import json

import pytest
import torch
from torch import nn

from curvature.grouped import grouped
from curvature.networks import batches, dense_curvature, dense_gradient, network, parts
from curvature.quadratics import QUERIES, SIZES, D, dense_terms, problem, space
from references import STANDARD_ERRORS, assert_close, standard_scores
from risegrad import theory
from risegrad.core.attachment import attach
from risegrad.core.draws import numbered_generator
from risegrad.core.shapers import Rise, ScaledFO, shape
from risegrad.curvature import BatchLoss, Measurement, ProductBudget, diagnose
from risegrad.curvature.damage import Calibration, Pull, covariance_from_scalars, evaluate
from risegrad.curvature.diagnosis.diagnose import diagnose_operator
from risegrad.curvature.objective import Objective
from risegrad.curvature.products import DenseOperator

ETA = 0.3


def exact_numbers(kind="psd"):
    h, g, past = problem(kind)
    values = evaluate(*dense_terms(h, g, past), Calibration.of(space()), ETA)
    return h, g, past, values


@pytest.mark.parametrize("kind", ["psd", "indefinite"])
def test_formulas_are_those_of_the_theory(kind):
    h, g, _, found = exact_numbers(kind)
    moments = theory.blockwise_moments(h, g, SIZES, QUERIES, ETA)
    gap = theory.blockwise_gap_parts(h, g, SIZES, QUERIES, ETA)
    control = theory.scaled_fo_direction(g, SIZES, QUERIES)
    assert_close(found["fo"], theory.fo_damage(h, g, ETA))
    assert_close(found["scaled_fo"], theory.fo_damage(h, control, ETA))
    assert_close(found["rise"], moments.mean)
    assert_close(found["rise_std"], moments.std)
    assert_close(found["gap"], gap.total)
    assert_close(found["block.S"], theory.shaping_scores(h, g, SIZES, QUERIES, ETA))
    assert_close(found["block.lambda_avg"], theory.damage_densities(h, SIZES))
    assert_close(found["block.raw_C"], theory.coupling_scores(h, SIZES))
    covariances = [ETA**2 * c for c in theory.blockwise_covariances(g, SIZES, QUERIES)]
    assert_close(found["block.C"], theory.coupling_scores(h, SIZES, covariances))
    assert_close(found["lambda_dir"], theory.directional_curvature(h, g))
    assert_close(found["block.fo"].sum(), found["fo"])


def test_covariance_from_scalars():
    h, g, past = problem("indefinite")
    calibration = Calibration.of(space())
    for b, part in enumerate(space().blocks):
        own, block, r = g[part.at], h[part.at, part.at], past[part.at]
        one = Calibration(*(getattr(calibration, n)[b] for n in ("d", "q", "tau", "a")))
        pull = Pull(own @ r, r @ block @ own)
        found = covariance_from_scalars(own @ block @ own, block.trace(), own @ own, pull, one)
        assert_close(found, theory.quadratic_linear_covariance(block, own, r, part.q))


def draws_of(g, count=40_000):
    """RISE draws (count, D) by Algorithm 1's law, block by block."""
    torch.manual_seed(11)
    parts = []
    for block in space().blocks:
        z = torch.randn(count, block.q, block.d, dtype=torch.float64)
        raw = torch.einsum("nqi,nqj,j->ni", z, z, g[block.at]) / block.q
        parts.append(block.mean_factor * raw)
    return torch.cat(parts, dim=1)


@pytest.mark.parametrize("kind", ["psd", "indefinite"])
def test_predictions_are_what_happens_on_a_quadratic(kind):
    """The loss ``h'D + D'HD/2`` itself, for many drawn steps."""
    h, g, past, found = exact_numbers(kind)
    x = draws_of(g)
    damage = ETA**2 / 2 * ((x @ h) * x).sum(1)
    change = damage - ETA * x @ past
    assert standard_scores(damage, found["rise"]) < STANDARD_ERRORS
    assert standard_scores(change, found["change_rise"]) < STANDARD_ERRORS
    for sample, name in ((damage, "rise_std"), (change, "change_rise_std")):
        squares = (sample - sample.mean()).square()
        assert standard_scores(squares, found[name].square()) < STANDARD_ERRORS
    assert_close(found["change_fo"], -ETA * past @ g + ETA**2 / 2 * g @ h @ g)


def test_covariance_noise_has_the_mean_and_its_own_deviation():
    h, g, _, found = exact_numbers()
    torch.manual_seed(2)
    covariances = theory.blockwise_covariances(g, SIZES, QUERIES)
    roots = torch.block_diag(*(torch.linalg.cholesky(c) for c in covariances))
    x = theory.scaled_fo_direction(g, SIZES, QUERIES)
    x = x + torch.randn(40_000, D, dtype=torch.float64) @ roots.mT
    damage = ETA**2 / 2 * ((x @ h) * x).sum(1)
    assert standard_scores(damage, found["rise"]) < STANDARD_ERRORS
    squares = (damage - damage.mean()).square()
    expected = found["covariance_noise_std"].square()
    assert standard_scores(squares, expected) < STANDARD_ERRORS


NETWORK = ProductBudget(probes=96, columns=8)


RULES = 4 + 4
"""Products: FO, scaled FO and RISE's noise by batches, Adam's own step, and four dampings."""


def diagnosed(**options):
    settings = {"rise": Rise(q=3), "step": ETA, "budget": NETWORK} | options
    return diagnose(network(), batches(), batches((5,), seed=9), **grouped(**settings))


@pytest.fixture(scope="module")
def found():
    return diagnosed()


@pytest.fixture(scope="module")
def dense():
    model, data = network(), batches()
    _, where, _ = parts(model, data, Rise(q=3))
    h = dense_curvature(model, data, where, "ggn")
    return h, dense_gradient(model, batches((5,), seed=9), where), where


def test_a_network_against_its_dense_curvature(found, dense):
    h, g, where = dense
    sizes = [block.d for block in where.blocks]
    t = found.totals
    moments = theory.blockwise_moments(h, g, sizes, 3, ETA)
    expected = {
        "fo": theory.fo_damage(h, g, ETA),
        "rise": moments.mean,
        "rise_std": moments.std,
        "gap": theory.blockwise_gap(h, g, sizes, 3, ETA),
        "lambda_dir": theory.directional_curvature(h, g),
    }
    for name, value in expected.items():
        estimate = getattr(t, name)
        close = pytest.approx(value.item(), rel=1e-10, abs=STANDARD_ERRORS * estimate.error)
        assert estimate.value == close, name
    assert t.fo.error == t.scaled_fo.error == 0
    scores = theory.shaping_scores(h, g, sizes, 3, ETA)
    covariances = [ETA**2 * c for c in theory.blockwise_covariances(g, sizes, 3)]
    couplings = theory.coupling_scores(h, sizes, covariances)
    flat = theory.flat_signal_scores(h, g, sizes, found.damping)
    for b, block in enumerate(found.blocks):
        own = h[where.blocks[b].at, where.blocks[b].at]
        for estimate, value in (
            (block.S, scores[b]), (block.lambda_avg, own.trace() / block.d),
            (block.C, couplings[b]),
        ):  # fmt: skip
            assert abs(estimate.value - value.item()) <= STANDARD_ERRORS * estimate.error
        assert block.R.lower <= flat[b] * (1 + 1e-9)
        assert flat[b] <= block.R.upper * (1 + 1e-9)


def test_products(found):
    assert found.products == 4 + found.probes + RULES


def test_deterministic_given_a_seed(found):
    model, old, new = network(), batches(), batches((5,), seed=9)
    torch.manual_seed(123)  # the global state must not matter, nor move
    state = torch.get_rng_state()
    again = diagnose(model, old, new, **grouped(rise=Rise(q=3), step=ETA, budget=NETWORK))
    assert again.to_dict() == found.to_dict()
    assert torch.equal(torch.get_rng_state(), state)
    other = diagnosed(seed=1)
    assert other.totals.rise != found.totals.rise
    assert other.totals.fo == found.totals.fo


def test_memory_bounds_the_groups_and_not_the_numbers(found):
    """Small groups pair fewer probes; traces are the same to the last digits."""
    tight = ProductBudget(probes=96, columns=8, memory=3000)
    small = diagnosed(budget=tight)
    assert small.totals.lambda_avg.value == pytest.approx(found.totals.lambda_avg.value, rel=1e-9)
    assert small.totals.rise_std.value != found.totals.rise_std.value
    close = STANDARD_ERRORS * (small.totals.rise_std.error + found.totals.rise_std.error)
    assert abs(small.totals.rise_std.value - found.totals.rise_std.value) < close


def drawn(where, g, seed):
    """One RISE draw, block by block."""
    parts = []
    for number, block in enumerate(where.blocks):
        parts.append(shape(g[block.at], block.q, numbered_generator(seed, number)))
    return torch.cat(parts)


def test_a_quadratic_network_changes_as_predicted():
    """A linear model with squared error: the loss is its own quadratic model, to the last digit."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2).double()
    old = [(torch.randn(6, 4).double(), torch.randn(6, 2).double()) for _ in range(2)]
    new = [(torch.randn(5, 4).double(), torch.randn(5, 2).double())]
    loss, rise = nn.MSELoss(), Rise(q=2)
    how = {"batch_loss": BatchLoss(loss), "measurement": Measurement(curvature="hessian")}
    found = diagnose(model, old, new, rise=rise, step=0.1, **how)
    objective, where, parameters = parts(model, old, rise, loss)
    g = Objective(model, new, loss).gradient(where, parameters)
    before = objective.value()

    def change(x):
        with torch.no_grad():
            for p, move in zip(where.names, where.tensors(x), strict=True):
                parameters[p].sub_(0.1 * move)
            after = objective.value()
            for p, move in zip(where.names, where.tensors(x), strict=True):
                parameters[p].add_(0.1 * move)
        return after - before

    t = found.totals
    assert t.change_fo.value == pytest.approx(change(g), rel=1e-9)
    mean = where.spread(where.numbers("mean_factor")) * g
    assert t.change_scaled_fo.value == pytest.approx(change(mean), rel=1e-9)
    true = torch.tensor([change(drawn(where, g, seed)) for seed in range(1000)])
    error = true.std() / len(true) ** 0.5 + t.change_rise.error
    assert abs(true.mean() - t.change_rise.value) < STANDARD_ERRORS * error
    assert true.std().item() == pytest.approx(t.change_rise_std.value, rel=0.15)
    assert found.historical_loss == before


def test_the_model_is_left_as_it_was():
    model = network(extra=nn.Dropout(0.3)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    how = Measurement(budget=ProductBudget(probes=8))
    diagnose(model, batches(), batches((5,)), measurement=how)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.training


def test_progress_is_told():
    told = []
    diagnosed(budget=ProductBudget(probes=16),
              progress=lambda done, most: told.append((done, most)), dampings=())  # fmt: skip
    assert told[-1] == (4 + 16,) * 2
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_a_block_without_gradient():
    h, g, past = problem()
    g[space().blocks[1].at] = 0
    found = diagnose_operator(DenseOperator(h, space()), g, past, step=ETA)
    block = found.blocks[1]
    assert block.lambda_dir is None
    assert block.S.value == 0
    own = h[space().blocks[1].at, space().blocks[1].at].trace().item() / block.d
    assert abs(block.lambda_avg.value - own) < STANDARD_ERRORS * block.lambda_avg.error
    json.dumps(found.to_dict(), allow_nan=False)


def test_no_gradient_at_all():
    h, g, _ = problem()
    found = diagnose_operator(DenseOperator(h, space()), torch.zeros_like(g))
    assert found.totals.rise.value == 0
    json.dumps(found.to_dict(), allow_nan=False)
    assert "no rule would move" in str(found)


def test_verdicts_have_the_right_sign():
    h = torch.diag(torch.linspace(0.1, 4, D, dtype=torch.float64))
    spend = ProductBudget(probes=16)
    steep, flat = h[-1].clone(), h[0].clone()
    how = Measurement(budget=spend)
    less, more = (diagnose_operator(DenseOperator(h, space()), g, measurement=how)
                  for g in (steep, flat))  # fmt: skip
    assert "does less damage on average" in less.verdicts[0]
    assert "does more damage on average" in more.verdicts[0]
    how = Measurement(curvature="hessian", budget=spend)
    negative = diagnose_operator(DenseOperator(-h, space()), steep, measurement=how)
    assert all(block.R is None for block in negative.blocks)


class WithSpare(nn.Module):
    """A network with a layer that no loss sees, and one that is frozen."""

    def __init__(self):
        super().__init__()
        self.used = network()
        self.spare = nn.Linear(4, 30).double()
        self.frozen = nn.Linear(4, 4).double().requires_grad_(False)

    def forward(self, x):
        return self.used(x)


@pytest.mark.parametrize("blocks", ["whole", {"all": "*"}])
def test_diagnose_and_attach_agree_on_d(blocks):
    """The mean factor of a step that is taken is the one that was foretold."""
    model, old, new = WithSpare(), batches(seed=1), batches((8,), seed=2)
    found = diagnose(model, old, new, rise=Rise(blocks=blocks), step=ETA)
    alone = diagnose(model.used, old, new, rise=Rise(blocks="whole"), step=ETA)
    assert found.blocks[0].d == alone.blocks[0].d
    assert found.totals.rise == alone.totals.rise
    optimizer = torch.optim.SGD(model.parameters(), lr=ETA)
    attach(optimizer, ScaledFO(blocks=blocks), model.named_parameters())
    (x, y), weight = new[0], model.used[0].weight
    nn.functional.cross_entropy(model(x), y).backward()
    before = weight.grad.clone()
    optimizer.step()
    assert_close(weight.grad, found.blocks[0].mean_factor * before)
