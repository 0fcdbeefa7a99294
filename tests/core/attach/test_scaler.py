"""A GradScaler around the optimizer: scaled and unscaled gradients, skipped steps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from core.attach.subjects import (
    Run,
    Subject,
    assert_same,
    every_place,
    every_shaper,
    fixed,
    start,
    steps,
)
from references import assert_close
from risegrad.core.attachment import On
from risegrad.core.shapers import Rise, Shaper


def scaled_loop(
    run: Run,
    scaler: torch.amp.GradScaler,
    numbers: tuple[int, ...] = (0, 1, 2),
    overflow: int | None = None,
) -> list[tuple[int, dict[str, Tensor]]]:
    """Steps of ``sum(p * g)``, after each the count and the parameters; one may overflow."""
    seen = []
    for number in numbers:
        run.optimizer.zero_grad()
        factor = torch.inf if number == overflow else 1.0
        loss = sum(
            (param * fixed(param.shape, 10 * number + i)).sum() * factor
            for i, param in enumerate(run.params.values())
        )
        scaler.scale(loss).backward()
        scaler.step(run.optimizer)
        scaler.update()
        seen.append((steps(run), run.values()))
    return seen


@pytest.mark.parametrize("variant", ["default", "foreach", "fused"])
@pytest.mark.parametrize("name", ["SGD", "AdamW"])
@every_place
@every_shaper
def test_a_loss_scale_changes_nothing(variant: str, name: str, on: On, kind: type[Shaper]) -> None:
    """A fused optimizer shows scaled gradients to the hook, the others unscaled ones."""
    subject = Subject(name, variant)
    run, bare = start(subject), start(subject)
    for each in (run, bare):
        each.attach(kind(seed=6), on)
    scaled_loop(run, torch.amp.GradScaler("cpu", init_scale=1024.0))
    scaled_loop(bare, torch.amp.GradScaler("cpu", enabled=False))
    for key, value in run.values().items():
        assert_close(value, bare.params[key])
    assert steps(run) == 3


@pytest.mark.parametrize("variant", ["default", "fused"])
@pytest.mark.parametrize("name", ["SGD", "AdamW"])
@every_place
def test_a_skipped_step_is_not_counted(variant: str, name: str, on: On) -> None:
    """Infinite gradients: nothing moves, and the draws go on where they were."""
    run, spared = start(Subject(name, variant)), start(Subject(name, variant))
    for each in (run, spared):
        each.attach(Rise(seed=6), on)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    seen = scaled_loop(run, scaler, overflow=1)
    assert scaler.get_scale() == 32.0
    assert [count for count, _ in seen] == [1, 1, 2]
    assert_same(seen[0][1], seen[1][1])
    wanted = scaled_loop(spared, torch.amp.GradScaler("cpu", init_scale=64.0), (0, 2))
    assert_same(seen[2][1], wanted[1][1])


@pytest.mark.parametrize("variant", ["default", "fused"])
def test_unscaling_and_clipping_by_hand(variant: str) -> None:
    shaper = Rise(seed=3)
    run, bare = start(Subject("SGD", variant)), start(Subject("SGD", variant))
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for each, grad_scaler in ((run, scaler), (bare, None)):
        each.attach(shaper)
        loss = (each.params["weight"] * fixed((5, 4), 1)).sum()
        (loss if grad_scaler is None else grad_scaler.scale(loss)).backward()
        if grad_scaler is not None:
            grad_scaler.unscale_(each.optimizer)
        nn.utils.clip_grad_norm_(each.params.values(), 0.1)
        if grad_scaler is None:
            each.optimizer.step()
        else:
            grad_scaler.step(each.optimizer)
    assert_close(run.params["weight"], bare.params["weight"])
