"""Which parameters are shaped: added later, tied, wrapped, exempt."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from core.attach.expected import expected
from core.attach.subjects import Run, assert_same, every_place, fixed, sgd, steps
from references import assert_close
from risegrad.core.attachment import On, attach
from risegrad.core.shapers import Rise


@pytest.mark.parametrize("blocks", ["tensor", "group", 3])
def test_parameters_added_later_are_covered(blocks: Any) -> None:
    """Named already (they stand first in the model), and the draws of the others stay."""
    added, alone = (late_run(blocks) for _ in range(2))
    added.optimizer.add_param_group({"params": [late(added)]})
    for run in (added, alone):
        late(run).grad = fixed((3, 2), 5)
        run.advance()
    for name in ("weight", "bias", "temperature"):
        assert torch.equal(added.params[name], alone.params[name])
    assert not torch.equal(late(added).grad, fixed((3, 2), 5))
    assert torch.equal(late(alone).grad, fixed((3, 2), 5))
    assert steps(added) == 1


def late_run(blocks: Any) -> Run:
    """A run whose model has one more parameter than its optimizer."""
    run = sgd()
    extra = nn.Parameter(torch.zeros(3, 2))
    run.handle = attach(run.optimizer, Rise(blocks=blocks), {"late": extra, **run.params})
    return run


def late(run: Run) -> Tensor:
    assert run.handle is not None
    return next(t for t, name in run.handle._names.items() if name == "late")


def test_parameters_added_later_resume() -> None:
    """Saved before and after the first step with them; adopted by a run that has them at once."""
    for steps_between in (0, 2):
        run = late_run("tensor")
        run.advance()
        run.optimizer.add_param_group({"params": [late(run)]})
        run.advance(steps_between)
        state = run.optimizer.state_dict()
        fresh = late_run("tensor")
        assert fresh.handle is not None
        fresh.optimizer.add_param_group({"params": [late(fresh)]})
        fresh.optimizer.load_state_dict(state)
        assert fresh.handle.steps == 1 + steps_between


def test_unnamed_parameters_added_later_are_an_error() -> None:
    run = sgd(Rise())
    run.advance()
    extra = nn.Parameter(torch.zeros(3, 2))
    run.optimizer.add_param_group({"params": [extra]})
    before, raw = run.values(), run.set_gradients()
    for _ in range(2):  # the second time as well
        with pytest.raises(ValueError, match=r"must name every.*\(3, 2\) in group 1.*cover"):
            run.optimizer.step()
    assert_same(run.values(), before)
    assert_same(run.gradients(), raw)
    assert steps(run) == 1
    assert run.handle is not None
    run.handle.cover({"extra": extra})
    extra.grad = torch.ones(3, 2)
    run.optimizer.step()
    assert steps(run) == 2
    assert not torch.equal(extra.grad, torch.ones(3, 2))
    assert "extra" in str(run.handle)


def test_groups_bring_their_own_names() -> None:
    weight, extra = nn.Parameter(torch.zeros(4)), nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([("weight", weight)], lr=1.0)
    handle = attach(optimizer, Rise())
    optimizer.add_param_group({"params": [("extra", extra)]})
    assert "extra" in str(handle)
    extra.grad = torch.ones(3)
    optimizer.step()
    assert not torch.equal(extra.grad, torch.ones(3))


def test_tied_parameters_are_shaped_once() -> None:
    """One tensor, two names: the first name counts, and the sum of both gradients is shaped."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(6, 3)
            self.head = nn.Linear(3, 6, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.embed(x))

    model, shaper = Tied(), Rise(seed=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = attach(optimizer, shaper, model.named_parameters(remove_duplicate=False))
    assert handle.layout.names == ("embed.weight",)
    model(torch.tensor([1, 2])).square().sum().backward()
    raw: dict[str, Tensor | None] = {"embed.weight": model.embed.weight.grad.clone()}
    optimizer.step()
    assert_close(model.head.weight.grad, expected(shaper, raw, 0)["embed.weight"])


def test_names_of_wrapped_models_are_the_plain_ones() -> None:
    """The same draws whether or not a model is compiled, wrapped or neither."""
    plain, wrapped = sgd(Rise(exempt=["bias"])), sgd()
    names = {f"module._orig_mod.{name}": param for name, param in wrapped.params.items()}
    wrapped.handle = attach(wrapped.optimizer, Rise(exempt=["bias"]), names)
    for run in (plain, wrapped):
        run.advance(2)
    assert_same(plain.values(), wrapped.values())


@every_place
def test_exempt_parameters_are_left_as_they_are(on: On) -> None:
    run, plain = sgd(Rise(exempt=["bi*"]), on), sgd()
    for each in (run, plain):
        each.advance(2)
    assert torch.equal(run.params["bias"], plain.params["bias"])
    assert not torch.equal(run.params["weight"], plain.params["weight"])
