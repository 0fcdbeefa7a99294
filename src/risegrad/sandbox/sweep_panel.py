"""The mean signal ``G_q`` beside the one-batch deviation, over dimensions, block sizes and q.

A benefit can be seen in one batch only where the signal ``Q_FO - E[Q]`` is larger than the standard
deviation of ``Q``. The paper describes this comparison and shows one number of it. Blocks are laid
on curvature along the axes, where each holds neighbours of the spectrum, and on the same spectrum
rotated, where each holds a bit of every direction.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from risegrad.common.seeds import generator_for
from risegrad.sandbox.damage_panels import exact_moments, std_with_error
from risegrad.sandbox.quadratics import Quadratic, diagonal, leaning_gradient, rotated
from risegrad.sandbox.simulate import damages
from risegrad.sandbox.spectra import Spectrum
from risegrad.theory.conditions import quadratic

Course = Literal["dimensions", "blocks", "rotated blocks"]
COURSES: tuple[Course, ...] = ("dimensions", "blocks", "rotated blocks")
HALVINGS = 4  # of the dimension and of the block; the exact variance looks at all pairs of blocks
QUERIES = (1, 4, 16)


@dataclass(frozen=True)
class PanelPoint:
    """Signal and deviation of one setting: measured, their standard errors, and exact."""

    course: Course
    d: int
    block: int
    q: int
    samples: int
    signal: float
    signal_error: float
    signal_exact: float
    deviation: float
    deviation_error: float
    deviation_exact: float
    below_fo: float
    """measured share of batches that cost less than FO's step"""

    @property
    def size(self) -> int:
        """What the course goes over."""
        return self.d if self.course == "dimensions" else self.block

    @property
    def ratio(self) -> float:
        """Measured signal over deviation."""
        return self.signal / self.deviation

    @property
    def ratio_exact(self) -> float:
        """Signal over deviation, both exact."""
        return self.signal_exact / self.deviation_exact


def measure_sweep(spectrum: Spectrum, d: int, q: int, samples: int, seed: int) -> list[PanelPoint]:
    """Every point of the three courses; ``d`` is the largest dimension and that of the blocks."""
    found = []
    for course, problem, block in _plan(spectrum, d, seed):
        g = leaning_gradient(problem, generator_for(seed, f"sweep/gradient/{problem.d}"))
        for queries in sorted({*QUERIES, q}):
            draws = generator_for(seed, f"sweep/{course}/{problem.d}/{block}/{queries}")
            found.append(measure_point(course, problem, g, queries, block, samples, draws))
    return found


def measure_point(
    course: Course,
    problem: Quadratic,
    g: Tensor,
    q: int,
    block: int,
    samples: int,
    draws: torch.Generator,
) -> PanelPoint:
    """One setting; only the law of the shaped gradient enters, so one draw per sample."""
    fo = float(quadratic(problem.H, g)) / 2
    values = damages(problem.H, g, q, samples, draws, block=block)
    deviation, error = std_with_error(values)
    mean, variance = exact_moments(problem, g, q, block)
    return PanelPoint(
        course=course,
        d=problem.d,
        block=block,
        q=q,
        samples=samples,
        signal=fo - float(values.mean()),
        signal_error=deviation / samples**0.5,
        signal_exact=fo - float(mean),
        deviation=deviation,
        deviation_error=error,
        deviation_exact=float(variance) ** 0.5,
        below_fo=float((values < fo).double().mean()),
    )


def _plan(spectrum: Spectrum, d: int, seed: int) -> Iterator[tuple[Course, Quadratic, int]]:
    for size in halved(d):
        if spectrum.fits(size):
            yield "dimensions", diagonal(spectrum, size), size
    plain, turned = (
        diagonal(spectrum, d),
        rotated(spectrum, d, generator_for(seed, "sweep/rotation")),
    )
    for block in halved(d):
        yield "blocks", plain, block
        yield "rotated blocks", turned, block


def halved(size: int) -> list[int]:
    """A size and its halves, small to large, as long as they are whole and at least 2.

    >>> halved(24), halved(256)
    ([3, 6, 12, 24], [16, 32, 64, 128, 256])
    """
    found = [size]
    while len(found) <= HALVINGS and found[-1] % 2 == 0 and found[-1] >= 4:
        found.append(found[-1] // 2)
    return found[::-1]
