"""What a diagnosis says: the numbers of each block, the totals, and where they came from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from risegrad.common.settings import read
from risegrad.curvature.estimates.adam_terms import AdamView
from risegrad.curvature.estimates.estimated import Estimate
from risegrad.curvature.estimates.spectral import Bounds
from risegrad.foresight.recommendation import (
    Recommendation,
    decision,
    is_clear,
    recommend,
)
from risegrad.foresight.rule_forecast import RuleForecast
from risegrad.foresight.step_rules import Candidates


@dataclass(frozen=True)
class BlockReport:
    """One block; ``None`` where its gradient is zero and a direction has no curvature."""

    name: str
    d: int
    q: int
    tau: float
    mean_factor: float
    gradient_norm: float
    lambda_dir: Estimate | None
    """``g_b'H_bb g_b/|g_b|^2``"""
    lambda_avg: Estimate
    """``tr H_bb/d_b``, the damage density ``D_b``"""
    excess: Estimate | None
    """``lambda_dir - lambda_avg``"""
    S: Estimate
    """shaping score, ``(eta^2/2) tau_b |g_b|^2 excess``"""
    C: Estimate | None
    """coupling score with RISE's own covariances of the displacement; None with so many blocks that
    no number is kept for every pair"""
    raw_C: Estimate | None
    """``sum_{c != b} |H_bc|_F``"""
    R: Bounds | None
    """flat-signal score ``g_b'(H_bb + rho I)^(-1) g_b``, between two bounds"""
    fo: Estimate
    """the block's part of FO's damage, cross terms divided evenly"""
    ghg: Estimate
    """``g_b'H_bb g_b``"""
    hg2: Estimate
    """``|H_bb g_b|^2``"""
    trace: Estimate
    trace_sq: Estimate


@dataclass(frozen=True)
class Totals:
    """All blocks together; damage is ``Q = (eta^2/2) x'Hx``, change adds the first-order term."""

    fo: Estimate
    scaled_fo: Estimate
    rise: Estimate
    rise_std: Estimate
    covariance_noise: Estimate
    covariance_noise_std: Estimate
    gap: Estimate
    """``Q_FO - E[Q_RISE]``: what RISE removes at equal norm"""
    gap_within: Estimate
    """the part of it inside blocks, the sum of the scores ``S_b``"""
    progress_cost: Estimate
    """``E[Q_RISE] - Q(scaled FO)``: what RISE costs at equal mean progress"""
    linear_fo: Estimate
    linear_scaled_fo: Estimate
    change_fo: Estimate
    change_scaled_fo: Estimate
    change_rise: Estimate
    change_rise_std: Estimate
    lambda_dir: Estimate
    lambda_avg: Estimate
    trace: Estimate
    trace_sq: Estimate
    fo_progress: float
    """``eta |g|^2``: first-order decrease of the incoming loss"""
    rise_progress: float
    """``eta sum_b a_b |g_b|^2``"""


def decision_by_totals(t: Totals) -> str:
    """By RISE and scaled FO alone: early diagnoses knew no other rules."""
    if t.fo_progress == 0:
        return "The incoming gradient is zero: no rule would move anything."
    if not is_clear(t.progress_cost):
        return (
            "Use a smaller first-order (FO) step: at equal progress its damage and that of RISE "
            "do not differ beyond the error of the estimate."
        )
    if t.progress_cost.value > 0:
        share = f"{t.scaled_fo.value / t.rise.value:.2g} times" if t.rise.value > 0 else "less than"
        words = "Use a smaller first-order (FO) step: at equal progress it does"
        return f"{words} {share} the damage of RISE."
    return f"Use RISE: at equal progress its damage is {t.rise}, first-order (FO) {t.scaled_fo}."


@dataclass(frozen=True)
class Odds:
    """That one RISE step does less damage than one FO step of equal norm."""

    probability: float
    """from a law with the exact mean and deviation (gamma, or normal for an indefinite matrix)"""
    sign: int
    """1 if RISE does less damage on average, -1 if more"""
    certified: float
    """Cantelli: whatever the law, one draw has that sign with at least this probability"""


@dataclass(frozen=True)
class Diagnosis:
    """Before training: what FO, RISE and smaller steps would do to what the model knows."""

    curvature: str
    step: float
    seed: int
    damping: float | None
    historical_loss: float
    incoming_loss: float
    blocks: tuple[BlockReport, ...]
    totals: Totals
    odds: Odds
    top_eigenvalue: Estimate | None
    adam: AdamView | None
    products: int
    probes: int
    exact_directions: bool
    """whether every block's gradient had its own product"""
    asymmetry: float
    """of the products with probes, relative: what rounding left"""
    verdicts: tuple[str, ...] = ()
    rules: tuple[RuleForecast, ...] = ()
    """what each rule would do; FO first"""
    rows: tuple[RuleForecast, ...] = ()
    """the rows of an experiment as they run, with their own optimizers and rates"""
    left_out: tuple[str, ...] = ()
    """rows of the experiment that could not be compared, each with the reason"""
    subject: str = ""
    """what was diagnosed, in words"""
    environment: dict[str, Any] = field(default_factory=dict)
    """of a saved one: the commit and the machine's software"""
    candidates: Candidates | None = field(default=None, compare=False, repr=False)
    """what ``recommend`` makes shapers of; not in a file"""

    @property
    def decision(self) -> str:
        """What to do, in one or two sentences."""
        return decision(self.rules) if self.rules else decision_by_totals(self.totals)

    def recommend(self) -> Recommendation:
        """The shaper, ready to attach, and what to multiply the learning rate by."""
        return recommend(self)

    @property
    def d(self) -> int:
        """How many parameters all blocks have together."""
        return sum(block.d for block in self.blocks)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; what is not a number becomes None."""
        content: dict[str, Any] = plain(asdict(replace(self, candidates=None)))
        del content["candidates"]
        return content

    @staticmethod
    def from_dict(content: Mapping[str, Any]) -> Diagnosis:
        """What ``to_dict`` gave, from a file; such a diagnosis has no shapers to recommend."""
        return read(Diagnosis, numbered(content))

    def _repr_html_(self) -> str:
        from risegrad.foresight.diagnosis_page import diagnosis_fragment

        return diagnosis_fragment(self)

    def __str__(self) -> str:
        from risegrad.foresight.diagnosis_text import summary

        return summary(self)


NUMBERS = {"value": math.nan, "error": math.nan, "lower": -math.inf, "upper": math.inf}
NUMBERS |= dict.fromkeys(("historical_loss", "incoming_loss", "progress"), math.nan)
NUMBERS |= dict.fromkeys(("evenness_plain", "evenness_shaped"), math.nan)


def numbered(value: Any) -> Any:
    """The inverse of ``plain`` where a number must stand."""
    if isinstance(value, Mapping):
        return {
            key: NUMBERS[key] if entry is None and key in NUMBERS else numbered(entry)
            for key, entry in value.items()
        }
    return [numbered(entry) for entry in value] if isinstance(value, list | tuple) else value


def plain(value: Any) -> Any:
    """JSON has no NaN and no infinity."""
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
