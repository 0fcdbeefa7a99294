"""What a grid came to: the table in the terminal."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from risegrad.common.intervals import spread
from risegrad.common.text_columns import text_columns
from risegrad.lab.experiments.run_cells import RunCell
from risegrad.lab.records.record import Record, read_record
from risegrad.lab.records.record_reader import RecordError
from risegrad.lab.running.run_folder import RECORD
from risegrad.pages.text import visible

COLUMNS = {"Avg": "avg", "Last": "last", "Fgt": "forgetting"}


def results(cells: Sequence[RunCell], out: Path) -> str:
    """Mean ± standard deviation over seeds, a line per row, in the file's order."""
    rows: dict[str, list[Record]] = {}
    for cell in cells:
        found = rows.setdefault(cell.row.label, [])
        try:
            found.append(read_record(out / cell.folder / RECORD))
        except RecordError:
            continue  # failed, or not run
    head = ["", *COLUMNS, "seeds"]
    body = [[label, *figures(found), str(len(found))] for label, found in rows.items()]
    return columns([head, *body])


def figures(found: Sequence[Record]) -> list[str]:
    """Those of one row, over its seeds; one for each of ``COLUMNS``."""
    return [_figure((one.result.metrics for one in found), name) for name in COLUMNS.values()]


def _figure(metrics: Iterable[Mapping[str, float | None]], name: str) -> str:
    values = spread(found.get(name) for found in metrics)
    if values is None:
        return "-"
    return f"{values.mean:.2f}" + (f" ± {values.sd:.2f}" if values.sd is not None else "")


def columns(table: Sequence[Sequence[str]], right: bool = True) -> str:
    """What files say, in columns, without characters that act instead of showing."""
    return "\n".join(text_columns([[visible(text) for text in row] for row in table], right))
