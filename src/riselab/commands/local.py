"""``rise local``: are single predictions true? Updates of one step and of a few, measured."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from riselab.commands.session_choice import add_choice, chosen, telling

if TYPE_CHECKING:
    from riselab.commands.session_choice import SessionChoice

NAME = "local"
SUMMARY = "compare predicted and true changes of what a run has learned, step by step"
DESCRIPTION = """\
Takes a run to a point of its stream as 'rise diagnose' does, moves the model by one step and by a
few steps of each rule at several step sizes, measures what happens to the earlier tasks' losses,
and compares that with what each curvature predicted. It prints a summary and writes local.json
below --out.
Needs curvlinops and tqdm: pip install "risegrad[curvature,lab]"."""
EXAMPLES: tuple[str, ...] = (
    "rise local turned-digits --only RISE",
    "rise local turned-digits --task 3 --set validation.steps=[1,8]",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``rise local``."""
    add_choice(parser)


def plan(args: argparse.Namespace) -> Callable[[], int]:
    """Check the arguments and return the job."""
    choice, quiet = chosen(args), bool(args.quiet)
    return lambda: execute(choice, quiet)


def execute(choice: SessionChoice, quiet: bool) -> int:
    """Reach the point, move, measure, write, and say so."""
    from risegrad.common.files import output_folder, write_json
    from riselab.foresight.local_validation import LocalSettings, run_local
    from riselab.foresight.session_diagnosis import problem_at
    from riselab.records.record import provenance

    output_folder(choice.out)  # fails now; its folder comes when there is a point
    folder = choice.folder("local")
    with telling(quiet) as tell:
        point = choice.reach(folder, tell)
        output_folder(folder)
        settings = LocalSettings(
            choice.diagnosis, choice.validation, choice.subject(point), choice.cell.id
        )
        found = run_local(
            settings,
            lambda steps: problem_at(point, choice.shaped_like, choice.diagnosis, steps),
            tell,
        )
    found = replace(found, environment=provenance())
    write_json(folder / "local.json", found.to_dict())
    if not quiet:
        print(f"{settings.subject}\n{choice.choice}\n\n{found}")
        print(f"\nwrote {folder / 'local.json'}")
    return 0
