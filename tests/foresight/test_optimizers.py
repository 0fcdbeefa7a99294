"""The decision is for the optimizer that trains: rules on Adam's own step, and at its progress."""

import copy
import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn

from curvature.networks import batches, dense_curvature, dense_gradient, network
from curvature.quadratics import problem, space
from foresight.small_problem import uneven_inputs
from references import STANDARD_ERRORS
from risegrad import Informed, Rise, attach, diagnose, remember
from risegrad.curvature import DenseOperator, Measurement, ProductBudget
from risegrad.curvature.diagnosis.diagnose import diagnose_operator
from risegrad.curvature.diagnosis.inputs import plain_step, signs
from risegrad.curvature.diagnosis.report import decision
from risegrad.curvature.diagnosis.rules import (
    ADAM,
    FO,
    ISOTROPIC,
    RISE,
    SCALED,
    RuleForecast,
    informed_direction,
)
from risegrad.curvature.estimates import Estimate
from risegrad.curvature.space import make_space, trained_parameters
from risegrad.theory import efficiency_gain

QUICK = Measurement(dampings=(0.3,), budget=ProductBudget(probes=16))


def by_name(found):
    return {rule.name: rule for rule in found.rules}


def learned():
    """What is new is one batch, what was learned sixteen; and the optimizer that learned it."""
    model, (x, y), new, optimizer = uneven_inputs(512)
    return model, [*zip(x.chunk(16), y.chunk(16), strict=True)], new, optimizer


def progress_of(model, new, optimizer):
    """First-order progress ``-g'(after - before)`` of one real step."""
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(new[0]), new[1]).backward()
    g = [p.grad.clone() for p in model.parameters()]
    before = [p.detach().clone() for p in model.parameters()]
    optimizer.step()
    moved = zip(g, before, model.parameters(), strict=True)
    return sum((a * (b - p.detach())).sum().item() for a, b, p in moved)


@pytest.mark.parametrize(
    ("name", "make", "on"),
    [("sgd", torch.optim.SGD, "gradient"), ("adam", torch.optim.AdamW, "update")],
)
def test_the_recommended_step_keeps_the_optimizers_progress(name, make, on):
    model, old, new, _ = learned()
    chosen = diagnose(model, old, new, measurement=replace(QUICK, optimizer=name)).recommend()
    assert isinstance(chosen.shaper, Informed)
    assert chosen.on == on
    reached = []
    for rate, shaper in ((1.0, None), (chosen.rate, chosen.shaper)):
        own = copy.deepcopy(model)
        optimizer = make(own.parameters(), 1e-3 * rate, weight_decay=0.0)
        if shaper is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # the place must suit the optimizer
                attach(optimizer, shaper, params=own.named_parameters(), on=chosen.on)
        reached.append(progress_of(own, new, optimizer))
    assert reached[1] == pytest.approx(reached[0], rel=1e-3)


def test_the_moments_of_a_running_adam_are_used():
    """Its next step on the incoming gradient, as torch takes it."""
    model, _, new, optimizer = learned()
    optimizer.param_groups[0]["lr"] = 1e-3
    where = make_space(trained_parameters(model), Rise())
    nn.functional.cross_entropy(model(new[0]), new[1]).backward()
    g = where.flat([p.grad for p in model.parameters()])
    found = plain_step(optimizer, g, where, trained_parameters(model))
    before = where.flat([*model.parameters()]).clone()
    assert (found - signs(g)).abs().max() > 0.1
    optimizer.step()
    torch.testing.assert_close(1e-3 * found, before - where.flat([*model.parameters()]),
                               rtol=1e-3, atol=1e-6)  # fmt: skip


def test_rules_on_adams_step_of_a_known_quadratic():
    h, g, _ = problem()
    where = space()
    u = signs(g)
    how = Measurement(budget=ProductBudget(probes=64))
    operator = DenseOperator(h, where, columns=4)
    found = diagnose_operator(operator, g, measurement=how, plain=u)
    rules = by_name(found)
    assert found.rules[0].name == ADAM
    assert rules[FO].share.value == pytest.approx(1 / gain(h, g, g, u))
    mean = where.spread(where.numbers("mean_factor")) * u
    assert rules[SCALED].gain.value == pytest.approx(gain(h, g, mean, u))
    assert rules[SCALED].rate == pytest.approx(((g @ u) / (g @ mean)).item())
    n = where.numbers("q") + where.numbers("d") + 1
    noise, even = 0.0, 0.0
    for number, block in enumerate(where.blocks):
        own, hbb, d = u[block.at], h[block.at, block.at], block.d
        noise += ((own @ hbb @ own + own @ own * hbb.trace()) / n[number]).item()
        even += (own @ own * hbb.trace() * (d + 1) / (d * n[number])).item()
    plain = (u @ h @ u) / (g @ u) ** 2
    for name, bend, along in (
        (RISE, mean @ h @ mean + noise, mean),
        (ISOTROPIC, u @ h @ u + even, u),
    ):
        share = (bend / (g @ along) ** 2 / plain).item()
        rule = rules[name]
        assert abs(rule.share.value - share) < STANDARD_ERRORS * rule.share.error
        assert rule.on == "update"
    assert max(rule.products for rule in found.rules) <= 4


def gain(h, g, x, u):
    return (efficiency_gain(h, g, x) / efficiency_gain(h, g, u)).item()


def test_an_informed_step_on_adams_update_is_the_one_that_is_attached():
    model, old, new = network(), batches((6, 4, 5)), batches((5,), 7)
    memory = remember(model, batches((12,), 3), examples=None)
    spent = []
    for optimizer in ("sgd", "adam"):
        found = diagnose(
            model, old, new, memory=memory, measurement=replace(QUICK, optimizer=optimizer)
        )
        spent.append(found.products)
    assert spent[1] - spent[0] == 3  # RISE's own, which only gradients have already
    where = make_space(trained_parameters(model), Rise())
    h, g = dense_curvature(model, old, where, "ggn"), dense_gradient(model, new, where)
    before = where.flat([*trained_parameters(model).values()]).clone()
    adam = torch.optim.Adam(model.parameters(), lr=1e-6)
    attach(adam, Informed(memory, 0.3, match="norm"), params=model.named_parameters(), on="update")
    for x, y in new:
        nn.functional.cross_entropy(model(x), y).backward()
    adam.step()
    x = before - where.flat([*trained_parameters(model).values()])
    rule = by_name(found)["informed, damping 0.3"]
    assert rule.gain.value == pytest.approx(gain(h, g, x, signs(g)), rel=1e-4)
    assert rule.products == 1
    assert rule.on == "update"


def test_the_decision_names_the_optimizer():
    model, old, new, _ = learned()
    words = [
        diagnose(model, old, new, measurement=replace(QUICK, optimizer=name)).decision
        for name in ("sgd", "adam")
    ]
    assert "informed, damping 0.3, on the gradient of plain descent (SGD)" in words[0]
    assert "informed, damping 0.3, on Adam's update" in words[1]
    assert "of the damage of Adam's own steps" in words[1]
    _, g, _ = problem()
    even = DenseOperator(torch.eye(len(g), dtype=torch.float64), space())
    found = diagnose_operator(even, g, measurement=QUICK, plain=g)
    chosen = found.recommend()
    assert (chosen.rule, chosen.shaper, chosen.rate, chosen.on) == (ADAM, None, 1.0, "update")
    assert decision(found.rules).startswith("Use plain Adam's own steps: no rule does clearly")


def test_plain_descent_is_the_gradients_own_step():
    model = network()
    parameters = trained_parameters(model)
    where = make_space(parameters, Rise())
    made, g = torch.optim.SGD(model.parameters(), lr=0.1), torch.ones(where.d, dtype=where.dtype)
    assert plain_step(made, g, where, parameters) is None


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ("adm", ValueError, "optimizer must be one of sgd, adam; got 'adm'"),
        (3, TypeError, "optimizer must be 'sgd', 'adam' or a torch optimizer, got 3"),
        (torch.optim.Adam([nn.Parameter(torch.ones(2))]), ValueError,
         "optimizer must hold parameters of the model"),
    ],
)  # fmt: skip
def test_bad_optimizers(given, error, message):
    with pytest.raises(error, match=message):
        diagnose(network(), batches(), batches(), measurement=replace(QUICK, optimizer=given))


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_the_first_order_term_at_equal_progress(name):
    """``-eta h'x`` of the step that makes the plain one's progress, and the damage beside it."""
    model, old, new = network(), batches((6, 4, 5)), batches((5,), 7)
    memory = remember(model, batches((12,), 3), examples=None)
    found = diagnose(
        model, old, new, memory=memory, step=0.1, measurement=replace(QUICK, optimizer=name)
    )  # fmt: skip
    where = make_space(trained_parameters(model), Rise())
    curvature, g = dense_curvature(model, old, where, "ggn"), dense_gradient(model, new, where)
    h = dense_gradient(model, old, where)
    u = g if name == "sgd" else signs(g)
    mean = where.spread(where.numbers("mean_factor")) * u
    rules = by_name(found)
    directions = {FO: g, ADAM: signs(g), SCALED: mean, ISOTROPIC: u, RISE: mean}
    for rule, x in directions.items():
        rate = (g @ u) / (g @ x)
        linear = (-0.1 * rate * (h @ x)).item()
        assert rules[rule].linear == pytest.approx(linear, rel=1e-5)
        if rule in (FO, ADAM, SCALED):
            damage = 0.1**2 / 2 * (rate**2 * (x @ curvature @ x)).item()
            assert rules[rule].change.value == pytest.approx(linear + damage, rel=1e-5)
    plain, informed = found.rules[0], rules["informed, damping 0.3"]
    damage = informed.change.value - informed.linear
    assert damage == pytest.approx(informed.share.value * (plain.change.value - plain.linear))
    assert informed.change.error > 0


def test_halves_are_judged_on_the_gradient_of_the_other_half():
    model, old, new = network(), batches((6, 4, 5)), batches((5,), 7)
    found = diagnose(model, old, new, measurement=QUICK)
    where = make_space(trained_parameters(model), Rise())
    g = dense_gradient(model, new, where)
    total = 0.0
    for kept, other in ((old[::2], old[1::2]), (old[1::2], old[::2])):
        shaper = Informed(remember(model, kept, examples=None), 0.3, match="norm")
        x = informed_direction(where, g, dict(model.named_parameters()), shaper)
        size = sum(len(y) for _, y in other) / 15
        total -= (size * (dense_gradient(model, other, where) @ x) * (g @ g) / (g @ x)).item()
    assert by_name(found)["informed, damping 0.3"].linear == pytest.approx(total, rel=1e-5)


def test_the_decision_says_where_no_curvature_sees_the_change():
    steep = replace(FORECAST, linear=0.02, change=Estimate(0.021))
    plain = replace(steep, name=FO, share=Estimate(1.0), linear=-0.03, change=Estimate(-0.025))
    words = decision((plain, steep))
    assert "the kept loss would rise by 0.02 (fall by 0.03 with plain steps) to first" in words
    flat = replace(steep, linear=0.0005, change=Estimate(0.0015))
    assert "no curvature sees" not in decision((plain, flat))
    assert "would fall by 0.03 to first order, which no" in decision(
        (plain, replace(steep, share=Estimate(2.0, 0.1)))
    )


FORECAST = RuleForecast(
    "informed, damping 0.3", Estimate(0.2, 0.01), Estimate(5.0), Estimate(1.0), Estimate(1.0), 0.5
)
