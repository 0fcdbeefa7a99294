"""RISE in the Hugging Face ``Trainer``: ``Trainer(..., callbacks=[RiseCallback(Rise(q=4))])``."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim import Optimizer

from risegrad.core.attachment import Attachment, On, attach
from risegrad.core.shapers import Shaper
from risegrad.core.torch_optimizers import unwrapped

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ImportError as error:
    raise ImportError(
        "risegrad.integrations.transformers needs transformers and accelerate: "
        'pip install "risegrad[language]"'
    ) from error


class RiseCallback(TrainerCallback):
    """Attaches a shaper to the optimizer that the Trainer makes.

    Training begins after the Trainer has wrapped the model and loaded the checkpoint it resumes
    from, so the parameters are the final ones and a resumed count of steps is found where it was
    saved, in the optimizer's state. ``handle`` is the attachment, from then on.
    """

    def __init__(self, shaper: Shaper, on: On = "gradient") -> None:
        self.shaper = shaper
        self.on = on
        self.handle: Attachment | None = None
        self._optimizer: Optimizer | None = None

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Attach the shaper to the trainer's optimizer."""
        model: nn.Module = kwargs["model"]
        optimizer = unwrapped(kwargs["optimizer"])
        # train() may be called again: with the same optimizer, the attachment goes on as it was.
        if optimizer is not self._optimizer:
            self.handle = attach(optimizer, self.shaper, model.named_parameters(), self.on)
            self._optimizer = optimizer
