"""RISE, memories and a meter of forgetting in the Hugging Face ``Trainer``, as callbacks."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from risegrad.core.attachment import Attachment, On, attach
from risegrad.core.saved_state import saved_settings
from risegrad.core.shapers import Shaper
from risegrad.core.torch_optimizers import unwrapped
from risegrad.curvature.memory.kept_data import TextForm
from risegrad.curvature.memory.memory import Memory
from risegrad.integrations.forgetting_in_training import RECORD, ForgettingInTraining
from risegrad.integrations.forgetting_meter import MeterReading
from risegrad.integrations.memory_in_training import MemoryInTraining, as_batches
from risegrad.integrations.model_folder import first_scores, sign

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.integrations.integration_utils import get_reporting_integration_callbacks
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
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

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Settings ride in the checkpoint's folder."""
        _sign_checkpoint(args, state, self.handle)


FILE = "risegrad-memory.safetensors"
"""In the output folder: a resumed run must have the memory it began with."""


class RememberCallback(MemoryInTraining, TrainerCallback):
    """Remembers ``keep`` when training begins and shapes every step by it.

    ``RememberCallback(keep, damping=0.3, memory=None, q=None, then=None, **how)``: see
    ``MemoryInTraining``. A dataset goes through the Trainer's own collator, without the columns
    that the model does not take. What the Trainer saves is what it saves without the callback.
    """

    def _batches(self, given: Any, model: nn.Module, loader: object) -> Any:
        return as_batches(_fitting(given, model, loader), loader)

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Remember what must be kept, and attach to the optimizer."""
        path, optimizer = Path(args.output_dir or ".") / FILE, unwrapped(kwargs["optimizer"])
        if state.global_step:
            if self._resumes_attached(optimizer):
                return
            self._look_back(path, state.global_step, optimizer)
        memory = self._remember(kwargs["model"], kwargs.get("train_dataloader"))
        self._attach(kwargs["model"], optimizer)
        if state.is_world_process_zero:
            path.parent.mkdir(parents=True, exist_ok=True)
            memory.save(path)

    def _look_back(self, path: Path, step: int, optimizer: Optimizer) -> None:
        """Take the memory that a resumed run began with, if the state it resumes from had one.

        A file in the folder may be that of an earlier run.
        """
        began = any("memory" in found for found in saved_settings(optimizer.param_groups))
        if began and self.keep is not None and (self.memory is None or path.is_file()):
            self.memory = _first_memory(path, step)
        elif self.memory is None:
            warnings.warn(
                f"training goes on from step {step} of a run that no memory shaped, or whose "
                "optimizer was not saved: what the model does now is what will be kept",
                stacklevel=2,
            )

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Add what was learned to the memory, if that was asked for."""
        self._add(kwargs["model"], kwargs.get("train_dataloader"))

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Settings ride in the checkpoint's folder."""
        _sign_checkpoint(args, state, self.handle)


class ForgettingCallback(ForgettingInTraining, TrainerCallback):
    """Scores what must be kept before, during and after training.

    ``ForgettingCallback(keep={"agnews": dataset}, metric="accuracy", new=None, every=50,
    budget=None, memory=None, foretell=10, run=None)``: see ``ForgettingInTraining``. A dataset goes
    through the Trainer's own collator, without the columns that the model does not take.
    Measurements go to what ``report_to`` names and into ``state.log_history``; settings and scores
    ride in every checkpoint's folder and in the output folder (``risegrad.json``, and a section of
    the model card); ``save(folder)`` puts them into any other. A run that its budget stops leaves
    a last checkpoint, if it saves by steps.
    """

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Score everything; a resumed run counts from where it first began."""
        model, loader = kwargs["model"], kwargs.get("train_dataloader")
        self._reporters = _reporters(args)
        reading = self._begin(
            model, _batches(self.keep, model, loader), _batches(self.new, model, loader)
        )
        if state.global_step:
            self._running().step = state.global_step
            self._running().count_from(first_scores(Path(args.output_dir or ".")))
            reading = self._running().last
        self._take(reading, args, state, control)
        if state.is_world_process_zero:
            Path(args.output_dir or ".").mkdir(parents=True, exist_ok=True)
            self.save(args.output_dir or ".")  # a run that is stopped can count from it

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Measure if it is time, and stop where the budget is used up."""
        meter = self._running()
        reading = meter.update(state.global_step)
        if control.should_training_stop and meter.last.step != meter.step:
            reading = meter.finish()  # here: when training ends, MLflow and Trackio end too
        self._take(reading, args, state, control)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Measure, if that was asked for."""
        meter = self._running()
        if self.every == "epoch" and not meter.last.stop and meter.last.step != meter.step:
            self._take(meter.measure(), args, state, control)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Measure once more, write the record and sign the output folder."""
        meter, folder = self._running(), Path(args.output_dir or ".")
        if meter.last.step != meter.step:
            self._report(meter.finish(), args, state, control, meter.model)
        if state.is_world_process_zero:
            config = {"optimizer": str(args.optim), "lr": args.learning_rate}
            steps = {"steps": state.global_step, "batch": args.train_batch_size}
            self._write_record(folder / RECORD, args.seed, config | steps)
            _make_card(meter.model, folder)
            self.save(folder)
        for reporter in self._reporters:
            if hasattr(reporter, "tb_writer"):  # the others' runs are the Trainer's own
                reporter.on_train_end(args, state, control)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Settings and measurements ride in the checkpoint's folder."""
        if state.is_world_process_zero:
            self.save(_checkpoint(args, state))

    def _take(
        self,
        reading: MeterReading,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
    ) -> None:
        if reading is self._running().last:
            self._report(reading, args, state, control, self._running().model)
        if reading.stop:
            control.should_training_stop = True
            if args.save_strategy == "steps":  # as the Trainer does when all steps are done
                control.should_save = True

    def _report(
        self,
        reading: MeterReading,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module,
    ) -> None:
        """To the trackers: a callback cannot reach the Trainer's own instances of them."""
        logs = {f"eval_{name}": value for name, value in reading.numbers().items()}
        state.log_history.append({**logs, "step": state.global_step})
        for reporter in self._reporters:
            reporter.on_log(args, state, control, model=model, logs=dict(logs))


def _reporters(args: TrainingArguments) -> list[Any]:
    """Trackers of our own, which log into the runs that the Trainer's have begun."""
    kinds = get_reporting_integration_callbacks(args.report_to)  # type: ignore[no-untyped-call]
    made: list[Any] = [kind() for kind in kinds]
    for reporter in made:
        if hasattr(reporter, "_trackio"):  # set up again, it ends the run and begins another
            reporter._initialized = True
    return made


def _make_card(model: nn.Module, folder: Path) -> None:
    """peft's own model card, which ``trainer.save_model()`` will keep with our section in it."""
    make = getattr(getattr(model, "module", model), "create_or_update_model_card", None)
    if callable(make) and hasattr(model, "peft_config"):
        make(str(folder))


def _batches(
    given: Mapping[str, Any] | None, model: nn.Module, loader: object
) -> dict[str, Any] | None:
    if not isinstance(given, Mapping):
        return given
    return {name: as_batches(_fitting(task, model, loader), loader) for name, task in given.items()}


def text_form(arguments: TrainingArguments, tokenizer: Any) -> TextForm:
    """How the trainer makes tokens of texts, as far as its arguments say it (TRL's do)."""
    options: dict[str, Any] = {
        "text_field": getattr(arguments, "dataset_text_field", "text"),
        "max_length": getattr(arguments, "max_length", None),
        "truncation_mode": getattr(arguments, "truncation_mode", "keep_start"),
        "completion_only": getattr(arguments, "completion_only_loss", None) is not False,
        "answers_only": getattr(arguments, "assistant_only_loss", False),
    }
    if options["answers_only"]:
        # TRL has templates with marks for those that have none; it puts them in their place.
        from trl.chat_template_utils import get_training_chat_template, has_generation_markers

        if not has_generation_markers(tokenizer.chat_template):
            options["chat_template"] = get_training_chat_template(tokenizer)
    return TextForm(tokenizer, **options)


def _fitting(dataset: Any, model: nn.Module, loader: object) -> Any:
    """A hub dataset without the columns that the model does not take, as the Trainer trains.

    What the Trainer has left in the one it trains on stays: its collator may want it.
    """
    if not hasattr(dataset, "column_names") or not hasattr(dataset, "remove_columns"):
        return dataset
    unwrap: Any = getattr(model, "get_base_model", lambda: model)
    taken = {*inspect.signature(unwrap().forward).parameters, "label", "label_ids", "labels"}
    taken |= {*(getattr(getattr(loader, "dataset", None), "column_names", None) or ())}
    # A stream may not know its columns before it is read.
    columns = dataset.column_names or [*next(iter(dataset), ())]
    foreign = [name for name in columns if name not in taken]
    return dataset.remove_columns(foreign) if len(foreign) < len(columns) else dataset


def _checkpoint(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(args.output_dir or ".") / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"


def _sign_checkpoint(
    args: TrainingArguments, state: TrainerState, handle: Attachment | None
) -> None:
    folder = _checkpoint(args, state)
    if handle is not None and state.is_world_process_zero and folder.is_dir():
        sign(folder, [handle.settings()])


def _first_memory(path: Path, step: int) -> Memory:
    if not path.is_file():
        raise ValueError(
            f"training goes on from step {step}, and the memory it began with is not at "
            f"{str(path)!r}: what the model does now is not what was to be kept; give memory"
        )
    return Memory.load(path)
