"""What a grid came to: the table in the terminal."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from risegrad.common.text_columns import text_columns
from risegrad.lab.experiments.run_cells import RunCell
from risegrad.lab.records.record import Record, read_record
from risegrad.lab.records.record_reader import RecordError
from risegrad.lab.report.rows import gather
from risegrad.lab.report.tables import results as results_table
from risegrad.lab.running.run_folder import RECORD
from risegrad.pages.text import visible


def results(cells: Sequence[RunCell], out: Path) -> str:
    """Mean ± standard deviation over seeds, a line per row, as ``rise report`` has them."""
    found, _ = gather(_records(cells, out))
    return "\n".join(line for one in found for line in results_table(one).plain())


def _records(cells: Sequence[RunCell], out: Path) -> Iterator[Record]:
    for cell in cells:
        try:
            yield read_record(out / cell.folder / RECORD)
        except RecordError:
            continue  # failed, or not run


def columns(table: Sequence[Sequence[str]], right: bool = True) -> str:
    """What files say, in columns, without characters that act instead of showing."""
    return "\n".join(text_columns([[visible(text) for text in row] for row in table], right))
