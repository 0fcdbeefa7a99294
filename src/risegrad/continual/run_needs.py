"""What a run needs and may lack, found out before the first run and without loading a model."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from risegrad.common.optional_imports import absent, lack, need
from risegrad.continual.run_checkpoints import KEEP

Known = dict[Any, list[str]]

PATIENCE = 10.0  # seconds for an answer of the hub
MODEL_FILES = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")


def missing_extras(modules: Iterable[str], extra: str, purpose: str) -> list[str]:
    """One sentence for each module that is not installed, with the extra that brings it."""
    return [lack(module, extra, purpose) for module in modules if absent(module)]


def complaint(attempt: Callable[[], object]) -> list[str]:
    """What an attempt to open something says if it fails."""
    try:
        attempt()
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        return [" ".join(str(error).split())]
    return []


def checkpoint_bytes(parameters: int) -> int:
    """Of a run that trains so many: values and two moments, in all files that exist at a time."""
    return parameters * 3 * 4 * (KEEP + 1)


def once(known: Known, find: Callable[[Any], list[str]], settings: Any) -> list[str]:
    """What ``find`` says of settings that many rows share; asked once while ``known`` lives."""
    if (find, settings) not in known:
        known[find, settings] = find(settings)
    return known[find, settings]


def off_hub(repository: str, kind: str = "model") -> str:
    """Why something on the Hugging Face hub cannot be had; "" if it is here already, or there."""
    extra = "language" if kind == "model" else "vision"
    # ``constants`` by itself: the package has it as an attribute only once something imported it.
    hub, constants = need("huggingface_hub", extra), need("huggingface_hub.constants", extra)
    if _cached(hub, constants.HF_HOME, repository, kind):
        return ""
    if constants.HF_HUB_OFFLINE:
        return "not in the local cache, and HF_HUB_OFFLINE forbids to ask for it"
    try:
        hub.HfApi().repo_info(repository, repo_type=kind, timeout=PATIENCE)
    except Exception as error:  # whatever the network does
        return f"not in the local cache, and the hub says {type(error).__name__}"
    return ""


def _cached(hub: Any, home: str, repository: str, kind: str) -> bool:
    if kind == "model":
        found = (hub.try_to_load_from_cache(repository, file) for file in MODEL_FILES)
        return any(isinstance(path, str) for path in found)
    place = os.environ.get("HF_DATASETS_CACHE") or Path(home) / "datasets"
    return (Path(place) / repository.replace("/", "___")).is_dir()
