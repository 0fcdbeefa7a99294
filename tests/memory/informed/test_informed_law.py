"""Informed RISE: its mean and second moment are those of ``theory``, in the dense metric."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from core.attach.subjects import Subject, fixed
from memory.informed.subject_matter import memory, metrics, start
from references import STANDARD_ERRORS, standard_scores
from risegrad.core.attachment import attach
from risegrad.core.shapers import Rise
from risegrad.memory.informed import Informed
from risegrad.theory.informed import metric_mean, metric_second_moment, metric_squared_norm

DAMPING, Q, SAMPLES = 0.3, 3, 4000
LAYERS = {"a": (3, 2)}


def drawn(shaper: Informed, g: dict[str, Tensor], samples: int = SAMPLES) -> dict[str, Tensor]:
    """Shaped gradients of many steps with the same raw one, flat."""
    params = {name: torch.nn.Parameter(torch.zeros_like(x)) for name, x in g.items()}
    optimizer = torch.optim.SGD(params.values(), lr=0.0)
    attach(optimizer, shaper, params)
    found: dict[str, list[Tensor]] = {name: [] for name in g}
    for _ in range(samples):
        for name, param in params.items():
            param.grad = g[name].clone()
        optimizer.step()
        for name, param in params.items():
            found[name].append(param.grad.reshape(-1))
    return {name: torch.stack(rows) for name, rows in found.items()}


def dense_metric(shaper: Informed, name: str) -> Tensor:
    """``P`` over the parameter's flat index: row after row, so left (x) right."""
    return torch.kron(*metrics(shaper.memory, name, shaper.damping))


@pytest.mark.parametrize("names", [("a.weight",), ("a.weight", "a.bias")])
def test_the_law_is_that_of_the_theory(names: tuple[str, ...]) -> None:
    kept = memory(layers=LAYERS, dtype=torch.float64)
    shaper = Informed(kept, DAMPING, q=Q, seed=4)
    shapes = {"a.weight": (3, 2), "a.bias": (3,)}
    g = {name: fixed(shapes[name], 5, torch.float64) for name in names}
    flat = {name: x.reshape(-1) for name, x in g.items()}
    P = {name: dense_metric(shaper, name) for name in names}
    expected = sum(metric_squared_norm(P[name], flat[name], Q) for name in names)
    scale = (sum(x.square().sum() for x in flat.values()) / expected).sqrt()
    found = drawn(shaper, g)
    for name in names:
        x, metric = found[name], scale * P[name]
        scores = standard_scores(x, metric_mean(metric, flat[name], Q))
        assert scores.abs().max() < STANDARD_ERRORS
        products = x[:, :, None] * x[:, None, :]
        scores = standard_scores(products, metric_second_moment(metric, flat[name], Q))
        assert scores.abs().max() < STANDARD_ERRORS
        # The noise of RISE itself, without the metric, is told apart.
        blind = metric_second_moment(torch.eye(len(flat[name])).double(), flat[name], Q)
        assert standard_scores(products, blind).abs().max() > 2 * STANDARD_ERRORS
    squares = sum(x.square().sum(1) for x in found.values())
    wanted = sum(x.square().sum() for x in flat.values())
    assert standard_scores(squares[:, None], wanted[None]).abs().max() < STANDARD_ERRORS


def test_the_mean_norm_is_matched_with_rows_left_out() -> None:
    kept = memory(layers=LAYERS, dtype=torch.float64)
    run_g = fixed((3, 2), 5, torch.float64)
    param = torch.nn.Parameter(torch.zeros(3, 2, dtype=torch.float64))
    optimizer = torch.optim.SGD([param], lr=0.0)
    handle = attach(optimizer, Informed(kept, DAMPING, q=Q), {"a.weight": param})
    handle.leave_out({"a.weight": 1})
    squares = []
    for _ in range(SAMPLES):
        param.grad = run_g.clone()
        optimizer.step()
        squares.append(param.grad[1:].square().sum())
    scores = standard_scores(torch.stack(squares)[:, None], run_g[1:].square().sum()[None])
    assert scores.abs().max() < STANDARD_ERRORS


def test_many_directions_are_the_filtered_step() -> None:
    runs = [start(Subject("SGD"), momentum=0.0, weight_decay=0.0) for _ in range(2)]
    for run, q in zip(runs, (None, 10**8), strict=True):
        run.attach(Informed(memory(), 0.1, match="norm", q=q))
        run.set_gradients()
        run.optimizer.step()
    for name, wanted in runs[0].gradients().items():
        error = (runs[1].gradients()[name] - wanted).abs().max() / wanted.abs().max()
        assert error < 5e-3


def test_a_memory_without_preferences_is_rise() -> None:
    """``P = I`` up to a number, which the scale takes out: the same draws, the same step."""
    flat = memory().changed(lambda _layer, _part, side: type(side)(torch.eye(side.dim)))
    runs = [start(Subject("SGD")) for _ in range(2)]
    for run, shaper in zip(runs, (Informed(flat, q=4, seed=2), Rise(q=4, seed=2)), strict=True):
        run.attach(shaper)
        run.set_gradients()
        run.params["a.bias"].grad = None
        run.optimizer.step()
    for name in ("a.weight", "b.weight"):
        wanted = runs[1].params[name].grad
        assert (runs[0].params[name].grad - wanted).abs().max() < 1e-5 * wanted.abs().max()
