"""Arguments that several commands of the lab share, and what they mean."""

import argparse
from pathlib import Path

OUT = "out/runs"


def add_experiment(parser: argparse.ArgumentParser) -> None:
    """The experiment, and the arguments that change or choose its runs."""
    text = "the name of an experiment ('rise list experiments') or a TOML file"
    parser.add_argument("experiment", metavar="EXPERIMENT", help=text)
    out = "folder of the runs (default %(default)s)"
    parser.add_argument("--out", type=Path, default=Path(OUT), metavar="DIR", help=out)
    text = "replace a value in every row, e.g. rule.q=8; may be repeated"
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=text)
    text = (
        "only this row or section, or runs whose id starts with this; may be repeated (default: "
        "what the file says, or all; 'all': every row)"
    )
    parser.add_argument("--only", action="append", default=[], metavar="LABEL", help=text)
    parser.add_argument("--seeds", metavar="0,1,2", help="use these seeds in place of the file's")
    add_plugin(parser)


def add_plugin(parser: argparse.ArgumentParser) -> None:
    """The plugins to load beside those that are installed."""
    text = "a module or .py file with your own hosts, rules, streams, ...; may be repeated"
    parser.add_argument("--plugin", action="append", default=[], metavar="FILE", help=text)


def load_plugins(args: argparse.Namespace) -> None:
    """Load the plugins that are installed and those that were named."""
    from riselab import plugins

    plugins.load(args.plugin)


def overrides(args: argparse.Namespace) -> list[str]:
    """The values of ``--set`` and ``--seeds`` as ``key=value``."""
    if args.seeds is None:
        return list(args.set)
    try:
        seeds = [int(word) for word in args.seeds.split(",")]
    except ValueError:
        raise ValueError(f"--seeds must be integers like 0,1,2, got {args.seeds!r}") from None
    return [*args.set, f"seeds={seeds}"]
