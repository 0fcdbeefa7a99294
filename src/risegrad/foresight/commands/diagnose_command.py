"""``rise diagnose``: a model, what it must keep and what it is to learn, before anything trains."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from risegrad.foresight.commands.foresight_arguments import (
    add_output,
    add_paths,
    counting,
    planned,
)

if TYPE_CHECKING:
    from risegrad.foresight.foresight_settings import ForesightSettings

NAME = "diagnose"
SUMMARY = "predict before training what FO, RISE and smaller steps do to what a model knows"
DESCRIPTION = """\
Measures the curvature of the historical loss along the incoming gradient and on average, block by
block, and predicts the damage of one step by FO, RISE, scaled FO and covariance noise. Prints
a summary and writes diagnosis.json and diagnosis.html (self-contained, with plots).
Needs curvlinops and tqdm: pip install "risegrad[curvature,lab]"."""
EXAMPLES: tuple[str, ...] = (
    "rise diagnose experiments/local/t5.toml --model MODEL_FOLDER --data DATA_FOLDER",
    "rise diagnose mine.toml --out results",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``rise diagnose``."""
    add_paths(parser)
    add_output(parser, "out/diagnosis")


def plan(args: argparse.Namespace) -> Callable[[], int]:
    """Check the arguments and return the job."""
    return planned(args, execute)


def execute(settings: ForesightSettings, out: Path, quiet: bool) -> int:
    """Build, measure, write, and say so."""
    from risegrad.common.atomic_files import output_folder, write_json, write_text
    from risegrad.core.shapers import Rise
    from risegrad.curvature.estimates.product_budget import ProductBudget
    from risegrad.foresight.diagnosis import diagnose
    from risegrad.foresight.diagnosis_options import BatchLoss, Measurement
    from risegrad.foresight.diagnosis_page import diagnosis_page
    from risegrad.foresight.problem_builder import build

    folder = output_folder(out)
    s = settings.diagnosis
    how = Measurement(
        curvature=s.curvature,  # type: ignore[arg-type]
        budget=ProductBudget.of(s.budget),
        seed=s.seed,
    )
    problem = build(settings)
    with counting(quiet, "curvature products") as progress:
        found = diagnose(
            problem.model, problem.historical, problem.incoming,
            rise=Rise(**asdict(settings.rise)), step=s.step, batch_loss=BatchLoss(problem.loss),
            measurement=how, progress=progress,
        )  # fmt: skip
    write_json(folder / "diagnosis.json", found.to_dict())
    write_text(folder / "diagnosis.html", diagnosis_page(found))
    if not quiet:
        print(found)
        print(f"\nwrote {folder / 'diagnosis.json'}\nwrote {folder / 'diagnosis.html'}")
    return 0
