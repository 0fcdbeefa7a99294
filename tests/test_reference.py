"""The reference in docs/ shows every public name of the rooms that users import from."""

import re
from importlib import import_module
from pathlib import Path

import pytest

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
SHOWN = {
    found
    for page in REFERENCE.glob("*.md")
    for found in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
}
ROOMS = (
    "risegrad",
    "risegrad.theory",
    "risegrad.zeroth_order",
    "risegrad.curvature",
    "risegrad.memory",
    "riselab",
)


@pytest.mark.parametrize("room", ROOMS)
def test_every_public_name_is_shown(room):
    module = import_module(room)
    for name in module.__all__:
        value = getattr(module, name)
        home = getattr(value, "__module__", None)
        if home is not None and home.startswith(
            ("risegrad", "riselab")
        ):  # constants do not know their home
            assert {home, f"{home}.{name}"} & SHOWN, f"{room}.{name} is on no page"


def test_what_is_shown_exists():
    for path in SHOWN:
        room, _, name = path.rpartition(".")
        try:
            assert hasattr(import_module(room), name) or import_module(path), path
        except ModuleNotFoundError:
            raise
        except ImportError as error:  # an integration whose package is not installed here
            if "pip install" not in str(error):
                raise
