"""Was it right? Predictions before sessions against what the sessions then did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

import torch
from torch import Tensor

from risegrad.foresight.followed_run import END, FollowedSession, Moment
from risegrad.foresight.local_agreement import rank_correlation

RESAMPLES, AT_A_TIME = 1000, 50
FEWEST = 8
"""Pairs from which on a rank correlation says something: three are in order by chance too often,
and drawn anew they are in order again."""
ORDERED = 0.75
"""Pairs of rows that must be ordered right for the local picture to be called good enough."""


@dataclass(frozen=True)
class Ranked:
    """A rank correlation with its 95 % interval, by drawing the sessions anew."""

    value: float | None
    low: float | None
    high: float | None
    count: int

    @property
    def too_few(self) -> bool:
        """Whether there are too few pairs to tell anything."""
        return self.count < FEWEST

    def __str__(self) -> str:
        if self.value is None:
            return "-"
        if self.too_few:
            return f"{self.value:.2f} (too few to tell)"
        ends = "" if self.low is None else f" ({self.low:.2f} to {self.high:.2f})"
        return f"{self.value:.2f}{ends}"


@dataclass(frozen=True)
class HorizonAgreement:
    """All sessions, so many steps ahead (0: the session's end)."""

    steps: int
    correlation: Ranked
    """predicted and true change of the historical loss"""
    forgetting: Ranked
    """predicted change and the points of accuracy that were forgotten by the session's end"""
    ordered: float | None
    """part of the pairs of rows, of one seed and task, that were ordered right"""
    ratio: float
    """median of predicted over true change: 1 is calibrated"""


def horizon_agreements(sessions: Sequence[FollowedSession]) -> list[HorizonAgreement]:
    """By horizon, the session's end last."""
    steps = sorted({m.steps for s in sessions for m in s.moments if m.steps != END})
    return [_at(sessions, count) for count in [*steps, END]]


def _at(sessions: Sequence[FollowedSession], steps: int) -> HorizonAgreement:
    found = [(s, m) for s in sessions for m in s.moments if m.steps == steps]
    predicted, true = [m.predicted for _, m in found], [m.true for _, m in found]
    lost = [s.forgetting for s, _ in found]
    ratios = [m.predicted / m.true for _, m in found if m.true]
    return HorizonAgreement(
        steps, ranked(predicted, true), ranked(predicted, lost), _ordered(found),
        median(ratios) if ratios else float("nan"),
    )  # fmt: skip


def ranked(a: Sequence[float], b: Sequence[float], seed: int = 0) -> Ranked:
    """Spearman's correlation and an interval from resampled pairs."""
    value = rank_correlation(a, b) if len(a) > 2 else None
    if value is None or len(a) < FEWEST:
        return Ranked(value, None, None, len(a))
    x, y = (torch.tensor([*side], dtype=torch.float64) for side in (a, b))
    known = sorted(_resampled(x, y, seed))
    if len(known) < RESAMPLES // 2:
        return Ranked(value, None, None, len(a))
    low, high = (known[int(part * (len(known) - 1))] for part in (0.025, 0.975))
    return Ranked(value, low, high, len(a))


def _resampled(a: Tensor, b: Tensor, seed: int) -> list[float]:
    """Correlations of pairs drawn anew, where both sides vary; some at a time for the memory."""
    generator = torch.Generator().manual_seed(seed)
    found: list[float] = []
    for _ in range(RESAMPLES // AT_A_TIME):
        chosen = torch.randint(len(a), (AT_A_TIME, len(a)), generator=generator)
        x, y = _centred_ranks(a[chosen]), _centred_ranks(b[chosen])
        scale = x.norm(dim=1) * y.norm(dim=1)
        found += ((x * y).sum(1) / scale)[scale > 0].tolist()
    return found


def _centred_ranks(rows: Tensor) -> Tensor:
    """Ranks within each row, equal values sharing the mean of theirs, less their mean."""
    below = (rows[:, :, None] > rows[:, None, :]).sum(2).double()
    equal = (rows[:, :, None] == rows[:, None, :]).sum(2).double()
    ranks = below + (equal - 1) / 2
    return ranks - ranks.mean(1, keepdim=True)


def _ordered(found: Sequence[tuple[FollowedSession, Moment]]) -> float | None:
    right = []
    for (one, a), (two, b) in combinations(found, 2):
        if (one.seed, one.task) == (two.seed, two.task) and one.method != two.method:
            right.append((a.predicted < b.predicted) == (a.true < b.true))
    return sum(right) / len(right) if right else None


def good_until(agreements: Sequence[HorizonAgreement]) -> int | None:
    """The last horizon up to which rows are ordered well; None if not even the first."""
    last = None
    for row in agreements:
        if row.ordered is None or row.ordered < ORDERED:
            break
        last = row.steps
    return last


@dataclass(frozen=True)
class BlockBenefit:
    """One block shaped alone: its scores beforehand, and what shaping it then did."""

    name: str
    d: int
    S: float
    D: float
    R: float | None
    C: float | None
    steps: int
    benefit: float
    """true historical loss after FO less after shaping this block alone, at equal length"""
    beyond: float
    """the same against the block shortened to the same mean progress: no mere smaller step"""
    error: float
    """standard error of both over draws"""


SCORES: dict[str, Callable[[BlockBenefit], float | None]] = {
    "S": lambda block: block.S, "D": lambda block: block.D,
    "R": lambda block: block.R, "C": lambda block: block.C,
}  # fmt: skip


@dataclass(frozen=True)
class ScoreAgreement:
    """One block score against the observed benefits, after so many steps."""

    score: str
    steps: int
    benefit: Ranked
    beyond: Ranked


def score_agreements(blocks: Sequence[BlockBenefit]) -> list[ScoreAgreement]:
    """The paper's open question: does a score tell which blocks are worth shaping?"""
    found = []
    for steps in sorted({block.steps for block in blocks}):
        for name, of in SCORES.items():
            rows = [(s, b) for b in blocks if b.steps == steps and (s := of(b)) is not None]
            scores = [s for s, _ in rows]
            benefits, beyond = [b.benefit for _, b in rows], [b.beyond for _, b in rows]
            found.append(
                ScoreAgreement(name, steps, ranked(scores, benefits), ranked(scores, beyond))
            )
    return found
