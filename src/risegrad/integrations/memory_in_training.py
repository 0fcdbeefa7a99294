"""What both trainers' ``RememberCallback`` do: remember, attach, and remember again at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset, IterableDataset

from risegrad.core.attachment import Attachment, attach
from risegrad.curvature.memory.informed import Informed, right_place
from risegrad.curvature.memory.memory import DAMPING, Memory
from risegrad.curvature.memory.parameter_sides import not_told_by_names
from risegrad.curvature.memory.remembering import remember

SEED = 0
"""Of the order in which a dataset's examples are taken."""


class MemoryInTraining:
    """``keep``: what must be kept, a dataset (or a list of tokenized examples) or a list or loader
    of batches; or ``memory``, one that is ready. ``then``: what to remember when training ends, for
    the next task; ``how`` goes to ``risegrad.remember`` (``examples``, ``of``, ``predict``, ...).
    """

    def __init__(
        self,
        keep: Any = None,
        damping: float = DAMPING,
        memory: Memory | None = None,
        q: int | None = None,
        then: Any = None,
        **how: Any,
    ) -> None:
        if (keep is None) == (memory is None):
            raise ValueError("give keep (examples to be remembered) or memory (a ready one)")
        self.keep, self.damping, self.q, self.then, self.how = keep, damping, q, then, how
        self.memory = memory
        """What shapes the steps; after training with ``then``, what the next task should keep."""
        self.handle: Attachment | None = None
        self._optimizer: Optimizer | None = None

    def _remember(self, model: nn.Module, loader: object) -> Memory:
        if self.memory is None:
            self.memory = remember(model, self._batches(self.keep, model, loader), **self.how)
        return self.memory

    def _batches(self, given: Any, model: nn.Module, loader: object) -> Any:
        """What a person gave, as ``remember`` takes it."""
        return as_batches(given, loader)

    @property
    def _shaping(self) -> Memory | None:
        """The memory that shapes the steps, without what ``then`` has added since."""
        used = None if self.handle is None else self.handle.shaper
        return used.memory if isinstance(used, Informed) else None

    def _resumes_attached(self, optimizer: Optimizer) -> bool:
        """Whether a state was loaded into the optimizer that is shaped already, which checks it."""
        if optimizer is not self._optimizer:
            return False
        self.memory = self._shaping
        return True

    def _attach(self, model: nn.Module, optimizer: Optimizer) -> None:
        """To an optimizer that is new; also to the old one, if ``then`` has added something."""
        assert self.memory is not None
        if optimizer is self._optimizer and self.handle is not None:
            if self._shaping is self.memory:
                return
            self.handle.detach()
        exempt = not_told_by_names(model)
        shaper = Informed(self.memory, self.damping, q=self.q, exempt=exempt)
        place = right_place(optimizer)
        self.handle = attach(optimizer, shaper, model.named_parameters(), place)
        self._optimizer = optimizer

    def _add(self, model: nn.Module, loader: object) -> None:
        if self.then is not None and self.memory is not None:
            batches = self._batches(self.then, model, loader)
            self.memory = self.memory + remember(model, batches, **self.how)


def as_batches(given: Any, like: object) -> Any:
    """A dataset in batches like those of the training loader, in a fixed random order.

    A stream is taken as it comes.
    """
    if not (isinstance(given, Dataset) or hasattr(given, "column_names") or _examples(given)):
        return given
    options: dict[str, Any] = {
        name: value
        for name in ("batch_size", "collate_fn")
        if (value := getattr(like, name, None)) is not None
    }
    options = {"batch_size": 8} | options
    if isinstance(given, IterableDataset):
        return DataLoader(given, **options)
    generator = torch.Generator().manual_seed(SEED)
    return DataLoader(given, shuffle=True, generator=generator, **options)


def _examples(given: Any) -> bool:
    """A list of single tokenized examples, as a Trainer takes it for a dataset; not of batches."""
    if not isinstance(given, list | tuple) or not given or not isinstance(given[0], Mapping):
        return False
    tokens = given[0].get("input_ids")
    return tokens is not None and torch.as_tensor(tokens).ndim == 1
