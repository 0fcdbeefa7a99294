"""RISE, ``risegrad.keep`` and a meter of forgetting in Lightning, as callbacks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from risegrad.core.attachment import On
from risegrad.core.optimizers import unwrapped
from risegrad.core.shapers import Shaper
from risegrad.integrations.callbacks import Attaching, ForgettingInTraining, KeepInTraining, Prepare
from risegrad.integrations.forgetting_meter import MeterReading
from risegrad.integrations.kept_scores import KeptScore
from risegrad.keeping.looking import SeenPrecision
from risegrad.keeping.report import report_of
from risegrad.memory.examples import TextForm, prepared

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise ImportError(
        'risegrad.integrations.lightning needs lightning: pip install "risegrad[lightning]"'
    ) from error


class RiseCallback(Attaching, Callback):
    """Attaches a shaper to the optimizer that ``configure_optimizers`` returns, until fitting ends.

    Training starts after Lightning has loaded the checkpoint it resumes from, so the resumed step
    count is already in the optimizer's state. ``handle`` is the attachment, from
    then on.
    """

    def __init__(self, shaper: Shaper, on: On = "gradient") -> None:
        self.shaper = shaper
        self.on = on

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attach the shaper to the trainer's only optimizer."""
        optimizer = _only_optimizer(self, trainer)
        if optimizer is not self._optimizer:
            self._put_on(pl_module, optimizer, self.shaper, self.on)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Detach: the last checkpoint is saved."""
        self._take_off()


class KeepCallback(KeepInTraining, Callback):
    """``Trainer(callbacks=[KeepCallback(old)])``: the module keeps what it knows.

    ``KeepCallback(old=None, *, then=None, **how)``: see ``KeepInTraining``. It calls
    ``module(inputs)`` with the first part of a batch; ``predict=`` reads other forms. The loggers
    get ``keep/drift``, ``keep/strength`` and ``keep/c``. Each checkpoint contains the callback's
    state, so a resumed run continues with it.
    """

    _resumed: Mapping[str, Tensor] | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep, or go on keeping where a resumed run was."""
        optimizer = _only_optimizer(self, trainer)
        if trainer.ckpt_path is not None and not self._resumed:
            raise ValueError(
                "cannot resume: the checkpoint is of a run without KeepCallback, so the answers "
                "to keep were never stored; start a new run, or resume without KeepCallback"
            )
        prepare = _preparing(trainer, pl_module, self.how.get("tokenizer"))
        with trainer.precision_plugin.forward_context():  # which may set more than an autocast
            training = SeenPrecision(pl_module.device.type)
        with TemporaryDirectory() as folder, training.again():
            for name, content in (self._resumed or {}).items():
                (Path(folder) / name).write_bytes(content.numpy().tobytes())
            self._keep(
                pl_module,
                optimizer,
                prepare,
                trainer.train_dataloader,
                resume=Path(folder) if self._resumed else None,
                together=trainer.world_size > 1 or None,
            )
        self._resumed = None

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *batch: Any) -> None:
        """Log how well it keeps."""
        step = self._running().steps
        every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]
        if step != self._logged and step % every == 0:
            self._log(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say how it went."""
        report = report_of(self._running())
        if report.steps != self._logged:
            self._log(trainer)
        if trainer.is_global_zero:
            print(report, report.sentence, sep="\n")

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Detach: the last checkpoint is saved."""
        if self.keeper is not None:
            self.keeper.detach()

    def state_dict(self) -> dict[str, Any]:
        """The files of the keeper's folder, so that a resumed run keeps the same."""
        if self.keeper is None:
            return {}
        with TemporaryDirectory() as folder:
            self.keeper.save(folder)
            files = {path.name: bytearray(path.read_bytes()) for path in Path(folder).iterdir()}
        return {name: torch.frombuffer(held, dtype=torch.uint8) for name, held in files.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take those of the run that is resumed."""
        self._resumed = state_dict

    _logged = 0

    def _log(self, trainer: Trainer) -> None:
        self._logged = self._running().steps
        for logger in trainer.loggers:
            logger.log_metrics(self._kept_numbers(), step=trainer.global_step)


class ForgettingCallback(ForgettingInTraining, Callback):
    """Scores old tasks before, during and after ``fit``.

    ``ForgettingCallback(keep={"old": dataset}, metric="accuracy", new=None, every=50,
    budget=None, run=None, tokenizer=None)``: see
    ``ForgettingInTraining``. It calls ``module(inputs)`` for pairs
    ``(inputs, target)``; ``metric=Scoring(predict=...)`` reads other forms. Measurements go to
    the trainer's loggers. Each checkpoint contains the scores from before training, from which a
    resumed run counts.
    """

    _resumed: Mapping[str, KeptScore] | None = None

    @property
    def state_key(self) -> str:
        """Lightning wants another one of each callback in a trainer."""
        return self._generate_state_key(keep=sorted(self.keep))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Score everything; a resumed run counts from where it first began."""
        prepare = _preparing(trainer, pl_module, self.tokenizer)
        reading = self._begin(pl_module, trainer.optimizers, prepare, trainer)
        if self._resumed is not None:
            self._running().step = trainer.global_step
            self._running().count_from(self._resumed)
            reading, self._resumed = self._running().last, None
        self._take(trainer, reading)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *batch: Any) -> None:
        """Measure if it is time, and stop where the budget is used up."""
        meter = self._running()
        if trainer.global_step != meter.step:  # not within an accumulated step
            self._look_at_rules()
            self._take(trainer, meter.update(trainer.global_step))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure, if that was asked for."""
        if self.every == "epoch" and not self._running().last.stop:
            self._take(trainer, self._running().measure())

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure once more and write the record."""
        meter = self._running()
        if meter.last.step != meter.step:
            _log(trainer, meter.finish())
        folder = Path(trainer.log_dir or trainer.default_root_dir)  # every process must ask
        if trainer.is_global_zero:
            optimizer = trainer.optimizers[0]
            config = {"optimizer": type(optimizer).__name__, "lr": optimizer.defaults.get("lr")}
            self._write_record(folder, 0, config | {"steps": trainer.global_step})

    def state_dict(self) -> dict[str, Any]:
        """The scores from before training, which a resumed run counts from."""
        scores = {} if self.meter is None else self.meter.start.scores
        return {name: {"loss": s.loss, "percent": s.percent} for name, s in scores.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take those of the run that is resumed."""
        self._resumed = {name: KeptScore(**score) for name, score in state_dict.items()}

    def _take(self, trainer: Trainer, reading: MeterReading) -> None:
        if reading is self._running().last:
            _log(trainer, reading)
        if reading.stop:
            trainer.should_stop = True


def _preparing(trainer: Trainer, module: LightningModule, tokenizer: Any) -> Prepare:
    """As the trainer reads what it trains on, and in the precision that it gives to it."""
    convert, form = trainer.precision_plugin.convert_input, TextForm(tokenizer)

    def prepare(given: Any) -> Any:
        batches = prepared(given, module, form, trainer.train_dataloader)
        if isinstance(batches, Mapping | Tensor | str) or not isinstance(batches, Iterable):
            return batches  # no batches: whoever reads them says so
        return map(convert, batches)

    return prepare


def _log(trainer: Trainer, reading: MeterReading) -> None:
    for logger in trainer.loggers:
        logger.log_metrics(reading.numbers(), step=trainer.global_step)


def _only_optimizer(callback: Callback, trainer: Trainer) -> Optimizer:
    if len(trainer.optimizers) != 1:
        raise ValueError(
            f"{type(callback).__name__} needs one optimizer, the module has "
            f"{len(trainer.optimizers)}: call risegrad.attach or risegrad.keep in "
            "configure_optimizers for those that should be shaped"
        )
    return unwrapped(trainer.optimizers[0])
