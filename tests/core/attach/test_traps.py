"""What happens in real training loops; each trap that attaching could fall into is a test."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from core.attach.expected import expected
from core.attach.subjects import assert_same, every_place, fixed, grads, sgd, steps
from references import assert_close
from risegrad.core.attachment import On, attach
from risegrad.core.shapers import Rise


@every_place
def test_accumulation_is_shaped_once_per_step(on: On) -> None:
    """Three backward passes, one step: the sum is shaped, not the parts."""
    run, whole = sgd(Rise(seed=4), on), sgd(Rise(seed=4), on)
    parts = [fixed(run.params["weight"].shape, seed) for seed in range(3)]
    for part in parts:
        (run.params["weight"] * part).sum().backward()
        assert steps(run) == 0
    whole.params["weight"].grad = parts[0] + parts[1] + parts[2]
    for each in (run, whole):
        each.optimizer.step()
    assert_close(run.params["weight"], whole.params["weight"])
    assert steps(run) == 1


def test_clipping_comes_first() -> None:
    """The documented order: what the loop did to the gradients, then the shape."""
    run, shaper = sgd(), Rise(seed=4)
    run.attach(shaper)
    run.set_gradients()
    nn.utils.clip_grad_norm_(run.params.values(), 0.5)
    clipped = grads(run.params)
    run.optimizer.step()
    for name, wanted in expected(shaper, clipped, 0).items():
        assert_close(run.params[name].grad, wanted)


@pytest.mark.parametrize("first", ["scheduler", "attachment"])
def test_schedulers(first: str) -> None:
    """They replace ``step`` on the instance; the hooks must still run, once."""
    run, plain = sgd(), sgd()
    if first == "attachment":
        run.attach(Rise())
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(r.optimizer, 0.5) for r in (run, plain)]
    if first == "scheduler":
        run.attach(Rise())
    for number in range(3):
        run.set_gradients()
        run.optimizer.step()
        for name, param in plain.params.items():
            param.grad = run.params[name].grad
        plain.optimizer.step()
        assert_same(run.values(), plain.values())
        assert steps(run) == number + 1
        for scheduler in schedulers:
            scheduler.step()
    assert run.optimizer.param_groups[0]["lr"] == 0.05 / 8


@pytest.mark.parametrize("blocks", ["tensor", "whole", 3])
@every_place
def test_the_context_around_a_step_does_not_matter(blocks: Any, on: On) -> None:
    """Neither autocast around the step nor a default device or dtype."""
    run, bare = sgd(), sgd(Rise(blocks=blocks), on)
    with torch.device("meta"):
        run.attach(Rise(blocks=blocks), on)
    run.set_gradients()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.autocast("cpu", torch.bfloat16), torch.device("meta"):
            run.optimizer.step()
    finally:
        torch.set_default_dtype(torch.float32)
    bare.advance()
    assert_same(run.values(), bare.values())


def test_the_handle_need_not_be_kept() -> None:
    run, kept = sgd(), sgd(Rise())
    attach(run.optimizer, Rise(), run.params)
    gc.collect()
    for each in (run, kept):
        each.advance(2)
    assert_same(run.values(), kept.values())
    with pytest.raises(ValueError, match="already shaped by another attachment"):
        attach(run.optimizer, Rise(), run.params)


def test_optimizers_are_not_kept_alive() -> None:
    run = sgd(Rise())
    run.advance()
    optimizer, handle = weakref.ref(run.optimizer), weakref.ref(run.handle)
    del run
    gc.collect()
    assert optimizer() is None
    assert handle() is None


class Wrapper(torch.optim.Optimizer):
    """As accelerate does it: an Optimizer that never ran ``__init__`` and hands everything on."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.optimizer.step(closure)

    @property
    def param_groups(self) -> Any:  # type: ignore[override]
        return self.optimizer.param_groups


def test_wrappers_are_seen_through() -> None:
    run, wrapped = sgd(Rise()), sgd()
    outer = Wrapper(Wrapper(wrapped.optimizer))
    handle = attach(outer, Rise(), wrapped.params)
    run.advance()
    wrapped.set_gradients()
    outer.step()
    assert_same(run.values(), wrapped.values())
    assert handle.steps == 1
    with pytest.raises(ValueError, match="already shaped"):
        attach(wrapped.optimizer, Rise(), wrapped.params)
