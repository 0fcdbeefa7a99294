"""RISE and a meter of forgetting in the Hugging Face ``Trainer``, as callbacks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from risegrad.core.attachment import On
from risegrad.core.optimizers import unwrapped
from risegrad.core.shapers import Shaper
from risegrad.integrations.callbacks import Attaching, ForgettingInTraining, Prepare
from risegrad.integrations.forgetting_meter import MeterReading
from risegrad.integrations.kept_scores import KeptScore
from risegrad.integrations.records import sign
from risegrad.memory.examples import TextForm, prepared

try:
    from transformers import TrainerCallback
    from transformers import TrainerControl as Control
    from transformers import TrainerState as State
    from transformers import TrainingArguments as Args
    from transformers.integrations.integration_utils import get_reporting_integration_callbacks
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
except ImportError as error:
    raise ImportError(
        "risegrad.integrations.transformers needs transformers and accelerate: "
        'pip install "risegrad[language]"'
    ) from error


class RiseCallback(Attaching, TrainerCallback):
    """Attaches a shaper to the optimizer that the Trainer makes, until training ends.

    Training begins after the Trainer has wrapped the model and loaded the checkpoint it resumes
    from, so the parameters are final and the resumed step count is already in the optimizer's
    state. ``handle`` is the attachment, from then on.
    """

    def __init__(self, shaper: Shaper, on: On = "gradient") -> None:
        self.shaper = shaper
        self.on = on

    def on_train_begin(self, args: Args, state: State, control: Control, **kwargs: Any) -> None:
        """Attach the shaper to the trainer's optimizer."""
        optimizer = unwrapped(kwargs["optimizer"])
        if optimizer is not self._optimizer:
            self._put_on(kwargs["model"], optimizer, self.shaper, self.on)

    def on_save(self, args: Args, state: State, control: Control, **kwargs: Any) -> None:
        """Settings ride in the checkpoint's folder."""
        folder = _checkpoint(args, state)
        if self.handle is not None and state.is_world_process_zero and folder.is_dir():
            sign(folder, [self.handle.settings()])

    def on_train_end(self, args: Args, state: State, control: Control, **kwargs: Any) -> None:
        """Detach."""
        self._take_off()


class ForgettingCallback(ForgettingInTraining, TrainerCallback):
    """Scores old tasks before, during and after training.

    ``ForgettingCallback(keep={"agnews": dataset}, metric="accuracy", new=None, every=50,
    budget=None, run=None, tokenizer=None)``: see
    ``ForgettingInTraining``. Texts are prepared as in TRL's SFTTrainer, with the
    Trainer's ``processing_class``; other examples go through the Trainer's collator, without
    the columns that the model does not take.
    Measurements go to the trackers in ``report_to`` and into ``state.log_history``, where a resumed
    run reads the scores from before training. Settings and scores go into every checkpoint's folder
    and into the output folder (``risegrad.json`` and a section of the model card); ``save(folder)``
    writes them into any other. If the budget stops a run that saves by steps, it saves a last
    checkpoint.
    """

    def on_train_begin(self, args: Args, state: State, control: Control, **kwargs: Any) -> None:
        """Score everything; a resumed run counts from where it first began."""
        self._reporters = reporters_of(args)
        prepare = preparing(args, kwargs, self.tokenizer)
        reading = self._begin(kwargs["model"], [kwargs["optimizer"]], prepare, state)
        if state.global_step:
            meter = self._running()
            meter.step = state.global_step
            meter.count_from(*_first_scores(state, reading))
            reading = meter.last
        self._take(reading, args, state, control)

    def on_step_end(self, args: Args, state: State, control: Control, **kwargs: Any) -> None:
        """Measure if it is time or the model will be saved; stop where the budget is used up."""
        self._look_at_rules()
        meter = self._running()
        reading = meter.update(state.global_step)
        best = control.should_evaluate and args.save_strategy == "best"
        # Also at the end: when training ends, MLflow and Trackio end too.
        if control.should_save or best or control.should_training_stop:
            reading = meter.finish()
        self._take(reading, args, state, control)

    def on_epoch_end(self, args: Args, state: State, control: Control, **kwargs: Any) -> None:
        """Measure, if that was asked for or the model will be saved."""
        meter, last = self._running(), self._running().last
        due = self.every == "epoch" or control.should_save or control.should_training_stop
        if due and not last.stop and meter.finish() is not last:
            self._take(meter.last, args, state, control)

    def on_train_end(self, args: Args, state: State, control: Control, **kwargs: Any) -> None:
        """Measure the model that is left, write the record and sign the output folder."""
        meter, folder = self._running(), Path(args.output_dir or ".")
        if args.load_best_model_at_end and state.best_model_checkpoint is not None:
            meter.step = int(state.best_model_checkpoint.rsplit("-", 1)[-1])
            self._log(meter.measure(back=True), state)
        elif meter.last.step != meter.step:
            self._log(meter.finish(), state)
        if state.is_world_process_zero:
            config = {"optimizer": str(args.optim), "lr": args.learning_rate}
            steps = {"steps": state.global_step, "batch": args.train_batch_size}
            self._write_record(folder, args.seed, config | steps)
            make_card(meter.model, folder)
            self.save(folder)
        for reporter in self._reporters:
            if hasattr(reporter, "tb_writer"):  # the others' runs are the Trainer's own
                reporter.on_train_end(args, state, control)

    def on_save(self, args: Args, state: State, control: Control, **kwargs: Any) -> None:
        """Settings and measurements ride in the checkpoint's folder."""
        if state.is_world_process_zero:
            self.save(_checkpoint(args, state))

    def _take(self, reading: MeterReading, args: Args, state: State, control: Control) -> None:
        if reading is self._running().last:
            logs = self._log(reading, state)
            model = self._running().model
            for reporter in self._reporters:  # a callback cannot reach the Trainer's own instances
                reporter.on_log(args, state, control, model=model, logs=dict(logs))
        if reading.stop:
            control.should_training_stop = True
            if args.save_strategy == "steps":  # as the Trainer does when all steps are done
                control.should_save = True

    def _log(self, reading: MeterReading, state: State) -> dict[str, float]:
        logs = {f"{LOGGED}{name}": value for name, value in reading.numbers().items()}
        state.log_history.append({**logs, "step": state.global_step})
        return logs


LOGGED = "eval_"


def _first_scores(state: State, now: MeterReading) -> tuple[dict[str, KeptScore], int]:
    """The scores that the checkpoint's own log begins with, and at which step; else those of now.

    A file in the output folder may be that of another run.
    """
    found, step = dict(now.scores), state.global_step
    for entry in reversed(state.log_history):
        for name in now.scores:
            part = f"{LOGGED}{'kept' if name in now.rises else 'new'}_{name}"
            if f"{part}_score" in entry:
                found[name] = KeptScore(entry.get(f"{part}_loss"), entry[f"{part}_score"])
                step = int(entry["step"])
    return found, step


def reporters_of(args: Args) -> list[Any]:
    """Trackers of our own, which log into the runs that the Trainer's have begun."""
    kinds = get_reporting_integration_callbacks(args.report_to)  # type: ignore[no-untyped-call]
    made: list[Any] = [kind() for kind in kinds]
    for reporter in made:
        if hasattr(reporter, "_trackio"):  # set up again, it ends the run and begins another
            reporter._initialized = True
    return made


def make_card(model: nn.Module, folder: Path) -> None:
    """peft's own model card, which ``trainer.save_model()`` will keep with our section in it."""
    make = getattr(getattr(model, "module", model), "create_or_update_model_card", None)
    if callable(make) and hasattr(model, "peft_config"):
        make(str(folder))


def preparing(args: Args, kwargs: Mapping[str, Any], tokenizer: Any) -> Prepare:
    """As the Trainer prepares what it trains on; ``kwargs`` are those of a callback's event."""
    form = text_form(args, kwargs.get("processing_class") if tokenizer is None else tokenizer)
    model, loader = kwargs["model"], kwargs.get("train_dataloader")
    return lambda given: prepared(given, model, form, loader)


def text_form(arguments: Args, tokenizer: Any) -> TextForm:
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


def _checkpoint(args: Args, state: State) -> Path:
    return Path(args.output_dir or ".") / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
