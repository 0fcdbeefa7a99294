"""Run a program as if only some distributions were installed: the others' modules are not found.

``python only_some_packages.py EXTRA PROGRAM``: what stays is what
``pip install "risegrad[EXTRA]"`` brings ("" for the core), by ``pyproject.toml`` and by the
metadata of what is installed here. It is quick and needs no network; it cannot see a wrong version
or a file that the wheel lacks (``test_wheel.py`` does).
"""

import sys
import sysconfig
import tomllib
from collections.abc import Iterator
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = tomllib.loads(Path(__file__).parents[2].joinpath("pyproject.toml").read_text("utf-8"))[
    "project"
]


INSTALLED = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}


def asked(name: str, extra: str) -> list[str]:
    """The requirements of a distribution; ours as they are written, not as installed."""
    if name == "risegrad":
        return PROJECT["optional-dependencies"][extra] if extra else PROJECT["dependencies"]
    try:
        return requires(name) or []
    except PackageNotFoundError:
        return []


def needed(name: str, extra: str) -> Iterator[Requirement]:
    """What a distribution with an extra asks for on this machine."""
    for found in map(Requirement, asked(name, extra)):
        if found.marker is None or found.marker.evaluate({"extra": extra}):
            yield found


def brought(extra: str) -> set[str]:
    """The distributions that an installation of the package with one extra brings."""
    waiting, seen = [("risegrad", ""), ("risegrad", extra)], set[tuple[str, str]]()
    while waiting:
        name, of = waiting.pop()
        if (name, of) in seen:
            continue
        seen.add((name, of))
        for found in needed(name, of):
            wanted = canonicalize_name(found.name)
            waiting += [(wanted, ""), *((wanted, each) for each in found.extras)]
    return {name for name, _ in seen}


def hidden(here: set[str]) -> set[str]:
    """The top-level modules that nothing of the installation brings."""
    modules = packages_distributions().items()
    return {m for m, by in modules if not {canonicalize_name(name) for name in by} & here}


class Visible:
    """Python's own finder of modules and distributions, which sees only some of them."""

    def __init__(self, extra: str) -> None:
        self.here = brought(extra)
        self.hidden = hidden(self.here)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """None for a hidden module: as if it were not there, also for those who only ask."""
        if name.partition(".")[0] in self.hidden:  # but ray has a copy of one inside itself
            path = [folder for folder in path or sys.path if folder not in INSTALLED]
        return PathFinder.find_spec(name, path, target)

    def find_distributions(self, context: Any) -> Iterator[Any]:
        """Those that stay, for programs that ask for versions."""
        found = PathFinder.find_distributions(context)
        return (each for each in found if canonicalize_name(each.name) in self.here)


if __name__ == "__main__":
    visible, program = Visible(sys.argv[1]), sys.argv[2]
    for module in [name for name in sys.modules if name.partition(".")[0] in visible.hidden]:
        del sys.modules[module]
    sys.meta_path = [visible if finder is PathFinder else finder for finder in sys.meta_path]
    sys.argv = ["rise", *sys.argv[3:]]
    exec(program)
