"""Local validation: on a quadratic every prediction is the truth; elsewhere it says where not."""

import json
import math

import pytest
import torch

from curvature.networks import batches, network, parts
from foresight.small_problem import SmallProblem
from references import STANDARD_ERRORS, assert_close
from risegrad.core.attachment import attach
from risegrad.core.shapers import Rise
from risegrad.curvature.objective import Objective
from risegrad.memory.informed import Informed
from riselab.foresight.local_updates import (
    RULES,
    SIGNS,
    Bench,
    Outcome,
    adam_signs,
    direction,
    displacement,
    recommended_rules,
    step_sizes_for,
    validate,
)
from riselab.foresight.local_validation import (
    Agreement,
    LocalSettings,
    breaking_point,
    rank_correlation,
    run_local,
)
from riselab.foresight.settings import DiagnosisSettings, ValidationSettings


def settings(**validation):
    how = DiagnosisSettings(budget={"probes": 24, "columns": 8})
    given = {"curvatures": ("hessian", "ggn"), "draws": 6, "damages": (0.01, 0.3)} | validation
    return LocalSettings(how, ValidationSettings(**given), "a small one", "id")


@pytest.fixture(scope="module")
def quadratic():
    return run_local(settings(steps=(1, 2)), SmallProblem.after(2))


def test_a_quadratic_is_predicted_exactly(quadratic):
    assert quadratic.rules == (*RULES, SIGNS, "informed, damping 0.3")
    assert len(quadratic.outcomes) == 2 * 2 * (1 + 1 + 6 + 6 + 1 + 1)
    for outcome in quadratic.outcomes:
        for curvature in ("hessian", "ggn"):
            assert outcome.predicted(curvature) == pytest.approx(outcome.true, rel=1e-8, abs=1e-13)
    for row in quadratic.agreements():
        assert row.rank_correlation == 1
        assert row.sign_agreement == 1
        assert row.better_agreement == 1
        assert row.relative_error < 1e-8


def test_step_sizes_come_from_damages(quadratic):
    for size, part in zip(quadratic.step_sizes, (0.01, 0.3), strict=True):
        plain = [o for o in quadratic.outcomes if (o.rule, o.step_size, o.steps) == ("FO", size, 1)]
        assert plain[0].damage["ggn"] == pytest.approx(part * quadratic.historical_loss, rel=1e-9)


def test_a_network_leaves_the_quadratic_picture():
    wanted = settings(steps=(1,), damages=(1e-6, 30.0), draws=3)
    found = run_local(wanted, SmallProblem.after(0, quadratic=False))
    small, large = ([o for o in found.outcomes if o.step_size == size] for size in found.step_sizes)
    assert Agreement.of(small, "hessian").relative_error < 0.02
    assert Agreement.of(large, "hessian").relative_error > 0.1
    first = found.step_sizes[0]
    assert breaking_point(found.outcomes, "hessian", 1, "FO") == first
    words = [line.split() for line in str(found).splitlines()]
    assert ["1", "steps", "hessian", f"{first:.3g}"] in [line[:4] for line in words]


def test_a_record_holds_every_update(quadratic):
    content = json.loads(json.dumps(quadratic.to_dict(), allow_nan=False))
    assert content["settings"]["subject"] == "a small one"
    assert len(content["outcomes"]) == 64
    assert content["agreement"][0]["curvature"] == "hessian"
    end = content["quadratic_up_to"][0]
    assert (end["steps"], end["curvature"]) == (1, "hessian")
    assert end["step_size"]["FO"] == quadratic.step_sizes[-1]


def bench():
    model = network()
    kept, where, parameters = parts(model, batches(), Rise(q=3))
    new = Objective(model, batches((5,), seed=9))
    return model, Bench.of(kept, new, where, parameters, ("hessian",))


def test_the_model_is_put_back_bit_by_bit():
    model, subject = bench()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    outcomes = validate(subject, [0.1, 1.0], steps=(1, 2), draws=2)
    assert len(outcomes) == 2 * 2 * (1 + 1 + 2 + 2)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with pytest.raises(RuntimeError, match="stop"), subject.moved(torch.ones(subject.space.d)):
        raise RuntimeError("stop")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_draws_repeat_and_differ():
    _, subject = bench()
    first, again, other = (validate(subject, [0.1], (1,), 2, seed) for seed in (0, 0, 1))
    assert first == again
    assert [o.true for o in first if o.rule == "FO"] == [o.true for o in other if o.rule == "FO"]
    assert [o.true for o in first if o.rule == "RISE"] != [
        o.true for o in other if o.rule == "RISE"
    ]
    rise = [o.true for o in first if o.rule == "RISE"]
    assert rise[0] != rise[1]


def test_one_step_and_few_steps_are_descent():
    model, subject = bench()
    g = subject.gradient()
    assert_close(displacement(subject, "FO", 0.1, 1, 0, g), -0.1 * g)
    two = displacement(subject, "FO", 0.1, 2, 0, g)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = subject.space.flat([subject.parameters[name] for name in subject.space.names])
    for _ in range(2):
        optimizer.zero_grad()
        for x, y in batches((5,), seed=9):
            torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    after = subject.space.flat([subject.parameters[name] for name in subject.space.names])
    assert_close(two, after - before)


@pytest.mark.parametrize("rule", RULES)
def test_rules_have_their_moments(rule):
    """Means and covariances of the directions, over many draws."""
    _, subject = bench()
    where, g = subject.space, subject.gradient()
    draws = torch.stack([direction(rule, where, g, seed) for seed in range(800)])
    mean = g if rule == "FO" else where.spread(where.numbers("mean_factor")) * g
    if rule in ("FO", "scaled FO"):
        assert_close(draws[0], mean)
        return
    error = draws.std(0) / len(draws) ** 0.5
    assert ((draws.mean(0) - mean).abs() < STANDARD_ERRORS * error).all()
    block = where.blocks[0]
    own = g[block.at]
    expected = (own.square() + own @ own) / (block.q + block.d + 1)
    squares = (draws[:, block.at] - mean[block.at]).square()
    error = squares.std(0) / len(draws) ** 0.5
    assert ((squares.mean(0) - expected).abs() < STANDARD_ERRORS * error).all()


def test_an_informed_update_is_what_the_attached_shaper_makes():
    problem = SmallProblem.after(0, quadratic=False)
    how = DiagnosisSettings(dampings=(0.1, 0.7))
    found = recommended_rules(problem, how, None)
    assert list(found) == [SIGNS, "informed, damping 0.7"]
    g, model = problem.gradient, problem.kept.model
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    attach(
        optimizer, Informed(problem.memory(how.seed), 0.7, match="norm"), model.named_parameters()
    )
    for name, piece in zip(problem.space.names, problem.space.tensors(g), strict=True):
        problem.parameters[name].grad = piece.clone()
    before = problem.space.flat([problem.parameters[name] for name in problem.space.names]).clone()
    optimizer.step()
    after = problem.space.flat([problem.parameters[name] for name in problem.space.names])
    assert_close(found["informed, damping 0.7"](g), before - after)
    assert list(recommended_rules(problem, DiagnosisSettings(dampings=()), None)) == [SIGNS]


def test_signs_begin_with_the_progress_of_first_order():
    """At a rate that stays: a smaller gradient does not make a shorter step."""
    g = torch.tensor([3.0, -1.0, 2.0], dtype=torch.float64)
    for rates in (None, torch.tensor([1.0, 1.0, 4.0], dtype=torch.float64)):
        weights = torch.ones(3).double() if rates is None else rates
        x = adam_signs(g, rates)(g)
        assert (weights * x * g).sum().item() == pytest.approx((weights * g * g).sum().item())
        assert_close(x / x.abs(), g.sign())
        assert (adam_signs(g, rates)(g / 100) / x - 1).abs().max() < 1e-5


def test_without_a_memory_there_is_no_informed_rule():
    problem = SmallProblem.after(0, quadratic=False)
    problem.memory = lambda seed: None
    assert list(recommended_rules(problem, DiagnosisSettings(), None)) == [SIGNS]


def outcome(rule="FO", size=1.0, true=1.0, damage=1.0, linear=0.0, steps=1, draw=0):
    return Outcome(rule, size, steps, draw, 1.0, true, linear, {"ggn": damage})


def test_agreement_counts_signs_and_winners():
    rows = [
        outcome(true=1.0, damage=1.0),
        outcome("RISE", true=0.5, damage=0.9),  # rightly better
        outcome("RISE", true=2.0, damage=0.8, draw=1),  # wrongly better
        outcome("RISE", true=-1.0, damage=0.7, draw=2),  # rightly better, wrong sign
    ]
    found = Agreement.of(rows, "ggn")
    assert found.better_agreement == pytest.approx(2 / 3)
    assert found.sign_agreement == 0.75
    assert found.relative_error == pytest.approx((0.8 + 0.6) / 2)
    assert Agreement.of(rows[:1], "ggn").better_agreement is None
    assert Agreement.of(rows[:1], "ggn").rank_correlation is None
    assert Agreement.of([outcome(true=0.0)], "ggn").relative_error == math.inf


def test_where_the_picture_breaks():
    rows = [outcome(size=s, true=1.0, damage=d) for s, d in ((0.1, 1.1), (1.0, 1.2), (9.0, 3.0))]
    assert breaking_point(rows, "ggn", 1, "FO") == 1.0
    assert breaking_point(rows[2:], "ggn", 1, "FO") is None
    assert breaking_point(rows, "ggn", 1, "RISE") is None


def test_rank_correlation():
    assert rank_correlation([1, 2, 3, 4], [4, 3, 2, 1]) == -1
    assert rank_correlation([1, 1, 1], [1, 2, 3]) is None
    assert rank_correlation([1, 1, 2, 3], [1, 1, 2, 3]) == 1


def test_no_positive_curvature_sets_no_step_size():
    _, subject = bench()
    with pytest.raises(ValueError, match="the gradient meets no positive curvature"):
        step_sizes_for(subject, torch.zeros(subject.space.d, dtype=torch.float64), [0.1])
