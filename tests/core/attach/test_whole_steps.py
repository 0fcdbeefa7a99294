"""The extension point: a shaper of one's own that works on a step's whole tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from core.attach.subjects import Subject, assert_same, every_place, sgd, start
from risegrad.core.shapers import BlockDraws, Rise, Shaper, one_draw_coefficients
from risegrad.core.shards import Tie, WholeStep, Work


@dataclass(frozen=True)
class Signs(Shaper):
    """Draws on the signs of a step, and leaves one parameter alone."""

    def coefficients(self, draws: BlockDraws) -> tuple[Tensor, Tensor]:
        return one_draw_coefficients(draws.norm, draws.dot, draws.chi2, draws.d, draws.q)

    def tie(self, params: Mapping[str, Tensor], held: Sequence[str]) -> Tie:
        return SignsTie(params)

    def misplaced(self, optimizer: torch.optim.Optimizer, on: str) -> str | None:
        return "signs are for gradients" if on == "update" else None


class SignsTie(Tie):
    leaves = ("bias",)

    def __init__(self, params: Mapping[str, Tensor]) -> None:
        self.params = params
        self.seen: list[Tensor] = []

    def ready(self) -> Work:
        self.seen.append(self.params["weight"].detach().clone())
        return self.work

    def work(self, step: WholeStep) -> None:
        assert set(step.tensors) == {"weight", "temperature"}
        for tensor in step.tensors.values():
            tensor.sign_()
        step.draw(step.tensors)

    def notes(self) -> list[str]:
        return ["only signs count"]


def test_a_shaper_of_ones_own() -> None:
    """The blockwise draw is the usual one, on what the shaper made of the gradients."""
    run, rise, plain = sgd(Signs(seed=3)), sgd(), sgd()
    rise.attach(Rise(seed=3, exempt=["bias"]))
    for _ in range(2):
        for each in (run, rise, plain):
            each.set_gradients()
        for name in ("weight", "temperature"):
            rise.params[name].grad.sign_()
        for each in (run, rise, plain):
            each.optimizer.step()
            each.step += 1
        assert_same(run.gradients(), rise.gradients())
        assert torch.equal(run.params["bias"], plain.params["bias"])
    assert str(run.handle).endswith("only signs count")


def test_it_is_ready_while_parameters_have_their_values() -> None:
    run = start(Subject("SGD"))
    with pytest.warns(UserWarning, match="signs are for gradients"):
        handle = run.attach(Signs(), "update")
    before = run.values()["weight"]
    run.advance()
    tie = handle._coverage.tie
    assert isinstance(tie, SignsTie)
    assert torch.equal(tie.seen[0], before)


@every_place
def test_a_failure_leaves_the_plain_step(on: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: SignsTie, step: WholeStep) -> None:
        raise ArithmeticError("no sign")

    monkeypatch.setattr(SignsTie, "work", fail)
    monkeypatch.setattr(Signs, "misplaced", lambda *_: None)
    run = sgd(Signs(), on)  # type: ignore[arg-type]
    run.set_gradients()
    with pytest.raises(ArithmeticError, match="no sign"):
        run.optimizer.step()
    assert run.handle is not None
    assert run.handle.steps == 0
    assert all(value.isfinite().all() for value in run.values().values())


def test_blind_shapers_refuse_to_do_without_q() -> None:
    with pytest.raises((TypeError, ValueError), match="q must be"):
        Rise(q=None)
