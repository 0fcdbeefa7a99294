"""``risegrad.keep`` in the Trainers of Hugging Face and TRL, and in the form of peft."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from risegrad.core.optimizers import unwrapped
from risegrad.integrations.records import sign_kept
from risegrad.integrations.transformers import make_card, reporters_of, text_form
from risegrad.keeping.keep import keep
from risegrad.keeping.keeper import KEY, Keeper
from risegrad.keeping.report import report_of
from risegrad.memory.examples import prepared

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ImportError as error:
    raise ImportError(
        "risegrad.integrations.keep needs transformers and accelerate: "
        'pip install "risegrad[language]"'
    ) from error

FOLDER = "risegrad-keep"
"""In the output folder: a resumed run must keep what it began with."""
RECENT = 10
"""Steps for which a drift that was measured is logged again: measuring takes a forward pass."""


class KeepCallback(TrainerCallback):
    """``SFTTrainer(..., callbacks=[KeepCallback()])``: the model keeps what it knows.

    ``old``: examples in any form that the Trainer takes, or None: what the model writes itself. The
    other arguments are those of ``risegrad.keep``; the tokenizer is the Trainer's. A line of the
    log has ``keep/drift``, ``keep/strength`` and ``keep/c``; the model card says how it ended.

    Used for several trainings one after the other, it keeps what each of them learned: ``then``
    examples of it, by default the ones it was trained on. ``keeper`` is there from the first on.
    """

    def __init__(self, old: Any = None, *, then: Any = None, **how: Any) -> None:
        self.old, self.then, self.how = old, then, how
        self.keeper: Keeper | None = None
        self._learned: Any = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Keep, or go on keeping where a resumed run was."""
        model, optimizer = kwargs["model"], unwrapped(kwargs["optimizer"])
        self._reporters = reporters_of(args)
        folder = Path(args.output_dir or ".") / FOLDER
        if self.keeper is not None:
            self.keeper.detach()  # a training that an exception ended has left it
        if state.global_step:
            how = self._how(args)
            self.keeper = _resumed(model, optimizer, folder, state.global_step, how)
        elif self.keeper is not None and self.keeper.model is model:
            self.keeper.then(self._learned, optimizer)
        else:
            old = None if self.old is None else self._prepared(self.old, args, kwargs)
            how = {"tokenizer": kwargs.get("processing_class")} | self._how(args)
            self.keeper = keep(model, optimizer, old, **how)
        then = self.then
        if then is None:
            then = getattr(kwargs.get("train_dataloader"), "dataset", None)
        self._learned = None if then is None else self._prepared(then, args, kwargs)
        if state.is_world_process_zero:
            self.keeper.save(folder)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Add how well it keeps to a line with the loss."""
        logs = kwargs.get("logs") or {}
        if "loss" not in logs:
            return
        numbers = self._numbers()
        logs.update(numbers)
        state.log_history[-1].update(numbers)
        for reporter in self._reporters:  # the Trainer's own have had the line already
            reporter.on_log(args, state, control, model=kwargs.get("model"), logs=dict(numbers))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Say how it went, in the log, in the output folder and its model card; detach."""
        keeper = self._running()
        report = report_of(keeper)
        state.log_history.append({**self._numbers(), "step": state.global_step})
        if state.is_world_process_zero:
            folder = Path(args.output_dir or ".")
            folder.mkdir(parents=True, exist_ok=True)
            make_card(keeper.model, folder)
            sign_kept(folder, report.plain())
            print(report, report.sentence, sep="\n")
        keeper.detach()

    def _running(self) -> Keeper:
        if self.keeper is None:
            raise ValueError("nothing is kept yet: training has not begun")
        return self.keeper

    def _numbers(self) -> dict[str, float]:
        keeper = self._running()
        drift = keeper.drift(within=RECENT)
        found = {"keep/strength": keeper.strength, "keep/c": keeper.factor or 1.0}
        return found if drift is None else {"keep/drift": drift.mean, **found}

    def _prepared(self, given: Any, args: TrainingArguments, kwargs: Mapping[str, Any]) -> Any:
        tokenizer = self.how.get("tokenizer", kwargs.get("processing_class"))
        form = text_form(args, tokenizer)
        return prepared(given, kwargs["model"], form, kwargs.get("train_dataloader"))

    def _how(self, args: TrainingArguments) -> dict[str, Any]:
        # The Trainer shows callbacks the model without DDP around it.
        return {"together": args.world_size > 1 or None} | self.how


def _resumed(
    model: nn.Module, optimizer: Optimizer, folder: Path, step: int, how: Mapping[str, Any]
) -> Keeper:
    if not isinstance(optimizer.param_groups[0].get(KEY), Mapping):
        raise ValueError(
            f"training goes on from step {step} of a run that did not keep, so what it knew "
            "then is gone: begin anew, or resume without KeepCallback"
        )
    if not folder.is_dir():
        raise ValueError(
            f"training goes on from step {step}, and what it kept is not at {str(folder)!r}"
        )
    return keep(model, optimizer, resume=folder, **how)


def create_keep_optimizer(
    model: nn.Module,
    optimizer_cls: type[Optimizer],
    *,
    lr: float,
    old: Any = None,
    tokenizer: Any = None,
    budget: float | None = None,
    **kwargs: Any,
) -> Optimizer:
    """An optimizer of what is trained, which keeps what the model knows.

    In the form of peft's ``create_loraplus_optimizer``, for ``Trainer(optimizers=(optimizer,
    None))`` and every other loop: ``kwargs`` go to ``optimizer_cls``, the rest to
    ``risegrad.keep``. ``risegrad.keeping.keeper.keeper_of(optimizer)`` is its keeper.
    """
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if not named:
        raise ValueError("nothing is trained: every parameter of the model is frozen")
    make: Any = optimizer_cls
    optimizer: Optimizer = make([p for _, p in named], lr=lr, **kwargs)
    keep(model, optimizer, old, tokenizer=tokenizer, budget=budget)
    return optimizer
