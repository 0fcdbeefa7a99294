"""``on="update"``: the optimizer's own displacement is shaped, whatever made it."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from core.attach.expected import expected
from core.attach.subjects import Run, Subject, fixed, sgd, start, synced
from references import assert_close
from risegrad.core.attachment import attach
from risegrad.core.shapers import Rise, ScaledFO


def displacement(run: Run) -> dict[str, Tensor]:
    before = run.values()
    run.advance()
    return {name: value.double() - before[name].double() for name, value in run.values().items()}


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_weight_decay_is_part_of_what_is_shaped(name: str) -> None:
    """Without gradients to speak of, the displacement is decay alone: ``-lr * decay * p``."""
    run = start(Subject(name), lr=0.1, weight_decay=0.5)
    before = run.values()
    shaper = Rise(seed=2)
    run.attach(shaper, "update")
    for param in run.params.values():
        param.grad = torch.zeros_like(param)
    run.optimizer.step()
    decay = {key: -0.1 * 0.5 * value for key, value in before.items()}
    for key, wanted in expected(shaper, decay, 0).items():
        moved = run.params[key].double() - before[key].double()
        assert (moved - wanted).abs().max() <= 1e-6
        assert (moved - decay[key]).abs().max() > 1e-3


def test_scaled_adam_is_adam_with_a_smaller_displacement() -> None:
    """Where scaled FO means something: in front of Adam it would do nothing."""
    scaled, plain = start(Subject("Adam")), start(Subject("Adam"))
    scaled.attach(ScaledFO(q=5), "update")
    for _ in range(4):
        synced(plain, scaled)
        part, full = displacement(scaled), displacement(plain)
        for name, param in scaled.params.items():
            factor = (5 / (5 + param.numel() + 1)) ** 0.5
            assert (part[name] - factor * full[name]).abs().max() <= 5e-7


def test_scaled_gradients_do_nothing_to_adam() -> None:
    """The reason for the test above (theory: Adam ignores the scale of its gradients)."""
    scaled, plain = (start(Subject("Adam"), weight_decay=0.0, eps=0.0) for _ in range(2))
    scaled.attach(ScaledFO(q=5), "gradient")
    for run in (scaled, plain):
        run.advance(4)
    for name, value in scaled.values().items():
        assert_close(value, plain.params[name])


def test_sgd_without_state_is_shaped_alike_in_both_places() -> None:
    """``-lr g`` is minus a shaped gradient only in law; with ScaledFO, in numbers."""
    plain_sgd: dict[str, Any] = {"momentum": 0.0, "weight_decay": 0.0}
    runs = [sgd(ScaledFO(q=2), on, **plain_sgd) for on in ("gradient", "update")]
    for run in runs:
        run.advance(3)
    for name, value in runs[0].values().items():
        assert_close(value, runs[1].params[name])


def test_lbfgs_with_a_line_search() -> None:
    """Shaped once for all its evaluations, and still downhill."""
    run = start(Subject("LBFGS"), lr=1.0, max_iter=10, line_search_fn="strong_wolfe")
    handle = run.attach(ScaledFO(q=100), "update")
    first = run.closure().item()
    losses = [first]
    for number in range(3):
        losses.append(run.optimizer.step(run.closure).item())
        assert handle.steps == number + 1
    assert losses[1] == pytest.approx(first)  # torch returns the loss at the start
    assert losses[3] < losses[2] < losses[1]


def test_gradients_stay_raw() -> None:
    run = sgd(Rise(), "update")
    raw = run.set_gradients()
    run.optimizer.step()
    assert all(torch.equal(run.params[name].grad, g) for name, g in raw.items())


def test_sparse_gradients_are_fine_here() -> None:
    """The displacement is dense, also for rows without a gradient."""
    table, shaper = nn.Embedding(5, 2, sparse=True), Rise(seed=1)
    optimizer = torch.optim.SparseAdam(table.parameters(), lr=0.1)
    attach(optimizer, shaper, table.named_parameters(), on="update")
    before = table.weight.detach().clone()
    table(torch.tensor([1, 3])).sum().backward()
    optimizer.step()
    plain = torch.zeros(5, 2)
    plain[[1, 3]] = -0.1  # Adam's first step: minus the learning rate, whatever the gradient
    wanted = expected(shaper, {"weight": plain}, 0)["weight"]
    assert (table.weight.double() - before.double() - wanted).abs().max() < 1e-6
    assert (table.weight - before)[0].abs().min() > 0


def test_frozen_parameters_keep_even_their_infinities() -> None:
    """inf - inf would be NaN; a mask of -inf among the parameters must survive."""
    mask = nn.Parameter(torch.full((3,), -torch.inf), requires_grad=False)
    weight = nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([mask, weight], lr=0.1)
    attach(optimizer, Rise(blocks="whole"), {"mask": mask, "weight": weight}, on="update")
    weight.grad = torch.ones(3)
    optimizer.step()
    assert torch.equal(mask, torch.full((3,), -torch.inf))
    assert weight.isfinite().all()
    assert weight.all()


def test_optimizers_that_never_set_a_gradient() -> None:
    """A zeroth-order step is a displacement like any other."""

    class Walk(torch.optim.Optimizer):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            with torch.no_grad():
                for param in self.param_groups[0]["params"]:
                    param.add_(fixed(param.shape, 3))

    weight, shaper = nn.Parameter(torch.zeros(6)), Rise(seed=1)
    optimizer = Walk([weight], {})
    attach(optimizer, shaper, {"weight": weight}, on="update")
    optimizer.step()
    assert_close(weight.detach(), expected(shaper, {"weight": fixed((6,), 3)}, 0)["weight"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_precisions(dtype: torch.dtype) -> None:
    weight, shaper = nn.Parameter(torch.zeros(40, dtype=dtype)), Rise(seed=1)
    weight.grad = fixed((40,), 4, dtype)
    moved = -weight.grad.clone()
    optimizer = torch.optim.SGD([weight], lr=1.0)
    attach(optimizer, shaper, {"weight": weight}, on="update")
    optimizer.step()
    assert_close(weight.detach(), expected(shaper, {"weight": moved}, 0)["weight"], dtype)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_bad_numbers_pass_through(bad: float) -> None:
    run = sgd(Rise(), "update")
    run.set_gradients()
    run.params["bias"].grad[3] = bad
    run.optimizer.step()
    assert not run.params["bias"][3].isfinite()
    assert run.params["weight"].isfinite().all()


def test_a_failure_while_shaping_leaves_the_plain_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters must never be left holding a displacement."""
    run, plain = sgd(Rise(), "update"), sgd()

    def fail(*_: object) -> None:
        raise NotImplementedError("no such shape")

    # The package exports a function of the module's name, which hides the module.
    monkeypatch.setattr(sys.modules["risegrad.core.attachment"], "shape_tensors", fail)
    run.set_gradients()
    with pytest.raises(NotImplementedError):
        run.optimizer.step()
    plain.advance()
    for name, value in run.values().items():
        assert_close(value, plain.params[name])
    assert run.handle is not None
    assert run.handle.steps == 0


def test_nothing_is_kept_between_steps() -> None:
    run = sgd(Rise(), "update")
    run.advance()
    assert run.handle is not None
    assert run.handle._starts is run.handle._moving is None
