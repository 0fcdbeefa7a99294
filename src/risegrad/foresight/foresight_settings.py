"""What ``rise diagnose`` and ``rise local`` are asked to do: a TOML file, checked before any work.

Nothing heavy is imported here.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

from risegrad.common.declared_fields import Count, OneOf, Positive, PositiveInt, check_fields
from risegrad.common.settings import read, unknown

SOURCE_USES: dict[str, tuple[str, ...]] = {
    "python": ("source", "name", "arguments"),
    "timm": ("source", "name", "path", "lora", "targets", "image_size", "arguments"),
    "transformers": ("source", "name", "path", "lora", "targets"),
}
"""Which settings of the model each source looks at."""
SOURCE_READS = {"timm": "images", "transformers": "texts"}


@dataclass(frozen=True)
class ModelSettings:
    """The model, and what of it is trained."""

    source: Annotated[str, OneOf(SOURCE_USES)]
    """``timm``, ``transformers``, or ``python``: a function that makes model and batches"""
    name: str = ""
    """timm's name of the model, or ``module:function`` for python"""
    path: str = ""
    """state dict file (timm) or folder (transformers); ``--model`` on the command line"""
    lora: Count = 0
    """rank; 0 trains all parameters"""
    targets: tuple[str, ...] = ()
    """modules that LoRA adapts; empty: peft's own choice for the model"""
    image_size: int = 0
    """pixels; 0: the model's own"""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """for a python function, or further ones of timm's create_model"""


@dataclass(frozen=True)
class SettingsPart:
    """Which examples: classes of images, or tasks of texts."""

    classes: tuple[int, ...] = ()
    """labels of images"""
    tasks: tuple[str, ...] = ()
    """names of text tasks"""
    batches: PositiveInt = 2
    """how many batches of them"""


@dataclass(frozen=True)
class DataSettings:
    """The two tasks and their batches."""

    kind: Annotated[str, OneOf(tuple(SOURCE_READS.values()))] = ""
    """``images`` (an .npz of arrays) or ``texts`` (a folder of tasks); empty for python"""
    path: str = ""
    """``--data`` on the command line"""
    batch: PositiveInt = 16
    """examples per batch"""
    historical: SettingsPart = SettingsPart()
    """what was learned before and is to be kept"""
    incoming: SettingsPart = SettingsPart()
    """what is learned now"""
    tokens: int = 128
    """texts are cut to this many"""


@dataclass(frozen=True)
class WarmupSettings:
    """Learn the historical task first, so that there is something to keep (AdamW)."""

    steps: Count = 0
    """how many; 0 leaves it out"""
    learning_rate: float = 1e-3
    """of AdamW"""


@dataclass(frozen=True)
class RiseSettings:
    """The rule whose effect is predicted."""

    q: int = 4
    """random directions per block"""
    blocks: str | int = "tensor"
    """``tensor``, ``module``, ``group``, ``whole`` or a number of elements"""
    exempt: tuple[str, ...] = ()
    """patterns of parameters that keep the exact gradient"""


@dataclass(frozen=True)
class DiagnosisSettings:
    """What is predicted, and with which curvature."""

    step: float = 1.0
    """learning rate of the step that is predicted"""
    curvature: str = "ggn"
    """``hessian``, ``ggn``, ``empirical-fisher`` or ``fisher``"""
    seed: int = 0
    """of the random vectors and draws"""
    budget: Mapping[str, Any] = field(default_factory=dict)
    """fields of ``risegrad.curvature.ProductBudget``"""


@dataclass(frozen=True)
class ValidationSettings:
    """What ``rise local`` measures to compare predictions with."""

    checkpoints: tuple[Count, ...] = (0,)
    """steps into the incoming task (AdamW, as in the warm-up) before measuring"""
    steps: tuple[PositiveInt, ...] = (1, 4)
    """lengths of the measured updates, in steps"""
    damages: tuple[Positive, ...] = (0.001, 0.01, 0.1, 0.5)
    """step sizes, as the damage of FO that they predict in parts of the historical loss"""
    step_sizes: tuple[Positive, ...] = ()
    """step sizes as such, instead"""
    draws: PositiveInt = 4
    """repetitions of every random rule"""
    curvatures: tuple[str, ...] = ("hessian", "ggn", "empirical-fisher")
    """those whose predictions are compared with what is measured"""


@dataclass(frozen=True)
class ForesightSettings:
    """Everything that one file for ``rise diagnose`` or ``rise local`` says."""

    model: ModelSettings
    data: DataSettings = DataSettings()
    warmup: WarmupSettings = WarmupSettings()
    rise: RiseSettings = RiseSettings()
    diagnosis: DiagnosisSettings = DiagnosisSettings()
    validation: ValidationSettings = ValidationSettings()
    folder: str = "."
    """where the file stands; python functions are looked for there"""


def load(path: Path) -> ForesightSettings:
    """Read and check a file; every mistake is a ValueError that names table and key."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(
            f"CONFIG must be a readable file, got {str(path)!r}: {error.strerror}"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path.name} is not TOML: {error}") from error
    return parse(content, str(path.parent))


def parse(content: Mapping[str, Any], folder: str = ".") -> ForesightSettings:
    """Settings from tables."""
    tables = [entry.name for entry in fields(ForesightSettings) if entry.name != "folder"]
    for name in content:
        if name not in tables:  # nor may a file say where it stands
            raise ValueError(f"{name}: {unknown(name, tables)}")
    found = read(ForesightSettings, {**content, "folder": folder})
    _check_model(found.model)
    _check_used(found, content)
    if found.model.source != "python":
        _check_data(found.data, found.model.source)
    check_fields(found.warmup, "warmup")
    check_fields(found.validation, "validation")
    return found


def _check_model(m: ModelSettings) -> None:
    check_fields(m, "model")
    if m.source != "transformers" and not m.name:
        raise ValueError(f"model.name is needed for source {m.source!r}")
    if m.source == "python" and ":" not in m.name:
        raise ValueError(f"model.name must be module:function for python, got {m.name!r}")


def _check_used(found: ForesightSettings, content: Mapping[str, Any]) -> None:
    """What a file says and nothing would look at is a mistake or a wrong hope."""
    source, data = found.model.source, content.get("data", {})
    for key in content["model"]:
        if key not in SOURCE_USES[source]:
            users = [name for name, uses in SOURCE_USES.items() if key in uses]
            raise _unused(f"model.{key}", f"model.source {source!r} but by {', '.join(users)}")
    if found.model.targets and not found.model.lora:
        raise _unused("model.targets", "model.lora = 0, which adapts nothing")
    if source == "python" and data:
        raise _unused("[data]", f"model.source 'python': {found.model.name} makes the batches")
    other = {"images": "tasks", "texts": "classes"}.get(found.data.kind)
    for name in ("historical", "incoming"):
        if other and other in data.get(name, {}):
            raise _unused(f"data.{name}.{other}", f"data.kind {found.data.kind!r}")
    if "tokens" in data and found.data.kind == "images":
        raise _unused("data.tokens", "data.kind 'images'")
    if {"damages", "step_sizes"} <= set(content.get("validation", {})):
        raise _unused("validation.damages", "validation.step_sizes, which stands in its place")


def _unused(place: str, words: str) -> ValueError:
    return ValueError(f"{place} is not used by {words}")


def _check_data(d: DataSettings, source: str) -> None:
    check_fields(d, "data")
    if d.kind != SOURCE_READS[source]:
        raise ValueError(
            f"data.kind must be {SOURCE_READS[source]} for model.source {source!r}, got {d.kind!r}"
        )
    wanted = "classes" if d.kind == "images" else "tasks"
    for name, part in (("historical", d.historical), ("incoming", d.incoming)):
        if not getattr(part, wanted):
            raise ValueError(f"data.{name}.{wanted} must name at least one for {d.kind}")
        check_fields(part, f"data.{name}")


def with_paths(
    settings: ForesightSettings, model: str | None, data: str | None
) -> ForesightSettings:
    """The settings with paths from the command line, which come before those of the file."""
    for option, path in (("--model", model), ("--data", data)):
        if path is not None and settings.model.source == "python":
            raise _unused(
                option, f"model.source 'python': {settings.model.name} makes model and batches"
            )
    return replace(
        settings,
        model=replace(settings.model, path=model or settings.model.path),
        data=replace(settings.data, path=data or settings.data.path),
    )
