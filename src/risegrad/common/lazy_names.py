"""Names of a package that are looked up when first used: `rise --help` must not wait for torch."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module

from risegrad.common.optional_imports import explained


def lookup(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """The ``__getattr__`` of a package: ``homes`` says in which module of it each name stands."""

    def find(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            value = getattr(import_module(f"{package}.{homes[name]}"), name)
        except ImportError as error:
            raise explained(error) from error
        setattr(sys.modules[package], name, value)  # found without this function from now on
        return value

    return find
