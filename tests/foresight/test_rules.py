"""Rules at equal progress: products give what theory.efficiency defines, and a decision follows."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

from curvature.networks import batches, dense_curvature, dense_gradient, network
from curvature.quadratics import D, problem, space
from foresight.small_problem import uneven_inputs
from risegrad import Informed, Memory, Rise, attach, diagnose, remember
from risegrad.curvature import DenseOperator, Measurement, ProductBudget
from risegrad.curvature.damage import Bends, priced
from risegrad.curvature.diagnosis.diagnose import diagnose_operator
from risegrad.curvature.diagnosis.report import best_rule, decision
from risegrad.curvature.diagnosis.rules import ADAM, FO, ISOTROPIC, RISE, SCALED, RuleForecast
from risegrad.curvature.estimates import Estimate
from risegrad.curvature.space import make_space, trained_parameters
from risegrad.theory import efficiency, efficiency_gain

QUICK = Measurement(budget=ProductBudget(probes=16))


def by_name(found):
    return {rule.name: rule for rule in found.rules}


def test_rules_of_a_known_quadratic():
    h, g, _ = problem()
    how = Measurement(budget=ProductBudget(probes=64))
    operator = DenseOperator(h, space(), columns=4)
    rules = by_name(diagnose_operator(operator, g, measurement=how))
    assert rules[FO].efficiency.value == pytest.approx(efficiency(h, g, g).item())
    assert rules[ADAM].gain.value == pytest.approx(efficiency_gain(h, g, g.sign()).item(), 1e-6)
    where = space()
    a, q, d = (where.numbers(what) for what in ("mean_factor", "q", "d"))
    mean = where.spread(a) * g
    assert rules[SCALED].gain.value == pytest.approx(efficiency_gain(h, g, mean).item())
    # E[x'Hx] written out: the mean's part, and the covariances C = (gg' + |g|^2 I)/n.
    spread = 0.0
    for number, block in enumerate(where.blocks):
        own, hbb = g[block.at], h[block.at, block.at]
        n = q[number] + d[number] + 1
        spread += ((own @ hbb @ own + own @ own * hbb.trace()) / n).item()
    price = (mean @ h @ mean + spread) / (g @ mean) ** 2
    share = (price / ((g @ h @ g) / (g @ g) ** 2)).item()
    assert abs(rules[RISE].share.value - share) < 4 * rules[RISE].share.error
    assert rules[RISE].rate == pytest.approx(((g @ g) / (g @ mean)).item())
    assert rules[ISOTROPIC].progress == 1
    assert rules[ISOTROPIC].share.value > 1


def informed_setting():
    model, old, new = network(), batches((6, 4, 5)), batches((5,), 7)
    memory = remember(model, batches((12,), 3), examples=None)
    return model, old, new, memory


def test_an_informed_step_is_the_one_that_is_attached():
    model, old, new, memory = informed_setting()
    how = Measurement(dampings=(0.3,), budget=QUICK.budget)
    found = by_name(diagnose(model, old, new, memory=memory, measurement=how))
    where = make_space(trained_parameters(model), Rise())
    h, g = dense_curvature(model, old, where, "ggn"), dense_gradient(model, new, where)
    before = where.flat([dict(model.named_parameters())[name] for name in where.names])
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    attach(optimizer, Informed(memory, 0.3, match="norm"), params=model.named_parameters())
    for x, y in new:
        nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    x = before - where.flat([dict(model.named_parameters())[name] for name in where.names])
    rule = found["informed, damping 0.3"]
    assert rule.gain.value == pytest.approx(efficiency_gain(h, g, x).item(), rel=1e-6)
    assert rule.share.value == pytest.approx(1 / rule.gain.value, rel=1e-6)
    assert rule.rate == pytest.approx(((g @ g) / (g @ x)).item(), rel=1e-6)
    assert rule.products == 1
    assert rule.share.error > 0  # three batches do not agree entirely


def test_an_extra_damping_costs_one_product():
    model, old, new, memory = informed_setting()
    spent = [
        diagnose(model, old, new, memory=memory,
                 measurement=Measurement(dampings=dampings, budget=QUICK.budget)).products
        for dampings in ((0.3,), (0.3, 1.0, 3.0))
    ]  # fmt: skip
    assert spent[1] - spent[0] == 2


def test_without_a_memory_halves_are_judged_on_each_other():
    """By hand: the memory of the even batches on the odd ones, and the other way."""
    model, old, new, _ = informed_setting()
    how = Measurement(dampings=(0.3,), budget=QUICK.budget)
    rule = by_name(diagnose(model, old, new, measurement=how))["informed, damping 0.3"]
    one = remember(model, old[::2], examples=None)
    other = remember(model, old[1::2], examples=None)
    judged = [
        by_name(diagnose(model, part, new, memory=memory, measurement=how))[rule.name]
        for memory, part in ((one, old[1::2]), (other, old[::2]))
    ]
    where = make_space(trained_parameters(model), Rise())
    g = dense_gradient(model, new, where)
    weights = (4 / 15, 11 / 15)
    price = sum(w / found.efficiency.value for w, found in zip(weights, judged, strict=True))
    h = dense_curvature(model, old, where, "ggn")
    assert rule.share.value == pytest.approx(price * efficiency(h, g, g).item(), rel=1e-6)


def test_a_batch_that_is_hard_on_every_rule_tells_nothing():
    hard, gain = torch.tensor([1.0, 1.0, 10.0], dtype=torch.float64), torch.ones(3)
    same = priced(Bends(0.5 * hard, gain), Bends(hard, gain))
    assert same.share == Estimate(0.5, pytest.approx(0.0, abs=1e-12), 1)
    assert same.efficiency.error > 0.01


def forecast(name, share, error=0.0, progress=0.5):
    one = Estimate(share, error)
    return RuleForecast(name, one, Estimate(1 / share), Estimate(1.0), Estimate(1.0), progress)


@pytest.mark.parametrize(
    ("share", "error", "said"),
    [
        (0.21, 0.04, "(SGD): per unit of progress it does 0.21 ± 0.04 of"),
        (0.88, 0.001, "Use informed, damping 0.3"),
        (0.8, 0.2, "Use plain first-order (FO) steps of SGD: no rule does clearly less damage"),
        (
            0.95,
            0.001,
            "The best of the others, informed, damping 0.3, does 0.950 ± 0.001 of theirs",
        ),
        (3.0, 0.0, "Use plain first-order (FO) steps"),
    ],
)
def test_the_decision(share, error, said):
    rules = (forecast(FO, 1.0), forecast(RISE, 4.3, 0.1), forecast(ADAM, 0.1),
             forecast("informed, damping 0.3", share, error))  # fmt: skip
    words = decision(rules)
    assert said in words
    assert words.endswith("RISE would do 4.3 times the damage of a smaller step.")


def informed_at(damping, share, error):
    return replace(forecast(f"informed, damping {damping:g}", share, error), damping=damping)


@pytest.mark.parametrize(
    ("shares", "wanted"),
    [
        ({0.03: (0.0034, 0.004), 0.1: (0.0069, 0.006), 0.3: (0.02, 0.001)}, 0.1),
        ({0.03: (0.3, 0.01), 0.1: (0.32, 0.01)}, 0.03),
        ({0.03: (0.3, 0.05), 0.1: (0.2, 0.05), 0.3: (0.24, 0.05), 1.0: (0.26, 0.05)}, 0.3),
        # The larger one is within the error, but too uncertain to be recommended itself.
        ({0.03: (0.7, 0.06), 0.1: (0.75, 0.2)}, 0.03),
    ],
)
def test_the_largest_damping_within_one_standard_error(shares, wanted):
    rules = [forecast(FO, 1.0), *(informed_at(rho, *found) for rho, found in shares.items())]
    assert best_rule(rules).damping == wanted
    assert f"damping {wanted:g}" in decision(rules)


def test_scaled_fo_is_priced_over_batches():
    """Leaving out one batch after the other from both rules, by dense matrices."""
    model, old, new, _ = informed_setting()
    found = by_name(diagnose(model, old, new, rise=Rise(q=2), measurement=QUICK))
    where = make_space(trained_parameters(model), Rise(q=2))
    g = dense_gradient(model, new, where)
    mean = where.spread(where.numbers("mean_factor")) * g
    parts = [len(y) / 15 * dense_curvature(model, [(x, y)], where, "ggn") for x, y in old]

    def share(kept):
        h = sum(kept)
        return 1 / efficiency_gain(h, g, mean).item()

    left = torch.tensor([share(parts[:n] + parts[n + 1 :]) for n in range(3)], dtype=torch.float64)
    error = (2 / 3 * (left - left.mean()).square().sum()).sqrt().item()
    assert found[SCALED].share.value == pytest.approx(share(parts))
    assert found[SCALED].share.error == pytest.approx(error, rel=1e-6)
    assert found[SCALED].products == 1
    assert found[RISE].products == 1


def test_errors_of_random_rules_are_over_batches_too():
    """With many probes only the batches are left; the noise is divided among them by one draw."""
    model, old, new, _ = informed_setting()
    spend = ProductBudget(probes=256)
    how = Measurement(dampings=(), budget=spend)
    found = by_name(diagnose(model, old, new, rise=Rise(q=2), measurement=how))
    where = make_space(trained_parameters(model), Rise(q=2))
    g = dense_gradient(model, new, where)
    mean = where.spread(where.numbers("mean_factor")) * g
    n = where.numbers("q") + where.numbers("d") + 1
    parts = [len(y) / 15 * dense_curvature(model, [(x, y)], where, "ggn") for x, y in old]

    def share(kept):
        h, noise = sum(kept), 0.0
        for number, block in enumerate(where.blocks):
            own, hbb = g[block.at], h[block.at, block.at]
            noise += (own @ hbb @ own + own @ own * hbb.trace()) / n[number]
        price = (mean @ h @ mean + noise) / (g @ mean) ** 2
        return (price / ((g @ h @ g) / (g @ g) ** 2)).item()

    left = torch.tensor([share(parts[:k] + parts[k + 1 :]) for k in range(3)], dtype=torch.float64)
    error = (2 / 3 * (left - left.mean()).square().sum()).sqrt().item()
    assert found[RISE].share.error == pytest.approx(error, rel=0.5)
    assert found[ISOTROPIC].share.error > 0


def test_without_an_error_nothing_is_recommended():
    """One batch: an exact number, but not of anything that was drawn more than once."""
    rules = (forecast(FO, 1.0), forecast(SCALED, 0.2, 0.0))
    words = decision(rules)
    assert words.startswith("Use plain first-order (FO) steps")
    assert "One historical batch gives no error of that: give two or more to decide." in words


def test_recommend_gives_what_can_be_attached():
    model, old, new, _ = uneven_inputs(64)
    found = diagnose(model, old, new, measurement=QUICK)
    chosen = found.recommend()
    assert chosen.words == found.decision
    assert chosen.rule.startswith("informed")
    assert isinstance(chosen.shaper, Informed)
    assert isinstance(chosen.shaper.memory, Memory)
    assert chosen.rate == pytest.approx(by_name(found)[chosen.rule].rate)
    attach(torch.optim.SGD(model.parameters(), lr=chosen.rate), chosen.shaper,
           params=model.named_parameters())  # fmt: skip
    assert "must not be used to predict" in str(found) or "can be trusted here" in str(found)
    assert json.dumps(found.to_dict(), allow_nan=False)
    assert str(found).startswith("Use informed")


def test_nothing_is_worth_it():
    """All curvature alike: no rule can do better than the gradient."""
    h = torch.eye(D, dtype=torch.float64)
    _, g, _ = problem()
    found = diagnose_operator(DenseOperator(h, space()), g, measurement=QUICK)
    chosen = found.recommend()
    assert (chosen.rule, chosen.shaper, chosen.rate) == (FO, None, 1.0)
    assert "Use plain first-order (FO) steps" in chosen.words


def test_why_there_is_no_informed_rule():
    model = network()
    found = diagnose(model, batches((6,)), batches((5,), 7), measurement=QUICK)
    assert "informed" not in " ".join(by_name(found))
    assert "it needs a memory=, or two historical batches or more" in " ".join(str(found).split())


def test_the_hessian_considers_no_informed_step_and_says_so():
    how = Measurement(curvature="hessian", budget=QUICK.budget)
    found = diagnose(network(), batches((6, 4)), batches((5,), 7), measurement=how)
    assert "informed" not in " ".join(by_name(found))
    assert any(
        said.startswith("Informed steps were not considered: with curvature 'hessian'")
        for said in found.verdicts
    )


def test_tensors_are_cut_into_batches():
    model, (old, new) = network(), (batches((12,))[0], batches((5,), 7)[0])
    found = diagnose(model, old, new, measurement=QUICK)
    cut = [(x, y) for x, y in zip(old[0].chunk(4), old[1].chunk(4), strict=True)]
    assert found.rules == diagnose(model, cut, [new], measurement=QUICK).rules[:0] + found.rules
    assert found.historical_loss == pytest.approx(
        nn.functional.cross_entropy(model(old[0]), old[1]).item()
    )


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: diagnose(network(), batches(), None), TypeError,
         "incoming must be a list or a loader of batches, got NoneType"),
        (lambda: diagnose(network(), (torch.ones(3, 4), torch.ones(2)), batches()), ValueError,
         "inputs and target must have equally many rows, got 3 and 2"),
        (lambda: Measurement(dampings=(0.3, 0.0)), ValueError, "damping must be"),
        (lambda: diagnose_operator(DenseOperator(torch.zeros(D, D), space()), torch.ones(D)),
         ValueError, "must have curvature along the plain step .*, got products that are zero"),
    ],
)  # fmt: skip
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()
