"""Blocks of which a part has no gradient, or rows that no loss sees: only the rest takes part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from core.attach.expected import Block, expected
from core.attach.subjects import fixed
from references import STANDARD_ERRORS, assert_close, standard_scores
from risegrad.core.attachment import On, attach
from risegrad.core.shapers import CovarianceNoise, IsotropicNoise, Rise, ScaledFO, Shaper

KINDS: dict[str, Any] = {
    "rise": Rise,
    "directions": lambda **more: Rise(sampler="directions", **more),
    "scaled": ScaledFO,
    "isotropic": IsotropicNoise,
    "covariance": CovarianceNoise,
}
every_kind = pytest.mark.parametrize("kind", KINDS)
every_place = pytest.mark.parametrize("on", ["gradient", "update"])

SHAPES: dict[str, tuple[int, ...]] = {"a.weight": (5, 4), "a.bias": (7,), "b.weight": (3, 6)}


def named(requires: Sequence[str] = tuple(SHAPES)) -> dict[str, nn.Parameter]:
    return {
        name: nn.Parameter(fixed(shape, number), requires_grad=name in requires)
        for number, (name, shape) in enumerate(SHAPES.items())
    }


def moved(
    shaper: Shaper, on: On, gradients: dict[str, Tensor], left_out: dict[str, int] | None = None
) -> dict[str, Tensor]:
    """How far one step of SGD at rate 1 takes every parameter, with the sign of the gradient."""
    params = named()
    before = {name: param.detach().clone() for name, param in params.items()}
    optimizer = torch.optim.SGD(params.values(), lr=1.0)
    handle = attach(optimizer, shaper, params, on)
    handle.leave_out(left_out or {})
    for name, gradient in gradients.items():
        params[name].grad = gradient.clone()
    optimizer.step()
    return {name: before[name] - param.detach() for name, param in params.items()}


def wanted_move(
    shaper: Shaper, on: On, raw: dict[str, Tensor | None], blocks: Sequence[Block]
) -> dict[str, Tensor]:
    """The displacement is the negative gradient, and its shape not that of the gradient."""
    if on == "gradient":
        return expected(shaper, raw, 0, blocks)
    negative = {name: None if g is None else -g for name, g in raw.items()}
    return {name: -x for name, x in expected(shaper, negative, 0, blocks).items()}


def check(shaper: Shaper, on: On, blocks: list[Block], left_out: dict[str, int]) -> None:
    """What takes part is shaped as a block of its own size; the rest does what SGD does."""
    raw = {name: fixed(shape, 50 + i) for i, (name, shape) in enumerate(SHAPES.items())}
    there = {name for block in blocks for name, _, _ in block}
    found = moved(shaper, on, {name: raw[name] for name in there}, left_out)
    absent = {name: None for name in SHAPES if name not in there}
    wanted = wanted_move(shaper, on, raw | absent, [*blocks, *_ends(absent)])
    for name, shape in SHAPES.items():
        first = left_out.get(name, 0)
        if name not in there:
            assert torch.equal(found[name], torch.zeros(shape))
            continue
        assert_close(found[name][first:], wanted[name][first:])
        if first:
            assert_close(found[name][:first], raw[name][:first])


def _ends(absent: dict[str, None]) -> list[Block]:
    """Blocks that say how large the others are; nothing of them takes part."""
    return [[(name, 0, torch.Size(SHAPES[name]).numel())] for name in absent]


@every_place
@every_kind
def test_one_block_of_which_a_part_has_no_gradient(kind: str, on: On) -> None:
    check(KINDS[kind](q=3, seed=5, blocks="whole"), on, [[("a.bias", 0, 7)]], {})


@every_place
@every_kind
def test_a_module_of_which_a_part_has_no_gradient(kind: str, on: On) -> None:
    blocks: list[Block] = [[("a.weight", 0, 20)], [("b.weight", 0, 18)]]
    check(KINDS[kind](q=3, seed=5, blocks="module"), on, blocks, {})


@every_place
@every_kind
@pytest.mark.parametrize(
    ("choice", "blocks"),
    [
        ("tensor", [[("a.weight", 8, 20)], [("a.bias", 3, 7)], [("b.weight", 0, 18)]]),
        ("module", [[("a.weight", 8, 20), ("a.bias", 3, 7)], [("b.weight", 0, 18)]]),
        ("whole", [[("a.weight", 8, 20), ("a.bias", 3, 7), ("b.weight", 0, 18)]]),
        (
            5,
            [
                [],
                [("a.weight", 8, 10)],
                [("a.weight", 10, 15)],
                [("a.weight", 15, 20)],
                [("a.bias", 3, 5)],
                [("a.bias", 5, 7)],
                *([("b.weight", start, min(start + 5, 18))] for start in range(0, 18, 5)),
            ],
        ),
    ],
    ids=str,
)
def test_rows_that_no_loss_sees(kind: str, on: On, choice: Any, blocks: list[Block]) -> None:
    check(KINDS[kind](q=3, seed=5, blocks=choice), on, blocks, {"a.weight": 2, "a.bias": 3})


@every_place
def test_rows_of_other_memory_layouts(on: On) -> None:
    weight = nn.Parameter(torch.zeros(4, 3, 2, 2).to(memory_format=torch.channels_last))
    optimizer, shaper = torch.optim.SGD([weight], lr=1.0), Rise(seed=2)
    attach(optimizer, shaper, {"weight": weight}, on).leave_out({"weight": 1})
    g = fixed((4, 3, 2, 2), 9)
    g[0] = 0
    weight.grad = g.to(memory_format=torch.channels_last)
    optimizer.step()
    wanted = wanted_move(shaper, on, {"weight": g}, [[("weight", 12, 48)]])["weight"]
    assert_close(-weight.detach()[1:], wanted[1:])
    assert not weight.detach()[0].any()


@every_place
def test_all_rows_may_be_left_out(on: On) -> None:
    raw = {name: fixed(shape, 3) for name, shape in SHAPES.items()}
    rows = {name: shape[0] for name, shape in SHAPES.items()}
    for name, found in moved(Rise(blocks="module"), on, raw, rows).items():
        assert_close(found, raw[name])


def test_the_norm_is_kept_whatever_is_frozen() -> None:
    """The issue's example: a head over a frozen backbone, all of it one block."""
    head, backbone = nn.Parameter(torch.zeros(10)), nn.Parameter(torch.zeros(990))
    backbone.requires_grad_(False)
    params = {"backbone": backbone, "head": head}
    optimizer = torch.optim.SGD(params.values(), lr=0.1)
    attach(optimizer, Rise(q=4, blocks="group"), params)
    g = fixed((10,), 1)
    ratios = []
    for _ in range(2000):
        head.grad = g.clone()
        optimizer.step()
        ratios.append(head.grad.double().square().sum() / g.double().square().sum())
    assert standard_scores(torch.stack(ratios), torch.tensor(1.0)) < STANDARD_ERRORS
    assert not backbone.any()


def test_gradients_that_come_from_a_closure() -> None:
    """Before the step there is none, or an old one: what counts is what the closure leaves."""
    params, shaper = named(), Rise(blocks="whole", seed=4)
    optimizer = torch.optim.SGD(params.values(), lr=1.0)
    attach(optimizer, shaper, params, on="update")
    before = {name: param.detach().clone() for name, param in params.items()}
    g = fixed((7,), 8)
    params["b.weight"].grad = torch.ones(3, 6)

    def closure() -> float:
        optimizer.zero_grad()
        params["a.bias"].grad = g.clone()
        return 0.0

    optimizer.step(closure)
    raw = dict.fromkeys(SHAPES) | {"a.bias": g}
    whole: Block = [("a.weight", 0, 20), ("a.bias", 0, 7), ("b.weight", 0, 18)]
    wanted = wanted_move(shaper, "update", raw, [whole])
    assert_close(before["a.bias"] - params["a.bias"].detach(), wanted["a.bias"])
    for name in ("a.weight", "b.weight"):
        assert torch.equal(params[name], before[name])


@every_place
def test_who_has_a_gradient_may_change_and_a_resumed_run_goes_on(on: On) -> None:
    """The saved layout knows nothing of gradients, and the draws do not shift."""

    def run(start: int, stop: int, state: Any = None) -> tuple[dict[str, Tensor], Any]:
        params = named()
        optimizer = torch.optim.Adam(params.values(), lr=0.1)
        handle = attach(optimizer, CovarianceNoise(blocks="module", seed=6), params, on)
        if state is not None:
            for name, param in params.items():
                param.data.copy_(state[0][name])
            optimizer.load_state_dict(state[1])
        for step in range(start, stop):
            for number, (name, param) in enumerate(params.items()):
                there = (step + number) % 3
                param.grad = fixed(SHAPES[name], 10 * step + number) if there else None
            handle.leave_out({"b.weight": step % 3})
            optimizer.step()
        values = {name: param.detach().clone() for name, param in params.items()}
        return values, (values, optimizer.state_dict())

    whole, _ = run(0, 6)
    _, half = run(0, 3)
    resumed, _ = run(3, 6, half)
    for name, value in whole.items():
        assert torch.equal(value, resumed[name])


def test_print_says_what_takes_part() -> None:
    params = named(requires=["a.bias", "b.weight"])
    optimizer = torch.optim.SGD(params.values(), lr=0.1)
    handle = attach(optimizer, Rise(blocks="module"), params)
    handle.leave_out({"b.weight": 1})
    text = str(handle)
    lines = [line.split() for line in text.splitlines()]
    assert ["a", "7"] in [line[:2] for line in lines]
    assert ["b", "12"] in [line[:2] for line in lines]
    assert "d counts what has a gradient in a step" in text
    handle = attach(torch.optim.SGD(params.values(), lr=0.1), Rise(exempt=["a.*"]), params)
    assert "d counts" not in str(handle)


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        ({"c": 1}, ValueError, "no shaped parameter is called 'c'; there are a.weight, a.bias"),
        ({"a.bias": 8}, ValueError, r"rows of 'a.bias' must be 0 to 7 \(shape \(7,\)\), got 8"),
        ({"a.bias": -1}, ValueError, "rows of 'a.bias' must be 0 to 7"),
        ({"a.bias": 1.0}, TypeError, "rows of 'a.bias' must be an integer, got 1.0"),
    ],
)
def test_rows_that_are_not_there(rows: Any, error: type[Exception], message: str) -> None:
    params = named()
    handle = attach(torch.optim.SGD(params.values(), lr=0.1), Rise(), params)
    with pytest.raises(error, match=message):
        handle.leave_out(rows)
