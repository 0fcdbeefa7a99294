"""Paths and modules that the documentation names exist."""

import re
from importlib import import_module
from pathlib import Path

import pytest

from risegrad.moved import MOVED

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
DOTTED = re.compile(r"\brise(?:grad|lab)(?:\.[A-Za-z_]\w*)+")
PATH = re.compile(r"`((?:src|tests|docs|benchmarks|examples|experiments)/[\w./-]*)`")


def exists(dotted):
    """Whether it is a module, an old name of one, or a name (of a name) in one."""
    if dotted in MOVED:
        return True
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        except ImportError as error:  # an integration whose package is not installed here
            return "pip install" in str(error)
        for name in parts[cut:]:
            if not hasattr(found, name):
                return False
            found = getattr(found, name)
        return True
    return False


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_modules_and_paths_exist(page):
    text = page.read_text(encoding="utf-8")
    for dotted in sorted(set(DOTTED.findall(text))):
        if not dotted.endswith((".md", ".git", ".json")):
            assert exists(dotted), dotted
    for path in sorted(set(PATH.findall(text))):
        assert (ROOT / path).exists(), path
