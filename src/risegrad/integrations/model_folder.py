"""What rides in a saved model's folder: ``risegrad.json``, and a section of its model card."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from risegrad.common.atomic_files import write_json
from risegrad.integrations.kept_scores import KeptScore

if TYPE_CHECKING:
    from risegrad.integrations.forgetting_meter import ForgettingMeter

FILE = "risegrad.json"
CARD = "README.md"
BEGIN, END = "<!-- risegrad -->", "<!-- end of risegrad -->"


def sign(
    folder: Path, rules: Sequence[Mapping[str, Any]], meter: ForgettingMeter | None = None
) -> None:
    """Write settings and, with a meter, what was measured; what another callback wrote stays."""
    content = read_signature(folder) | {"rules": [dict(rule) for rule in rules]}
    if meter is not None:
        content["forgetting"] = [_reading(meter.start), _reading(meter.last)]
    write_json(folder / FILE, content)
    card = folder / CARD
    if card.is_file() or (folder / "adapter_config.json").is_file():
        old = card.read_text(encoding="utf-8") if card.is_file() else ""
        card.write_text(_with_section(old, "\n".join(_section(content))), encoding="utf-8")


def read_signature(folder: Path) -> dict[str, Any]:
    """What ``sign`` wrote into a folder; empty where nothing is."""
    path = folder / FILE
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found


def first_scores(folder: Path) -> dict[str, KeptScore]:
    """The scores from before training, as a signed folder has them."""
    readings = read_signature(folder).get("forgetting") or [{"scores": {}}]
    return {
        name: KeptScore(**{part: _float(value) for part, value in score.items()})
        for name, score in readings[0]["scores"].items()
    }


def _reading(reading: Any) -> dict[str, Any]:
    scores = {
        name: {"loss": _plain(score.loss), "percent": _plain(score.percent)}
        for name, score in reading.scores.items()
    }
    rises = {name: _plain(rise) for name, rise in reading.rises.items()}
    return {"step": reading.step, "scores": scores, "rises": rises}


def _plain(value: float) -> float | None:
    """As JSON has it: null for what is no number, such as the loss of a run that diverged."""
    return value if math.isfinite(value) else None


def _float(value: float | None) -> float:
    return math.nan if value is None else value


def _section(content: Mapping[str, Any]) -> Iterator[str]:
    yield "## Training with risegrad"
    yield ""
    for rule in content["rules"]:
        shown = {n: v for n, v in rule.items() if n not in ("rule", "layout") and v not in ([], 0)}
        settings = ", ".join(f"{name} = {value}" for name, value in shown.items())
        yield f"Rule: {rule['rule']} ({settings})."
    if not content["rules"]:
        yield "Rule: plain training."
    if "forgetting" in content:
        start, end = content["forgetting"]
        yield ""
        yield f"| task | before | after step {end['step']} | loss before | loss after |"
        yield "|---|---:|---:|---:|---:|"
        for name, before in start["scores"].items():
            after, kind = end["scores"][name], "kept" if name in end["rises"] else "new"
            percents = [f"{_float(score['percent']):.1f} %" for score in (before, after)]
            losses = [f"{_float(score['loss']):.4f}" for score in (before, after)]
            yield f"| {name} ({kind}) | {' | '.join(percents + losses)} |"


def _with_section(card: str, section: str) -> str:
    """The card with our section in the place of an older one, or at the end."""
    whole = f"{BEGIN}\n{section}\n{END}"
    if BEGIN in card and END in card:
        head, _, rest = card.partition(BEGIN)
        return head + whole + rest.partition(END)[2]
    return f"{card.rstrip()}\n\n{whole}\n".lstrip()
