"""Errors of the closed forms against computations without sampling: zero up to rounding.

The expectation of a polynomial of degree five or less in a normal vector is a finite sum (a
cubature rule), so the mean identities can be checked with no Monte Carlo error at all.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from risegrad.common.seeds import generator_for
from risegrad.core.rise_rule import Sampler
from risegrad.sandbox.damage_panels import exact_moments, turning_gradients
from risegrad.sandbox.quadratics import Quadratic, even_gradient
from risegrad.sandbox.simulate import normals, one_thread, shaped
from risegrad.sandbox.trajectories import Tasks, follow
from risegrad.theory.blockwise import blockwise_moments
from risegrad.theory.calibration import kappa, tau
from risegrad.theory.conditions import quadratic
from risegrad.theory.deviation import damage_moments
from risegrad.theory.exposure import excess_risk, fo_exposure, zo_exposure
from risegrad.theory.identities import damage_gap, expected_curvature, spectral_equalization

SAMPLES = 400
REPEATS = 5


@dataclass(frozen=True)
class Speed:
    """Processor seconds for ``samples`` shaped gradients by each sampler, and their ratio."""

    d: int
    q: int
    samples: int
    directions_seconds: float
    one_draw_seconds: float

    @property
    def ratio(self) -> float:
        """How many times faster one draw is."""
        return self.directions_seconds / self.one_draw_seconds


def measure_speed(d: int, q: int, seed: int) -> Speed:
    """Median time over repetitions that alternate between the samplers, after one warm-up each.

    The laws are equal, so only time is compared: that of one thread, which other work on the
    machine changes little; alternating spreads what it changes over both.
    """
    g = even_gradient(d, generator_for(seed, "speed/gradient"))
    draws = generator_for(seed, "speed")

    def run(sampler: Sampler) -> Callable[[], object]:
        return lambda: shaped(g, q, SAMPLES, draws, sampler=sampler)

    literal, one = run("directions"), run("one-draw")
    with one_thread():
        times = [(_seconds(literal), _seconds(one)) for _ in range(REPEATS + 1)][1:]
    slow, fast = (median(column) for column in zip(*times, strict=True))
    return Speed(d, q, SAMPLES, slow, fast)


def _seconds(job: Callable[[], object]) -> float:
    start = time.thread_time()
    job()
    return time.thread_time() - start


DRAWS = 32


def ratio_by_gradient(problem: Quadratic, q: int, block: int, seed: int) -> dict[str, float]:
    """Exact blockwise / global standard deviation of the damage for several gradients."""
    draws = generator_for(seed, "sensitivity")
    even = even_gradient(problem.d, draws)
    random = [ratio(problem, normals(draws, problem.d), q, block) for _ in range(DRAWS)]
    found = torch.tensor(random, dtype=torch.float64)
    return {
        "even (panel D)": ratio(problem, even, q, block),
        f"normal entries, mean of {DRAWS}": float(found.mean()),
        f"normal entries, standard deviation over {DRAWS}": float(found.std()),
        "along the most curved direction": ratio(problem, problem.basis[:, 0], q, block),
        "along the least curved direction": ratio(problem, problem.basis[:, -1], q, block),
    }


def ratio(problem: Quadratic, g: Tensor, q: int, block: int) -> float:
    """Standard deviations do not depend on the length of ``g`` once divided."""
    narrow, wide = (exact_moments(problem, g, q, size)[1] for size in (block, problem.d))
    return float((narrow / wide).sqrt())


def cubature(d: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Points (n, d) and weights (n,), in chunks, exact for normal moments up to degree five.

    The fully symmetric rule on ``0``, ``+-u e_i`` and ``+-u e_i +- u e_j`` with ``u^2 = 3``. The
    weights follow from ``E[z_i^2 z_j^2] = 1``, ``E[z_i^2] = 1`` (``E[z_i^4] = 3`` comes with
    ``u^2 = 3``) and ``E[1] = 1``.
    """
    u = 3**0.5
    pair, single = 1 / 36, (4 - d) / 18
    axes = u * torch.eye(d, dtype=torch.float64)
    yield torch.zeros(1, d, dtype=torch.float64), _weights(1, 1 - 2 * d * single - d * (d - 1) / 18)
    yield torch.cat([axes, -axes]), _weights(2 * d, single)
    for i in range(d - 1):
        others = torch.cat([axes[i + 1 :], -axes[i + 1 :]])
        points = torch.cat([axes[i] + others, -axes[i] + others])
        yield points, _weights(len(points), pair)


def _weights(count: int, value: float) -> Tensor:
    return torch.full((count,), value, dtype=torch.float64)


def curvature_by_cubature(H: Tensor, q: int) -> Tensor:
    """``E[P'HP]`` as a finite sum.

    Of the ``q^2`` products ``z_i z_i' H z_j z_j'``, the ``q`` with ``i = j`` have the expectation
    ``E[(z'Hz) z z']``, summed here, and the others ``H``.
    """
    fourth = torch.zeros_like(H)
    for points, weights in cubature(len(H)):
        fourth += (points * (weights * quadratic(H, points))[:, None]).T @ points
    return (fourth / q + (q - 1) / q * H) / kappa(len(H), q)


def closed_form_errors(problem: Quadratic, q: int, block: int, tasks: Tasks) -> dict[str, float]:
    """Relative errors of each closed form against an independent computation."""
    H, gradients = problem.H, turning_gradients(problem)
    g = gradients[-1]
    fo = quadratic(H, gradients) / 2
    shaped = quadratic(curvature_by_cubature(H, q), gradients) / 2
    spectrum = torch.linalg.eigvalsh(expected_curvature(H, q)).flip(0)
    d = problem.d
    # E[P g g' P'] is the same polynomial with g g' in the place of H: P is symmetric.
    exposure = curvature_by_cubature(fo_exposure(g), q)
    left = torch.tensor(1 - tau(d, q), dtype=torch.float64)
    kept = excess_risk(zo_exposure(g, q), g, 1.0) / excess_risk(fo_exposure(g), g, 1.0)
    return {
        "mean curvature, by cubature": _error(
            expected_curvature(H, q), curvature_by_cubature(H, q)
        ),
        "spectral equalization, by eigenvalues of the mean curvature": _error(
            spectral_equalization(problem.eigenvalues, q), spectrum
        ),
        "damage gap, by cubature": _error(damage_gap(H, gradients, q), fo - shaped),
        "exposure, by cubature": _error(zo_exposure(g, q), exposure),
        "blind risk left by ZO, by 1 - tau": _error(kept, left),
        "blockwise moments with one block, by the global ones": _error(
            torch.stack(tuple(blockwise_moments(H, g, [d], q))),
            torch.stack(tuple(damage_moments(H, g, q))),
        ),
        "first step of the trajectory, by the mean damage": _first_step_error(tasks, q, block),
    }


def _first_step_error(tasks: Tasks, q: int, block: int) -> float:
    """One step of the recursion from the historical optimum is the one-batch mean damage."""
    rate = 0.1
    d = len(tasks.shift)
    errors = []
    for size in {d, block if d % block == 0 else d}:
        path = follow(tasks, "rise", q, torch.tensor([rate], dtype=torch.float64), 1, block=size)
        g = tasks.gradient(torch.zeros(d, dtype=torch.float64))
        sizes = [size] * (d // size)
        mean = blockwise_moments(tasks.H, g, sizes, q, eta=rate)[0]
        errors.append(_error(path.forgetting[1, 0], mean))
    return max(errors)


def _error(value: Tensor, reference: Tensor) -> float:
    return float((value - reference).norm() / reference.norm())
