"""A compiled optimizer step: the hooks run as they are, around what is compiled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from core.attach.subjects import Subject, start
from references import assert_close
from risegrad.core.attachment import On
from risegrad.core.shapers import Rise


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compare(name: str, on: On, backend: str, **options: Any) -> None:
    run, eager = start(Subject(name), **options), start(Subject(name))
    for each in (run, eager):
        each.attach(Rise(seed=1), on)
    step = torch.compile(run.optimizer.step, backend=backend)
    for number in range(3):
        run.set_gradients()
        step()
        run.step += 1
        eager.advance()
        assert run.handle is not None
        assert run.handle.steps == number + 1
    for key, value in run.values().items():
        assert_close(value, eager.params[key])


@pytest.mark.parametrize("on", ["gradient", "update"])
@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_a_compiled_step(name: str, on: On) -> None:
    compare(name, on, "eager")


@pytest.mark.parametrize("name", ["AdamW", "NAdam"])
def test_capturable(name: str) -> None:
    """For accelerators only, torch says, unless the step is compiled."""
    with pytest.raises((RuntimeError, AssertionError), match="capturable"):
        start(Subject(name), capturable=True).advance()
    compare(name, "gradient", "eager", capturable=True)


def test_a_compiled_function_that_steps() -> None:
    run, eager = start(Subject("SGD")), start(Subject("SGD"))
    for each in (run, eager):
        each.attach(Rise(seed=1))

    @torch.compile(backend="eager")
    def train() -> None:
        run.optimizer.step()

    for _ in range(2):
        run.set_gradients()
        train()
        run.step += 1
        eager.advance()
    for key, value in run.values().items():
        assert_close(value, eager.params[key])
    assert run.handle is not None
    assert run.handle.steps == 2


def test_attaching_after_compiling() -> None:
    """A step that was compiled and run without a shaper must notice one, and its end."""
    run, eager = start(Subject("SGD")), start(Subject("SGD"))
    step = torch.compile(run.optimizer.step, backend="eager")
    for shaped in (False, True, False):
        for each in (run, eager):
            if shaped:
                each.attach(Rise(seed=1))
            elif each.handle is not None:
                each.handle.detach()
        run.set_gradients()
        step()
        run.step += 1
        eager.advance()
        for key, value in run.values().items():
            assert_close(value, eager.params[key])


@pytest.mark.slow
@pytest.mark.parametrize("on", ["gradient", "update"])
@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_inductor(name: str, on: On) -> None:
    compare(name, on, "inductor")
