"""RISE in Lightning: ``Trainer(..., callbacks=[RiseCallback(Rise(q=4))])``."""

from __future__ import annotations

from torch.optim import Optimizer

from risegrad.core.attachment import Attachment, On, attach
from risegrad.core.shapers import Shaper
from risegrad.core.torch_optimizers import unwrapped

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise ImportError(
        'risegrad.integrations.lightning needs lightning: pip install "risegrad[lightning]"'
    ) from error


class RiseCallback(Callback):
    """Attaches a shaper to the optimizer that ``configure_optimizers`` returns.

    Training starts after Lightning has loaded the checkpoint it resumes from, so a resumed count of
    steps is found where it was saved, in the optimizer's state. ``handle`` is the attachment, from
    then on.
    """

    def __init__(self, shaper: Shaper, on: On = "gradient") -> None:
        self.shaper = shaper
        self.on = on
        self.handle: Attachment | None = None
        self._optimizer: Optimizer | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attach the shaper to the trainer's only optimizer."""
        if len(trainer.optimizers) != 1:
            raise ValueError(
                f"RiseCallback needs one optimizer, the module has {len(trainer.optimizers)}: call "
                "risegrad.attach in configure_optimizers for those that should be shaped"
            )
        optimizer = unwrapped(trainer.optimizers[0])
        if optimizer is not self._optimizer:
            self.handle = attach(optimizer, self.shaper, pl_module.named_parameters(), self.on)
            self._optimizer = optimizer
