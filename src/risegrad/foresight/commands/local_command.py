"""``rise local``: are the predictions true? One-step and few-step updates of a real network."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from risegrad.foresight.commands.foresight_arguments import add_output, add_paths, planned, telling

if TYPE_CHECKING:
    from risegrad.foresight.foresight_settings import ForesightSettings

NAME = "local"
SUMMARY = "compare predicted and true changes of the historical loss on a real network"
DESCRIPTION = """\
At checkpoints of a small stream, moves the model by one step and by a few steps of each rule at
several step sizes, measures what happened to the historical loss and compares it with what each
curvature had predicted. Prints a summary and writes local.json and local.html (self-contained).
A killed run with the same settings and folder continues from its last checkpoint.
Needs curvlinops and tqdm: pip install "risegrad[curvature,lab]"."""
EXAMPLES: tuple[str, ...] = (
    "rise local experiments/local/vit.toml --model WEIGHTS --data IMAGES.npz",
    "rise local experiments/local/t5.toml --model MODEL_FOLDER --data TASK_FOLDER --out results",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``rise local``."""
    add_paths(parser)
    add_output(parser, "out/local")


def plan(args: argparse.Namespace) -> Callable[[], int]:
    """Check the arguments and return the job."""
    return planned(args, execute)


def execute(settings: ForesightSettings, out: Path, quiet: bool) -> int:
    """Build, move, measure, write, and say so."""
    from risegrad.common.atomic_files import output_folder, write_json, write_text
    from risegrad.foresight.local_checkpoint import forget_parts
    from risegrad.foresight.local_report import local_page, local_summary
    from risegrad.foresight.local_validation import run_local

    folder = output_folder(out)
    with telling(quiet) as tell:
        found = run_local(settings, tell, folder)
    write_json(folder / "local.json", found.to_dict())
    write_text(folder / "local.html", local_page(found))
    forget_parts(settings, folder)
    if not quiet:
        print(local_summary(found))
        print(f"\nwrote {folder / 'local.json'}\nwrote {folder / 'local.html'}")
    return 0
