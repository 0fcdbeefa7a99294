"""FO beside the shaped step at matched norm, and at matched progress.

Matched norm is the paper's comparison. At matched mean progress FO simply takes a smaller step, and
in one local step its damage is then always lower: whatever shaping gains beyond that comes from the
trajectory, so a benefit may be claimed only beside scaled FO.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from risegrad.common.checks import check_number
from risegrad.theory.blockwise import blockwise_decomposition
from risegrad.theory.calibration import mean_factor
from risegrad.theory.conditions import check_damage
from risegrad.theory.identities import expected_damage
from risegrad.theory.local_model import fo_damage


@dataclass(frozen=True)
class StepComparison:
    """One FO step beside one shaped step: step sizes, mean progress, (expected) damage.

    Progress is the expected first-order decrease of the incoming loss, ``step * E[g'x]``.
    """

    fo_step: float
    shaped_step: float
    fo_progress: Tensor
    shaped_progress: Tensor
    fo_damage: Tensor
    shaped_damage: Tensor

    @property
    def damage_ratio(self) -> Tensor:
        """FO's damage as a part of the shaped step's: below 1 where FO does less."""
        return self.fo_damage / self.shaped_damage


@dataclass(frozen=True)
class SideBySide:
    """Both readings of the same shaped step."""

    matched_norm: StepComparison
    matched_progress: StepComparison


def compare_steps(H: Tensor, g: Tensor, q: int, eta: float = 1.0) -> SideBySide:
    """The shaped step of size ``eta`` beside FO at ``eta`` and at ``a eta``, for ``H >= 0``.

    At matched progress the ratio is ``q lam / ((q+1) lam + tr H) < 1``, ``lam = g'Hg/|g|^2``; at
    matched norm it is ``lam / ((1 - tau) lam + tau tr H/d)``, either side of 1.

    >>> import torch
    >>> both = compare_steps(torch.diag(torch.tensor([0.0, 4.0])), torch.tensor([0.0, 1.0]), q=2)
    >>> both.matched_norm.damage_ratio.item(), both.matched_progress.damage_ratio.item()
    (1.25, 0.5)
    """
    matrix, vector = check_damage(H, g)
    step = check_number("eta", eta, above=0)
    a, g2 = mean_factor(vector.shape[-1], q), vector.square().sum(-1)
    shaped = expected_damage(matrix, vector, q, step)

    def beside(fo_step: float) -> StepComparison:
        damage = fo_damage(matrix, vector, fo_step)
        return StepComparison(fo_step, step, fo_step * g2, step * a * g2, damage, shaped)

    return SideBySide(matched_norm=beside(step), matched_progress=beside(a * step))


def blockwise_progress_cost(
    H: Tensor, g: Tensor, sizes: Sequence[int], q: int | Sequence[int], eta: float = 1.0
) -> Tensor:
    """``E[Q_blk] - Q(-eta A g) = (eta^2/2) sum_b tr(H_bb C_b) >= 0``: RISE beyond its control.

    Scaled FO ``A g`` makes the same mean progress block by block.

    >>> import torch
    >>> blockwise_progress_cost(torch.ones(2, 2), torch.ones(2), [1, 1], q=2).item()
    0.5
    """
    matrix, vector = check_damage(H, g)
    return blockwise_decomposition(matrix, vector, sizes, q, eta).residual.sum(-1)
