"""What ``rise diagnose`` and ``rise local`` are asked to do: a TOML file, checked before any work.

Nothing heavy is imported here.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

SOURCES = ("python", "timm", "transformers")
KINDS = ("images", "texts")


@dataclass(frozen=True)
class ModelSettings:
    source: str
    """``timm``, ``transformers``, or ``python``: a function that makes model and batches"""
    name: str = ""
    """timm's name of the model, or ``module:function`` for python"""
    path: str = ""
    """state dict file (timm) or folder (transformers); ``--model`` on the command line"""
    lora: int = 0
    """rank; 0 trains all parameters"""
    targets: tuple[str, ...] = ()
    """modules that LoRA adapts; empty: peft's own choice for the model"""
    image_size: int = 0
    """pixels; 0: the model's own"""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """for a python function, or further ones of timm's create_model"""


@dataclass(frozen=True)
class Part:
    """Which examples: classes of images, or tasks of texts."""

    classes: tuple[int, ...] = ()
    tasks: tuple[str, ...] = ()
    batches: int = 2


@dataclass(frozen=True)
class DataSettings:
    kind: str = ""
    """``images`` (an .npz of arrays) or ``texts`` (a folder of tasks); empty for python"""
    path: str = ""
    """``--data`` on the command line"""
    batch: int = 16
    historical: Part = Part()
    incoming: Part = Part()
    tokens: int = 128
    """texts are cut to this many"""


@dataclass(frozen=True)
class WarmupSettings:
    """Learn the historical task first, so that there is something to keep (AdamW)."""

    steps: int = 0
    learning_rate: float = 1e-3


@dataclass(frozen=True)
class RiseSettings:
    q: int = 4
    blocks: str | int = "tensor"
    exempt: tuple[str, ...] = ()


@dataclass(frozen=True)
class DiagnosisSettings:
    step: float = 1.0
    curvature: str = "ggn"
    seed: int = 0
    budget: Mapping[str, Any] = field(default_factory=dict)
    """fields of ``risegrad.curvature.Budget``"""


@dataclass(frozen=True)
class ValidationSettings:
    checkpoints: tuple[int, ...] = (0,)
    """steps into the incoming task (AdamW, as in the warm-up) before measuring"""
    steps: tuple[int, ...] = (1, 4)
    """lengths of the measured updates, in steps"""
    damages: tuple[float, ...] = (0.001, 0.01, 0.1, 0.5)
    """step sizes, as the damage of FO that they predict in parts of the historical loss"""
    step_sizes: tuple[float, ...] = ()
    """step sizes as such, instead"""
    draws: int = 4
    """repetitions of every random rule"""
    curvatures: tuple[str, ...] = ("hessian", "ggn", "empirical-fisher")


@dataclass(frozen=True)
class Settings:
    model: ModelSettings
    data: DataSettings = DataSettings()
    warmup: WarmupSettings = WarmupSettings()
    rise: RiseSettings = RiseSettings()
    diagnosis: DiagnosisSettings = DiagnosisSettings()
    validation: ValidationSettings = ValidationSettings()
    folder: str = "."
    """where the file stands; python functions are looked for there"""


T = TypeVar("T")


def load(path: Path) -> Settings:
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


def parse(content: Mapping[str, Any], folder: str = ".") -> Settings:
    """Settings from tables."""
    known = {entry.name for entry in fields(Settings)} - {"folder"}
    unknown = sorted(set(content) - known)
    if unknown:
        raise ValueError(f"tables must be among {', '.join(sorted(known))}; got {unknown[0]!r}")
    if "model" not in content:
        raise ValueError('a [model] table is needed, with at least source = "timm" or another')
    data = dict(content.get("data", {}))
    for part in ("historical", "incoming"):
        if part in data:
            data[part] = _table(Part, data[part], f"data.{part}")
    found = Settings(
        model=_table(ModelSettings, content["model"], "model"),
        data=_table(DataSettings, data, "data"),
        warmup=_table(WarmupSettings, content.get("warmup", {}), "warmup"),
        rise=_table(RiseSettings, content.get("rise", {}), "rise"),
        diagnosis=_table(DiagnosisSettings, content.get("diagnosis", {}), "diagnosis"),
        validation=_table(ValidationSettings, content.get("validation", {}), "validation"),
        folder=folder,
    )
    _check(found)
    return found


def _table(kind: type[T], content: Any, name: str) -> T:
    if not isinstance(content, Mapping):
        raise ValueError(f"[{name}] must be a table, got {content!r}")
    entries = {entry.name: entry for entry in fields(kind)}  # type: ignore[arg-type]
    for key, value in content.items():
        if key not in entries:
            raise ValueError(f"[{name}] has no key {key!r}; it has {', '.join(entries)}")
        _check_type(f"{name}.{key}", value, entries[key].type)
    missing = [
        key for key, entry in entries.items()
        if key not in content and entry.default is MISSING and entry.default_factory is MISSING
    ]  # fmt: skip
    if missing:
        raise ValueError(f"[{name}] needs {', '.join(missing)}")
    tupled = {key: tuple(v) if isinstance(v, list) else v for key, v in content.items()}
    return kind(**tupled)


ALLOWED: dict[str, tuple[tuple[type, ...], str]] = {
    "int": ((int,), "an integer"),
    "float": ((int, float), "a number"),
    "str": ((str,), "a text"),
    "str | int": ((str, int), "a text or an integer"),
    "Part": ((Part,), "a table"),
    "Mapping[str, Any]": ((dict,), "a table"),
}


def _check_type(name: str, value: Any, wanted: Any) -> None:
    if wanted.startswith("tuple["):
        inner = wanted.removeprefix("tuple[").removesuffix(", ...]")
        if not isinstance(value, list):
            raise ValueError(f"{name} must be a list, got {value!r}")
        for entry in value:
            _check_type(f"each entry of {name}", entry, inner)
        return
    kinds, words = ALLOWED[wanted]
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise ValueError(f"{name} must be {words}, got {value!r}")


def _check(found: Settings) -> None:
    m, d, v = found.model, found.data, found.validation
    if m.source not in SOURCES:
        raise ValueError(f"model.source must be one of {', '.join(SOURCES)}; got {m.source!r}")
    if m.source != "transformers" and not m.name:
        raise ValueError(f"model.name is needed for source {m.source!r}")
    if m.source == "python" and ":" not in m.name:
        raise ValueError(f"model.name must be module:function for python, got {m.name!r}")
    if m.source != "python":
        _check_data(d)
    for name, value in (("warmup.steps", found.warmup.steps), ("model.lora", m.lora)):
        if value < 0:
            raise ValueError(f"{name} must be >= 0, got {value}")
    for name, values in (
        ("validation.steps", v.steps), ("validation.damages", v.damages),
        ("validation.step_sizes", v.step_sizes), ("validation.draws", (v.draws,)),
    ):  # fmt: skip
        if any(value <= 0 for value in values):
            raise ValueError(f"{name} must be > 0, got {list(values)}")
    if any(value < 0 for value in v.checkpoints):
        raise ValueError(f"validation.checkpoints must be >= 0, got {list(v.checkpoints)}")


def _check_data(d: DataSettings) -> None:
    if d.kind not in KINDS:
        raise ValueError(f"data.kind must be one of {', '.join(KINDS)}; got {d.kind!r}")
    wanted = "classes" if d.kind == "images" else "tasks"
    for name, part in (("historical", d.historical), ("incoming", d.incoming)):
        if not getattr(part, wanted):
            raise ValueError(f"data.{name}.{wanted} must name at least one for {d.kind}")
        if part.batches < 1 or d.batch < 1:
            raise ValueError(f"data.batch and data.{name}.batches must be >= 1")


def with_paths(settings: Settings, model: str | None, data: str | None) -> Settings:
    """The settings with paths from the command line, which come before those of the file."""
    return replace(
        settings,
        model=replace(settings.model, path=model or settings.model.path),
        data=replace(settings.data, path=data or settings.data.path),
    )
