"""Every optimizer of torch in every variant, every shaper, both places: one contract."""

from __future__ import annotations

import copy
import inspect
import random

import numpy as np
import pytest
import torch

from core.attach.expected import expected
from core.attach.subjects import (
    CLOSURE,
    OPTIMIZERS,
    REFUSED,
    SHAPER_CASES,
    SUBJECTS,
    Subject,
    assert_same,
    every_pair,
    every_pair_every_rule,
    every_subject_every_rule,
    hooks,
    start,
    synced,
)
from references import assert_close
from risegrad.core.attachment import On
from risegrad.core.shapers import Rise

STEPS = 3


def test_all_of_torch_is_here() -> None:
    """What the contract would otherwise skip without a word."""
    assert {"SGD", "AdamW", "LBFGS", "Muon", "Adafactor", "SparseAdam"} <= set(OPTIMIZERS)
    tested = {str(subject) for subject in SUBJECTS}
    for name, kind in OPTIMIZERS.items():
        options = inspect.signature(kind).parameters
        wanted = {"default", *({"foreach", "fused"} & set(options))}
        assert {f"{name}-{variant}" for variant in wanted} <= tested


@every_subject_every_rule
def test_steps_with_the_shaped_gradient(subject: Subject, kind: str) -> None:
    """Attached = plain on shaped gradients; the gradients are the formula's, shaped once."""
    run, plain = start(subject), start(subject)
    shaper = SHAPER_CASES[kind](q=3, seed=5)
    if subject.name in REFUSED:
        with pytest.raises(ValueError, match=f'{REFUSED[subject.name]}.*on="update"'):
            run.attach(shaper)
        run.advance()
        plain.advance()
        assert_same(run.values(), plain.values())
        return
    handle = run.attach(shaper)
    for step in range(STEPS):
        raw = run.set_gradients()
        run.optimizer.step()
        run.step += 1
        seen = run.gradients()
        for name, wanted in expected(shaper, raw, step).items():
            assert_close(seen[name], wanted)
            assert not torch.equal(seen[name], raw[name])
        for name, param in plain.params.items():
            param.grad = seen[name].clone()
        plain.optimizer.step()
        assert_same(run.values(), plain.values())
        assert handle.steps == step + 1


@every_subject_every_rule
def test_shapes_the_update(subject: Subject, kind: str) -> None:
    """The plain optimizer's displacement, shaped by the formula, from the same place and state."""
    run, plain = start(subject), start(subject)
    shaper = SHAPER_CASES[kind](q=3, seed=5)
    handle = run.attach(shaper, "update")
    for step in range(STEPS):
        synced(plain, run)
        before = run.values()
        run.advance()
        plain.advance()
        moved = {name: value - before[name] for name, value in plain.values().items()}
        for name, wanted in expected(shaper, moved, step).items():
            # Rounding happens at the parameter's scale, not at the displacement's.
            room = 2 * before[name].abs().max() * torch.finfo(torch.float32).eps
            room += 2e-5 * wanted.abs().max()
            actual = run.params[name].double() - before[name].double()
            assert (actual - wanted).abs().max() <= room
            if name == "weight":  # a smaller tensor may happen to stand still
                assert (moved[name] - wanted).abs().max() > 20 * room
        if subject.name not in CLOSURE:
            assert_same(run.gradients(), plain.gradients())
        assert handle.steps == step + 1


@every_pair_every_rule
def test_leaves_the_global_random_states_alone(subject: Subject, on: On, kind: str) -> None:
    run = start(subject)
    before = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist())
    run.attach(SHAPER_CASES[kind](), on)
    run.advance()
    after = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist())
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


@every_pair
def test_does_not_depend_on_the_global_random_states(subject: Subject, on: On) -> None:
    runs = [start(subject), start(subject)]
    for run in runs:
        run.attach(Rise(), on)
        run.advance()
        torch.rand(3)
        run.advance()
    assert_same(runs[0].values(), runs[1].values())


@every_pair_every_rule
def test_detaching_restores_the_plain_optimizer(subject: Subject, on: On, kind: str) -> None:
    run = start(subject)
    handle = run.attach(SHAPER_CASES[kind](), on)
    run.advance(2)
    handle.detach()
    assert "risegrad" not in run.optimizer.state_dict()["param_groups"][0]
    never = start(subject)
    synced(never, run)
    never.optimizer.load_state_dict(copy.deepcopy(run.optimizer.state_dict()))
    never.step = run.step
    for each in (run, never):
        each.advance(2)
    assert_same(run.values(), never.values())
    assert handle.steps == 2


@every_pair
def test_detached_leaves_no_hook(subject: Subject, on: On) -> None:
    run = start(subject)
    clean = hooks(run.optimizer)
    handle = run.attach(Rise(), on)
    assert hooks(run.optimizer) != clean
    handle.detach()
    handle.detach()
    assert hooks(run.optimizer) == clean


@every_pair
def test_frozen_and_unused_parameters_stay(subject: Subject, on: On) -> None:
    """Not a bit of a parameter without a gradient changes, and the others do not notice."""
    run = start(subject)
    run.params["weight"].requires_grad_(False)
    run.attach(Rise(), on)
    before = run.values()
    last = list(run.params)[-1]
    if subject.name in CLOSURE:
        run.advance()
    else:
        run.set_gradients()
        run.params["weight"].grad = None
        run.optimizer.step()
    assert torch.equal(run.params["weight"], before["weight"])
    assert not torch.equal(run.params[last], before[last])


MAXIMIZING = [
    name
    for name, kind in OPTIMIZERS.items()
    if name not in REFUSED and "maximize" in inspect.signature(kind).parameters
]


@pytest.mark.parametrize("name", MAXIMIZING)
def test_maximizing_shapes_the_same_gradient(name: str) -> None:
    """The sign is the optimizer's business: it comes after the shape."""
    subject = Subject(name)
    run, plain = start(subject, maximize=True), start(subject, maximize=True)
    shaper = Rise(seed=5)
    run.attach(shaper)
    raw = run.set_gradients()
    run.optimizer.step()
    for key, param in plain.params.items():
        param.grad = run.gradients()[key]
    plain.optimizer.step()
    assert_same(run.values(), plain.values())
    for key, wanted in expected(shaper, raw, 0).items():
        assert_close(run.params[key].grad, wanted)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
def test_float64_all_the_way(name: str) -> None:
    run = start(Subject(name), dtype=torch.float64)
    shaper = Rise(q=2, seed=1)
    run.attach(shaper)
    raw = run.set_gradients()
    run.optimizer.step()
    for key, wanted in expected(shaper, raw, 0).items():
        assert_close(run.params[key].grad, wanted, torch.float64)


def test_a_closure_of_the_loop_is_not_needed_for_a_loss() -> None:
    """``step()`` returns what the plain optimizer returns."""
    run = start(Subject("SGD"))
    run.attach(Rise())
    run.set_gradients()
    assert run.optimizer.step() is None
