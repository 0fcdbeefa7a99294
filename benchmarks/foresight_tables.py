"""Tables of local validations, diagnoses and the study of foresight, from their records."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from risegrad.curvature.diagnosis.report import RULE_HEAD, decision, rule_cells
from risegrad.curvature.diagnosis.rules import RuleForecast
from riselab.common.settings import read

RECORDS = Path(__file__).parents[1] / "experiments" / "records"
END = 0
"""Stands for the end of the session among the numbers of steps."""


def agreement_table(name: str) -> str:
    """How well each curvature foretold the updates, by their number of steps."""
    head = (
        "steps", "curvature", "updates", "rank corr.", "damage corr.", "sign", "RISE against FO",
        "median error",
    )  # fmt: skip
    rows = [
        (steps, row["curvature"], row["count"], _number(row["rank_correlation"]),
         _number(row["damage_correlation"]), _percent(row["sign_agreement"]),
         _percent(row["better_agreement"]), f"{row['relative_error']:.2g}")
        for steps, found in _record("local", name)["agreement_by_steps"].items() for row in found
    ]  # fmt: skip
    return _table(head, rows, "|---:|---|" + "---:|" * 6)


def diagnosis_table(name: str) -> str:
    """The decision, and the rules at equal progress."""
    rules = [read(RuleForecast, row, foreign=True) for row in _record("diagnosis", name)["rules"]]
    table = _table(RULE_HEAD, map(rule_cells, rules), f"|---|{'---:|' * 5}")
    return f"> {decision(rules)}\n\n{table}"


def foresight_names() -> list[str]:
    """The experiments whose foresight has a record."""
    return sorted(path.stem for path in (RECORDS / "foresight").glob("*.json"))


def foresight_overview() -> str:
    """How many pairs of methods each stream's predictions put in order, by steps ahead."""
    head = "stream", "sessions", "in order 1 step ahead", "4 steps ahead", "at the session's end"
    rows = []
    for name in foresight_names():
        record = _record("foresight", name)
        ordered = {row["steps"]: _percent(row["ordered"]) for row in record["horizons"]}
        rows.append((name, len(record["sessions"]), *(ordered[steps] for steps in (1, 4, END))))
    return _table(head, rows, "|---|" + "---:|" * 4)


def score_table() -> str:
    """Block scores after one step, against the benefit of shaping single blocks."""
    head = "stream", "score", "blocks", "rank corr. with benefit", "beyond a smaller step"
    rows = [
        (name, row["score"], row["benefit"]["count"], _ranked(row["benefit"]),
         _ranked(row["beyond"]))
        for name in foresight_names()
        for row in _record("foresight", name)["scores"] if row["steps"] == 1
    ]  # fmt: skip
    return _table(head, rows, "|---|---|" + "---:|" * 3)


def _record(kind: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RECORDS / kind / f"{name}.json").read_text())
    return found


def _table(head: Iterable[object], rows: Iterable[Iterable[object]], align: str) -> str:
    return "\n".join([_line(head), align, *map(_line, rows)])


def _line(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _ranked(found: Mapping[str, Any]) -> str:
    return f"{found['value']:.2f} ({found['low']:.2f} to {found['high']:.2f})"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"
