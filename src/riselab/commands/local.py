"""``rise local``: are single predictions true? Updates of one step and of a few, measured."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from riselab.commands.diagnose import Measured, Tell, add_choice, chosen, measure

if TYPE_CHECKING:
    from riselab.commands.diagnose import SessionChoice
    from riselab.foresight.reached_point import ReachedPoint

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
    choice = chosen(args)
    return lambda: measure(choice, "local", args.quiet, partial(moved, choice))


def moved(choice: SessionChoice, point: ReachedPoint, tell: Tell) -> Measured:
    """Updates from the point, predicted and measured."""
    from riselab.foresight.local_validation import LocalSettings, run_local
    from riselab.foresight.session import SessionProblem, rise_of

    settings = LocalSettings(
        choice.diagnosis, choice.validation, choice.subject(point), choice.cell.id
    )
    problem = SessionProblem.of(point, rise_of(choice.shaped_like), choice.diagnosis)
    return run_local(settings, problem, tell)
