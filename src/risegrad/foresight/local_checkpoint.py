"""What was measured at one checkpoint, and its file: a killed validation continues from there."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass, field
from pathlib import Path

from risegrad.common.atomic_files import write_json
from risegrad.common.settings import as_plain, digest, read
from risegrad.foresight.foresight_settings import DiagnosisSettings, ValidationSettings
from risegrad.foresight.local_agreement import AgreementSpread
from risegrad.foresight.local_updates import Outcome


@dataclass(frozen=True)
class LocalSettings:
    """What a local validation is of, and how it measures."""

    diagnosis: DiagnosisSettings = field(default_factory=DiagnosisSettings)
    validation: ValidationSettings = field(default_factory=ValidationSettings)
    subject: str = ""
    """the run and the point of its stream, in words"""
    run: str = ""
    """the id of the run"""


@dataclass(frozen=True)
class PredictedSpread:
    """Draws at one step size, and the mean and deviation that the exact moments give them."""

    drawn: AgreementSpread
    mean: float
    std: float
    score: float
    """distance of the means in standard errors, from the predicted deviation"""


@dataclass(frozen=True)
class Checkpoint:
    """All that was measured after some steps into the incoming task."""

    steps: int
    historical_loss: float
    incoming_loss: float
    step_sizes: tuple[float, ...]
    outcomes: tuple[Outcome, ...]
    predicted: tuple[PredictedSpread, ...]
    products: int


def part_name(settings: LocalSettings, steps: int) -> str:
    """A name that other settings do not share."""
    return f"checkpoint-{steps}-{digest(as_plain(settings))[:12]}.json"


def write_part(file: Path, point: Checkpoint) -> None:
    """For a later run with the same settings."""
    write_json(file, as_plain(point))


def read_part(file: Path) -> Checkpoint | None:
    """What an earlier run measured; None if there is nothing that can be read."""
    if not file.exists():
        return None
    try:
        return read(Checkpoint, json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, OSError) as error:
        warnings.warn(f"{file.name} is damaged and measured anew ({error})", stacklevel=2)
        return None


def forget_parts(settings: LocalSettings, folder: Path) -> None:
    """The results are written: nothing is left to continue from."""
    for steps in settings.validation.checkpoints:
        (folder / part_name(settings, steps)).unlink(missing_ok=True)
