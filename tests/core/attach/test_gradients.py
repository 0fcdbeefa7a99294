"""Unusual gradients: half precision, none, zero, not finite, sparse, in odd memory layouts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from core.attach.expected import expected
from core.attach.subjects import (
    SHAPER_CASES,
    assert_same,
    every_place,
    every_shaper,
    fixed,
    grads,
    sgd,
)
from references import assert_close
from risegrad.core.attachment import On, attach
from risegrad.core.shapers import Rise, Shaper


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@every_shaper
def test_half_precision_reduces_in_float32(dtype: torch.dtype, kind: type[Shaper]) -> None:
    """70,000 elements of size 0.03: a float16 sum of squares would be far off."""
    weight = nn.Parameter(torch.zeros(70_000, dtype=dtype))
    weight.grad = (fixed((70_000,), 1) * 0.03 + 0.01).to(dtype)
    raw: dict[str, Tensor | None] = {"weight": weight.grad.clone()}
    shaper = kind(q=5, seed=2)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    attach(optimizer, shaper, {"weight": weight})
    optimizer.step()
    wanted = expected(shaper, raw, 0)["weight"]
    assert weight.grad.dtype == dtype
    # Rounded once: half a unit in the last place of each entry.
    room = torch.finfo(dtype).eps / 2 * wanted.abs() + 1e-6
    assert ((weight.grad.double() - wanted).abs() <= 1.01 * room).all()
    assert_close(weight.grad.double().norm()[None], wanted.norm()[None], torch.float16)


def test_half_and_full_precision_in_one_block() -> None:
    params = {
        "half": nn.Parameter(torch.zeros(30, dtype=torch.bfloat16)),
        "full": nn.Parameter(torch.zeros(40)),
        "double": nn.Parameter(torch.zeros(20, dtype=torch.float64)),
    }
    for number, param in enumerate(params.values()):
        param.grad = fixed(param.shape, number, param.dtype)
    raw = grads(params)
    shaper = Rise(q=3, blocks="whole")
    optimizer = torch.optim.SGD(list(params.values()), lr=1.0)
    attach(optimizer, shaper, params)
    optimizer.step()
    whole = [[(name, 0, param.numel()) for name, param in params.items()]]
    wanted = expected(shaper, raw, 0, whole)
    for name, param in params.items():
        # The block's own numbers are float32 even for its float64 part.
        half = param.dtype == torch.bfloat16
        assert_close(param.grad, wanted[name], torch.bfloat16 if half else torch.float32)


@every_place
@every_shaper
def test_no_gradient_no_shape(kind: type[Shaper], on: On) -> None:
    run, shaper = sgd(), kind(seed=3)
    run.attach(shaper, on)
    before = run.values()
    raw = run.set_gradients()
    run.params["bias"].grad = None
    run.optimizer.step()
    assert run.params["bias"].grad is None
    assert torch.equal(run.params["bias"], before["bias"])
    if on == "gradient":
        sizes = {name: param.numel() for name, param in run.params.items()}
        blocks = [[(name, 0, size)] for name, size in sizes.items()]
        for name, wanted in expected(shaper, raw | {"bias": None}, 0, blocks).items():
            assert_close(run.params[name].grad, wanted)


@every_place
def test_a_step_without_any_gradient(on: On) -> None:
    run = sgd(Rise(), on)
    before = run.values()
    run.optimizer.step()
    assert_same(run.values(), before)


@every_shaper
@pytest.mark.parametrize("blocks", ["tensor", "whole", 2])
def test_zero_stays_zero(kind: type[Shaper], blocks: Any) -> None:
    run = sgd(kind(blocks=blocks), lr=1.0, momentum=0.0, weight_decay=0.0)
    before = run.values()
    for param in run.params.values():
        param.grad = torch.zeros_like(param)
    run.optimizer.step()
    assert_same(run.values(), before)
    assert all(not param.grad.any() for param in run.params.values())


@pytest.mark.parametrize("kind", SHAPER_CASES)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_bad_numbers_pass_through(kind: str, bad: float) -> None:
    """Never silently finite where they stand; other blocks do not notice."""
    shaper = SHAPER_CASES[kind](seed=3)
    run = sgd(shaper)
    raw = run.set_gradients()
    assert run.params["weight"].grad is not None
    run.params["weight"].grad[2, 1] = bad
    run.optimizer.step()
    assert not run.params["weight"].grad[2, 1].isfinite()
    if shaper.uses_noise:
        assert not run.params["weight"].grad.isfinite().any()
    wanted = expected(shaper, raw, 0)
    for name in ("bias", "temperature"):
        assert_close(run.params[name].grad, wanted[name])


def test_bad_numbers_do_not_leave_their_chunk() -> None:
    run = sgd(Rise(blocks=4))
    run.set_gradients()
    run.params["weight"].grad[1, 0] = torch.nan
    run.optimizer.step()
    finite = run.params["weight"].grad.isfinite()
    assert finite.tolist() == [[True] * 4, [False] * 4, [True] * 4, [True] * 4, [True] * 4]


@pytest.mark.parametrize("last", [True, False])
def test_a_sparse_gradient_is_a_clear_error(last: bool) -> None:
    """It comes before anything is changed, wherever the sparse one stands."""
    dense = nn.Parameter(fixed((3,), 1))
    table = nn.Embedding(5, 2, sparse=True)
    named = {"dense": dense, "table": table.weight}
    if not last:
        named = dict(reversed(named.items()))
    optimizer = torch.optim.SGD(list(named.values()), lr=0.1)
    handle = attach(optimizer, Rise(), named)
    (table(torch.tensor([1, 3])).sum() + (dense * dense).sum()).backward()
    before = [param.detach().clone() for param in named.values()]
    raw = dense.grad.clone()
    with pytest.raises(RuntimeError, match=r"gradient of 'table' is sparse.*sparse=False"):
        optimizer.step()
    assert handle.steps == 0
    assert torch.equal(dense.grad, raw)
    assert all(torch.equal(a, b) for a, b in zip(named.values(), before, strict=True))
    handle.detach()
    attach(optimizer, Rise(exempt=["table"]), named)
    optimizer.step()
    assert torch.equal(table.weight[0], before[list(named).index("table")][0])


def layouts(g: Tensor) -> dict[str, Tensor]:
    spread = torch.zeros(*g.shape[:-1], 2 * g.shape[-1])[..., ::2]
    return {
        "channels_last": g.to(memory_format=torch.channels_last),
        "transposed": g.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
        "strided": spread.copy_(g),
    }


@pytest.mark.parametrize("layout", ["channels_last", "transposed", "strided"])
@pytest.mark.parametrize("blocks", ["tensor", "whole", 5])
@every_shaper
def test_memory_layout_does_not_matter(layout: str, blocks: Any, kind: type[Shaper]) -> None:
    g = fixed((4, 3, 2, 5), 1)
    other = layouts(g)[layout]
    assert not other.is_contiguous()
    results = []
    for gradient in (g.clone(), other):
        weight = nn.Parameter(torch.zeros(4, 3, 2, 5))
        weight.grad = gradient
        optimizer = torch.optim.SGD([weight], lr=1.0)
        attach(optimizer, kind(blocks=blocks), {"weight": weight})
        optimizer.step()
        results.append(weight.detach().clone())
    assert torch.equal(*results)


def test_updates_of_channels_last_parameters() -> None:
    results = []
    for memory in (torch.contiguous_format, torch.channels_last):
        weight = nn.Parameter(fixed((4, 3, 2, 5), 2).to(memory_format=memory))
        weight.grad = fixed((4, 3, 2, 5), 1).to(memory_format=memory)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        attach(optimizer, Rise(), {"weight": weight}, on="update")
        optimizer.step()
        results.append(weight.detach().contiguous())
    assert torch.equal(*results)


def test_strided_vectors() -> None:
    results = []
    for gradient in (fixed((9,), 1), torch.zeros(27)[::3].copy_(fixed((9,), 1))):
        weight = nn.Parameter(torch.zeros(9))
        weight.grad = gradient
        optimizer = torch.optim.SGD([weight], lr=1.0)
        attach(optimizer, Rise(blocks=4), {"weight": weight})
        optimizer.step()
        results.append(weight.detach().clone())
    assert torch.equal(*results)


@pytest.mark.parametrize("blocks", ["tensor", 4])
def test_expanded_gradients(blocks: Any) -> None:
    """``torch.autograd.grad`` of a sum: twenty elements in one place of memory."""
    results = []
    for expand in (False, True):
        run = sgd(Rise(blocks=blocks))
        for param in run.params.values():
            (grad,) = torch.autograd.grad(param.sum(), [param])
            assert param.dim() == 0 or 0 in grad.stride()
            param.grad = grad if expand else grad.clone(memory_format=torch.contiguous_format)
        run.optimizer.step()
        results.append(run.values())
    assert_same(*results)


def test_gradients_with_a_graph() -> None:
    """``backward(create_graph=True)`` leaves gradients that require grad themselves."""
    results = []
    for create_graph in (False, True):
        run = sgd(Rise())
        loss = sum((param**3).sum() for param in run.params.values())
        inputs = list(run.params.values())
        for param, grad in zip(
            inputs, torch.autograd.grad(loss, inputs, create_graph=create_graph), strict=True
        ):
            param.grad = grad
        run.optimizer.step()
        results.append(run.values())
    assert_same(*results)


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_scale_of_the_gradient_does_not_matter(scale: float) -> None:
    run, shaper = sgd(), Rise(seed=8)
    run.attach(shaper)
    raw = {name: g * scale for name, g in run.set_gradients().items()}
    for name, param in run.params.items():
        param.grad = raw[name].clone()
    run.optimizer.step()
    for name, wanted in expected(shaper, raw, 0).items():
        assert_close(run.params[name].grad, wanted)
