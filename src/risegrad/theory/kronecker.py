"""Layers: curvature ``D (x) S`` of a weight, its step, and what it says of LoRA (beyond the paper).

A change ``dW`` (outputs, inputs) of a weight does the damage ``tr(D dW S dW')/2``, ``D`` the second
moment of the output gradients and ``S`` that of the inputs. Row by row, as torch stores a matrix,
``vec(dW)' (D (x) S) vec(dW)`` is the same number.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from risegrad.common.checks import check_number
from risegrad.theory.conditions import check_psd, check_real
from risegrad.theory.linear_algebra import scaled_identity, trace


def kronecker_damage(D: Tensor, S: Tensor, dW: Tensor) -> Tensor:
    """``tr(D dW S dW')/2``: the damage of ``dW`` under the curvature ``D (x) S``.

    >>> kronecker_damage(2 * torch.eye(1), torch.eye(2), torch.tensor([[3.0, 4.0]])).item()
    25.0
    """
    left, change, right = _check_layer(D, dW, S, "dW")
    return ((left @ change @ right) * change).sum((-2, -1)) / 2


def kronecker_step(D: Tensor, S: Tensor, U: Tensor, rho: float) -> Tensor:
    """``(D/t_D + rho I)^(-1) U (S/t_S + rho I)^(-1)``, ``t`` the mean eigenvalue of each factor.

    Each factor is damped by itself, so this is *not* a filter of ``D (x) S``: the inverse is that
    of ``D (x) S/(t_D t_S) + rho (D/t_D (x) I + I (x) S/t_S) + rho^2 I``. It never does more damage
    than ``U`` where ``U`` has rank one (a filter on each side); for other ``U`` it can.

    >>> D, S = torch.diag(torch.tensor([0.0, 2.0])), torch.eye(2)
    >>> kronecker_step(D, S, torch.ones(2, 2), rho=1.0).tolist()
    [[0.5, 0.5], [0.16666666666666666, 0.16666666666666666]]
    """
    left, update, right = _check_layer(D, U, S, "U")
    damping = check_number("rho", rho, above=0)
    shaped = torch.linalg.solve(_damped("D", left, damping), update)
    step: Tensor = torch.linalg.solve(_damped("S", right, damping), shaped, left=False)
    return step


def _damped(name: str, factor: Tensor, damping: float) -> Tensor:
    """``factor/t + rho I``."""
    d = factor.shape[-1]
    level = trace(factor) / d
    if bool((level <= 0).any()):
        raise ValueError(f"{name} must have a positive mean eigenvalue, got {level.min():.3g}")
    return factor / level[..., None, None] + scaled_identity(torch.full_like(level, damping), d)


def _check_layer(D: Tensor, change: Tensor, S: Tensor, name: str) -> tuple[Tensor, Tensor, Tensor]:
    left, matrix, right = check_psd("D", D), check_real(name, change), check_psd("S", S)
    expected = (left.shape[-1], right.shape[-1])
    if matrix.shape[-2:] != expected:
        came = tuple(matrix.shape)
        raise ValueError(f"{name} must have shape (..., {expected[0]}, {expected[1]}), got {came}")
    return left, matrix, right


@dataclass(frozen=True)
class LoraFactors:
    """Pairs ``(D, S)`` of LoRA's own weights, from those of the layer it is added to."""

    of_A: tuple[Tensor, Tensor]
    """``(s^2 B'DB, S)``"""
    of_B: tuple[Tensor, Tensor]
    """``(s^2 D, ASA')``"""


def lora_factors(D: Tensor, S: Tensor, A: Tensor, B: Tensor, scaling: float = 1.0) -> LoraFactors:
    """The curvature ``B'DB (x) S`` of ``A`` and ``D (x) ASA'`` of ``B`` where ``dW = s BA``.

    Exact for a change of one of them: ``s B dA`` and ``s dB A`` do the damage that their factors
    say. Changed together they also meet through ``tr(D dB A S dA'B')`` and the product ``dB dA``,
    which neither factor holds. At ``B = 0`` the curvature of ``A`` is zero.

    >>> factors = lora_factors(torch.eye(2), torch.eye(2), torch.ones(1, 2), torch.ones(2, 1))
    >>> factors.of_A[0].item(), factors.of_B[1].item()
    (2.0, 2.0)
    """
    left, right = check_psd("D", D), check_psd("S", S)
    down, up = check_real("A", A), check_real("B", B)
    _check_adapter(down, up, left.shape[-1], right.shape[-1])
    squared = check_number("scaling", scaling, above=0) ** 2
    return LoraFactors(
        of_A=(squared * up.mT @ left @ up, right),
        of_B=(squared * left, down @ right @ down.mT),
    )


def _check_adapter(A: Tensor, B: Tensor, outputs: int, inputs: int) -> None:
    fit = min(A.dim(), B.dim()) >= 2 and A.shape[-2] == B.shape[-1]
    if not fit or A.shape[-1] != inputs or B.shape[-2] != outputs:
        raise ValueError(
            f"A and B must have shapes (..., r, {inputs}) and (..., {outputs}, r), "
            f"got {tuple(A.shape)} and {tuple(B.shape)}"
        )
