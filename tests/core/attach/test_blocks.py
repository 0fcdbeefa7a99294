"""Every way to choose blocks, through an optimizer, against the formula block by block."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from core.attach.expected import Block, expected
from core.attach.subjects import assert_same, fixed, sgd
from references import assert_close
from risegrad.core.attachment import attach
from risegrad.core.blocks import Blocks
from risegrad.core.shapers import Rise, Shaper

SIZES = {"a.weight": 12, "a.bias": 3, "b.weight": 10, "b.bias": 2}


def whole(*names: str) -> Block:
    return [(name, 0, SIZES[name]) for name in names]


def pieces(name: str, size: int) -> list[Block]:
    end = SIZES[name]
    return [[(name, start, min(start + size, end))] for start in range(0, end, size)]


A, B = ("a.weight", "a.bias"), ("b.weight", "b.bias")
CASES: dict[str, tuple[Any, list[Block]]] = {
    "tensor": ("tensor", [whole(name) for name in SIZES]),
    "module": ("module", [whole(*A), whole(*B)]),
    "group": ("group", [whole(*A, "b.weight"), whole("b.bias")]),
    "whole": ("whole", [whole(*SIZES)]),
    "chunk of 4": (4, [piece for name in SIZES for piece in pieces(name, 4)]),
    "chunk of 1": (1, [piece for name in SIZES for piece in pieces(name, 1)]),
    "huge chunk": (1000, [whole(name) for name in SIZES]),
    "patterns": (
        {"biases": "*.bias", "weights": ["a.w*", "b.w*"]},
        [whole("a.bias", "b.bias"), whole("a.weight", "b.weight")],
    ),
    "object": (
        Blocks({"x": ("b.bias", "a.weight"), "y": ("a.bias", "b.weight")}),
        [whole("b.bias", "a.weight"), whole("a.bias", "b.weight")],
    ),
    "chunked object": (
        Blocks.chunks(reversed(SIZES), 5),
        [piece for name in reversed(SIZES) for piece in pieces(name, 5)],
    ),
}


def parameters() -> dict[str, nn.Parameter]:
    return {name: nn.Parameter(torch.zeros(size)) for name, size in SIZES.items()}


def optimizer_of(params: dict[str, nn.Parameter]) -> torch.optim.Optimizer:
    *most, last = params.values()
    return torch.optim.SGD([{"params": most}, {"params": [last]}], lr=1.0)


def shaped(
    shaper: Shaper, params: dict[str, nn.Parameter], names: dict[str, nn.Parameter], step: int
) -> dict[str, Tensor]:
    optimizer = optimizer_of(params)
    attach(optimizer, shaper, names).steps = step
    for number, param in enumerate(params.values()):
        param.grad = fixed(param.shape, number)
    optimizer.step()
    return {name: param.grad for name, param in params.items() if param.grad is not None}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("sampler", ["one-draw", "directions"])
@pytest.mark.parametrize("several", [False, True], ids=["one q", "a q per block"])
def test_blocks_of_every_kind(case: str, sampler: Any, several: bool) -> None:
    choice, blocks = CASES[case]
    params = parameters()
    raw = {name: fixed(param.shape, i) for i, (name, param) in enumerate(params.items())}
    handle = attach(optimizer_of(params), Rise(blocks=choice), params)
    q: int | list[int] = 3
    per_block = [3] * len(blocks)
    if several:  # one entry per named block; chunks of a tensor share theirs
        named = list(dict.fromkeys(row.name.removesuffix(" (rest)") for row in handle.layout.rows))
        q = [1 + i for i in range(len(named))]
        chunked = len(named) == len(SIZES)
        order = list(dict.fromkeys(block[0][0] for block in blocks))
        per_block = [
            q[order.index(block[0][0])] if chunked else q[i] for i, block in enumerate(blocks)
        ]
    shaper = Rise(q=q, blocks=choice, seed=4, sampler=sampler)
    actual = shaped(shaper, params, params, step=6)
    # The draws follow the optimizer's order whatever the blocks are.
    wanted = expected(shaper, raw, 6, blocks, per_block)
    for name, tensor in wanted.items():
        assert_close(actual[name], tensor)


@pytest.mark.parametrize("blocks", ["tensor", "whole", 1000], ids=str)
def test_tensors_larger_than_a_tile_and_a_workspace(blocks: Any) -> None:
    sizes = {"small": 5, "large": 70_001, "larger": 300_007}
    params = {name: nn.Parameter(torch.zeros(size)) for name, size in sizes.items()}
    raw = {name: fixed((size,), size) for name, size in sizes.items()}
    cut: list[Block] = {
        "tensor": [[(name, 0, size)] for name, size in sizes.items()],
        "whole": [[(name, 0, size) for name, size in sizes.items()]],
    }.get(blocks) or [
        [(name, start, min(start + 1000, size))]
        for name, size in sizes.items()
        for start in range(0, size, 1000)
    ]
    shaper = Rise(blocks=blocks)
    for name, param in params.items():
        param.grad = raw[name].clone()
    optimizer = torch.optim.SGD(list(params.values()), lr=1.0)
    attach(optimizer, shaper, params)
    optimizer.step()
    for name, wanted in expected(shaper, raw, 0, cut).items():
        assert_close(params[name].grad, wanted)


def test_the_order_of_names_does_not_matter() -> None:
    """Draws follow the optimizer's order, which a checkpoint keeps too."""
    forward, backward = parameters(), parameters()
    reverse = dict(reversed(backward.items()))
    assert_same(shaped(Rise(), forward, forward, 0), shaped(Rise(), backward, reverse, 0))


def test_a_mapping_of_q_goes_by_name() -> None:
    q = {"b.bias": 4, "b.weight": 3, "a.bias": 2, "a.weight": 1}
    first, second = parameters(), parameters()
    by_name = shaped(Rise(q=q), first, first, 0)
    in_order = shaped(Rise(q=[1, 2, 3, 4]), second, second, 0)
    assert_same(by_name, in_order)


@pytest.mark.parametrize("seed", [1, -1, 2**63, -(2**63)])
def test_seeds_differ(seed: int) -> None:
    runs = [sgd(Rise(seed=s)) for s in (0, seed, seed)]
    for run in runs:
        run.advance()
    assert_same(runs[1].values(), runs[2].values())
    assert not torch.equal(runs[0].params["weight"], runs[1].params["weight"])


def test_late_steps_are_as_good_as_early_ones() -> None:
    run, shaper = sgd(), Rise()
    run.attach(shaper).steps = 2**40
    raw = run.set_gradients()
    run.optimizer.step()
    for name, wanted in expected(shaper, raw, 2**40).items():
        assert_close(run.params[name].grad, wanted)
