"""After the runs that decide: which point of each sweep is chosen, and the runs that follow."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from risegrad.lab.experiments.experiment_file import Experiment
from risegrad.lab.experiments.run_cells import Chosen, RunCell, expand
from risegrad.lab.experiments.selection import Choice, choices
from risegrad.lab.experiments.setting_layers import ReadConfig
from risegrad.lab.records.record import Record, TableRow, read_record
from risegrad.lab.records.record_reader import RecordError
from risegrad.lab.running.run_folder import RECORD


def decided(cells: Sequence[RunCell], out: Path) -> list[Choice]:
    """The choices of the methods whose deciding runs are all done."""
    deciding = [cell for cell in cells if cell.row.decides]
    records: list[Record] = []
    for cell in deciding:
        with suppress(RecordError):  # not run, or failed: its method waits
            records.append(read_record(out / cell.folder / RECORD))
    wanted = Counter((cell.row.section, cell.row.method) for cell in deciding)
    found = Counter((record.row.section, record.row.method) for record in records)
    return [c for c in choices(records) if found[of := (c.section, c.method)] == wanted[of]]


def selected(
    experiment: Experiment, found: Sequence[Choice], read_config: ReadConfig
) -> list[RunCell]:
    """The runs on test data of what was chosen."""
    cells = expand(experiment, read_config, chooser(found))
    return [cell for cell in cells if cell.row.chosen_by]


def chooser(found: Sequence[Choice]) -> Chosen:
    """Says of a row whether it is the chosen point of its method."""
    settings = {(choice.section, choice.method): choice.setting for choice in found}

    def chosen(row: TableRow) -> bool:
        return settings.get((row.section, row.method)) == row.swept

    return chosen
