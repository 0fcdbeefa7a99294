"""Per-block scores: where shaping helps, what it costs and what it leaves out (Appendix C)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from risegrad.common.checks import check_number
from risegrad.theory.blockwise import blockwise_gap_parts
from risegrad.theory.conditions import *

__all__ = [
    "InverseSandwich",
    "block_coupling",
    "coupling_scores",
    "damage_densities",
    "flat_signal_scores",
    "inverse_sandwich",
    "isotropic_residual_damage",
    "shaping_scores",
]


def shaping_scores(
    H: Tensor, g: Tensor, sizes: Sequence[int], q: int | Sequence[int], eta: float = 1.0
) -> Tensor:
    """``S_b = (eta^2/2) tau_b |g_b|^2 (lambda_b - lambda_avg,b)``, shape (..., B) (equation 45).

    ``gap_from_scalars`` gives the same from products with ``H_bb``.

    >>> H = torch.diag(torch.tensor([0.0, 4.0, 1.0]))
    >>> shaping_scores(H, torch.tensor([0.0, 1.0, 5.0]), [2, 1], q=1).tolist()
    [0.5, 0.0]
    """
    return blockwise_gap_parts(H, g, sizes, q, eta).within


def damage_densities(H: Tensor, sizes: Sequence[int]) -> Tensor:
    """``D_b = tr(H_bb)/d_b``, shape (..., B): cost per unit of isotropic exposure (equation 40).

    >>> damage_densities(torch.diag(torch.tensor([0.0, 4.0, 1.0])), [2, 1]).tolist()
    [2.0, 1.0]
    """
    matrix = check_symmetric("H", H)
    blocks = Partition.of(sizes, 1, matrix.shape[-1])
    densities = [trace(block) / block.shape[-1] for block in blocks.diagonal(matrix)]
    return torch.stack(densities, dim=-1)


def isotropic_residual_damage(H: Tensor, sizes: Sequence[int], alphas: Sequence[float]) -> Tensor:
    """``sum_b alpha_b tr(H_bb)/2`` for residuals with ``Sigma_b = alpha_b I`` (equation 40).

    >>> H = torch.diag(torch.tensor([0.0, 4.0, 1.0]))
    >>> isotropic_residual_damage(H, [2, 1], alphas=[0.5, 2.0]).item()
    2.0
    """
    if len(alphas) != len(sizes):
        raise ValueError(f"alphas must hold one number per block ({len(sizes)}), got {len(alphas)}")
    levels = [check_number(f"alphas[{i}]", a, at_least=0) for i, a in enumerate(alphas)]
    densities = damage_densities(H, sizes)
    weights = torch.tensor([a * d for a, d in zip(levels, sizes, strict=True)], dtype=H.dtype)
    return (weights.to(densities) * densities).sum(-1) / 2


def flat_signal_scores(H: Tensor, g: Tensor, sizes: Sequence[int], rho: float = 0.0) -> Tensor:
    """``R_b(rho) = g_b'(H_bb + rho I)^(-1) g_b``, shape (..., B) (equation 41).

    ``H_bb + rho I`` must be positive definite.

    >>> H = torch.diag(torch.tensor([1.0, 4.0, 1.0]))
    >>> flat_signal_scores(H, torch.tensor([0.0, 2.0, 3.0]), [2, 1]).tolist()
    [1.0, 9.0]
    """
    damping = check_number("rho", rho, at_least=0)
    matrix, vector = check_curvature(H, g)
    blocks = Partition.of(sizes, 1, vector.shape[-1])
    pairs = zip(blocks.diagonal(matrix), blocks.split(vector), strict=True)
    return torch.stack([_damped_inverse_form(block, v, damping) for block, v in pairs], dim=-1)


def _damped_inverse_form(block: Tensor, v: Tensor, damping: float) -> Tensor:
    identity = torch.eye(block.shape[-1], dtype=block.dtype, device=block.device)
    damped = check_positive_definite("H_bb + rho I", block + damping * identity)
    return dot(v, torch.linalg.solve(damped, v[..., None]).squeeze(-1))


def coupling_scores(
    H: Tensor, sizes: Sequence[int], covariances: Sequence[Tensor] | None = None
) -> Tensor:
    """``C_b = sum_{c != b} |Sigma_b^(1/2) H_bc Sigma_c^(1/2)|_F``, shape (B,) (equation 42).

    Without ``covariances`` the raw score ``sum_{c != b} |H_bc|_F``. Each summand is the standard
    deviation of ``e_b'H_bc e_c`` for uncorrelated residuals with these covariances.

    >>> coupling_scores(torch.ones(2, 2), [1, 1], [torch.eye(1), 4 * torch.eye(1)]).tolist()
    [2.0, 2.0]
    """
    matrix = check_symmetric("H", H)
    blocks = Partition.of(sizes, 1, matrix.shape[-1])
    sigmas = None if covariances is None else _check_covariances(covariances, blocks)
    count = len(blocks.sizes)
    norms = [[_coupling_norm(matrix, blocks, b, c, sigmas) for c in range(count) if c != b]
             for b in range(count)]  # fmt: skip
    zero = matrix.new_zeros(matrix.shape[:-2])
    return torch.stack([sum(row, start=zero) for row in norms], dim=-1)


def _check_covariances(covariances: Sequence[Tensor], blocks: Partition) -> list[Tensor]:
    sigmas = [check_psd(f"covariances[{i}]", sigma) for i, sigma in enumerate(covariances)]
    came = tuple(sigma.shape[-1] for sigma in sigmas)
    if came != blocks.sizes:
        raise ValueError(f"covariances must have the block sizes {blocks.sizes}, got {came}")
    return sigmas


def _coupling_norm(
    H: Tensor, blocks: Partition, b: int, c: int, sigmas: list[Tensor] | None
) -> Tensor:
    block = H[..., blocks.slices[b], blocks.slices[c]]
    if sigmas is None:
        return block.square().sum((-2, -1)).sqrt()
    # |S_b^(1/2) H S_c^(1/2)|_F^2 = tr(S_b H S_c H'): no roots; rounding can leave -1e-17.
    squared: Tensor = ((sigmas[b] @ block @ sigmas[c]) * block).sum((-2, -1)).clamp_min(0)
    return squared.sqrt()


def block_coupling(H: Tensor, sizes: Sequence[int]) -> Tensor:
    """``eps_blk = |H_blk^(-1/2) (H - H_blk) H_blk^(-1/2)|_op`` (equation 43).

    >>> round(block_coupling(torch.tensor([[4.0, 1.0], [1.0, 1.0]]), [1, 1]).item(), 12)
    0.5
    """
    matrix = check_symmetric("H", H)
    diagonal = block_diagonal_part(matrix, Partition.of(sizes, 1, matrix.shape[-1]))
    root = inverse_root(check_positive_definite("H_blk", diagonal))
    return operator_norm(root @ (matrix - diagonal) @ root)


@dataclass(frozen=True)
class InverseSandwich:
    """``lower <= H^(-1) <= upper`` in the Loewner order, for couplings ``epsilon`` below 1."""

    epsilon: Tensor
    lower: Tensor
    upper: Tensor


def inverse_sandwich(H: Tensor, sizes: Sequence[int]) -> InverseSandwich:
    """``(1+eps)^(-1) H_blk^(-1) <= H^(-1) <= (1-eps)^(-1) H_blk^(-1)`` (Proposition C.4).

    >>> both = inverse_sandwich(torch.tensor([[4.0, 1.0], [1.0, 1.0]]), [1, 1])
    >>> both.upper.diagonal().tolist()
    [0.5, 2.0]
    """
    epsilon = block_coupling(H, sizes)
    if bool((epsilon >= 1).any()):
        worst = epsilon.max()
        raise ValueError(f"H must have block coupling eps_blk < 1, got {worst:.3g}")
    matrix = check_symmetric("H", H)
    diagonal = block_diagonal_part(matrix, Partition.of(sizes, 1, matrix.shape[-1]))
    inverse, eps = torch.linalg.inv(diagonal), epsilon[..., None, None]
    return InverseSandwich(epsilon, inverse / (1 + eps), inverse / (1 - eps))
