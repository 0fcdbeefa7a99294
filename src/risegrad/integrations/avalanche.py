"""RISE and memories in Avalanche: plugins for every strategy that trains by gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from risegrad.core.attachment import Attachment, On, attach
from risegrad.core.optimizers import unwrapped
from risegrad.core.shapers import Shaper
from risegrad.memory.examples import SEED
from risegrad.memory.informed import Informed, right_place
from risegrad.memory.memory import DAMPING, Memory
from risegrad.memory.remembering import remember

try:
    from avalanche.core import SupervisedPlugin
except ImportError as error:
    raise ImportError(
        'risegrad.integrations.avalanche needs avalanche-lib: pip install "risegrad[avalanche]"'
    ) from error


class RisePlugin(SupervisedPlugin):  # type: ignore[misc]
    """Shapes the strategy's steps: ``Naive(..., plugins=[RisePlugin(Rise(keep=0.5))])``.

    Parameters that an experience adds (a head that grows) are found and covered. ``handle`` is the
    attachment, from the first experience on.
    """

    def __init__(self, shaper: Shaper, on: On = "gradient") -> None:
        super().__init__()
        self.shaper, self.on = shaper, on
        self.handle: Attachment | None = None
        self._optimizer: Optimizer | None = None

    def before_training_exp(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Attach to an optimizer that is new, and name what the experience added."""
        optimizer = unwrapped(strategy.optimizer)
        if optimizer is not self._optimizer:
            named = strategy.model.named_parameters()
            self.handle = attach(optimizer, self.shaper, named, self.on)
            self._optimizer = optimizer
        elif self.handle is not None:
            self.handle.cover(strategy.model.named_parameters())


class InformedPlugin(SupervisedPlugin):  # type: ignore[misc]
    """Remembers each experience when it was learned, and shapes the steps of the next by it.

    ``examples``: how many of each experience are remembered; ``memory``: what is to be kept from
    the start; ``how`` goes to ``risegrad.remember`` (``of``, ``rank``, ``predict``, ...). The first
    experience is trained plainly unless there is a memory.
    """

    def __init__(
        self,
        damping: float = DAMPING,
        examples: int = 256,
        memory: Memory | None = None,
        q: int | None = None,
        **how: Any,
    ) -> None:
        super().__init__()
        self.damping, self.examples, self.q, self.how = damping, examples, q, how
        self.memory = memory
        """All that was remembered so far."""
        self.handle: Attachment | None = None

    def before_training_exp(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Shape by what is remembered now."""
        if self.handle is not None:
            self.handle.detach()
        if self.memory is not None:
            shaper = Informed(self.memory, self.damping, q=self.q)
            optimizer = unwrapped(strategy.optimizer)
            named = strategy.model.named_parameters()
            self.handle = attach(optimizer, shaper, named, right_place(optimizer))

    def after_training_exp(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Add what was learned."""
        data = strategy.experience.dataset.eval()
        count = min(self.examples, len(data))
        batches = _pairs(data, strategy.train_mb_size)
        learned = remember(strategy.model, batches, examples=count, **self.how)
        self.memory = learned if self.memory is None else self.memory + learned


def _pairs(data: Any, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and targets of an experience, in a fixed random order, without the task's number."""
    generator = torch.Generator().manual_seed(SEED)
    for inputs, target, *_ in DataLoader(data, size, shuffle=True, generator=generator):
        yield inputs, target
