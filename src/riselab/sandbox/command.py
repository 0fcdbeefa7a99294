"""``rise sandbox``: arguments, and the job they describe.

Nothing heavy is imported here: ``rise --help`` must be quick, and matplotlib is an optional extra.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from risegrad.common.imports import need
from risegrad.common.text_columns import text_columns

NAME = "sandbox"
SUMMARY = "measure the theory on quadratics with known curvature, and draw it"
DESCRIPTION = """\
Draws randomized shapes on quadratics whose curvature is known and compares the results with the
closed forms: the paper's figures, the exposure panel, a rotated repeat, trajectories of many steps
under five rules, signal and deviation over dimensions and block sizes, and rules that know the
curvature. Writes seven figures (PNG and SVG) and the paper's numbers beside ours.
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
SPECTRUM = """eigenvalues of the curvature, scaled to average 1: powerlaw:P or spiked:K,RATIO,
which is K values RATIO times the rest (default powerlaw:1)"""


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
    from riselab.sandbox.run import SandboxSettings

    names = [*NUMBERS, "spectrum"]
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    settings = SandboxSettings(**given)
    out, quiet = Path(args.out), bool(args.quiet)
    return lambda: execute(settings, out, quiet)


def execute(settings: Any, out: Path, quiet: bool) -> int:
    """Measure, draw, write, and say so."""
    tqdm = need("tqdm", "lab")
    need("matplotlib", "lab")
    from risegrad.common.files import write_json
    from riselab.common.folders import output_folder
    from riselab.sandbox.figures import draw_all
    from riselab.sandbox.quadratics import one_thread
    from riselab.sandbox.run import STAGES, comparisons, run

    folder = output_folder(out)
    hidden = quiet or not sys.stderr.isatty()
    with tqdm.tqdm(total=STAGES + 1, disable=hidden, bar_format=BAR, file=sys.stderr) as bar:

        def begin(words: str) -> None:
            bar.update()
            bar.set_description_str(words)

        with one_thread():
            results = run(settings, begin)
        figures = draw_all(results, folder)
    rows, path = comparisons(results), folder / "sandbox.json"
    content = {"settings": asdict(settings), "comparison": [asdict(row) for row in rows]}
    write_json(path, content | {"figures": [figure.name for figure in figures]})
    if not quiet:
        print(summary(settings, rows))
        print("", *(f"wrote {file}" for file in (path, *figures)), sep="\n")
    return 0


BAR = "{desc:<34} {percentage:3.0f}%|{bar}| {elapsed}"
PAPERS = {"d": 64, "q": 4, "samples": 24_000, "large_d": 256, "block": 16}


def summary(settings: Any, rows: Sequence[Any]) -> str:
    """Ours beside the paper's, as a table."""
    s = settings
    papers = all(getattr(s, name) == value for name, value in PAPERS.items())
    cells = [("", "ours", "paper", "exact")]
    for row in rows:
        spread = "" if row.spread is None else f" +- {row.spread:.1g}"
        cells.append((row.what, _number(row.ours) + spread, _number(row.paper), _number(row.exact)))
    return "\n".join([
        f"quadratic sandbox: d={s.d}, q={s.q}, {s.samples:,} samples, seed {s.seed}, "
        f"spectrum {s.spectrum}",
        "",
        *text_columns(cells, right=False),
        "",
        "The paper does not give its spectrum; ours is a choice (--spectrum sets another).",
        *([] if papers else ["The paper's numbers are of other settings."]),
    ])  # fmt: skip


def _number(value: float | None) -> str:
    """Small ones with an exponent, the others with up to six figures.

    >>> _number(0.0157), _number(0.9999969), _number(None)
    ('1.57e-02', '0.999997', '-')
    """
    if value is None:
        return "-"
    if 0 < abs(value) < 0.1:
        return f"{value:.2e}"
    return f"{value:.6g}" if 0.99 < value < 1 else f"{value:.3g}"
