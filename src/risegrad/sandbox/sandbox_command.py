"""``rise sandbox``: arguments, and the job they describe.

Nothing heavy is imported here: ``rise --help`` must be quick, and matplotlib is an optional extra.
"""

import argparse
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from risegrad.common.optional_imports import need

NAME = "sandbox"
SUMMARY = "measure the theory on quadratics with known curvature; figures and one JSON"
DESCRIPTION = """\
Draws randomized shapes on quadratics whose curvature is known and compares the results with the
closed forms: the paper's figures, the exposure panel, a rotated repeat, trajectories of many steps
under five rules, signal beside deviation over dimensions and block sizes, and rules that are told
the curvature. Writes sandbox.json and seven figures (PNG and SVG), prints a summary.
Needs matplotlib and tqdm: pip install "risegrad[lab]"."""
EXAMPLES: tuple[str, ...] = (
    "rise sandbox",
    "rise sandbox --out results --seed 1",
    "rise sandbox --d 128 --q 1 --spectrum spiked:4,20",
)

# Defaults are those of SandboxSettings, repeated here as text only because importing them would
# import torch; a test keeps the two equal.
NUMBERS = {
    "d": "dimension of the quadratic, at least 2 (default 64)",
    "q": "random directions per shape, at least 1 (default 4)",
    "samples": "Monte Carlo samples per point, at least 640 (default 24000)",
    "seed": "seed of all random numbers (default 0)",
    "large_d": "dimension of the blockwise panel (default 256)",
    "block": "block size there; must divide --large-d (default 16)",
    "steps": "steps of the trajectories (default 40)",
}
SPECTRUM = """eigenvalues of the curvature, scaled to average 1: powerlaw:P, logspace:DECADES,
spiked:K,RATIO (K values RATIO times the rest) or file:PATH (default powerlaw:1)"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``rise sandbox``."""
    out = "folder for the results, created if missing (default %(default)s)"
    parser.add_argument("--out", default="out/sandbox", metavar="DIR", help=out)
    for name, text in NUMBERS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="N", help=text)
    parser.add_argument("--spectrum", metavar="KIND", help=SPECTRUM)
    parser.add_argument("--quiet", action="store_true", help="no progress bar, no summary")


def plan(args: argparse.Namespace) -> Callable[[], int]:
    """Check the arguments (an error here is the user's) and return the job (an error is ours)."""
    from risegrad.sandbox.sandbox_settings import SandboxSettings

    names = [*NUMBERS, "spectrum"]
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    settings = SandboxSettings(**given)
    out, quiet = Path(args.out), bool(args.quiet)
    return lambda: execute(settings, out, quiet)


def execute(settings: Any, out: Path, quiet: bool) -> int:
    """Measure, draw, write, and say so."""
    tqdm = need("tqdm", "lab")
    need("matplotlib", "lab")
    from risegrad.common.atomic_files import output_folder, write_json
    from risegrad.sandbox.figures.figure_files import draw_all
    from risegrad.sandbox.sandbox_report import record
    from risegrad.sandbox.sandbox_run import STAGES, run
    from risegrad.sandbox.sandbox_summary import summary
    from risegrad.sandbox.simulate import one_thread

    folder = output_folder(out)
    started, clock, cpu = datetime.now(UTC), time.perf_counter(), time.process_time()
    hidden = quiet or not sys.stderr.isatty()
    with tqdm.tqdm(total=STAGES + 1, disable=hidden, bar_format=BAR, file=sys.stderr) as bar:
        begin = _stepper(bar)
        with one_thread():
            results = run(settings, begin)
        begin("figures")
        figures = draw_all(results, folder)
        bar.update()
    content = record(results) | {
        "figures": [path.name for path in figures],
        "run": {
            "started": started.isoformat(timespec="seconds"),
            "seconds": round(time.perf_counter() - clock, 1),
            "cpu_seconds": round(time.process_time() - cpu, 1),
        },
    }
    path = folder / "sandbox.json"
    write_json(path, content)
    if not quiet:
        print(summary(results, [path, *figures]))
    return 0


BAR = "{desc:<34} {percentage:3.0f}%|{bar}| {elapsed}"


def _stepper(bar: Any) -> Callable[[str], None]:
    """Moves the bar when the next stage begins: the work before it is then done."""

    def begin(words: str) -> None:
        if begun:
            bar.update()
        begun.append(words)
        bar.set_description_str(words)

    begun: list[str] = []
    return begin
