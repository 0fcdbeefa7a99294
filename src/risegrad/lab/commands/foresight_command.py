"""``rise foresight``: were predictions right? Runs learned with a look ahead at each session."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from risegrad.lab.commands.lab_arguments import add_experiment

if TYPE_CHECKING:
    from risegrad.lab.commands.foresight_study import Study

NAME = "foresight"
SUMMARY = "learn an experiment's runs with predictions before each session, and compare"
DESCRIPTION = """\
Learns every run of an experiment (or those of --only and --seeds) as 'rise run' does. Before each
session the change of the earlier tasks' losses is predicted, from products with their curvature and
the run's own first step; then it is compared with what the session did, so many steps ahead and at
its end, and with the points forgotten. Then single blocks are shaped alone, to see whether the
paper's block scores tell which of them are worth it. Writes foresight.json and foresight.html below
--out; a killed one goes on with the next run.
Needs curvlinops and tqdm: pip install "risegrad[curvature,lab]"."""
EXAMPLES: tuple[str, ...] = (
    "rise foresight turned-digits --seeds 0",
    "rise foresight turned-digits --only RISE --set validation.horizons=[1,8]",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``rise foresight``."""
    add_experiment(parser)
    parser.add_argument("--quiet", action="store_true", help="no progress, no summary")


def plan(args: argparse.Namespace) -> Callable[[], int]:
    """Check the arguments and return the job."""
    from risegrad.lab.commands.foresight_study import study_of

    study, quiet = study_of(args), bool(args.quiet)
    return lambda: execute(study, quiet)


def execute(study: Study, quiet: bool) -> int:
    """Follow the runs, write, and say so."""
    from risegrad.common.atomic_files import output_folder, write_json, write_text
    from risegrad.foresight.foresight_report import foresight_page, foresight_summary
    from risegrad.foresight.measuring_display import telling

    folder = output_folder(study.folder)
    with telling(quiet) as tell:
        found = study.run(tell)
    write_json(folder / "foresight.json", found.to_dict())
    write_text(folder / "foresight.html", foresight_page(found))
    if not quiet:
        print(foresight_summary(found))
        print(f"\nwrote {folder / 'foresight.json'}\nwrote {folder / 'foresight.html'}")
    return 0
