"""What a diagnosis says: the decision, what every rule would do, and the scores of the blocks."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from risegrad.common.text_columns import text_columns
from risegrad.core.shapers import Shaper
from risegrad.curvature.diagnosis.candidates import ADAM, FO, RISE, Candidates
from risegrad.curvature.diagnosis.rules import RuleForecast
from risegrad.curvature.estimates import Bounds, Estimate, in_digits, with_error
from risegrad.curvature.space import EXACT

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


def recommend(rules: Sequence[RuleForecast], candidates: Candidates) -> Recommendation:
    """A shaper that is ready to attach, or the word that none is worth it."""
    best, words = best_rule(rules), decision(rules)
    on: Literal["gradient", "update"] = "update" if is_adaptive_step(rules) else "gradient"
    if best is None or not worth_it(best):
        return Recommendation(rules[0].name if rules else FO, None, 1.0, EVEN, words, on)
    shaper = candidates.shapers()[best.name]
    return Recommendation(best.name, shaper, best.rate, best.share, words, on)


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
    S: Estimate
    """shaping score, ``(eta^2/2) tau_b |g_b|^2 (lambda_dir - lambda_avg)``"""
    C: Estimate | None
    """coupling score with RISE's own covariances of the displacement"""
    R: Bounds | None
    """flat-signal score ``g_b'(H_bb + rho I)^(-1) g_b``, between two bounds"""
    fo: Estimate
    """the block's part of FO's damage, cross terms divided evenly"""


@dataclass(frozen=True)
class Totals:
    """All blocks together; damage is ``Q = (eta^2/2) x'Hx``, change adds the first-order term."""

    fo: Estimate
    scaled_fo: Estimate
    rise: Estimate
    rise_std: Estimate
    covariance_noise_std: Estimate
    """mean damage sees second moments alone, and those of covariance noise are RISE's"""
    gap: Estimate
    """``Q_FO - E[Q_RISE]``: what RISE removes at equal norm"""
    change_fo: Estimate
    change_scaled_fo: Estimate
    change_rise: Estimate
    change_rise_std: Estimate
    lambda_dir: Estimate
    lambda_avg: Estimate


@dataclass(frozen=True)
class Diagnosis:
    """Before training: what each rule's step would do to what the model knows."""

    curvature: str
    step: float
    seed: int
    damping: float | None
    historical_loss: float
    incoming_loss: float
    blocks: tuple[BlockReport, ...]
    """empty where there are too many for a product with each"""
    totals: Totals | None
    """None where there are no numbers of blocks"""
    products: int
    probes: int
    asymmetry: float
    """of the products with probes, relative: what rounding left"""
    rules: tuple[RuleForecast, ...] = ()
    """what each rule would do; the optimizer's plain step first"""
    verdicts: tuple[str, ...] = ()
    subject: str = ""
    """what was diagnosed, in words"""
    environment: dict[str, Any] = field(default_factory=dict)
    """of a saved one: the commit and the machine's software"""
    candidates: Candidates = field(default_factory=Candidates, compare=False, repr=False)
    """what ``recommend`` makes shapers of; not in a file"""

    @property
    def decision(self) -> str:
        """What to do, in one or two sentences."""
        return decision(self.rules)

    def recommend(self) -> Recommendation:
        """The shaper, ready to attach, and what to multiply the learning rate by."""
        return recommend(self.rules, self.candidates)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; what is not a number becomes None."""
        content = asdict(replace(self, candidates=Candidates()))
        del content["candidates"]
        found: dict[str, Any] = plain(content)
        return found

    def __str__(self) -> str:
        return summary(self)


def plain(value: Any) -> Any:
    """JSON has no NaN and no infinity."""
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


MOST_ROWS, WIDTH, LONGEST_NAME = 24, 100, 44
RULE_HEAD = ("rule", "damage per progress", "Gamma", "lr factor", "loss change", "by its memory")
BLOCK_HEAD = ("block", "d", "q", "factor", "lambda_dir", "lambda_avg", "S", "C", "R")
NOTHING = "-"
TRUSTED = 2.0
"""A memory that foretells a share within this factor of the true one gives a picture to trust."""


def summary(found: Diagnosis) -> str:
    """The decision, the rules, the blocks that matter most, and what else is to be said."""
    lines = [*textwrap.wrap(found.decision, WIDTH), ""]
    lines.append(
        f"diagnosis: step {found.step:g}, curvature {found.curvature}, seed {found.seed}, "
        f"{found.products} products ({found.probes} probes)"
    )
    if found.rules:
        lines += ["", f"Rules at equal first-order progress, in parts of {found.rules[0].name}:"]
        lines += text_columns([RULE_HEAD, *map(rule_cells, found.rules)])
    if found.totals is not None:
        t = found.totals
        lines += ["", f"Rules at one learning rate ({found.step:g}), not at equal progress:"]
        lines += text_columns([
            ("rule", "damage", "deviation", "loss change"),
            ("FO", str(t.fo), NOTHING, str(t.change_fo)),
            ("scaled FO", str(t.scaled_fo), NOTHING, str(t.change_scaled_fo)),
            ("RISE", str(t.rise), str(t.rise_std), str(t.change_rise)),
            ("covariance noise", str(t.rise), str(t.covariance_noise_std), str(t.change_rise)),
        ])  # fmt: skip
        lines += [
            "",
            *text_columns([BLOCK_HEAD, *map(_block_cells, _most_important(found.blocks))]),
        ]
        rest = len(found.blocks) - MOST_ROWS
        lines += [f"... and {rest} blocks with smaller |S|"] if rest > 0 else []
    for verdict in found.verdicts:
        lines += ["", *textwrap.wrap(verdict, WIDTH)]
    return "\n".join(lines)


def rule_cells(rule: RuleForecast) -> tuple[str, ...]:
    """The cells of one rule's row: at equal progress."""
    seen = NOTHING if rule.foretold is None else in_digits(rule.foretold, 2)
    change = NOTHING if rule.change is None else in_short(rule.change)
    return rule.name, in_short(rule.share), in_short(rule.gain), in_digits(rule.rate), change, seen


def _block_cells(block: BlockReport) -> tuple[str, ...]:
    long = len(block.name) > LONGEST_NAME
    name = f"…{block.name[-LONGEST_NAME + 1 :]}" if long else block.name
    q = "all" if block.q >= EXACT else str(block.q)
    flat = block.R and f"{in_digits(block.R.lower, 2)}..{in_digits(block.R.upper, 2)}"
    numbers = (block.lambda_dir, block.lambda_avg, block.S, block.C)
    cells = (NOTHING if number is None else str(number) for number in numbers)
    return name, f"{block.d:,}", q, f"{block.mean_factor:.3f}", *cells, flat or NOTHING


def _most_important(blocks: Sequence[BlockReport]) -> list[BlockReport]:
    """In their own order, those where shaping changes most."""
    largest = sorted(blocks, key=lambda block: -abs(block.S.value))[:MOST_ROWS]
    return [block for block in blocks if block in largest]


def verdicts(found: Diagnosis) -> Iterator[str]:
    """What the decision does not say, as sentences that can be read alone."""
    if found.totals is None:
        yield (
            "Blocks: there are too many for a product with each, so rules are compared and blocks "
            "are not; larger blocks, such as whole tensors, have scores."
        )
    elif found.rules:
        yield matched_norm(found.totals, is_adaptive_step(found.rules))
    if found.candidates.note:
        yield found.candidates.note
    informed = [rule for rule in found.rules if rule.foretold is not None]
    if informed:
        yield _memory(informed)


def matched_norm(t: Totals, adaptive: bool) -> str:
    """RISE against FO at the same step length, the paper's comparison."""
    what = "Matched norm, along the gradient" if adaptive else "Matched norm"
    if not is_clear(t.gap):
        return (
            f"{what}: RISE ({t.rise}) and FO ({t.fo}) do not differ beyond the error of the "
            "estimate; use more probes to decide."
        )
    if t.gap.value > 0:
        share = f" ({abs(t.gap.value / t.fo.value):.0%})" if t.fo.value > 0 else ""
        return (
            f"{what}: a RISE step of the same length does less damage on average, {t.rise} "
            f"instead of {t.fo}: it removes {t.gap}{share}."
        )
    return (
        f"{what}: a RISE step of the same length does more damage on average, {t.rise} instead of "
        f"{t.fo}: the gradient meets less curvature than the average direction."
    )


def _memory(informed: Sequence[RuleForecast]) -> str:
    """How far the memory's own picture of an informed step can be trusted."""
    pairs, off = [], 1.0
    for rule in informed:
        seen, true = rule.foretold or 0.0, rule.share.value
        pairs.append(f"{in_digits(seen, 2)} for {in_digits(true, 2)} at {rule.name.split()[-1]}")
        low, high = sorted((abs(seen), abs(true)))
        off = max(off, high / low if low else math.inf)
    word = "can be trusted here" if off <= TRUSTED else "must not be used to predict damage here"
    best = min(informed, key=lambda rule: rule.share.value)
    ends = len(informed) > 1 and best in (informed[0], informed[-1])
    last = f" The best damping, {best.name.split()[-1]}, is at the end of those tried."
    return (
        "Memory: the share of the plain step's damage that the memory itself predicts, for the "
        f"true one, by damping: {', '.join(pairs)}. It sees only where the step does not go, so "
        f"its picture {word}.{last if ends else ''}"
    )
