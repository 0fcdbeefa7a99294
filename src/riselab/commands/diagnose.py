"""``rise diagnose``: a run at a point of its stream, and what every rule's next steps would do."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from riselab.commands.session_choice import Measured, Tell, add_choice, chosen, measure

if TYPE_CHECKING:
    from riselab.commands.session_choice import SessionChoice
    from riselab.foresight.reached_point import ReachedPoint

NAME = "diagnose"
SUMMARY = "predict what each rule's next steps would do to what a run has learned so far"
DESCRIPTION = """\
Takes one run of an experiment (the first that --only leaves) to a point of its stream: that of its
checkpoint in --out, or the end of the earlier tasks, which it then learns first. There it measures
the curvature of the earlier tasks' losses and predicts what the next session's first step would do
to them by each rule: plain, RISE and its controls, informed. It prints a decision with its reasons
and writes diagnosis.json below --out. For a model of your own there is risegrad.diagnose.
Needs curvlinops and tqdm: pip install "risegrad[curvature,lab]"."""
EXAMPLES: tuple[str, ...] = (
    "rise diagnose turned-digits --only RISE",
    "rise diagnose turned-digits --task 3 --set diagnosis.examples=128",
    "rise diagnose my/experiment.toml --only FO --out out/runs",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``rise diagnose``."""
    add_choice(parser)


def plan(args: argparse.Namespace) -> Callable[[], int]:
    """Check the arguments and return the job."""
    choice = chosen(args)
    return lambda: measure(choice, "diagnosis", args.quiet, partial(diagnosed, choice))


def diagnosed(choice: SessionChoice, point: ReachedPoint, tell: Tell) -> Measured:
    """The diagnosis at the point."""
    from riselab.foresight.session_diagnosis import diagnose_session

    return diagnose_session(
        point, choice.shaped_like, choice.diagnosis, choice.subject(point),
        lambda done, most: tell("curvature products", f"{done}/{most}"),
    )  # fmt: skip
