"""A diagnosis in words: what may be said, and with which certainty."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from risegrad.curvature.estimates.estimated import in_digits
from risegrad.foresight.diagnosis_report import Diagnosis
from risegrad.foresight.recommendation import best_rule, in_short, is_adaptive_step, is_clear

TRUSTED = 2.0
"""A memory that foretells a share within this factor of the true one gives a picture to trust."""


def verdicts(found: Diagnosis) -> Iterator[str]:
    """Sentences in a fixed order; each can be read alone."""
    if found.totals.fo_progress == 0:
        yield "The incoming gradient is zero: no rule would move anything."
        return
    if is_adaptive_step(found.rules):
        yield (
            "Adam: the decision is about Adam's own steps. What follows of RISE and FO, and the "
            "numbers of the blocks, are of steps along the gradient."
        )
    yield matched_norm(found)
    yield matched_progress(found)
    yield odds(found)
    yield mean_factors(found)
    yield from first_order(found)
    yield from couplings(found)
    yield from precision(found)
    yield from adam(found)
    yield from memories(found)


def matched_norm(found: Diagnosis) -> str:
    """RISE against FO at the same step length."""
    t = found.totals
    if not is_clear(t.gap):
        return (
            f"Matched norm: RISE ({t.rise}) and FO ({t.fo}) do not differ beyond the error of the "
            "estimate; more probes would tell."
        )
    share = f" ({abs(t.gap.value / t.fo.value):.0%})" if t.fo.value > 0 else ""
    if t.gap.value > 0:
        return (
            f"Matched norm: a RISE step of the same length does less damage on average, {t.rise} "
            f"instead of {t.fo}: it removes {t.gap}{share}."
        )
    return (
        f"Matched norm: a RISE step of the same length does more damage on average, {t.rise} "
        f"instead of {t.fo}: the gradient meets less curvature than the average direction."
    )


def matched_progress(found: Diagnosis) -> str:
    """RISE against scaled FO, which makes the same mean progress."""
    t = found.totals
    if not is_clear(t.progress_cost):
        return (
            "Matched progress: RISE and scaled FO do not differ beyond the error of the estimate."
        )
    if t.progress_cost.value > 0:
        kept = t.scaled_fo.value / t.rise.value
        return (
            "Matched progress: scaled FO makes the same mean progress with "
            f"{in_digits(kept, 2)} times RISE's damage. In one step a smaller FO step is the "
            "better choice; whatever RISE gains beyond it must come from the trajectory."
        )
    return (
        "Matched progress: RISE does less damage than scaled FO here, because this matrix "
        "has negative curvature in most directions; a positive proxy (ggn) cannot show that."
    )


def odds(found: Diagnosis) -> str:
    """How likely it is that one draw of RISE does less damage than FO."""
    o = found.odds
    word = "less" if o.sign > 0 else "more"
    return (
        f"One draw: RISE does less damage than FO with probability {o.probability:.2f}; that it "
        f"does {word} is certain to at least {o.certified:.2f} whatever the law."
    )


def mean_factors(found: Diagnosis) -> str:
    """How much of FO's progress RISE keeps at the same learning rate."""
    factors = [block.mean_factor for block in found.blocks]
    kept = found.totals.rise_progress / found.totals.fo_progress
    return (
        f"Progress: at the same learning rate RISE keeps {kept:.3g} of FO's first-order progress "
        f"(mean factors {min(factors):.3g} to {max(factors):.3g}, median {median(factors):.3g})."
    )


def first_order(found: Diagnosis) -> Iterator[str]:
    """A warning where the historical gradient matters more than the curvature."""
    t = found.totals
    if abs(t.linear_fo.value) > abs(t.fo.value):
        yield (
            "First order: the historical gradient is not zero along this step, and its term "
            f"({t.linear_fo.value:.3g}) exceeds the damage ({t.fo.value:.3g}). There the loss "
            "changes mostly in proportion to the step, which shaping shrinks by the mean factor."
        )


def couplings(found: Diagnosis) -> Iterator[str]:
    """A warning where most of the difference comes from the couplings of blocks."""
    t = found.totals
    between = t.gap.value - t.gap_within.value
    if is_clear(t.gap) and abs(between) > abs(t.gap_within.value):
        yield (
            f"Blocks: most of the difference ({between:.3g} of {t.gap.value:.3g}) comes from the "
            "shrunken mean of blocks that act together, not from shaping inside them: compare with "
            "scaled FO before crediting RISE."
        )


def precision(found: Diagnosis) -> Iterator[str]:
    """A warning where the estimates are too rough."""
    t = found.totals
    worst = max(t.rise.relative_error, t.rise_std.relative_error)
    if worst > 0.25:
        yield (
            f"Precision: the totals carry a relative standard error of {worst:.0%} after "
            f"{found.probes} probes; give the budget more probes."
        )


def adam(found: Diagnosis) -> Iterator[str]:
    """What Adam changes, if that was asked for."""
    if found.adam is None:
        return
    a, t = found.adam, found.totals
    sgd = t.fo.value * 2 / t.fo_progress**2
    yield (
        f"Adam: at equal first-order progress plain Adam does {_times(a.plain.value, sgd)} the "
        f"damage of plain descent, RISE in front of Adam {_times(a.shaped_gradient.value, sgd)}, "
        f"RISE on Adam's update {_times(a.shaped_update.value, sgd)}. The evenness of Adam's "
        f"second moment goes from {a.evenness_plain:.2g} to {a.evenness_shaped:.2g} (1: it adapts "
        "nothing), and scaled FO in front of Adam is plain Adam."
    )


def memories(found: Diagnosis) -> Iterator[str]:
    """How far the memory's own picture of an informed step can be trusted."""
    if found.candidates is not None and found.candidates.note:
        yield found.candidates.note
    informed = [rule for rule in found.rules if rule.foretold is not None]
    if not informed:
        return
    pairs = ", ".join(
        f"{in_digits(rule.foretold or 0.0, 2)} for {in_digits(rule.share.value, 2)} at "
        f"{rule.name.split()[-1]}"
        for rule in informed
    )
    off = max(_factor(rule.foretold or 0.0, rule.share.value) for rule in informed)
    word = "can be trusted here" if off <= TRUSTED else "must not be used to foretell damage here"
    yield (
        "Memory: the share of the plain step's damage that the memory itself foretells, for the "
        f"true one, by damping: {pairs}. It sees only where the step does not go, so its "
        f"picture {word}."
    )
    best = min(informed, key=lambda rule: rule.share.value)
    if len(informed) > 1 and best in (informed[0], informed[-1]):
        yield f"Damping: the best, {best.name.split()[-1]}, is at the end of those tried."
    chosen = best_rule(found.rules)
    if chosen is not None and chosen.damping is not None and chosen is not best:
        yield (
            f"Damping: {best.name.split()[-1]} did {in_short(best.share)} of the plain damage; "
            f"{chosen.name.split()[-1]} is the largest within one standard error of that."
        )


def _factor(a: float, b: float) -> float:
    low, high = sorted((abs(a), abs(b)))
    return high / low if low else float("inf")


def _times(value: float, unit: float) -> str:
    return f"{in_digits(value / unit, 2)} times" if unit > 0 else in_digits(value, 2)
