"""The decision: which rule, how strong, and at which learning rate; or that none is worth it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from risegrad.core.shapers import Shaper
from risegrad.curvature.diagnosis.rules import ADAM, FO, RISE, Candidates, RuleForecast
from risegrad.curvature.estimates import Estimate, in_digits, with_error

CLEAR = 2.0
"""Standard errors that a difference must exceed to be called one."""
WORTH = 0.9
"""To be worth it, a rule must do less than this part of the plain damage at equal progress."""
EVEN = Estimate(1.0)


@dataclass(frozen=True)
class Recommendation:
    """What to do; ``shaper`` is None if nothing beats plain training."""

    rule: str
    shaper: Shaper | None
    rate: float
    """multiply the learning rate by this: then first-order progress is that of the plain step"""
    share: Estimate
    """damage at that progress, in parts of the plain step's"""
    words: str
    on: Literal["gradient", "update"] = "gradient"
    """where to attach: on the gradient of plain descent, on the update of adaptive optimizers"""


def is_clear(value: Estimate) -> bool:
    """Whether an estimate differs from zero by more than its error explains."""
    return abs(value.value) > CLEAR * value.error


def best_rule(rules: Sequence[RuleForecast]) -> RuleForecast | None:
    """The rule with the least damage at equal progress, among those that can be attached.

    Of informed steps that are as good within one standard error, the one with the largest damping:
    a smaller one leans more on a memory of few examples, for a gain that may be luck.
    """
    able = [rule for rule in rules if rule.name not in (FO, ADAM) and rule.share.value > 0]
    best = min(able, key=lambda rule: rule.share.value, default=None)
    if best is None or best.damping is None:
        return best
    near = [
        rule for rule in able
        if rule.damping is not None
        and rule.share.value <= best.share.value + best.share.error
        and worth_it(rule) >= worth_it(best)
    ]  # fmt: skip
    return max(near, key=lambda rule: rule.damping or 0.0)


def worth_it(rule: RuleForecast) -> bool:
    """Clearly better than the plain step, and by more than a little; clear needs an error."""
    return rule.progress > 0 and rule.share.error > 0 and _looks_worth_it(rule)


def _looks_worth_it(rule: RuleForecast) -> bool:
    return rule.share.value + CLEAR * rule.share.error < WORTH


def is_adaptive_step(rules: Sequence[RuleForecast]) -> bool:
    """Whether the rules are compared on the update of an adaptive optimizer."""
    return bool(rules) and rules[0].name == ADAM


def decision(rules: Sequence[RuleForecast]) -> str:
    """What to do with which optimizer, and what RISE would do, in one or two sentences."""
    best = best_rule(rules)
    if best is None:
        return "The incoming gradient is zero: no rule would move anything."
    adaptive = is_adaptive_step(rules)
    plain = "Adam's own steps" if adaptive else "first-order (FO) steps"
    if worth_it(best):
        place = "on Adam's update" if adaptive else "on the gradient of plain descent (SGD)"
        first = (
            f"Use {best.name}, {place}: per unit of progress it does {in_short(best.share)} of the "
            f"damage of {plain}, at {in_digits(best.rate, 2)} times their learning rate."
        )
    else:
        first = (
            f"Use plain {plain}{'' if adaptive else ' of SGD'}: no rule does clearly less damage "
            f"per unit of progress. The best of the others, {best.name}, does "
            f"{in_short(best.share)} of theirs."
        )
    if best.share.error == 0 and _looks_worth_it(best):
        first += " One historical batch gives no error of that: give two or more to decide."
    chosen = best if worth_it(best) else rules[0]
    return " ".join(filter(None, (first, _rise(rules), _first_order(chosen, rules[0]))))


def in_short(share: Estimate) -> str:
    """For a sentence: 0.21 ± 0.04."""
    return with_error(share.value, share.error, 2)


def _first_order(chosen: RuleForecast, plain: RuleForecast) -> str:
    """Where the kept loss has a slope along the step that matters more than its curvature."""
    if chosen.linear is None or chosen.change is None or plain.linear is None:
        return ""
    if abs(chosen.linear) <= abs(chosen.change.value - chosen.linear):
        return ""
    beside = "" if chosen is plain else f" ({_moved(plain.linear)} with plain steps)"
    return (
        f"In one step the kept loss would {_moved(chosen.linear)}{beside} to first order, which no "
        "curvature sees and which is more than the damage."
    )


def _moved(change: float) -> str:
    return f"{'rise' if change > 0 else 'fall'} by {in_digits(abs(change), 2)}"


def _rise(rules: Sequence[RuleForecast]) -> str:
    rise = next((rule for rule in rules if rule.name == RISE), None)
    if rise is None or rise is best_rule(rules):
        return ""
    if rise.share.value - 1 > CLEAR * rise.share.error:
        return f"RISE would do {in_digits(rise.share.value)} times the damage of a smaller step."
    return f"RISE would do {in_short(rise.share)} of the damage of a smaller step."


def recommend(rules: Sequence[RuleForecast], candidates: Candidates | None) -> Recommendation:
    """A shaper that is ready to attach, or the word that none is worth it."""
    best, words = best_rule(rules), decision(rules)
    if candidates is None:
        raise RuntimeError(
            "this diagnosis was read from a file, which holds no memory: its decision is "
            f"{words!r}; diagnose again to get a shaper"
        )
    on: Literal["gradient", "update"] = "update" if is_adaptive_step(rules) else "gradient"
    if best is None or not worth_it(best):
        return Recommendation(rules[0].name if rules else FO, None, 1.0, EVEN, words, on)
    shaper = candidates.shapers()[best.name]
    return Recommendation(best.name, shaper, best.rate, best.share, words, on)
