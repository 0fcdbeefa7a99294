"""``rise report``: arguments, and the job they describe."""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from riselab.commands.arguments import add_plugin, load_plugins

NAME = "report"
SUMMARY = "turn records into one page and tables, the paper's figures beside ours"
DESCRIPTION = """\
Reads the records of runs and writes one HTML page that needs no network, and beside it the tables
as Markdown. Rows are means over seeds; differences to the baseline are paired by seed, with t
intervals, and the page says in words which of them are more than noise. A file that cannot be used
is named and left out."""
CURVES = 4
"""More cannot be read in a small figure."""
EXAMPLES: tuple[str, ...] = (
    "rise report out",
    "rise report out/cifar out/more/record.json --out results/report.html",
    "rise report out --baseline FO",
    "rise report out --figures figures",
    "rise report out --figures figures --only plain --only keep",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``rise report``."""
    runs = "a record, or a folder to search for *.json files of records"
    parser.add_argument("runs", nargs="+", metavar="RUNS", help=runs)
    out = "the page; the same name with .md goes beside it (default %(default)s)"
    parser.add_argument("--out", default="report.html", metavar="FILE", help=out)
    baseline = "label of the row to compare with (default: what the records mark as the baseline)"
    parser.add_argument("--baseline", metavar="LABEL", help=baseline)
    figures = "also save every chart as SVG and PNG in this folder"
    parser.add_argument("--figures", metavar="DIR", help=figures)
    only = (
        "with --figures: also a small figure of this method, light and dark, that can be read in a "
        "README on a phone; once for each of up to four methods"
    )
    parser.add_argument("--only", action="append", default=[], metavar="METHOD", help=only)
    add_plugin(parser)
    parser.add_argument("--quiet", action="store_true", help="print warnings and errors only")


def plan(args: argparse.Namespace) -> Callable[[], int]:
    """Check the arguments (an error here is the user's) and return the job (an error is ours)."""
    load_plugins(args)
    out = Path(args.out)
    if out.suffix.lower() not in {".html", ".htm"}:
        raise ValueError(f"--out must be a file that ends in .html, got {args.out!r}")
    runs = [Path(run) for run in args.runs]
    for run in runs:
        if not run.exists():
            raise ValueError(f"RUNS must be records or folders, there is no {str(run)!r}")
    figures = None if args.figures is None else Path(args.figures)
    if args.only and figures is None:
        raise ValueError("--only chooses the methods of a figure, so it needs --figures DIR")
    if len(args.only) > CURVES:
        raise ValueError(f"--only must be at most {CURVES} methods, got {len(args.only)}")
    return lambda: execute(runs, out, args, figures)


def execute(runs: list[Path], out: Path, args: argparse.Namespace, figures: Path | None) -> int:
    """Read, compute, write, and say so."""
    from riselab.pages.text import visible
    from riselab.records.record import read_records
    from riselab.report.builder import build, write_report

    baseline = args.baseline
    records, problems = read_records(runs)
    for problem in problems:
        print(f"rise {NAME}: warning: left out {visible(str(problem))}", file=sys.stderr)
    if not records:
        raise RuntimeError(f"no record could be read from {', '.join(map(str, runs))}")
    report = build(records, problems, baseline)
    labels = {row.label for experiment in report.experiments for row in experiment.rows}
    if baseline is not None and baseline not in labels:
        known = visible(", ".join(sorted(labels)))
        raise RuntimeError(f"--baseline must be the label of a row, one of {known}; got {baseline}")
    methods = {method.name for chapter in report.chapters for method in chapter.methods}
    if unknown := set(args.only) - methods:
        known, got = (visible(", ".join(sorted(names))) for names in (methods, unknown))
        raise RuntimeError(f"--only must be a method, one of {known}; got {got}")
    for remark in report.remarks:
        print(f"rise {NAME}: note: {visible(remark)}", file=sys.stderr)
    written = write_report(report, out, figures, args.only)
    if not args.quiet:
        print(report.plain())
        print(f"Wrote {', '.join(os.fspath(path) for path in written)}")
        if figures is not None:
            print(f"Wrote the charts to {os.fspath(figures)}")
    return 0
