"""Hooks that see each layer's inputs and the gradients at its output.

A forward hook passes the output through ``Seen``, an identity with one more input that wants a
gradient. So every watched output has a gradient, also in a model that is frozen from end to end,
and asking autograd for the gradient of that one input visits all of them and computes none of any
weight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from risegrad.core.whole_steps import exact_products
from risegrad.curvature.memory.covered_layers import Layer
from risegrad.curvature.memory.factor import Factor
from risegrad.curvature.memory.layer_rows import (
    at_least_float32,
    input_rows,
    is_plain_map,
    norm_axis,
    norm_parts,
    output_rows,
)
from risegrad.curvature.memory.memory_side import Diagonal

DENSE = 1024
"""Up to this size a factor is added up in full, whatever its rank will be; above it only where a
sketch would be no smaller."""
COLUMNS = 4
"""Columns of a sketch for each eigenpair that is wanted."""


class GatheredMoments:
    """``sum a a'`` over rows ``a``."""

    def __init__(self, dim: int, rank: int | None, seed: int) -> None:
        self.dim, self.rank, self.seed = dim, rank, seed
        wanted = dim if rank is None or dim <= DENSE else COLUMNS * rank + 8
        self.columns = wanted if wanted < dim else 0
        self.total: Tensor | None = None
        self.omega: Tensor | None = None
        self.trace = 0.0

    def add(self, rows: Tensor) -> None:
        """Add the second moments of more rows."""
        if self.total is None:
            self._start(rows)
        assert self.total is not None
        if self.omega is None:
            self.total.addmm_(rows.T, rows)
        else:
            self.total.addmm_(rows.T, rows @ self.omega)
            self.trace += float(rows.square().sum(dtype=torch.float64))

    def _start(self, rows: Tensor) -> None:
        if self.columns:
            generator = torch.Generator().manual_seed(self.seed)
            drawn = torch.randn(self.dim, self.columns, generator=generator, dtype=torch.float64)
            self.omega = torch.linalg.qr(drawn).Q.to(rows)
        self.total = rows.new_zeros(self.dim, self.columns or self.dim)

    def factor(self, divisor: float) -> Factor:
        """The sum over ``divisor`` as a factor of the wanted rank."""
        if self.total is None:
            return self._zero(torch.float32)
        if not bool(self.total.isfinite().all()):
            raise FloatingPointError("not finite")
        if self.omega is None:
            return self._finish(Factor((self.total / divisor).cpu(), checked=True))
        return self._nystroem(self.total.double().cpu() / divisor, self.trace / divisor)

    def _nystroem(self, sketch: Tensor, trace: float) -> Factor:
        """``Y (Omega' Y)^+ Y'`` of ``Y = F Omega``, with a shift that keeps its root stable."""
        assert self.omega is not None
        assert self.rank is not None
        omega, dtype = self.omega.double().cpu(), self.omega.dtype
        if trace == 0:
            return self._zero(dtype)
        shift = torch.finfo(dtype).eps * trace
        shifted = sketch + shift * omega
        inner = omega.T @ shifted
        root = torch.linalg.cholesky((inner + inner.T) / 2)
        half = torch.linalg.solve_triangular(root, shifted.T, upper=False).T
        vectors, values, _ = torch.linalg.svd(half, full_matrices=False)
        top = (values[: self.rank].square() - shift).clamp(min=0)
        rest = max(trace - float(top.sum()), 0.0) / (self.dim - self.rank)
        return Factor.of_eigenpairs(vectors[:, : self.rank].to(dtype), top.to(dtype), rest)

    def _zero(self, dtype: torch.dtype) -> Factor:
        """No row came, or all were zero: nothing to keep."""
        if self.rank is None or self.rank >= self.dim:
            return Factor(torch.zeros(self.dim, self.dim, dtype=dtype), checked=True)
        vectors = torch.eye(self.dim, self.rank, dtype=dtype)
        return Factor.of_eigenpairs(vectors, torch.zeros(self.rank, dtype=dtype), 0.0)

    def _finish(self, full: Factor) -> Factor:
        return full if self.rank is None else full.truncated(self.rank)


class Squares:
    """``sum a_i^2`` for every coordinate, or how often each token came."""

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self.total: Tensor | None = None

    def add(self, rows: Tensor) -> None:
        """Add the squares of more rows."""
        self._add(rows.square().sum(0))

    def count(self, tokens: Tensor, like: Tensor) -> None:
        """Add how often each token occurs, which is the square of a one-hot row."""
        self._add(torch.bincount(tokens, minlength=self.dim).to(like))

    def _add(self, part: Tensor) -> None:
        self.total = part if self.total is None else self.total + part

    def diagonal(self, divisor: float) -> Diagonal:
        """The sums divided by ``divisor``."""
        total = torch.zeros(self.dim) if self.total is None else self.total.cpu()
        if not bool(total.isfinite().all()):
            raise FloatingPointError("not finite")
        return Diagonal(total / divisor)


Callback = Callable[[Tensor], None]

NOTHING = 1e-5
"""A row whose gradient is below this share of the largest of its example is rounding (a first
token's query has no gradient, but whether that comes out as zero depends on the order of the sums).
Not of the whole batch: what is kept of an example must not depend on its neighbours."""


class Seen(torch.autograd.Function):
    """The identity; ``callback`` gets the gradient that comes back.

    A copy and no view: models may change the output in place (``ReLU(inplace=True)``).
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, thread: Tensor, callback: Callback) -> Tensor:
        """Pass the output on, so that the backward pass comes by here."""
        ctx.callback = callback
        return output.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        """Hand the gradient to the callback and pass it on unchanged."""
        ctx.callback(grads[0])
        return grads[0], None, None


class Watched:
    """The moments of one layer as they grow."""

    def __init__(self, layer: Layer, rank: int | None, seed: int) -> None:
        inputs, outputs = layer.sizes
        self.layer = layer
        self.called = self.differentiable = self.reached = False
        self.plain: bool | None = None
        """Whether the layer computes what a memory of it assumes; None before its first call."""
        self.axis = -1
        """Of a norm, where its weights stand."""
        self.rows = 0
        self.inputs: GatheredMoments | Squares
        self.outputs: GatheredMoments | Squares
        if layer.kind in ("embedding", "norm"):
            self.inputs = Squares(inputs)
        else:
            self.inputs = GatheredMoments(inputs, rank, seed)
        self.outputs = (
            Squares(outputs) if layer.kind == "norm" else GatheredMoments(outputs, rank, seed + 1)
        )

    def compare(self, x: Tensor, out: Tensor) -> None:
        """At the first call, find out whether the layer is the map that it is taken for."""
        if self.plain is not None:
            return
        if self.layer.kind == "norm":
            axis = norm_axis(self.layer.module, x)
            self.plain, self.axis = axis is not None, -1 if axis is None else axis
        else:
            self.plain = is_plain_map(self.layer, x, out)

    def add(self, x: Tensor, version: int, gradient: Tensor) -> None:
        """Rows of one call: ``x`` went in, ``gradient`` came back to what went out."""
        self.reached = True
        if not self.plain:
            return
        if x._version != version:
            raise RuntimeError(
                f"the input of layer {self.layer.name!r} was changed in place after the layer used "
                "it: its second moments cannot be taken"
            )
        gradient = at_least_float32(gradient)
        with exact_products(gradient):
            if self.layer.kind == "norm":
                self._add_norm(x, gradient)
            else:
                self._add_map(x, gradient)

    def _add_map(self, x: Tensor, gradient: Tensor) -> None:
        a, d = input_rows(self.layer, x), output_rows(self.layer, gradient)
        # Where no gradient comes back (padding, tokens that nobody reads) nothing is kept.
        sizes = d.abs().amax(-1)
        counts = ~(sizes <= NOTHING * sizes.amax(1, keepdim=True)).flatten()
        d = d.flatten(0, 1)  # not a number counts, and is found later
        if not bool(counts.all()):
            a, d = a[counts], d[counts]
        self.rows += len(d)
        self.outputs.add(d)
        if isinstance(self.inputs, Squares):
            self.inputs.count(a, d)
        else:
            self.inputs.add(a.to(d))

    def _add_norm(self, x: Tensor, gradient: Tensor) -> None:
        """``y = n(x) w + b``: the gradient of ``w`` is that of ``y`` times ``n(x)``."""
        d = gradient.movedim(self.axis, -1).flatten(0, -2)
        normed = norm_parts(self.layer.module, x)[1]
        self.rows += len(d)
        self.outputs.add(d)
        self.inputs.add(d * normed.movedim(self.axis, -1).flatten(0, -2))


@contextmanager
def watching(layers: Mapping[str, Watched], thread: Tensor) -> Iterator[None]:
    """While active, every call of a layer with gradients on is watched."""
    with ExitStack() as stack:
        for watched in layers.values():
            hook = _hook(watched, thread)
            handle = watched.layer.module.register_forward_hook(hook, with_kwargs=True)
            stack.callback(handle.remove)
        yield


def _hook(watched: Watched, thread: Tensor) -> Callable[..., Tensor | None]:
    def see(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Tensor | None:
        if isinstance(out, Tensor) and not out.numel():
            return None  # an expert without tokens: as if it had not been called
        watched.called = True
        if not torch.is_grad_enabled():
            return None
        watched.differentiable = True
        x = args[0] if args else next(iter(kwargs.values()))
        if not isinstance(out, Tensor) or not isinstance(x, Tensor):
            raise TypeError(
                f"layer {watched.layer.name!r} must take a tensor and give one, got "
                f"{type(x).__name__} and {type(out).__name__}"
            )
        x = x.detach()
        watched.compare(x, out)
        version = x._version
        seen: Tensor = Seen.apply(out, thread, lambda gradient: watched.add(x, version, gradient))
        return seen

    return see
