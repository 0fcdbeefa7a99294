"""What a shaped block must be: the formulas of the paper in float64, block by block.

Only the random numbers come from the package; how they are put together is written out here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from references import algorithm_1
from risegrad.core.coverage import distinct_seed
from risegrad.core.draws import Draws
from risegrad.core.shapers import Rise, Shaper

Block = Sequence[tuple[str, int, int]]
"""Spans of a block: parameter, first position, position after the last."""
Formula = Callable[[Tensor, Tensor, float, float, int], Tensor]


def rise(g: Tensor, n: Tensor, chi2: float, z: float, q: int) -> Tensor:
    """Along and across the gradient, as in the derivation."""
    d = len(g)
    norm = g.norm()
    u = g / norm if norm != 0 else torch.zeros_like(g)
    across = n - (u @ n) * u
    return norm / q * (q / (q + d + 1)) ** 0.5 * (chi2 * u + chi2**0.5 * across)


def scaled_fo(g: Tensor, n: Tensor, chi2: float, z: float, q: int) -> Tensor:
    return g * (q / (q + len(g) + 1)) ** 0.5


def isotropic_noise(g: Tensor, n: Tensor, chi2: float, z: float, q: int) -> Tensor:
    d = len(g)
    return g + g.norm() * ((d + 1) / (q + d + 1) / d) ** 0.5 * n


def covariance_noise(g: Tensor, n: Tensor, chi2: float, z: float, q: int) -> Tensor:
    """A linear map of (z, n) with covariance ``(g g' + |g|^2 I) / (q + d + 1)``."""
    return scaled_fo(g, n, chi2, z, q) + (z * g + g.norm() * n) / (q + len(g) + 1) ** 0.5


FORMULAS: dict[str, Formula] = {
    "Rise": rise,
    "ScaledFO": scaled_fo,
    "IsotropicNoise": isotropic_noise,
    "CovarianceNoise": covariance_noise,
}


def expected(
    shaper: Shaper,
    gradients: Mapping[str, Tensor | None],
    step: int,
    blocks: Sequence[Block] | None = None,
    q: Sequence[int] | None = None,
) -> dict[str, Tensor]:
    """Shaped gradients (float64) by name, of parameters in the optimizer's order."""
    present = {name: g for name, g in gradients.items() if g is not None}
    blocks = blocks or [[(name, 0, g.numel())] for name, g in present.items()]
    ends = [(name, stop) for block in blocks for name, _, stop in block]
    sizes = {name: max(stop for other, stop in ends if other == name) for name in gradients}
    q = q or [int(shaper.q)] * len(blocks)  # type: ignore[call-overload]
    draws = Draws(distinct_seed(shaper.seed, next(iter(gradients))), step)
    # Numbers of blocks come from one stream; here every tensor is a block unless told otherwise.
    degrees = torch.tensor(q, dtype=torch.float64).numpy()
    chi2, z = draws.chi_squares(degrees).tolist(), draws.scalar_normals(len(q)).tolist()

    def noise(direction: int = 0) -> dict[str, Tensor]:
        """Positions go through all parameters of the optimizer, one after the other."""
        found, position = {}, 0
        for name, size in sizes.items():
            g = gradients[name]
            if g is not None:
                room = torch.empty(size, dtype=g.dtype)
                found[name] = draws.normals(room, position, direction).double()
            position += size
        return found

    flat = {name: g.detach().reshape(-1).double() for name, g in present.items()}
    out = {name: torch.full_like(g, torch.nan) for name, g in flat.items()}
    literal = isinstance(shaper, Rise) and shaper.sampler == "directions"
    streams = [noise(direction) for direction in range(max(q) if literal else 1)]
    for number, block in enumerate(blocks):
        spans = [span for span in block if span[0] in present]
        if not spans:
            continue

        def gathered(values: Mapping[str, Tensor], spans: Block = spans) -> Tensor:
            return torch.cat([values[name][start:stop] for name, start, stop in spans])

        g = gathered(flat)
        if literal:
            directions = torch.stack([gathered(s) for s in streams[: q[number]]])
            shaped = algorithm_1(g, directions)
        else:
            formula = FORMULAS[type(shaper).__name__]
            shaped = formula(g, gathered(streams[0]), chi2[number], z[number], q[number])
        position = 0
        for name, start, stop in spans:
            out[name][start:stop] = shaped[position : position + stop - start]
            position += stop - start
    return {name: shaped.view(present[name].shape) for name, shaped in out.items()}
