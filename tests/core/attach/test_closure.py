"""``step(closure)``: torch runs the hook before the closure has computed any gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from core.attach.expected import expected
from core.attach.subjects import Run, Subject, assert_same, fixed, sgd, start
from references import assert_close
from risegrad.core.attachment import On, attach
from risegrad.core.shapers import IsotropicNoise, Rise


def closure_of(run: Run, calls: list[Tensor] | None = None) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        run.optimizer.zero_grad()
        loss = sum(
            ((param - fixed(param.shape, i)) ** 2).sum()
            for i, param in enumerate(run.params.values())
        )
        loss.backward()
        if calls is not None:
            calls.append(loss.detach())
        return loss

    return closure


@pytest.mark.parametrize("way", ["positional", "keyword"])
@pytest.mark.parametrize("on", ["gradient", "update"])
@pytest.mark.parametrize("name", ["SGD", "AdamW", "Rprop"])
def test_a_closure_is_the_same_as_a_loop(way: str, on: On, name: str) -> None:
    """Fresh gradients are shaped, once, though stale ones lay there; the loss comes back."""
    run, loop = start(Subject(name)), start(Subject(name))
    for each in (run, loop):
        each.attach(Rise(seed=3), on)
    run.set_gradients()  # stale: the closure must not see these shaped, nor the optimizer these
    calls: list[Tensor] = []
    closure = closure_of(run, calls)
    for number in range(3):
        loss = closure_of(loop)()
        loop.optimizer.step()
        returned = (
            run.optimizer.step(closure)
            if way == "positional"
            else run.optimizer.step(closure=closure)
        )
        assert torch.equal(returned, loss)
        assert len(calls) == number + 1
        assert run.handle is not None
        assert run.handle.steps == number + 1
    assert_same(run.values(), loop.values())
    assert_same(run.gradients(), loop.gradients())


def test_the_gradients_are_the_formula() -> None:
    run, plain, shaper = sgd(), sgd(), Rise(seed=3)
    run.attach(shaper)
    closure_of(plain)()
    run.optimizer.step(closure_of(run))
    for name, wanted in expected(shaper, plain.gradients(), 0).items():
        assert_close(run.params[name].grad, wanted)


def test_no_closure_can_be_said_in_so_many_words() -> None:
    runs = [sgd(Rise()) for _ in range(3)]
    for run, arguments in zip(
        runs, [((), {}), ((None,), {}), ((), {"closure": None})], strict=True
    ):
        run.set_gradients()
        run.optimizer.step(*arguments[0], **arguments[1])
    for run in runs[1:]:
        assert_same(run.values(), runs[0].values())


def test_two_attachments_and_a_closure() -> None:
    run, loop = sgd(), sgd()
    for each in (run, loop):
        for shaper in (Rise(exempt=["bias"]), IsotropicNoise(exempt=["[!b]*"])):
            attach(each.optimizer, shaper, each.params)
    for _ in range(2):
        run.optimizer.step(closure_of(run))
        closure_of(loop)()
        loop.optimizer.step()
    assert_same(run.values(), loop.values())


class Twice(torch.optim.SGD):
    """An optimizer that looks at the loss once more after its step."""

    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        return closure()


def test_a_closure_evaluated_twice_is_an_error_that_says_what_to_do() -> None:
    run = sgd()
    optimizer = Twice(list(run.params.values()), lr=0.1)
    run.optimizer = optimizer
    handle = run.attach(Rise())
    with pytest.raises(RuntimeError, match=r'evaluates its closure more than once.*on="update"'):
        optimizer.step(closure_of(run))
    handle.detach()
    run.attach(Rise(), "update")
    optimizer.step(closure_of(run))
    assert run.handle is not None
    assert run.handle.steps == handle.steps + 1


@pytest.mark.parametrize("on", ["gradient", "update"])
def test_a_closure_that_fails_does_not_count(on: On) -> None:
    run, spared = sgd(Rise(), on), sgd(Rise(), on)
    before = run.values()

    def failing() -> Tensor:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.optimizer.step(failing)
    assert_same(run.values(), before)
    assert run.handle is not None
    assert run.handle.steps == 0
    for each in (run, spared):
        each.advance(2)
    assert_same(run.values(), spared.values())


def test_what_a_failed_step_left_is_not_taken_for_a_start() -> None:
    """Fails in the middle; the next step, skipped by a scaler, must change nothing."""
    run = start(Subject("SGD", "fused"))
    run.attach(Rise(), "update")

    def failing() -> Tensor:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.optimizer.step(failing)
    with torch.no_grad():
        run.params["weight"].add_(1.0)  # as loading a model would
    before = run.values()
    scaler = torch.amp.GradScaler("cpu")
    run.set_gradients()
    assert run.params["weight"].grad is not None
    run.params["weight"].grad[0, 0] = torch.inf
    scaler.scale(torch.ones(()))
    scaler.step(run.optimizer)
    assert_same(run.values(), before)
    assert run.handle is not None
    assert run.handle.steps == 0
