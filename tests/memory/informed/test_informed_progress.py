"""Steps at the progress of plain ones: what counts as progress, what a step costs a device."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.operations import Operations
from core.attach.subjects import Subject, fixed
from memory.informed.subject_matter import memory, spd, start
from risegrad.core.attachment import On, attach
from risegrad.core.shapers import CovarianceNoise, Rise, Shaper
from risegrad.memory.factor import Factor
from risegrad.memory.informed import Informed
from risegrad.memory.layers import LayerMemory
from risegrad.memory.memory import Memory


def progress(moved: Mapping[str, Tensor], g: Mapping[str, Tensor]) -> float:
    return -sum(float((moved[name].double() * g[name].double()).sum()) for name in g)


@pytest.mark.parametrize("on", ["gradient", "update"])
@pytest.mark.parametrize("damping", [0.01, 1.0])
def test_a_first_step_gains_what_the_plain_one_gains(on: On, damping: float) -> None:
    """Whatever the damping; and never less than a step of the plain one's length, or 8 times it."""
    runs = [start(Subject("SGD"), momentum=0.0, weight_decay=0.0) for _ in range(2)]
    handle = runs[0].attach(Informed(memory(), damping), on)
    before = runs[0].values()
    g = runs[0].set_gradients()
    for run in runs:
        run.set_gradients()
        run.optimizer.step()
    found, plain = ({n: v - before[n] for n, v in run.values().items()} for run in runs)
    assert 1.05 < handle.factor < 8
    assert progress(found, g) == pytest.approx(progress(plain, g), rel=1e-4)


def test_a_step_up_says_nothing() -> None:
    """Momentum may carry a step against its gradient: the factor stays what it was."""
    run = start(Subject("SGD"), momentum=0.9, weight_decay=0.0)
    handle = run.attach(Informed(memory(), 0.1), "update")
    run.set_gradients()
    run.optimizer.step()
    factor = handle.factor
    assert factor > 1
    for name, g in run.set_gradients().items():
        run.params[name].grad = -0.1 * g
    run.optimizer.step()
    assert handle.factor == factor


def test_maximizing_steps_are_matched_too() -> None:
    factors = []
    for maximize in (False, True):
        run = start(Subject("Adam"), maximize=maximize, weight_decay=0.0)
        handle = run.attach(Informed(memory(), 0.1), "update")
        for _ in range(2):
            run.set_gradients()
            run.optimizer.step()
        factors.append(handle.factor)
    assert factors[0] == pytest.approx(factors[1], rel=1e-4)
    assert factors[0] > 1


def test_each_group_has_its_own_rate_and_its_own_decay() -> None:
    """Decoupled decay is what it is in plain training: no part of what is filtered or counted."""
    runs = []
    for decay in (0.0, 0.3):
        run = start(Subject("AdamW"))
        first, *others = run.params.values()
        groups = [
            {"params": [first], "lr": 0.01, "weight_decay": decay},
            {"params": others, "lr": 0.03, "weight_decay": 2 * decay},
        ]
        run.optimizer = torch.optim.AdamW(groups)
        run.attach(Informed(memory(), 0.1), "update")
        runs.append((run, run.values()))
        run.advance()
    (plain, before), (decayed, _) = runs
    assert decayed.handle.factor == pytest.approx(plain.handle.factor, rel=1e-5)  # type: ignore[union-attr]
    for number, (name, value) in enumerate(decayed.values().items()):
        shrinks = 0.01 * 0.3 if number == 0 else 0.03 * 0.6
        wanted = plain.values()[name] - shrinks * before[name]
        assert (value - wanted).abs().max() < 1e-6


def test_without_a_gradient_a_parameter_does_not_decay() -> None:
    run = start(Subject("AdamW"), weight_decay=0.5)
    run.attach(Informed(memory(), 0.1), "update")
    before = run.values()
    run.set_gradients()
    run.params["a.bias"].grad = None
    run.optimizer.step()
    assert torch.equal(run.params["a.bias"], before["a.bias"])


@pytest.mark.parametrize("on", ["gradient", "update"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_stays_in_its_own_tensor(on: On, bad: float) -> None:
    """The weight beside it takes the step that it takes where the bias has no gradient at all."""
    runs = [start(Subject("SGD")) for _ in range(2)]
    for run, broken in zip(runs, (True, False), strict=True):
        handle = run.attach(Informed(memory(), 0.1), on)
        run.set_gradients()
        bias = run.params["a.bias"].grad
        assert bias is not None
        bias[0] = bad
        if not broken:
            run.params["a.bias"].grad = None
        run.optimizer.step()
        assert 1 < handle.factor < 8
    found, wanted = (run.values() for run in runs)
    assert not found["a.bias"].isfinite().all()
    for name in ("a.weight", "b.weight"):
        assert (found[name] - wanted[name]).abs().max() < 1e-5


def test_the_running_means_are_saved_and_damaged_ones_refused() -> None:
    run = start(Subject("AdamW"))
    handle = run.attach(Informed(memory(), 0.1), "update")
    run.advance(2)
    state = handle.state_dict()
    other = start(Subject("AdamW")).attach(Informed(memory(), 0.1), "update")
    other.load_state_dict(state)
    assert other.factor == handle.factor > 1
    with pytest.raises(ValueError, match=r"carried must be finite numbers by name, got .*nan"):
        other.load_state_dict(state | {"carried": {"plain": math.nan}})
    assert other.factor == handle.factor


def test_a_state_without_a_match_was_made_by_norms() -> None:
    handle = start(Subject("SGD")).attach(Informed(memory(), 0.1, match="norm"))
    state = handle.state_dict()
    assert "carried" not in state
    settings: dict[str, Any] = dict(state["settings"])  # type: ignore[call-overload]
    del settings["match"]
    handle.load_state_dict(state | {"settings": settings})
    matched = start(Subject("SGD")).attach(Informed(memory(), 0.1))
    with pytest.raises(ValueError, match="match: saved 'norm', here 'progress'"):
        matched.load_state_dict(state | {"settings": settings})


def test_the_factor_stays_when_a_group_is_added() -> None:
    run = start(Subject("SGD"))
    handle = run.attach(Informed(memory(layers={"a": (5, 4), "b": (3, 6), "c": (2, 2)}), 0.1))
    run.advance()
    carried, factor = handle.state_dict()["carried"], handle.factor
    late = nn.Parameter(torch.ones(2, 2))
    run.optimizer.add_param_group({"params": [late]})
    handle.cover({"c.weight": late})
    assert handle.state_dict()["carried"] == carried
    assert "c.weight" in handle.layout.names
    assert handle.factor == factor > 1


def test_norms_of_long_tensors_are_exact() -> None:
    """AdamW's first step moves all elements alike: float32's running sums lose 2 % of that."""
    size = 4096
    flat = Factor.of_eigenpairs(torch.eye(size)[:, :1], torch.ones(1), 1.0)
    kept = Memory(
        {"a": LayerMemory("linear", (size, size), {"inputs": flat, "outputs": flat}, 1, 1)}
    )
    param = nn.Parameter(torch.zeros(size, size))
    optimizer = torch.optim.SGD([param], lr=1.0)
    attach(optimizer, Informed(kept), {"a.weight": param})
    param.grad = torch.full_like(param, 0.5)
    optimizer.step()
    assert (param.grad - 0.5).abs().max() < 1e-6


# --- what a step asks of a device ---


def lora(layers: int, rank: int | None) -> tuple[Memory, dict[str, nn.Parameter]]:
    kept, params = {}, {}
    for number in range(layers):
        sides = {"inputs": Factor(spd(12, number)), "outputs": Factor(spd(10, 50 + number))}
        name = f"layers.{number}.q"
        kept[name] = LayerMemory("linear", (10, 12), sides, 8, 8)
        params[f"{name}.lora_A.default.weight"] = nn.Parameter(fixed((4, 12), number))
        params[f"{name}.lora_B.default.weight"] = nn.Parameter(fixed((10, 4), 90 + number))
    memory = Memory(kept)
    return memory if rank is None else memory.truncated(rank), params


def operations(shaper: Shaper, params: dict[str, nn.Parameter], on: On) -> Operations:
    optimizer = torch.optim.SGD(params.values(), lr=0.1, foreach=True)
    attach(optimizer, shaper, params, on, advise=False)
    for _ in range(2):  # the first one gathers what stays
        for number, param in enumerate(params.values()):
            param.grad = fixed(param.shape, 200 + number)
        with Operations() as seen:
            optimizer.step()
    return seen


@pytest.mark.parametrize("on", ["gradient", "update"])
@pytest.mark.parametrize("rank", [None, 3])
def test_an_informed_step_waits_for_nothing_and_is_as_many_operations_for_any_depth(
    on: On, rank: int | None
) -> None:
    found = []
    for layers in (10, 30):
        kept, params = lora(layers, rank)
        found.append(operations(Informed(kept), params, on))
    assert not found[0].waits
    assert found[0].counts == found[1].counts
    assert 10 < found[0].counts.total() < 300


@pytest.mark.parametrize("shaper", [Rise(q=4), CovarianceNoise(q=4)], ids=["Rise", "control"])
@pytest.mark.parametrize("on", ["gradient", "update"])
def test_a_random_step_waits_for_nothing(shaper: Shaper, on: On) -> None:
    _, params = lora(10, None)
    assert not operations(shaper, params, on).waits
