"""Text from records, made safe for each place it is shown in, and numbers as text."""

from __future__ import annotations

import json
import re
import unicodedata
from functools import lru_cache
from typing import Any

from riselab.common.intervals import Estimate

MISSING = "–"  # noqa: RUF001
_INVISIBLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


@lru_cache(maxsize=4096)
def visible(text: str) -> str:
    """One line without control characters, such as terminal codes and bidi overrides."""
    return _harmless(re.sub(r"\s+", " ", text))


def visible_lines(text: str) -> str:
    """The same for a text of several lines, which keep their indentation."""
    return "\n".join(_harmless(line.expandtabs().rstrip()) for line in text.splitlines())


def _harmless(text: str) -> str:
    return "".join(
        "\ufffd" if unicodedata.category(character) in _INVISIBLE else character
        for character in text
    )


def for_markdown(text: str) -> str:
    """For the inside of a line: backslashes where every dialect knows them, entities elsewhere."""
    escaped = re.sub(r"[&<>|~$]", lambda found: f"&#{ord(found[0])};", visible(text))
    return re.sub(r"([\\`*_\[\]])", r"\\\1", escaped)


def for_script(data: Any) -> str:
    """JSON that cannot end its script element nor a line of JavaScript, wherever it stands."""
    text = json.dumps(data, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def number(value: float, digits: int = 2) -> str:
    """A number with a real minus sign, and commas between thousands."""
    return _minus(f"{value:,.{digits}f}")


def signed(value: float, digits: int = 2) -> str:
    """A number that always has a sign."""
    return _minus(f"{value:+.{digits}f}")


def plural(count: int, word: str) -> str:
    """A count with its word, in the plural unless it is one."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def _minus(text: str) -> str:
    """A real minus sign, and none before a zero that rounding made."""
    return text.replace("-", "−") if text.strip("-+0.") else text.replace("-", "")  # noqa: RUF001


def spread_text(found: Estimate | None, digits: int = 2) -> str:
    """``88.39 ± 0.42``, or the mean alone where there is no deviation."""
    if found is None:
        return MISSING
    sd = "" if found.sd is None else f" ± {number(found.sd, digits)}"
    return f"{number(found.mean, digits)}{sd}"


def interval_text(found: Estimate, digits: int = 2) -> str:
    """The ends in brackets, or that there are none."""
    if found.low is None or found.high is None:
        return "(no interval)"
    return f"[{signed(found.low, digits)}, {signed(found.high, digits)}]"
