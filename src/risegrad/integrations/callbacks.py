"""What the callbacks of all trainers share: attach while training lasts, keep, measure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal
from weakref import ref

from torch import nn
from torch.optim import Optimizer

from risegrad.common.checks import check_positive_int
from risegrad.core.attachment import Attachment, On, attach, shaping
from risegrad.core.shapers import Shaper
from risegrad.integrations import forgetting_meter as meters
from risegrad.integrations.forgetting_meter import Budget, ForgettingMeter, MeterReading
from risegrad.integrations.kept_scores import Metric, Scoring
from risegrad.integrations.records import MeteredRun, short, sign
from risegrad.keeping.keep import keep
from risegrad.keeping.keeper import Keeper
from risegrad.memory.memory import Memory

Prepare = Callable[[Any], Any]
"""From what a person gave to batches, as the trainer makes its own."""


class Attaching:
    """A shaper on the trainer's optimizer, from the beginning of training to its end."""

    handle: Attachment | None = None
    """The attachment: at work while training lasts, and to be looked at afterwards."""
    _optimizer: Optimizer | None = None

    def _put_on(self, model: nn.Module, optimizer: Optimizer, shaper: Shaper, on: On) -> None:
        self._take_off()  # a training that an exception ended has left it
        self.handle = attach(optimizer, shaper, model.named_parameters(), on)
        self._optimizer = optimizer

    def _take_off(self) -> None:
        if self.handle is not None:
            self.handle.detach()
        self._optimizer = None


RECENT = 10
"""Steps for which a drift that was measured is logged again: measuring takes a forward pass."""


class KeepInTraining:
    """``old``: examples in any form that the trainer takes; None: the model writes its own.
    ``how`` goes to ``risegrad.keep`` (``budget``, ``examples``, ``tokenizer``, ...).

    If you use it for several trainings in turn, it keeps what each of them taught, by the examples
    ``then`` (default: its training data). ``keeper`` exists once the first training has begun.
    """

    def __init__(self, old: Any = None, *, then: Any = None, **how: Any) -> None:
        self.old, self.then, self.how = old, then, how
        self.keeper: Keeper | None = None
        self._learned: Callable[[], Any] = lambda: None

    def _keep(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        prepare: Prepare,
        loader: Any,
        resume: Path | None = None,
        **how: Any,
    ) -> Keeper:
        """Keep when a training begins; ``loader`` is what it trains on."""
        if self.keeper is not None:
            self.keeper.detach()  # a training that an exception ended has left it
        how |= self.how
        if resume is not None:
            self.keeper = keep(model, optimizer, resume=resume, **how)
        elif self.keeper is not None and self.keeper.model is model:
            self.keeper.then(self._learned(), optimizer)
        else:
            ready = self.old is None or isinstance(self.old, Memory)
            self.keeper = keep(model, optimizer, self.old if ready else prepare(self.old), **how)
        then = getattr(loader, "dataset", None) if self.then is None else self.then
        self._learned = lambda: None if then is None else prepare(then)
        return self.keeper

    def _running(self) -> Keeper:
        if self.keeper is None:
            raise ValueError("nothing is kept yet: training has not begun")
        return self.keeper

    def _kept_numbers(self) -> dict[str, float]:
        """For a line of the log."""
        keeper = self._running()
        drift = keeper.drift(within=RECENT)
        found = {"keep/strength": keeper.strength, "keep/c": keeper.factor or 1.0}
        return found if drift is None else {"keep/drift": drift.mean, **found}


class ForgettingInTraining:
    """``keep``: old tasks by name, each a dataset or list of examples (texts, messages, prompts and
    completions, tokens), a list or loader of batches, or an ``Evaluator`` such as ``LmEvalTask``;
    ``metric``: "accuracy", a function of (model, batch) with a score in [0, 1] for each example, or
    a ``Scoring``; ``new``: the task to learn, by name, to see both sides; ``every``: steps between
    two measurements, or "epoch"; ``budget``: nats that the old tasks may lose, or a ``Budget``;
    ``run``: the record's place in a table; ``tokenizer``: for texts, if the trainer has none.

    ``meter`` is the ``ForgettingMeter`` once training has begun. Measurements go to the trainer's
    loggers, and a record to ``record.json`` in its output folder, which ``rise report`` reads
    (``record-2.json`` for a second callback in one trainer). Numbers in a folder with saved weights
    were measured with these weights.
    """

    _last: ClassVar[ref[ForgettingInTraining] | None] = None
    """The one that began last: those of one trainer begin one after the other."""

    def __init__(
        self,
        keep: Mapping[str, Any],
        metric: Metric | Scoring = "accuracy",
        *,
        new: Mapping[str, Any] | None = None,
        every: int | Literal["epoch"] = meters.EVERY,
        budget: float | Budget | None = None,
        run: MeteredRun | None = None,
        tokenizer: Any = None,
    ) -> None:
        if isinstance(every, str) and every != "epoch":
            raise ValueError(f"every must be a number of steps or 'epoch', got {every!r}")
        self.keep, self.new, self.every, self.run = keep, new, every, run
        self.tokenizer = tokenizer
        # Checked here, too: training may begin hours later.
        self._options: dict[str, Any] = {
            "metric": metric if isinstance(metric, Scoring) else Scoring(metric),
            "every": None if every == "epoch" else check_positive_int("every", every),
            "budget": meters.budget_of(budget),
        }
        self.meter: ForgettingMeter | None = None
        self._optimizers: list[Optimizer] = []
        self._rules: list[dict[str, object]] = []
        self._training: object = None
        self._together: list[ForgettingInTraining] = [self]
        """All such callbacks of one trainer, which write into the same files."""

    def save(self, folder: str | Path) -> None:
        """Write rule, settings and measured forgetting into the folder of a saved model."""
        sign(Path(folder), self._rules, [each._running() for each in self._together])

    def _running(self) -> ForgettingMeter:
        if self.meter is None:
            raise ValueError("nothing was measured yet: training has not begun")
        return self.meter

    def _begin(
        self, model: nn.Module, optimizers: list[Optimizer], prepare: Prepare, training: object
    ) -> MeterReading:
        """Score everything; ``training`` is one object for all callbacks of one training."""
        self._rules = []
        tasks: dict[str, Any] = {"keep": self.keep, "new": self.new}
        for side, given in tasks.items():
            if isinstance(given, Mapping):  # else the meter says what it must be
                tasks[side] = {name: prepare(task) for name, task in given.items()}
        self.meter = ForgettingMeter(model, **tasks, **self._options)
        self._optimizers = optimizers
        self._join(training)
        names = [name for each in self._together for name in each._running().start.scores]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(
                f"two ForgettingCallbacks of one trainer measure {', '.join(sorted(twice))}: their "
                "numbers would be mixed; give one of them another name"
            )
        self._look_at_rules()
        return self.meter.start

    def _look_at_rules(self) -> None:
        """Once steps are made, whatever shapes them is attached; at the end it may be off again."""
        meter = self._running()
        if not self._rules:
            attached = shaping(meter.model, *self._optimizers)
            self._rules = [each.settings() for each in attached]

    def _join(self, training: object) -> None:
        last = None if ForgettingInTraining._last is None else ForgettingInTraining._last()
        same = last is not None and last._training is training and self not in last._together
        self._together = last._together if last is not None and same else []
        self._together.append(self)
        self._training, ForgettingInTraining._last = training, ref(self)

    def _write_record(self, folder: Path, seed: int, config: Mapping[str, Any]) -> None:
        run = self.run or MeteredRun(label=" + ".join(map(short, self._rules)) or "plain training")
        plain = [{n: value for n, value in rule.items() if n != "layout"} for rule in self._rules]
        settings = {"rules": plain, **config, **run.config}
        number = self._together.index(self) + 1
        path = folder / ("record.json" if number == 1 else f"record-{number}.json")
        seed = seed if run.seed is None else run.seed
        self._running().write_record(path, replace(run, seed=seed, config=settings))
