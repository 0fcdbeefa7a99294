"""RISE and ``risegrad.keep`` in Avalanche: plugins for every strategy that trains by gradients."""

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
from risegrad.keeping.keep import keep
from risegrad.keeping.keeper import Keeper
from risegrad.memory.examples import SEED

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


class KeepPlugin(SupervisedPlugin):  # type: ignore[misc]
    """Keeps what each experience taught: ``Naive(..., plugins=[KeepPlugin()])``.

    ``old``: examples of what the model knows before the first experience; without them that one
    trains plainly. ``how`` goes to ``risegrad.keep`` (``examples``, ``budget``, ``predict``, ...).
    ``keeper`` exists once anything is kept.
    """

    def __init__(self, old: Any = None, **how: Any) -> None:
        super().__init__()
        self.old, self.how = old, how
        self.keeper: Keeper | None = None

    def before_training_exp(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Keep what is known from the start, and cover what the experience added."""
        if self.keeper is None and self.old is not None:
            self.keeper = keep(strategy.model, strategy.optimizer, self.old, **self.how)
        elif self.keeper is not None and self.keeper.handle is not None:
            self.keeper.handle.cover(strategy.model.named_parameters())

    def after_training_exp(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Keep what was learned, before a head grows for what comes next."""
        learned = _pairs(strategy.experience.dataset.eval(), strategy.train_mb_size)
        if self.keeper is None:
            self.keeper = keep(strategy.model, strategy.optimizer, learned, **self.how)
        else:
            self.keeper.then(learned, strategy.optimizer)


def _pairs(data: Any, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and targets of an experience, in a fixed random order, without the task's number."""
    generator = torch.Generator().manual_seed(SEED)
    for inputs, target, *_ in DataLoader(data, size, shuffle=True, generator=generator):
        yield inputs, target
