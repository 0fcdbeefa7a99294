"""Tables of local validations and diagnoses, from the records of their commands."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from risegrad.foresight.followed_run import END
from risegrad.foresight.forecast_tables import forecast_tables
from risegrad.foresight.foresight_report import (
    HORIZON_HEAD,
    SCORE_HEAD,
    foresight_parts,
    horizon_cells,
    score_cells,
)
from risegrad.foresight.foresight_result import ForesightResult

from risegrad.curvature.diagnosis.report import Diagnosis
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


def diagnosis_table(name: str) -> str:
    """The decision, and the rules at equal progress."""
    found = Diagnosis.from_dict(_record("diagnosis", name))
    table = forecast_tables(found)[0]
    rows = [table.head, *table.cells]
    align = f"|---|{'---:|' * (len(table.head) - 1)}"
    return "\n".join([f"> {found.decision}", "", _line(rows[0]), align, *map(_line, rows[1:])])


def foresight_names() -> list[str]:
    """The experiments whose foresight has a record."""
    return sorted(path.stem for path in (RECORDS / "foresight").glob("*.json"))


def horizon_table(name: str) -> str:
    """How well predictions from before a session came true, by steps ahead."""
    return _table(HORIZON_HEAD, map(horizon_cells, _foresight(name).horizons))


def foresight_overview() -> str:
    """How many pairs of methods each stream's predictions put in order, by steps ahead."""
    rows = [
        "| stream | sessions | in order 1 step ahead | 4 steps ahead | at the session's end |",
        "|---|---:|---:|---:|---:|",
    ]
    for name in foresight_names():
        found = _foresight(name)
        ordered = {row.steps: _percent(row.ordered) for row in found.horizons}
        cells = name, len(found.sessions), *(ordered[steps] for steps in (1, 4, END))
        rows.append(_line(cells))
    return "\n".join(rows)


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
