"""What docs/foresight.md shows can be used as it stands."""

import re
import tomllib
from pathlib import Path

from risegrad import curvature
from risegrad.curvature.products import KINDS
from riselab.commands import calibrate, local
from riselab.commands import diagnose as diagnose_command
from riselab.foresight.settings import read_sections

PAGE = (Path(__file__).parents[2] / "docs" / "foresight.md").read_text(encoding="utf-8")


def test_the_sections_it_shows_can_be_read():
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    diagnosis, validation = read_sections(tomllib.loads(text))
    assert diagnosis.task == 2
    assert validation.steps == (1, 4)


def test_the_names_it_uses_exist():
    for room, names in ((curvature, ("ProductBudget", "diagnose", "Measurement")),):
        for name in names:
            assert name in PAGE
            assert callable(getattr(room, name))
    rows = re.findall(r"^\| `([a-z-]+)`", PAGE, re.MULTILINE)
    assert rows == [*KINDS]
    for command in (calibrate, diagnose_command, local):
        assert f"rise {command.NAME} " in PAGE
