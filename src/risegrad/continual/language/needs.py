"""What a run in language needs: texts, weights, room. Its packages are needed to read settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from risegrad.continual.language.build import build_stream
from risegrad.continual.language.hub import HUB
from risegrad.continual.language.model import LanguageModelSettings, check_folder
from risegrad.continual.language.settings import LanguageStreamSettings
from risegrad.continual.needs import (
    Known,
    checkpoint_bytes,
    complaint,
    missing_extras,
    off_hub,
    once,
)

if TYPE_CHECKING:
    from risegrad.continual.language.run import LanguageRun

LARGE = {"d_model": 1024, "num_layers": 24}  # T5-large, where a model's own shape is not known


def needs(settings: LanguageRun, known: Known) -> dict[str, Any]:
    """``missing``: a sentence each, with the way to get it; ``bytes`` of its checkpoints."""
    missing = once(known, _data, settings.stream) + once(known, _weights, settings.model)
    trained = _lora(settings.model) * len(settings.stream.order)  # hosts may keep one per task
    return {"missing": missing, "bytes": checkpoint_bytes(trained)}


def _data(stream: LanguageStreamSettings) -> list[str]:
    """Files are small and read here; data sets on the hub are only looked for."""
    if stream.source == "folder":
        return complaint(lambda: build_stream(stream))
    if lacking := missing_extras(["datasets"], "language", "stream.source=hub"):
        return lacking
    places = dict.fromkeys(HUB[name].path for name in stream.order)
    return [
        f"the dataset {place!r} is {why}: give files with --set stream.source=folder "
        "--set stream.data=FOLDER"
        for place in places
        if (why := off_hub(place, "dataset"))
    ]


def _weights(model: LanguageModelSettings) -> list[str]:
    if model.weights:
        return complaint(lambda: check_folder(Path(model.weights).expanduser()))
    if why := off_hub(model.name):
        return [
            f"model.name {model.name!r} is {why}: give a folder with its files as "
            "--set model.weights=FOLDER"
        ]
    return []


def _lora(model: LanguageModelSettings) -> int:
    """About: two layers in each attention of an encoder and a decoder."""
    try:
        known = json.loads((Path(model.weights).expanduser() / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        known = {}
    width = known.get("d_model") or known.get("hidden_size") or LARGE["d_model"]
    layers = known.get("num_layers") or known.get("num_hidden_layers") or LARGE["num_layers"]
    return 2 * model.rank * int(width) * 2 * 3 * int(layers)
