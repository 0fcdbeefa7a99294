"""A run's decision is for its row's own optimizers."""

from dataclasses import replace

import pytest

from continual.tiny import config
from references import assert_close
from riselab.continual.runs import read_config
from riselab.foresight.reached_point import ReachedPoint
from riselab.foresight.session import SessionProblem, diagnose_session, rise_of, session_step
from riselab.foresight.settings import DiagnosisSettings

HOW = DiagnosisSettings(
    examples=8, incoming=6, memory=8, batch=4, dampings=(0.3,),
    budget={"probes": 8},
)  # fmt: skip


def reached(kind, folder, **changes):
    budget = {"optimizer": kind, "weight_decay": 0.0, "epochs": 1, "lr": 0.01}
    row = read_config(config(head=budget | {"lr": 0.02} | changes, adapter=budget))
    return ReachedPoint.reach(row, 2, None, folder)


@pytest.fixture(scope="module")
def sgd(tmp_path_factory):
    """Learning is the cost, and a session always begins from the same state."""
    return reached("sgd", tmp_path_factory.mktemp("sgd"), momentum=0.0)


def diagnosed(point, how):
    return diagnose_session(point, point.settings, how, "tiny")


def test_a_row_of_sgd(sgd):
    found = diagnosed(sgd, HOW)
    assert found.rules[0].name == "FO"
    assert "SGD" in found.decision
    assert found.recommend().on == "gradient"


def test_a_row_of_adamw(tmp_path):
    """Rules act on the step that AdamW would take, with its groups' rates."""
    point = reached("adamw", tmp_path)
    found = diagnosed(point, HOW)
    assert found.rules[0].name == "Adam's own step"
    assert "Adam's" in found.decision
    assert found.recommend().on == "update"
    problem = SessionProblem.of(point, rise_of(point.settings), HOW)
    operator, g, _ = problem.in_steps(problem.operator("ggn", 2))
    u = problem.gradient / (problem.gradient.abs() + 1e-8)
    step = session_step(problem, operator)
    assert_close(step, operator.rated(u))
    # In the parameters themselves every group moves by its own rate.
    assert_close(operator.rated(step), problem.space.spread(problem.scale) ** 2 * u)
    assert bool(g @ step > 0)


def test_groups_of_both_kinds(tmp_path):
    """The head follows its gradient, the adapters Adam; a shaper on the update suits both."""
    point = reached("adamw", tmp_path, optimizer="sgd", momentum=0.0)
    problem = SessionProblem.of(point, rise_of(point.settings), HOW)
    step = session_step(problem, problem.operator("ggn", 2))
    moved = dict(zip(problem.space.names, problem.space.tensors(step), strict=True))
    slopes = dict(zip(problem.space.names, problem.space.tensors(problem.gradient), strict=True))
    groups = {group.name: group for group in problem.training.session.groups}
    for name, group in groups.items():
        own = {problem.names[id(p)] for p in group.parameters.values()} & set(moved)
        for one in own:
            g = slopes[one]
            assert_close(moved[one], g if name == "head" else g / (g.abs() + 1e-8))
    assert set(groups) == {"adapter", "head"}


def test_why_there_is_no_informed_step(sgd):
    for change, said in (
        ({"curvature": "hessian"}, "with curvature 'hessian' damage may be negative"),
        ({"memory": 0}, "there are no examples for a memory"),
    ):
        found = diagnosed(sgd, replace(HOW, **change))
        assert any(f"considered: {said}" in verdict for verdict in found.verdicts)
