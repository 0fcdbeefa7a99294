"""``risegrad.keep`` in the Trainers of Hugging Face and TRL, and in the form of peft."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from risegrad.core.optimizers import unwrapped
from risegrad.integrations.callbacks import KeepInTraining
from risegrad.integrations.records import sign_kept
from risegrad.integrations.transformers import make_card, preparing, reporters_of
from risegrad.keeping.keep import keep
from risegrad.keeping.keeper import KEY
from risegrad.keeping.report import report_of

try:
    from transformers import TrainerCallback
    from transformers import TrainerControl as Control
    from transformers import TrainerState as State
    from transformers import TrainingArguments as Args
except ImportError as error:
    raise ImportError(
        "risegrad.integrations.keep needs transformers and accelerate: "
        'pip install "risegrad[language]"'
    ) from error

FOLDER = "risegrad-keep"
"""In the output folder: a resumed run must keep what it began with."""


class KeepCallback(KeepInTraining, TrainerCallback):
    """``SFTTrainer(..., callbacks=[KeepCallback()])``: the model keeps what it knows.

    ``KeepCallback(old=None, *, then=None, **how)``: see ``KeepInTraining``; the tokenizer is the
    Trainer's. The log gets ``keep/drift``, ``keep/strength`` and ``keep/c``, and the model
    card gets the result.
    """

    def on_train_begin(self, args: Args, state: State, control: Control, **kwargs: Any) -> None:
        """Keep, or go on keeping where a resumed run was."""
        optimizer = unwrapped(kwargs["optimizer"])
        self._reporters = reporters_of(args)
        folder = Path(args.output_dir or ".") / FOLDER
        resumed = state.global_step > 0
        if resumed:
            _check_kept(optimizer, folder, state.global_step)
        tokenizer = self.how.get("tokenizer", kwargs.get("processing_class"))
        keeper = self._keep(
            kwargs["model"],
            optimizer,
            preparing(args, kwargs, tokenizer),
            kwargs.get("train_dataloader"),
            resume=folder if resumed else None,
            tokenizer=tokenizer,
            # The Trainer shows callbacks the model without DDP around it.
            together=args.world_size > 1 or None,
        )
        if state.is_world_process_zero and not resumed:
            keeper.save(folder)

    def on_log(self, args: Args, state: State, control: Control, **kwargs: Any) -> None:
        """Add how well it keeps to a line with the loss."""
        logs = kwargs.get("logs") or {}
        if "loss" not in logs:
            return
        numbers = self._kept_numbers()
        logs.update(numbers)
        state.log_history[-1].update(numbers)
        for reporter in self._reporters:  # the Trainer's own have had the line already
            reporter.on_log(args, state, control, model=kwargs.get("model"), logs=dict(numbers))

    def on_train_end(self, args: Args, state: State, control: Control, **kwargs: Any) -> None:
        """Say how it went, in the log, in the output folder and its model card; detach."""
        keeper = self._running()
        report = report_of(keeper)
        state.log_history.append({**self._kept_numbers(), "step": state.global_step})
        if state.is_world_process_zero:
            folder = Path(args.output_dir or ".")
            folder.mkdir(parents=True, exist_ok=True)
            make_card(keeper.model, folder)
            sign_kept(folder, report.plain())
            print(report, report.sentence, sep="\n")
        keeper.detach()


def _check_kept(optimizer: Optimizer, folder: Path, step: int) -> None:
    if not isinstance(optimizer.param_groups[0].get(KEY), Mapping | str):
        raise ValueError(
            f"cannot resume at step {step}: that run trained without KeepCallback, so the answers "
            "to keep were never stored; start a new run, or resume without KeepCallback"
        )
    if not folder.is_dir():
        raise ValueError(
            f"cannot resume at step {step}: the saved keeper is missing at {str(folder)!r}"
        )


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
    """An optimizer of the trained parameters, which keeps what the model knows.

    It has the form of peft's ``create_loraplus_optimizer``, for ``Trainer(optimizers=(optimizer,
    None))`` and every other loop: ``kwargs`` go to ``optimizer_cls``, the rest to
    ``risegrad.keep``. ``risegrad.keeping.keeper.keeper_of(optimizer)`` returns its keeper.
    """
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if not named:
        raise ValueError("nothing is trained: every parameter of the model is frozen")
    make: Any = optimizer_cls
    optimizer: Optimizer = make([p for _, p in named], lr=lr, **kwargs)
    keep(model, optimizer, old, tokenizer=tokenizer, budget=budget)
    return optimizer
