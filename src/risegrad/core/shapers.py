"""RISE and its controls: each says, for every block, how gradient and noise are combined.

Every shaper here is of the form ``x = c1 g + c2 n`` with one standard normal vector ``n`` per
block, so each is two formulas over the same calibration and the same draws; one that is more than
that overrides ``tie``. All of them are homogeneous: shaping a scaled gradient is scaling a shaped
one, which is why a loss scale (GradScaler with a fused optimizer) does no harm.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from numbers import Integral
from typing import ClassVar, Literal, final

import torch
from torch import Tensor
from torch.optim import Optimizer

from risegrad.common.checks import check_choice, check_positive_int, check_probability
from risegrad.core.arithmetic import norm
from risegrad.core.blocks import BlockChoice, Blocks, check_block_choice
from risegrad.core.optimizers import is_adaptive
from risegrad.core.shards import Tie
from risegrad.theory.calibration import mean_factor, q_for

Sampler = Literal["one-draw", "directions"]
SAMPLERS: tuple[Sampler, ...] = ("one-draw", "directions")


def one_draw_coefficients(
    norm: Tensor, dot: Tensor, chi2: Tensor, d: Tensor | int, q: Tensor | int
) -> tuple[Tensor, Tensor]:
    """``(c1, c2)`` such that ``c1 g + c2 n`` has the law of ``kappa^(-1/2) Z g``.

    Split every direction along and across ``u = g/|g|``: the part along gives ``S ~ chi2(q)``, the
    part across is, given ``S``, normal with variance ``S``. ``norm`` is ``|g|``, ``dot`` is
    ``g . n``. A zero gradient stays zero; a non-finite one makes both coefficients non-finite.
    """
    # 0/0 would turn a zero gradient into NaN; the product with g = 0 is 0 whatever stands here.
    along = torch.where(norm == 0, torch.zeros_like(dot), dot / norm)
    root = chi2.sqrt()
    scale = (q * (q + d + 1)) ** -0.5  # 1 / (q sqrt(kappa))
    return (chi2 - root * along) * scale, norm * root * scale


def one_draw(g: Tensor, normal: Tensor, chi2: Tensor, q: int) -> Tensor:
    """Shape ``g`` (..., d) with given draws: ``normal`` (..., d) and ``chi2`` (...)."""
    length = norm(g).expand(chi2.shape)
    along = (g * normal).sum(-1)
    on_gradient, on_noise = one_draw_coefficients(length, along, chi2, g.shape[-1], q)
    return on_gradient[..., None] * g + on_noise[..., None] * normal


def from_directions(g: Tensor, directions: Tensor) -> Tensor:
    """Algorithm 1, literally: ``directions`` (..., q, d) standard normal, ``g`` (..., d)."""
    q, d = directions.shape[-2:]
    projections = (directions @ g[..., None]).squeeze(-1)
    raw: Tensor = (projections[..., None, :] @ directions).squeeze(-2) / q
    return raw * mean_factor(d, q)


def covariance_noise(g: Tensor, along: Tensor, across: Tensor, q: int) -> Tensor:
    """Normal draws with RISE's mean and covariance ``(g g' + |g|^2 I) / (q + d + 1)``.

    ``g`` (..., d), standard normal ``along`` (...) and ``across`` (..., d). The shaper
    ``CovarianceNoise`` has the same law as two coefficients, which a step in pieces needs.
    """
    d = g.shape[-1]
    noise = along[..., None] * g + norm(g)[..., None] * across
    drawn: Tensor = mean_factor(d, q) * g + noise / (q + d + 1) ** 0.5
    return drawn


def shape(
    g: Tensor,
    q: int = 4,
    generator: torch.Generator | None = None,
    sampler: Sampler = "one-draw",
) -> Tensor:
    """One RISE draw of a gradient as a single block; ``g`` itself does not change.

    The reductions run in float32 at least; the result has the dtype of ``g``. Without a
    ``generator`` torch's global one is used, as ``torch.randn`` would.

    >>> g = torch.ones(3)
    >>> shape(g, q=4, generator=torch.Generator().manual_seed(0)).shape
    torch.Size([3])
    """
    q = check_positive_int("q", q)
    check_sampler(sampler)
    if g.numel() == 0:
        raise ValueError(f"g must have at least one element, got shape {tuple(g.shape)}")
    if not g.is_floating_point():
        raise TypeError(f"g must be a real floating-point tensor, got {g.dtype}")
    work = torch.promote_types(g.dtype, torch.float32)
    flat = g.detach().reshape(-1).to(work)

    def normals(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=work, device=g.device)

    if sampler == "directions":
        shaped = from_directions(flat, normals(q, flat.numel()))
    else:
        # A sum of q squares is a chi-square number from public API alone; it costs q scalars.
        shaped = one_draw(flat, normals(flat.numel()), normals(q).square().sum(), q)
    return shaped.to(g.dtype).view_as(g)


def check_sampler(sampler: str) -> None:
    """Raise an error that lists the samplers if there is none of this name."""
    check_choice("sampler", sampler, SAMPLERS)


@dataclass(frozen=True)
class Kept:
    """A choice of ``q``: in each block the fewest directions that leave this part of the mean."""

    mean_factor: float

    def __post_init__(self) -> None:
        check_probability("keep", self.mean_factor)


QChoice = int | Sequence[int] | Mapping[str, int] | Kept
PIECE = 64
"""Elements of a block where ``keep`` chooses the blocks. Of pieces and whole tensors with the same
mean factor, pieces let an optimizer that looks at single elements (Adam) learn more."""
Mean = Literal["exact", "scaled"]


@dataclass(frozen=True)
class BlockDraws:
    """What a shaper sees of its blocks: float64 vectors with one entry per block."""

    d: Tensor
    q: Tensor
    norm: Tensor
    """``|g|``"""
    dot: Tensor
    """``g . n``"""
    chi2: Tensor
    """chi-square with q degrees of freedom, independent of n"""
    normal: Tensor
    """standard normal, independent of n"""


@dataclass(frozen=True)
class Shaper(ABC):
    """Settings that all shapers share."""

    q: QChoice | None = 4
    """Directions per block: an integer for all blocks, or one per block (by order or by name).
    None, where a shaper allows it, draws nothing."""
    blocks: BlockChoice = "tensor"
    """``tensor``, ``module``, ``group``, ``whole``, a chunk size, patterns, or ``Blocks``."""
    seed: int = 0
    """Draws are a pure function of (seed, step, position)."""
    exempt: Sequence[str] = ()
    """Shell-style patterns of parameters that are left as they are, such as ``"head.*"``."""
    stream: int = field(default=0, kw_only=True)
    """Tells apart the draws of models with equal parameter names, such as the members of an
    ensemble or the two networks of an actor and its critic."""
    keep: float | None = field(default=None, kw_only=True)
    """The part of the mean that is to be left, such as 0.5, in the place of ``q``: tensors are cut
    into blocks of 64 elements (unless ``blocks`` says otherwise), and ``q`` is in each tensor the
    least that leaves at least this mean factor."""

    uses_noise: ClassVar[bool] = True
    needs_q: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.keep is not None:
            self._choose_for(self.keep)
        if self.needs_q or self.q is not None:
            check_q_choice(self.q)
        check_block_choice(self.blocks)
        for name in ("seed", "stream"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name} must be an integer, got {value!r}")
        if isinstance(self.exempt, str):
            raise TypeError(f"exempt must be a list of patterns, got the text {self.exempt!r}")

    def _choose_for(self, keep: float) -> None:
        """Put what ``keep`` means in the place of the defaults of ``q`` and ``blocks``."""
        chosen, usual = Kept(keep), Rise.q
        if not self.needs_q:
            raise ValueError(f"{type(self).__name__} does not take keep: pass q or omit both")
        if self.q not in (usual, chosen):
            raise ValueError(f"pass keep or q, not both: keep chooses q, got q={self.q!r}")
        object.__setattr__(self, "q", chosen)
        if self.blocks == "tensor":
            object.__setattr__(self, "blocks", PIECE)

    @abstractmethod
    def coefficients(self, draws: BlockDraws) -> tuple[Tensor, Tensor]:
        """``(c1, c2)`` per block: the gradient becomes ``c1 g + c2 n``."""

    def tie(self, params: Mapping[str, Tensor], held: Sequence[str]) -> Tie | None:
        """For a shaper that works on whole tensors; None: the blockwise draw is all.

        ``params`` are all parameters that have a name, ``held`` those that may be shaped.
        """
        return None

    def misplaced(self, optimizer: Optimizer, on: str) -> str | None:
        """Why this shaper does not work in this place, if so: ``attach`` warns with it."""
        return None

    def settings(self) -> dict[str, object]:
        """The settings as plain data, for saved states."""
        return {"rule": type(self).__name__} | {
            entry.name: _plain(getattr(self, entry.name))
            for entry in fields(self)
            if entry.name != "keep"  # q and blocks say it; states are older than this field
        }


@final
@dataclass(frozen=True)
class Rise(Shaper):
    """The rule of the paper: ``g -> kappa^(-1/2) Z g`` inside each block.

    ``sampler="one-draw"`` draws from the exact law at a cost that does not depend on ``q``;
    ``"directions"`` is Algorithm 1 taken literally, with ``q`` directions per block.
    """

    sampler: Sampler = "one-draw"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sampler(self.sampler)

    def coefficients(self, draws: BlockDraws) -> tuple[Tensor, Tensor]:
        return one_draw_coefficients(draws.norm, draws.dot, draws.chi2, draws.d, draws.q)


@final
@dataclass(frozen=True)
class ScaledFO(Shaper):
    """``g -> a g``: RISE's mean without noise.

    On Adam's gradient this is plain Adam, which ignores the scale of its gradients: attach it
    with ``on="update"`` there.
    """

    uses_noise: ClassVar[bool] = False

    def coefficients(self, draws: BlockDraws) -> tuple[Tensor, Tensor]:
        return mean_factor(draws.d, draws.q), torch.zeros_like(draws.norm)

    def misplaced(self, optimizer: Optimizer, on: str) -> str | None:
        if on == "update" or not is_adaptive(optimizer):
            return None
        return (
            f"{type(optimizer).__name__} divides each gradient by its own size, so ScaledFO in "
            'front of it changes nothing: attach with on="update", or use a smaller learning rate'
        )


@final
@dataclass(frozen=True)
class IsotropicNoise(Shaper):
    """Generic-noise control: FO plus isotropic noise with the total variance of RISE.

    RISE's covariance has trace ``|g|^2 (d + 1) / (q + d + 1)``, here spread evenly over ``d``
    coordinates. ``mean="exact"`` keeps ``g`` itself; ``"scaled"`` uses RISE's mean ``a g``.
    """

    mean: Mean = "exact"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_mean(self.mean)

    def coefficients(self, draws: BlockDraws) -> tuple[Tensor, Tensor]:
        d, q = draws.d, draws.q
        deviation = draws.norm * ((d + 1) / (d * (q + d + 1))).sqrt()
        return mean_coefficient(self.mean, draws), deviation


@final
@dataclass(frozen=True)
class CovarianceNoise(Shaper):
    """Matched-law control: Gaussian noise with RISE's covariance, the paper's Appendix D.1.

    ``C = (g g' + |g|^2 I) / (q + d + 1)``. With ``mean="scaled"`` it has RISE's mean and second
    moment, so the same mean damage exactly; ``"exact"`` adds the noise to ``g`` itself.
    """

    mean: Mean = "scaled"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_mean(self.mean)

    def coefficients(self, draws: BlockDraws) -> tuple[Tensor, Tensor]:
        deviation = (draws.q + draws.d + 1) ** -0.5
        on_gradient = mean_coefficient(self.mean, draws) + draws.normal * deviation
        return on_gradient, draws.norm * deviation


SHAPERS: tuple[type[Shaper], ...] = (Rise, ScaledFO, IsotropicNoise, CovarianceNoise)


def mean_coefficient(mean: Mean, draws: BlockDraws) -> Tensor:
    """What the mean keeps of the gradient: 1, or the mean factor of a scaled mean."""
    return mean_factor(draws.d, draws.q) if mean == "scaled" else torch.ones_like(draws.norm)


def check_mean(mean: str) -> None:
    """Raise an error if ``mean`` is neither ``exact`` nor ``scaled``."""
    check_choice("mean", mean, ("exact", "scaled"))


def check_q_choice(q: object) -> None:
    """An integer, a sequence or mapping of them, or what ``keep`` chose."""
    if isinstance(q, Kept):
        return
    if isinstance(q, Mapping):
        for block, value in q.items():
            check_positive_int(f"q[{block!r}]", value)
    elif isinstance(q, Sequence) and not isinstance(q, str | bytes):
        for position, value in enumerate(q):
            check_positive_int(f"q[{position}]", value)
    else:
        check_positive_int("q", q)


def q_of_blocks(shaper: Shaper, blocks: Blocks, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """One ``q`` for each block over parameters of these sizes; 1 where nothing is drawn."""
    if isinstance(shaper.q, Kept):
        wanted = shaper.q.mean_factor
        return tuple(q_for(wanted, max(d, 1)) for d in blocks.dimensions(sizes))
    return resolve_q(1 if shaper.q is None else shaper.q, tuple(blocks.members))


def resolve_q(q: QChoice | None, names: Sequence[str]) -> tuple[int, ...]:
    """One ``q`` for each of the named blocks."""
    check_q_choice(q)
    assert q is not None
    assert not isinstance(q, Kept)
    if isinstance(q, Mapping):
        known = set(names)
        missing = [name for name in names if name not in q]
        unknown = [name for name in q if name not in known]
        if missing or unknown:
            raise ValueError(
                f"q must have one entry per block; missing {missing}, unknown {unknown}"
            )
        return tuple(q[name] for name in names)
    if not isinstance(q, Sequence):
        return (int(q),) * len(names)
    if len(q) != len(names):
        raise ValueError(f"q must have one entry per block: {len(names)} blocks, {len(q)} entries")
    return tuple(q)


def _plain(value: object) -> object:
    if isinstance(known_by := getattr(value, "hash", None), str):
        return known_by  # a memory: a saved state says which one it was and does not hold it
    if isinstance(value, Kept):
        return {"keep": value.mean_factor}
    if isinstance(value, Blocks):
        return {"members": _plain(value.members), "chunk": value.chunk}
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(entry) for entry in value]
    # numpy's integers would not come back through torch.load(weights_only=True).
    return int(value) if isinstance(value, Integral) else value
