"""Checkpoints that survive a kill at any moment, and say so when a file is damaged.

A file is a line with the SHA-256 of what follows, and then what ``torch.save`` wrote. It is written
beside its final name and renamed, so a name always stands for a whole file; the checksum catches
what happens to the file afterwards. The last two are kept: a damaged one costs one step back.
A checkpoint names its settings and inputs, and only a run with the same ones continues from it.
"""

from __future__ import annotations

import hashlib
import io
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from risegrad.common.files import write_bytes
from riselab.common.inputs import Inputs, differing

KEEP = 2


@dataclass(frozen=True)
class Origin:
    """What a run depends on: the digest of its settings, and what it reads."""

    settings: str = ""
    inputs: Inputs = field(default_factory=dict)


class Checkpoints:
    """Numbered states of one run in one folder; only the newest ``KEEP`` stay."""

    def __init__(self, folder: Path, origin: Origin | None = None) -> None:
        self.folder, self.origin = folder, origin or Origin()

    def save(self, state: dict[str, Any]) -> Path:
        """Write the next checkpoint, and delete all but the newest few."""
        self.folder.mkdir(parents=True, exist_ok=True)
        numbers = self._numbers()
        path = self._path(numbers[-1] + 1 if numbers else 0)
        write_checked(path, {"origin": asdict(self.origin), "state": state})
        for number in numbers[: -(KEEP - 1)]:
            self._path(number).unlink(missing_ok=True)
        return path

    def latest(self) -> dict[str, Any] | None:
        """The newest state that can be read; damaged ones are named in a warning and removed.

        A ``ValueError`` refuses one that another run left.
        """
        for number in reversed(self._numbers()):
            path = self._path(number)
            try:
                found = read_checked(path)
            except ValueError as error:
                warnings.warn(f"{error}; the one before it is used", stacklevel=2)
                path.unlink(missing_ok=True)
            else:
                self._check(found.get("origin") or asdict(Origin()))
                state: dict[str, Any] = found["state"]
                return state
        return None

    def _check(self, origin: dict[str, Any]) -> None:
        others = differing(origin["inputs"], self.origin.inputs)
        if origin["settings"] != self.origin.settings:
            others.append("the settings")
        if others:
            raise ValueError(
                f"the checkpoints in {self.folder} are of a run with other inputs or settings: "
                f"{', '.join(others)}; remove that folder to start again"
            )

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:08d}.ckpt"

    def _numbers(self) -> list[int]:
        return sorted(int(path.stem) for path in self.folder.glob("*.ckpt") if path.stem.isdigit())


def write_checked(path: Path, state: dict[str, Any]) -> None:
    """Write atomically, with a checksum in front."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    body = buffer.getvalue()
    content = hashlib.sha256(body).hexdigest().encode() + b"\n" + body
    write_bytes(path, content, beside=path.with_suffix(".partial"))


def read_checked(path: Path) -> dict[str, Any]:
    """Read what ``write_checked`` wrote; a ``ValueError`` names a damaged file."""
    head, _, body = path.read_bytes().partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != head:
        raise ValueError(f"checkpoint {path.name} in {path.parent} is damaged (checksum)")
    state: dict[str, Any] = torch.load(io.BytesIO(body), map_location="cpu", weights_only=True)
    return state
