"""Arguments that several commands of the lab share, and what they mean."""

import argparse
import ast
import functools
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

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
    parser.add_argument("--seeds", metavar="0,1,2", help="use these seeds instead of the file's")
    add_plugin(parser)


def add_plugin(parser: argparse.ArgumentParser) -> None:
    """The plugins to load beside those that are installed."""
    text = "a module or .py file with your own hosts, rules, streams, ...; may be repeated"
    parser.add_argument("--plugin", action="append", default=[], metavar="FILE", help=text)


def load_plugins(args: argparse.Namespace) -> None:
    """Load the plugins that are installed and those that were named."""
    from riselab import plugins

    plugins.load(args.plugin)


@functools.cache
def meanings(cls: type) -> dict[str, str]:
    """The docstrings below the fields of a class and of its bases, each on one line."""
    found: dict[str, str] = {}
    for one in reversed(cls.__mro__):
        if is_dataclass(one):
            found |= dict(_docstrings(one))
    return found


def _docstrings(cls: type) -> Iterator[tuple[str, str]]:
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    for pair in pairwise(tree.body):  # type: ignore[attr-defined]
        match pair:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(ast.Constant(str(text))):
                yield name, " ".join(text.split())


def add_settings(parser: argparse.ArgumentParser, cls: type, metavars: Mapping[str, str]) -> None:
    """An option for each of these fields of a dataclass, explained by the field's docstring."""
    known = {field.name: field for field in fields(cls)}
    for name, metavar in metavars.items():
        default, text = known[name].default, meanings(cls)[name].rstrip(".")
        option: dict[str, Any] = {"action": "store_true"}
        if not isinstance(default, bool):
            kind = type(default) if default is not None else int if metavar == "N" else str
            option = {"type": kind, "default": default, "metavar": metavar}
            shown = f"{default:g}" if isinstance(default, float) else default
            text += f" (default {shown})" if default else ""
        text = text[0].lower() + text[1:].replace("``", "").replace("%", "%%")
        parser.add_argument(f"--{name.replace('_', '-')}", help=text, **option)


def settings_of(cls: type[T], args: argparse.Namespace, **more: Any) -> T:
    """The dataclass with what the arguments say of its fields; lists become tuples."""
    said = {f.name: getattr(args, f.name) for f in fields(cls) if hasattr(args, f.name)}  # type: ignore[arg-type]
    return cls(**{n: tuple(v) if isinstance(v, list) else v for n, v in (said | more).items()})


def silence() -> None:
    """No bars of the Hugging Face libraries: the commands say themselves how far they are."""
    from risegrad.common.imports import absent

    if not absent("transformers"):
        from transformers.utils import logging

        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    if not absent("datasets"):
        import datasets

        datasets.disable_progress_bars()


def overrides(args: argparse.Namespace) -> list[str]:
    """The values of ``--set`` and ``--seeds`` as ``key=value``."""
    if args.seeds is None:
        return list(args.set)
    try:
        seeds = [int(word) for word in args.seeds.split(",")]
    except ValueError:
        raise ValueError(f"--seeds must be integers like 0,1,2, got {args.seeds!r}") from None
    return [*args.set, f"seeds={seeds}"]
