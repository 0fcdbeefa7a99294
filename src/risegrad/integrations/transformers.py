"""RISE and memories in the Hugging Face ``Trainer``: ``callbacks=[RiseCallback(Rise(q=4))]``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from risegrad.core.attachment import Attachment, On, attach
from risegrad.core.shapers import Shaper
from risegrad.core.torch_optimizers import unwrapped
from risegrad.curvature.memory.memory import Memory
from risegrad.integrations.memory_in_training import MemoryInTraining

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


FILE = "risegrad-memory.safetensors"
"""In the output folder: a resumed run must have the memory it began with."""


class RememberCallback(MemoryInTraining, TrainerCallback):
    """Remembers ``keep`` when training begins and shapes every step by it.

    ``RememberCallback(keep, damping=0.3, memory=None, q=None, then=None, **how)``: see
    ``MemoryInTraining``. A dataset goes through the Trainer's own collator. What the Trainer saves
    is what it saves without the callback.
    """

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Remember what must be kept, and attach to the optimizer."""
        path = Path(args.output_dir or ".") / FILE
        if self.memory is None and state.global_step:
            self.memory = _first_memory(path, state.global_step)
        elif self.memory is None:
            memory = self._remember(kwargs["model"], kwargs.get("train_dataloader"))
            if state.is_world_process_zero:
                path.parent.mkdir(parents=True, exist_ok=True)
                memory.save(path)
        self._attach(kwargs["model"], unwrapped(kwargs["optimizer"]))

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Add what was learned to the memory, if that was asked for."""
        self._add(kwargs["model"], kwargs.get("train_dataloader"))


def _first_memory(path: Path, step: int) -> Memory:
    if not path.is_file():
        raise ValueError(
            f"training goes on from step {step}, and the memory it began with is not at "
            f"{str(path)!r}: what the model does now is not what was to be kept; give memory"
        )
    return Memory.load(path)
