"""How much the blockwise-to-global ratio depends on the gradient: exact, nothing sampled but ``g``.

The paper gives one ratio and not its gradient. Blocks lower the deviation where many of them carry
the damage, and raise it where the gradient sits in the sensitive block: there the block keeps the
curvature high that global shaping would have averaged away.
"""

import torch
from torch import Tensor

from risegrad.sandbox.damage import exact_moments
from risegrad.sandbox.problem import Quadratic, even_gradient
from risegrad.sandbox.simulate import generator, normals

DRAWS = 32


def ratio_by_gradient(problem: Quadratic, q: int, block: int, seed: int) -> dict[str, float]:
    """Exact blockwise / global standard deviation of the damage for several gradients."""
    draws = generator(seed, "sensitivity")
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
