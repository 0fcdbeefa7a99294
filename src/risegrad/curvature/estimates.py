"""Estimates from products with a curvature: traces, spectra, the terms of blocks, damage."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from risegrad.common.checks import check_number, check_positive_int
from risegrad.core.draws import numbered_generator
from risegrad.curvature.products import Operator
from risegrad.curvature.space import Space

Tick = Callable[[int], None]

LEAST_PROBES = 8
"""Fewer say little about their own error."""
MOST_GROUP = 16
"""Probes held at a time where memory allows more: pairs are formed within a group."""
FLOOR = 0.1
"""A block's scale is at least this part of their root mean square, or its trace would be noise."""
MOST_ASYMMETRY = 0.01
"""Relative: float32 leaves about 1e-4."""


@dataclass(frozen=True)
class ProductBudget:
    """How much to spend; one product with the Hessian costs two to four gradients.

    >>> ProductBudget(probes=2)
    Traceback (most recent call last):
    ValueError: probes must be an integer >= 8, got 2
    """

    probes: int = 64
    """products with random vectors, at least 8: they give traces and coupling norms of all
    blocks"""
    columns: int = 4
    """vectors multiplied together: they share the forward pass and cost memory each"""
    memory: int = 1 << 30
    """bytes for the vectors that are held (the network's own activations come on top)"""

    def __post_init__(self) -> None:
        check_number("probes", self.probes, at_least=LEAST_PROBES, whole=True)
        check_positive_int("columns", self.columns)
        check_positive_int("memory", self.memory)

    def groups(self, space: Space) -> Iterator[int]:
        """Sizes of groups of probes that may be held together, at least 3 where possible."""
        room = self.memory // (2 * space.d * space.dtype.itemsize)
        if room < 3:
            needed = 6 * space.d * space.dtype.itemsize
            raise ValueError(
                f"memory must hold at least six vectors of {space.d:,} numbers, {needed:,} bytes; "
                f"got {self.memory:,}"
            )
        parts = -(-self.probes // min(MOST_GROUP, room))
        for part in range(parts):
            yield self.probes // parts + (part < self.probes % parts)

    def products(self, space: Space) -> int:
        """Products with blocks' gradients and with probes."""
        return self.probes + (len(space.blocks) if space.by_block else 0)


def rademacher(d: int, numbers: Iterable[int], seed: int, dtype: torch.dtype) -> Tensor:
    """Columns (d, K) of independent signs; drawn on the CPU, so the same on every device."""
    columns = []
    for number in numbers:
        generator = numbered_generator(seed, number)
        bits = torch.randint(0, 2, (d,), generator=generator, dtype=torch.int8)
        columns.append((2 * bits - 1).to(dtype))
    return torch.stack(columns, dim=1)


@dataclass(frozen=True)
class GradientTerms:
    """Float64, by blocks; ``m_b = a_b g_b`` is RISE's mean, ``h`` the historical gradient."""

    g2: Tensor
    """``|g_b|^2`` (B)"""
    cross: Tensor
    """``g_b'H_bc g_c`` (B, B)"""
    pulls: Tensor
    """``|H_bc g_c|^2`` (B, B)"""
    rows_fo: Tensor
    """``g_b'(Hg)_b`` (B)"""
    rows_mean: Tensor
    """``g_b'(Hm)_b`` (B)"""
    mean_sq: Tensor
    """``|(Hm)_b|^2`` (B)"""
    mean_own: Tensor
    """``(Hm)_b'H_bb g_b`` (B)"""
    past_g: Tensor
    """``h_b'g_b`` (B)"""
    past_sq: Tensor
    """``|h_b|^2`` (B)"""
    past_mean: Tensor
    """``h_b'(Hm)_b`` (B)"""
    past_own: Tensor
    """``h_b'H_bb g_b`` (B)"""

    @property
    def ghg(self) -> Tensor:
        """``g_b'H_bb g_b`` (B)"""
        return self.cross.diagonal()

    @property
    def hg2(self) -> Tensor:
        """``|H_bb g_b|^2`` (B)"""
        return self.pulls.diagonal()


def gradient_terms(operator: Operator, g: Tensor, h: Tensor, tick: Tick) -> GradientTerms:
    """One product per block; ``Hg`` and ``Hm`` are sums of them. Memory: a few vectors."""
    space, count = operator.space, len(operator.space.blocks)
    cross = torch.zeros(count, count, dtype=torch.float64)
    pulls = torch.zeros_like(cross)
    whole, mean, own = torch.zeros_like(g), torch.zeros_like(g), torch.zeros_like(g)
    for low in range(0, count, operator.columns):
        numbers = range(low, min(low + operator.columns, count))
        columns = torch.zeros(space.d, len(numbers), dtype=space.dtype, device=space.device)
        for place, c in enumerate(numbers):
            columns[space.blocks[c].at, place] = g[space.blocks[c].at]
        products = operator @ columns
        for place, c in enumerate(numbers):
            product, block = products[:, place], space.blocks[c]
            cross[:, c] = space.block_dots(g, product)
            pulls[:, c] = space.block_dots(product, product)
            whole += product
            mean += block.mean_factor * product
            own[block.at] = product[block.at]
        tick(len(numbers))
    dots = space.block_dots
    return GradientTerms(
        g2=dots(g, g),
        # Rounding leaves g_b'H_bc g_c and g_c'H_cb g_b different in their last digits.
        cross=(cross + cross.mT) / 2, pulls=pulls,
        rows_fo=dots(g, whole), rows_mean=dots(g, mean),
        mean_sq=dots(mean, mean), mean_own=dots(mean, own),
        past_g=dots(h, g), past_sq=dots(h, h), past_mean=dots(h, mean), past_own=dots(h, own),
    )  # fmt: skip


@dataclass(frozen=True)
class ProbeTerms:
    """``tr H_bb`` (B) and ``|H_bc|_F^2`` (B, B), with ``tr H_bb^2`` on its diagonal."""

    trace: Tensor
    norms: Tensor
    """empty where blocks are too many for pairs"""


@dataclass
class Probes:
    """Probe products, reduced to block-wise numbers ``M_b[l, k] = z_b^l . y_b^k`` by groups."""

    scales: Tensor
    """(B)"""
    by_pairs: bool = True
    groups: list[Tensor] = field(default_factory=list)
    """(B, G, G) each; pairs are formed inside a group, so that memory is bounded"""
    _pairs: list[Tensor] = field(default_factory=list)
    """``sum_{k != l} M_b[l, k] M_c[k, l]`` (B, B) of each group"""

    @property
    def count(self) -> int:
        """How many probes there are."""
        return sum(group.shape[-1] for group in self.groups)

    def add(self, operator: Operator, count: int, seed: int, tick: Tick) -> None:
        """Spend ``count`` products on a new group of probes. Memory: ``2 count`` vectors."""
        space = operator.space
        numbers = range(self.count, self.count + count)
        z = rademacher(space.d, numbers, seed, space.dtype).to(space.device)
        z *= space.spread(self.scales)[:, None]
        y = torch.empty_like(z)
        for low in range(0, count, operator.columns):
            part = slice(low, low + operator.columns)
            y[:, part] = operator @ z[:, part]
            tick(z[:, part].shape[1])
        blocks = [(z[b.at].mT @ y[b.at]).double().cpu() for b in space.blocks]
        self.groups.append(torch.stack(blocks))
        if self.by_pairs:
            crossed = _without_diagonal(self.groups[-1])
            self._pairs.append(torch.einsum("blk,ckl->bc", crossed, crossed))

    def terms(self) -> ProbeTerms:
        """The terms from all probes."""
        return self._scaled(self._traces(), sum(self._pairs, torch.zeros(1)), self.count)

    def without(self, draw: int) -> ProbeTerms:
        """The terms without one probe, for the jackknife."""
        for group in self.groups:
            size = group.shape[-1]
            if draw < size:
                break
            draw -= size
        traces, pairs = self._traces() - group[:, draw, draw], sum(self._pairs, torch.zeros(1))
        if self.by_pairs:
            crossed = _without_diagonal(group)
            removed = crossed[:, :, draw] @ crossed[:, draw, :].mT
            pairs = pairs - removed - removed.mT
        return self._scaled(traces, pairs, self.count - 1, lost=2 * (size - 1))

    @property
    def asymmetry(self) -> float:
        """``|z'Hw - w'Hz|`` over probes, relative to the largest: rounding, or a wrong product."""
        wholes = [group.sum(0) for group in self.groups]
        worst = max(float((whole - whole.mT).abs().max()) for whole in wholes)
        scale = max(float(whole.abs().max()) for whole in wholes)
        return worst / scale if scale else 0.0

    def _traces(self) -> Tensor:
        return torch.stack([g.diagonal(dim1=1, dim2=2).sum(-1) for g in self.groups]).sum(0)

    def _scaled(self, traces: Tensor, pairs: Tensor, count: int, lost: int = 0) -> ProbeTerms:
        weight = self.scales.square()
        if not self.by_pairs:
            return ProbeTerms(traces / count / weight, torch.empty(0))
        made = sum(group.shape[-1] * (group.shape[-1] - 1) for group in self.groups)
        norms = pairs / (made - lost) / weight / weight[:, None]
        return ProbeTerms(traces / count / weight, norms)


def _without_diagonal(group: Tensor) -> Tensor:
    return group - torch.diag_embed(group.diagonal(dim1=1, dim2=2))


def exposure_scales(space: Space, g2: Tensor) -> Tensor:
    """``|g_b|/sqrt(q_b+d_b+1)``, the deviation RISE gives a coordinate, from a floor upwards."""
    spread = (g2 / (space.numbers("q") + space.numbers("d") + 1)).sqrt()
    least = FLOOR * spread.square().mean().sqrt()
    # All gradients zero: every block is as good as any other.
    return spread.clamp_min(least) if least > 0 else torch.ones_like(spread)


def probed(operator: Operator, g: Tensor, budget: ProductBudget, seed: int, tick: Tick) -> Probes:
    """All probes of a budget; the symmetry of the products is checked by the way."""
    space = operator.space
    probes = Probes(exposure_scales(space, space.block_dots(g, g)), space.by_block)
    for count in budget.groups(space):
        probes.add(operator, count, seed, tick)
        if probes.asymmetry > MOST_ASYMMETRY:
            raise FloatingPointError(
                f"curvature products are not symmetric: z'Hw and w'Hz differ by "
                f"{probes.asymmetry:.1%}; the loss is not deterministic, or an operation of the "
                "model has a wrong second derivative: try curvature='ggn', or float64"
            )
    return probes


Numbers = dict[str, Tensor]


@dataclass(frozen=True)
class Estimate:
    """``value`` with its standard error (0: exact) from ``products`` curvature products."""

    value: float
    error: float = 0.0
    products: int = 0

    def __str__(self) -> str:
        return with_error(self.value, self.error)


PLAIN = (1e-3, 1e5)
"""Sizes that are written without an exponent."""
NEGLIGIBLE = 1e-6
"""Relative: what rounding leaves is no error."""


def in_digits(value: float, digits: int = 3) -> str:
    """So many digits that count, without an exponent where a reader needs none.

    >>> in_digits(304.2, 2), in_digits(0.00123456), in_digits(2.5e-7)
    ('300', '0.00123', '2.5e-07')
    """
    rounded = float(f"{value:.{digits}g}")
    if PLAIN[0] <= abs(rounded) < PLAIN[1]:
        return f"{rounded:.12f}".rstrip("0").rstrip(".")
    return f"{value:.{digits}g}"


def with_error(value: float, error: float, digits: int = 3) -> str:
    """The error's first digit says how many decimals of the value mean something.

    >>> with_error(1.04, 0.003), with_error(304.0, 1234.0), with_error(2.113e-5, 2e-6)
    ('1.040 ± 0.003', '304 ± 1000', '2.1e-05 ± 2e-06')
    """
    if not (math.isfinite(value) and math.isfinite(error)):
        return f"{value:.{digits}g} ± {error:.1g}"
    if error <= NEGLIGIBLE * abs(value):
        return in_digits(value, digits)
    first = float(f"{error:.1g}")
    place = math.floor(math.log10(first) + 1e-9)
    size = max(abs(value), first)
    if PLAIN[0] <= size < PLAIN[1]:
        decimals = max(0, -place)
        return f"{value:.{decimals}f} ± {first:.{decimals}f}"
    least = math.floor(math.log10(abs(value))) if value else place
    return f"{value:.{max(0, least - place)}e} ± {first:.0e}"


def jackknife(evaluate: Callable[[ProbeTerms], Numbers], probes: Probes) -> tuple[Numbers, Numbers]:
    """Values and standard errors of everything that ``evaluate`` makes of the probes' terms.

    Leaving out one probe after the other shows how much each of them matters, however it enters:
    ``error^2 = ((n-1)/n) sum_k (value_(-k) - mean)^2``. It needs no formula for the variance of a
    product or of a root, and is rather too large than too small.
    """
    values, n = evaluate(probes.terms()), probes.count
    # Two running sums instead of all replicates: memory does not grow with the draws.
    sums = {name: torch.zeros_like(value) for name, value in values.items()}
    squares = {name: torch.zeros_like(value) for name, value in values.items()}
    for draw in range(n):
        for name, value in evaluate(probes.without(draw)).items():
            moved = value - values[name]
            sums[name] += moved
            squares[name] += moved.square()
    return values, {
        name: ((n - 1) / n * (squares[name] - sums[name].square() / n).clamp_min(0)).sqrt()
        for name in values
    }


@dataclass(frozen=True)
class Bounds:
    """A number between ``lower`` and ``upper`` (infinite where nothing is known)."""

    lower: float
    upper: float
    products: int = 0


def first_step_bounds(g2: float, ghg: float, hg2: float, rho: float) -> Bounds:
    """``R = g'(H + rho I)^(-1) g`` after one step of conjugate gradients, for ``H >= 0``.

    One step needs ``g'Hg`` and ``|Hg|^2`` only: ``lower = |g|^4/(g'Hg + rho |g|^2)``, and the
    residual ``r`` bounds what is missing, ``r'(H + rho I)^(-1) r <= |r|^2/rho``.
    """
    if g2 == 0:
        return Bounds(0.0, 0.0)
    damped = ghg + rho * g2
    if damped <= 0:
        raise ValueError(
            f"H_bb + rho I must be positive definite, got g'(H + rho I)g = {damped:.3g}"
        )
    lower = g2**2 / damped
    step = g2 / damped
    residual = step**2 * (hg2 + 2 * rho * ghg + rho**2 * g2) - g2
    return Bounds(lower, lower + max(residual, 0.0) / rho)
