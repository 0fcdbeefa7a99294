"""A keeper as a folder: its memory, its examples with their answers, and a few words."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from risegrad.common.files import write_bytes, write_json
from risegrad.common.imports import need
from risegrad.curvature.targets import unwrapped
from risegrad.keeping.answers import Answers
from risegrad.keeping.examples import Group, KeepSettings, Kept
from risegrad.keeping.looking import Look
from risegrad.memory.layers import all_layers
from risegrad.memory.memory import Memory

if TYPE_CHECKING:
    from risegrad.keeping.keeper import Keeper

FORMAT, VERSION = "risegrad keeper", 1
ABOUT, MEMORY, EXAMPLES = "keeper.json", "memory.safetensors", "examples.safetensors"


def write_keeper(keeper: Keeper, folder: str | Path) -> None:
    """Write the folder; the words come last, with the checksums of the rest."""
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Tensor] = {}
    about: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "model": _shape_of(keeper.model),
        "settings": keeper.settings.plain(),
        "state": keeper.state_dict(),
        "kept": None if keeper.kept is None else _described(keeper.kept, tensors),
    }
    if keeper.memory is not None:
        keeper.memory.save(path / MEMORY)
    if tensors:
        save = need("safetensors.torch", "curvature", "saving a keeper").save
        write_bytes(path / EXAMPLES, save(tensors))
    there = {MEMORY: keeper.memory is not None, EXAMPLES: bool(tensors)}
    about["sha256"] = {name: _checksum(path / name) for name, is_so in there.items() if is_so}
    write_json(path / ABOUT, about | {"checksum": _of_text(about)})


def read_keeper(
    path: Path, look: Look, settings: KeepSettings
) -> tuple[Memory | None, Kept | None, dict[str, Any]]:
    """What ``write_keeper`` wrote, for the same model and settings; every fault is named."""
    if not (path / ABOUT).is_file():
        raise FileNotFoundError(f"no saved keeper in {str(path)!r}: {ABOUT} is missing")
    try:
        about = json.loads((path / ABOUT).read_text(encoding="utf-8"))
        checksum = about.pop("checksum", None)
        if (about.get("format"), about.get("version")) != (FORMAT, VERSION):
            raise ValueError(f"its format must be {FORMAT!r}, version {VERSION}")
        if checksum != _of_text(about):
            raise ValueError(f"{ABOUT} does not match its checksum")
        for name, wanted in about["sha256"].items():
            if _checksum(path / name) != wanted:
                raise ValueError(f"{name} does not match its checksum")
        memory = Memory.load(path / MEMORY) if MEMORY in about["sha256"] else None
        kept = None if about["kept"] is None else _kept(about["kept"], path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"damaged keeper in {str(path)!r}: {error}") from error
    _check_same("model", about["model"], _shape_of(look.model), path)
    _check_same("settings", about["settings"], settings.plain(), path)
    if memory is not None:
        memory.check_fits(look.model)
    return memory, kept, about["state"]


def _check_same(what: str, saved: Mapping[str, Any], here: Mapping[str, Any], path: Path) -> None:
    different = [
        f"{name}: saved {saved.get(name)!r}, here {here.get(name)!r}"
        for name in here
        if saved.get(name) != here[name]
    ]
    if different:
        raise ValueError(
            f"the keeper in {str(path)!r} belongs to another {what}: {'; '.join(different)}"
        )


def _shape_of(model: torch.nn.Module) -> dict[str, Any]:
    """Enough to tell another model, whatever adapters it has now."""
    layers = {name: layer.shape for name, layer in all_layers(model).items()}
    shapes = f"{len(layers)} layers, {_of_text(layers)[:8]}"
    return {"kind": type(unwrapped(model)).__name__, "layers": shapes}


def _described(kept: Kept, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Plain words; the tensors go into ``tensors`` under numbers."""

    def plain(value: Any) -> Any:
        if isinstance(value, Tensor):
            key = f"{len(tensors):06d}"
            tensors[key] = value.detach().cpu().contiguous().clone()
            return {"tensor": key}
        if isinstance(value, Mapping):
            return {"mapping": {key: plain(inner) for key, inner in value.items()}}
        if isinstance(value, tuple):
            return {"tuple": [plain(inner) for inner in value]}
        if value is None or isinstance(value, bool | int | float | str):
            return {"value": value}
        raise TypeError(f"a kept example holds a {type(value).__name__}, which cannot be saved")

    def group(given: Group) -> dict[str, Any]:
        answers = given.answers
        return {
            "batch": plain(given.batch),
            "values": plain(answers.values),
            "classes": plain(answers.classes),
            "width": answers.width,
            "spread": answers.spread,
            "examples": given.examples,
            "counts": given.counts,
        }

    return {
        "seen": kept.seen,
        "pulled": [group(g) for g in kept.pulled],
        "held": [group(g) for g in kept.held],
    }


def _kept(about: Mapping[str, Any], path: Path) -> Kept:
    safetensors = need("safetensors.torch", "curvature", "reading a keeper")
    tensors = safetensors.load((path / EXAMPLES).read_bytes())

    def real(given: Mapping[str, Any]) -> Any:
        ((kind, value),) = given.items()
        if kind == "tensor":
            return tensors[value]
        if kind == "mapping":
            return {key: real(inner) for key, inner in value.items()}
        return tuple(map(real, value)) if kind == "tuple" else value

    def groups(given: list[Mapping[str, Any]]) -> Iterator[Group]:
        for g in given:
            answers = Answers(real(g["values"]), real(g["classes"]), g["width"], g["spread"])
            yield Group(real(g["batch"]), answers, g["examples"], tuple(g["counts"]))

    return Kept(tuple(groups(about["pulled"])), tuple(groups(about["held"])), about["seen"])


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _of_text(about: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
