"""Tables of local validations and diagnoses, from the records of their commands."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from risegrad.foresight.foresight_report import (
    HORIZON_HEAD,
    SCORE_HEAD,
    foresight_parts,
    horizon_cells,
    score_cells,
)
from risegrad.foresight.foresight_result import ForesightResult
from risegrad.pages.page_blocks import ChartFigure, Row

RECORDS = Path(__file__).parents[1] / "experiments" / "records"


def agreement_table(name: str) -> str:
    """How well each curvature foretold the updates, by their number of steps."""
    record = _record("local", name)
    rows = [
        "| steps | curvature | updates | rank corr. | damage corr. | sign | RISE against FO | "
        "median error |",
        "|---:|---|---:|---:|---:|---:|---:|---:|",
    ]
    for steps, found in record["agreement_by_steps"].items():
        for row in found:
            cells = (
                steps, row["curvature"], row["count"], _number(row["rank_correlation"]),
                _number(row["damage_correlation"]), _percent(row["sign_agreement"]),
                _percent(row["better_agreement"]), f"{row['relative_error']:.2g}",
            )  # fmt: skip
            rows.append(_line(cells))
    return "\n".join(rows)


def ends_table(name: str) -> str:
    """Up to which step size each rule's updates were predicted within a quarter of the truth."""
    found = _record("local", name)["quadratic_up_to"]
    rules = list(found[0]["step_size"])
    rows = [
        f"| checkpoint | steps | curvature | {' | '.join(rules)} |",
        f"|---:|---:|---|{'---:|' * len(rules)}",
    ]
    for row in found:
        sizes = (row["step_size"][rule] for rule in rules)
        cells = ("none" if size is None else f"{size:.3g}" for size in sizes)
        rows.append(_line((row["checkpoint"], row["steps"], row["curvature"], *cells)))
    return "\n".join(rows)


def draws_table(name: str) -> str:
    """One-step draws of RISE beside the mean and the deviation that the moments gave them."""
    rows = [
        "| checkpoint | step size | mean change | predicted | deviation | predicted |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    for point in _record("local", name)["checkpoints"]:
        for row in point["predicted"]:
            drawn = row["drawn"]
            numbers = (drawn["mean"], row["mean"], drawn["std"], row["std"])
            cells = (point["steps"], f"{drawn['step_size']:.3g}", *(f"{x:.3g}" for x in numbers))
            rows.append(_line(cells))
    return "\n".join(rows)


def diagnosis_table(name: str) -> str:
    """Predicted damage of one step by each rule, with standard errors where they are not exact."""
    totals = _record("diagnosis", name)["totals"]
    rows = ["| rule | damage | deviation | loss change |", "|---|---:|---:|---:|"]
    for words, damage, change in RULES:
        keys = damage, f"{damage}_std", f"change_{change}"
        rows.append(_line((words, *(_estimate(totals.get(key)) for key in keys))))
    return "\n".join(rows)


RULES = (
    ("FO", "fo", "fo"),
    ("scaled FO", "scaled_fo", "scaled_fo"),
    ("RISE", "rise", "rise"),
    ("covariance noise", "covariance_noise", "rise"),
)
"""Words, damage and change in the totals; noise of RISE's covariance has RISE's mean."""


def foresight_names() -> list[str]:
    """The experiments whose foresight has a record."""
    return sorted(path.stem for path in (RECORDS / "foresight").glob("*.json"))


def horizon_table(name: str) -> str:
    """How well predictions from before a session came true, by steps ahead."""
    return _table(HORIZON_HEAD, map(horizon_cells, _foresight(name).horizons))


def score_table(name: str) -> str:
    """Block scores against the benefit of shaping single blocks."""
    return _table(SCORE_HEAD, map(score_cells, _foresight(name).scores))


def calibration_figures(name: str) -> list[ChartFigure]:
    """Predicted against true change of the loss: for each number of steps ahead, the end last."""
    plots = foresight_parts(_foresight(name))[0].blocks[0]
    assert isinstance(plots, Row)
    return [block for block in plots.blocks if isinstance(block, ChartFigure)]


def _foresight(name: str) -> ForesightResult:
    return ForesightResult.from_dict(_record("foresight", name))


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    return "\n".join([_line(head), f"|{'---:|' * len(head)}", *map(_line, rows)])


def _record(kind: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RECORDS / kind / f"{name}.json").read_text())
    return found


def _line(cells: tuple[object, ...]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _estimate(found: dict[str, float] | None) -> str:
    if found is None:
        return "-"
    error = f" ± {found['error']:.1g}" if found["error"] else ""
    return f"{found['value']:.3g}{error}"
