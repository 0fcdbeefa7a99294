"""One process or several: device, precision, and sums over processes.

Trained parts are small (adapters, heads), so gradients are added up directly instead of wrapping
the model: the numbers are those of one process, and zeroth-order groups exchange scalars only.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import Parameter

from risegrad.optional import need

T = TypeVar("T")


class Devices:
    """Where a run computes. Started by torchrun or accelerate, all processes share the work."""

    def __init__(self, precision: str = "float32", device: str = "auto") -> None:
        self.precision = precision
        self._accelerator: Any = (
            _accelerator() if int(os.environ.get("WORLD_SIZE", "1")) > 1 else None
        )
        self.rank: int = self._accelerator.process_index if self._accelerator else 0
        self.count: int = self._accelerator.num_processes if self._accelerator else 1
        self.device = self._accelerator.device if self._accelerator else _device(device)

    @property
    def main(self) -> bool:
        """Whether this process writes files and reports."""
        return self.rank == 0

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """This process's part of a batch; together the parts are the batch."""
        return items[self.rank :: self.count]

    def autocast(self) -> AbstractContextManager[Any]:
        if self.precision == "float32":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def total(self, value: Tensor) -> Tensor:
        """The sum over processes."""
        if self._accelerator is None:
            return value
        summed: Tensor = self._accelerator.reduce(value, reduction="sum")
        return summed

    def total_gradients(self, parameters: Iterable[Parameter]) -> None:
        """Add up the gradients; a process without examples has none and counts as zero."""
        if self._accelerator is None:
            return
        for parameter in parameters:
            gradient = parameter.grad
            parameter.grad = self.total(
                torch.zeros_like(parameter) if gradient is None else gradient
            )


def _accelerator() -> Any:
    return need("accelerate", "vision", "several processes").Accelerator()


def _device(name: str) -> torch.device:
    if name != "auto":
        return torch.device(name)
    found = torch.accelerator.current_accelerator()
    return found if found is not None and torch.accelerator.is_available() else torch.device("cpu")
