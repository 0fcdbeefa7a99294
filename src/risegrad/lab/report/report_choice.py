"""What was chosen on validation data: a sentence, and the figures that decided."""

from __future__ import annotations

from risegrad.common.intervals import spread
from risegrad.lab.experiments.selection import Choice, in_words
from risegrad.lab.report.experiment_tables import measured
from risegrad.lab.report.result_rows import ReportedExperiment
from risegrad.pages.page_tables import Column, Line, Table, TableCell, by_section

CHOSEN = "chosen"


def choice_sentence(experiment: ReportedExperiment) -> str:
    """Which setting each method got, and by what; empty where none was chosen."""
    if not experiment.choices:
        return ""
    by = " and ".join(dict.fromkeys(in_words(choice.by) for choice in experiment.choices))
    said = "; ".join(choice.sentence for choice in experiment.choices)
    return f"Settings chosen by {by}, in which test data had no part: {said}."


def choice_table(experiment: ReportedExperiment) -> Table | None:
    """Every setting that was tried, its figures on validation data, and which one was taken."""
    if not experiment.choices:
        return None
    lines = [(_heading(choice), line) for choice in experiment.choices for line in _lines(choice)]
    return Table(
        f"Choice of settings in {experiment.name}, on validation data, in percent: mean ± standard "
        "deviation over seeds",
        "Setting",
        (
            Column("Chosen by", better=1, explanation="what decides, over the seeds that all have"),
            Column("Seeds", explanation="number of runs that all settings of the method have"),
            Column("In words", text=True),
        ),
        by_section(lines),
        ("These figures decide and are no results: none of them is from test data.",),
    )


def _heading(choice: Choice) -> str:
    name = f"{choice.section}: {choice.method}" if choice.section else choice.method
    return f"{name}, by {in_words(choice.by)}"


def _lines(choice: Choice) -> list[Line]:
    seeds = TableCell(str(len(choice.seeds)), order=len(choice.seeds))
    found = []
    for setting, by_seed in choice.scores.items():
        value = measured(spread(by_seed[seed] for seed in choice.seeds))
        words = TableCell(CHOSEN if setting == choice.setting else "")
        found.append(Line(setting, (value, seeds, words)))
    return found
