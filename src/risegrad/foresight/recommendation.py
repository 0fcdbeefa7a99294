"""The decision: which rule, how strong, and at which learning rate; or that none is worth it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from risegrad.core.shapers import Shaper
from risegrad.curvature.estimates.estimated import Estimate
from risegrad.foresight.rule_forecast import RuleForecast
from risegrad.foresight.step_rules import ADAM, FO, RISE, Candidates

CLEAR = 2.0
"""Standard errors that a difference must exceed to be called one."""
WORTH = 0.9
"""A rule must do less than this part of FO's damage at equal progress to be worth attaching."""
EVEN = Estimate(1.0)


@dataclass(frozen=True)
class Recommendation:
    """What to do; ``shaper`` is None where plain training is as good as anything here."""

    rule: str
    shaper: Shaper | None
    rate: float
    """multiply the learning rate by this: then first-order progress is that of plain descent"""
    share: Estimate
    """damage at that progress, in parts of plain descent's"""
    words: str


def is_clear(value: Estimate) -> bool:
    """Whether an estimate differs from zero by more than its error explains."""
    return abs(value.value) > CLEAR * value.error


class Found(Protocol):
    """What of a diagnosis decides."""

    @property
    def rules(self) -> tuple[RuleForecast, ...]:
        """What each rule would do."""

    @property
    def candidates(self) -> Candidates | None:
        """What could be attached."""


def best_rule(rules: Sequence[RuleForecast]) -> RuleForecast | None:
    """The rule with the least damage at equal progress, among those that can be attached."""
    able = [rule for rule in rules if rule.name not in (FO, ADAM) and rule.share.value > 0]
    return min(able, key=lambda rule: rule.share.value, default=None)


def worth_it(rule: RuleForecast) -> bool:
    """Clearly better than plain descent, and by more than a little."""
    return rule.progress > 0 and rule.share.value + CLEAR * rule.share.error < WORTH


def decision(rules: Sequence[RuleForecast]) -> str:
    """What to do, and what RISE would do, in one or two sentences."""
    best = best_rule(rules)
    if best is None:
        return "The incoming gradient is zero: no rule would move anything."
    if worth_it(best):
        first = (
            f"Use {best.name}: per unit of progress it does {in_short(best.share)} of the damage "
            f"of first-order (FO) steps, at {best.rate:.2g} times their learning rate."
        )
    else:
        first = (
            "Use plain first-order (FO) steps: no rule does clearly less damage per unit of "
            f"progress. The best of the others, {best.name}, does {in_short(best.share)} of FO's."
        )
    return f"{first} {_rise({rule.name: rule for rule in rules})}".strip()


def in_short(share: Estimate) -> str:
    """For a sentence: 0.21 ± 0.04."""
    return f"{share.value:.2g}" if share.error == 0 else f"{share.value:.2g} ± {share.error:.1g}"


def _rise(rules: Mapping[str, RuleForecast]) -> str:
    rise = rules.get(RISE)
    if rise is None or rise is best_rule([*rules.values()]):
        return ""
    if rise.share.value - 1 > CLEAR * rise.share.error:
        return f"RISE would do {rise.share.value:.3g} times the damage of a smaller step."
    return f"RISE would do {in_short(rise.share)} of the damage of a smaller step."


def recommend(found: Found) -> Recommendation:
    """A shaper that is ready to attach, or the word that none is worth it."""
    if found.candidates is None:
        raise RuntimeError(
            "this diagnosis was read from a file, which holds no memory: its decision is "
            f"{decision(found.rules)!r}; diagnose again to get a shaper"
        )
    best, words = best_rule(found.rules), decision(found.rules)
    if best is None or not worth_it(best):
        return Recommendation(FO, None, 1.0, EVEN, words)
    shaper = found.candidates.shapers()[best.name]
    return Recommendation(best.name, shaper, best.rate, best.share, words)
