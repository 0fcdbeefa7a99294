"""Sums of second moments as rows come in, and the factors that they become.

Where few eigenpairs of a wide factor are wanted, the factor is never formed: rows are added up as
its product with a random matrix, a sketch. All sketches of one form are decomposed together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from risegrad.core.draws import mix
from risegrad.core.shards import exact_products
from risegrad.memory.factor import Diagonal, Factor, Side
from risegrad.memory.ranks import Ranks

COLUMNS = 4
"""Columns of a sketch for each eigenpair that is wanted."""
TOGETHER = 32
"""Sketches that are decomposed at once: more would only take more memory."""


class RandomColumns:
    """The random matrix of each width, which all layers of that width share."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._made: dict[Any, Tensor] = {}

    def like(self, rows: Tensor, dim: int, columns: int) -> Tensor:
        """Orthonormal columns, where the rows are."""
        key = (dim, columns, rows.dtype, rows.device)
        if key not in self._made:
            generator = torch.Generator().manual_seed(mix(self._seed, dim) % 2**63)
            drawn = torch.randn(dim, columns, generator=generator, dtype=torch.float64)
            self._made[key] = torch.linalg.qr(drawn).Q.to(rows)
        return self._made[key]


class GatheredMoments:
    """``sum a a'`` over rows ``a``."""

    def __init__(self, dim: int, rank: int | None, random: RandomColumns) -> None:
        self.dim, self.rank, self.random = dim, rank, random
        wanted = dim if rank is None else COLUMNS * rank + 8
        # Adding to a sketch takes twice its columns in products, to the whole factor its width.
        self.columns = wanted if 2 * wanted <= dim else 0
        self.total: Tensor | None = None
        self.omega: Tensor | None = None
        self.trace: Tensor | None = None

    def add(self, rows: Tensor) -> None:
        """Add the second moments of more rows."""
        self.start(rows)
        assert self.total is not None
        if self.omega is None:
            self.total.addmm_(rows.T, rows)
        else:
            assert self.trace is not None
            self.total.addmm_(rows.T, rows @ self.omega)
            self.trace += rows.square().sum(dtype=self.trace.dtype)

    def start(self, like: Tensor) -> None:
        """Zeros to add to, where there are none yet."""
        if self.total is not None:
            return
        if self.columns:
            self.omega = self.random.like(like, self.dim, self.columns)
            precise = torch.float32 if like.device.type == "mps" else torch.float64
            self.trace = torch.zeros((), dtype=precise, device=like.device)
        self.total = like.new_zeros(self.dim, self.columns or self.dim)

    def sums(self) -> list[Tensor]:
        """All that is added up."""
        return [tensor for tensor in (self.total, self.trace) if tensor is not None]

    def side(self, divisor: float) -> Factor:
        """The sum over ``divisor`` as a factor of the wanted rank, if there is no sketch of it."""
        if self.total is None or not bool(self.total.any()):
            return self._zero()
        full = Factor((self.total / divisor).cpu(), checked=True)
        return full if self.rank is None else full.truncated(self.rank).shortened()

    def _zero(self) -> Factor:
        """No row came, or all were zero: nothing to keep."""
        dtype = torch.float32 if self.total is None else self.total.dtype
        if self.rank is None or self.rank >= self.dim:
            return Factor(torch.zeros(self.dim, self.dim, dtype=dtype), checked=True)
        vectors = torch.eye(self.dim, self.rank, dtype=dtype)
        return Factor.of_eigenpairs(vectors, torch.zeros(self.rank, dtype=dtype), 0.0).shortened()

    @property
    def form(self) -> tuple[Any, ...] | None:
        """What sketches have in common that are decomposed together; None for all else."""
        if self.omega is None or self.total is None or not self.trace:
            return None
        return self.dim, self.total.dtype, self.total.device


class Squares:
    """``sum a_i^2`` for every coordinate, or how often each token came."""

    form = None

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

    def start(self, like: Tensor) -> None:
        """Zeros to add to, where there are none yet."""
        if self.total is None:
            self.total = like.new_zeros(self.dim)

    def sums(self) -> list[Tensor]:
        """All that is added up."""
        return [] if self.total is None else [self.total]

    def side(self, divisor: float) -> Diagonal:
        """The sums divided by ``divisor``."""
        return Diagonal(
            (torch.zeros(self.dim) if self.total is None else self.total.cpu()) / divisor
        )


Moments = GatheredMoments | Squares


def add_up(totals: Sequence[Moments], ranks: Ranks, device: torch.device) -> None:
    """Replace each sum by that of all processes; some may have seen no row of a layer."""
    kinds = ranks.gather([next((t.dtype for t in one.sums()), None) for one in totals])
    for number, total in enumerate(totals):
        dtype = next((kind[number] for kind in kinds if kind[number] is not None), None)
        if dtype is not None:
            total.start(torch.empty(0, dtype=dtype, device=device))
            for tensor in total.sums():
                ranks.add(tensor)


def sides_of(asked: Mapping[tuple[str, str], tuple[Moments, float]]) -> dict[tuple[str, str], Side]:
    """The sums over their divisors, by layer and part."""
    found: dict[tuple[str, str], Side] = {}
    alike: dict[Any, list[tuple[str, str]]] = {}
    with exact_products(torch.empty(0)):  # factors are made on the CPU
        for key, (moments, divisor) in asked.items():
            if not all(bool(tensor.isfinite().all()) for tensor in moments.sums()):
                raise FloatingPointError(f"{key[1]} of layer {key[0]!r} are not finite")
            if moments.form is None:
                found[key] = moments.side(divisor)
            else:
                alike.setdefault(moments.form, []).append(key)
        for keys in alike.values():
            for start in range(0, len(keys), TOGETHER):
                some = keys[start : start + TOGETHER]
                found |= zip(some, _nystroem([asked[key] for key in some]), strict=True)
    return {key: found[key] for key in asked}


def _nystroem(asked: Sequence[tuple[Any, float]]) -> list[Factor]:
    """The top of ``Y (Omega' Y)^+ Y'`` for each ``Y = F Omega``, all of one form.

    A shift by rounding keeps the root of the inner matrix stable.
    """
    first = asked[0][0]
    rank = first.rank
    omega, dtype = first.omega.double().cpu(), first.omega.dtype
    sketch = torch.stack([one.total for one, _ in asked]).cpu().double()
    divisors = torch.tensor([divisor for _, divisor in asked], dtype=torch.float64)
    trace = torch.stack([one.trace for one, _ in asked]).cpu().double() / divisors
    shift = torch.finfo(dtype).eps * trace
    shifted = sketch / divisors[:, None, None] + shift[:, None, None] * omega
    inner = omega.T @ shifted
    values, vectors = torch.linalg.eigh((inner + inner.mT) / 2)
    half = shifted @ (vectors / torch.maximum(values, shift[:, None]).sqrt()[:, None])
    # No square is below the shift, so a product is as good as a QR and takes half of its time.
    squares, turned = torch.linalg.eigh(half.mT @ half)
    squares, turned = squares.flip(-1)[:, :rank], turned.flip(-1)[:, :, :rank]
    top = (squares - shift[:, None]).clamp(min=0)
    found = (half @ (turned / squares.sqrt()[:, None])).to(dtype)
    return [
        Factor.of_eigenpairs(
            u.clone(), *(part.to(dtype) for part in _ordered(w, t, first.dim))
        ).shortened()
        for u, w, t in zip(found, top, trace, strict=True)
    ]


def _ordered(values: Tensor, trace: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Eigenvalues and the mean of the rest, which is above none of them.

    A sketch of a flat spectrum finds too little of its top; pairs that are no larger than what is
    left are counted with it, so that the trace stays.
    """
    for kept in range(len(values), -1, -1):
        rest = (trace - values[:kept].sum()).clamp(min=0) / (dim - kept)
        if not kept or values[kept - 1] >= rest:
            break
    return torch.cat([values[:kept], rest.expand(len(values) - kept)]), rest
