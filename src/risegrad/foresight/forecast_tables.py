"""Tables of rules at equal progress, each with a caption that says what its numbers are of."""

from __future__ import annotations

from dataclasses import dataclass

from risegrad.curvature.estimates.estimated import in_digits
from risegrad.foresight.block_lines import NOTHING, without_empty
from risegrad.foresight.diagnosis_report import Diagnosis
from risegrad.foresight.recommendation import in_short
from risegrad.foresight.rule_forecast import RuleForecast

RULES_CAPTION = (
    "Rules at equal first-order progress: each is one step with the gradient of all incoming "
    "examples; damage per progress in parts of that of the plain step, {first}"
)
ROWS_CAPTION = (
    "The experiment's rows as they run, at equal first-order progress: the first steps of their "
    "own optimizers, at their own rates and on their own batches; damage per progress in parts of "
    "that of {first}"
)
HEAD = ("damage per progress", "Gamma", "lr factor", "loss change", "by its memory")
AT_STEP_SIZE = "Rules at one learning rate ({step:g}), not at equal progress"


@dataclass(frozen=True)
class ForecastTable:
    """A caption, a head and the cells of its rows."""

    caption: str
    head: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]


def forecast_tables(found: Diagnosis) -> list[ForecastTable]:
    """The rules, then the rows of an experiment; those that there are."""
    both = ((RULES_CAPTION, "rule", found.rules), (ROWS_CAPTION, "row", found.rows))
    return [_table(caption, first, rules) for caption, first, rules in both if rules]


def _table(caption: str, first: str, rules: tuple[RuleForecast, ...]) -> ForecastTable:
    """The first of the rules is what the others are compared with."""
    head, *cells = without_empty([(first, *HEAD), *map(forecast_cells, rules)])
    return ForecastTable(caption.format(first=rules[0].name), head, tuple(cells))


def forecast_cells(rule: RuleForecast) -> tuple[str, ...]:
    """The cells of one rule's row: at equal progress."""
    seen = NOTHING if rule.foretold is None else in_digits(rule.foretold, 2)
    change = NOTHING if rule.change is None else in_short(rule.change)
    return rule.name, in_short(rule.share), in_short(rule.gain), in_digits(rule.rate), change, seen


def rows_left_out(found: Diagnosis) -> list[str]:
    """Which rows of the experiment are not compared, and why."""
    return [f"Not compared: {'; '.join(found.left_out)}."] if found.left_out else []
