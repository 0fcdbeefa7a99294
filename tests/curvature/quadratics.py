"""A quadratic with uneven blocks, and all its block terms from the matrix itself."""

import torch

from risegrad.curvature.estimates import GradientTerms, ProbeTerms
from risegrad.curvature.space import Block, Space
from risegrad.theory.conditions import Partition

SIZES, QUERIES = (7, 4, 1, 9), (2, 1, 3, 4)
D = sum(SIZES)


def no_tick(count: int) -> None:
    pass


def space() -> Space:
    ends = [sum(SIZES[: i + 1]) for i in range(len(SIZES))]
    blocks = tuple(
        Block(f"b{i}", size, q, start=end - size)
        for i, (end, size, q) in enumerate(zip(ends, SIZES, QUERIES, strict=True))
    )
    cpu = torch.device("cpu")
    return Space(("all",), (torch.Size([D]),), blocks, torch.float64, cpu)


def problem(kind: str = "psd") -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A matrix with uneven blocks, an incoming and a historical gradient."""
    generator = torch.Generator().manual_seed(3)
    root = torch.randn(D, D, generator=generator, dtype=torch.float64)
    scale = torch.linspace(0.3, 2.0, D, dtype=torch.float64)
    h = scale[:, None] * (root @ root.mT / D) * scale
    if kind == "indefinite":
        h = h - 0.8 * torch.eye(D, dtype=torch.float64)
    g, past = torch.randn(2, D, generator=generator, dtype=torch.float64)
    return h, g * scale, past / 5


def dense_terms(h, g, past) -> tuple[GradientTerms, ProbeTerms]:
    """Every number from the matrix itself, written out."""
    blocks = Partition.of(SIZES, QUERIES, D)
    at = blocks.slices
    m = blocks.spread(blocks.mean_factors) * g
    pairs = [[(h[b, c], g[b], g[c]) for c in at] for b in at]

    def by_block(value):
        return torch.stack([value(b) for b in at])

    gradient = GradientTerms(
        g2=by_block(lambda b: g[b] @ g[b]),
        cross=torch.tensor([[x @ hbc @ y for hbc, x, y in row] for row in pairs]),
        pulls=torch.tensor([[(hbc @ y).square().sum() for hbc, _, y in row] for row in pairs]),
        rows_fo=by_block(lambda b: g[b] @ (h @ g)[b]),
        rows_mean=by_block(lambda b: g[b] @ (h @ m)[b]),
        mean_sq=by_block(lambda b: (h @ m)[b].square().sum()),
        mean_own=by_block(lambda b: (h @ m)[b] @ h[b, b] @ g[b]),
        past_g=by_block(lambda b: past[b] @ g[b]),
        past_sq=by_block(lambda b: past[b] @ past[b]),
        past_mean=by_block(lambda b: past[b] @ (h @ m)[b]),
        past_own=by_block(lambda b: past[b] @ h[b, b] @ g[b]),
    )
    trace = by_block(lambda b: h[b, b].trace())
    norms = torch.tensor([[hbc.square().sum() for hbc, _, _ in row] for row in pairs])
    return gradient, ProbeTerms(trace, norms)
