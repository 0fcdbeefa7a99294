"""What a keeper says of its run: three lines, one sentence, and everything as plain data."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import torch

from risegrad.core.blocks import listing
from risegrad.keeping.examples import Group
from risegrad.keeping.looking import Look, trained_by
from risegrad.memory.memory import size

if TYPE_CHECKING:
    from risegrad.keeping.keeper import Keeper


@dataclass(frozen=True)
class Drift:
    """``KL(then || now)`` per prediction, in nats; of features a squared distance."""

    mean: float
    error: float | None
    """The standard error of the mean, over examples; None of a single one."""
    agreement: float | None
    """The part of predictions whose most likely class is the one that it was."""
    examples: int
    unit: str

    def __str__(self) -> str:
        error = "" if self.error is None else f" (+-{self.error:.2g})"
        return f"{self.mean:.3g}{error} {self.unit}"


@torch.no_grad()
def drift_of(look: Look, groups: Sequence[Group]) -> Drift:
    """The drift over all predictions of these groups."""
    sums, counts, same = [], [], []
    with look.quietly():
        for group in groups:
            rows, answers = look.rows(group.batch), group.answers.to(look.device)
            distances, agreements = answers.distances(rows).double().cpu(), answers.agreements(rows)
            sums += [part.sum() for part in torch.split(distances, list(group.counts))]
            counts += list(group.counts)
            same += [] if agreements is None else [agreements.cpu()]
    total, size = torch.stack(sums), torch.tensor(counts, dtype=torch.float64)
    mean = total.sum() / size.sum()
    # Predictions of one example are alike: the error is of a ratio of sums over examples.
    spread = (total - mean * size).square().sum() * len(size) / max(len(size) - 1, 1)
    error = float(spread.sqrt() / size.sum()) if len(size) > 1 else None
    agreement = float(torch.cat(same).double().mean()) if same else None
    unit = "nats per token" if max(counts) > 1 else "nats per prediction"
    if agreement is None:
        unit = "of the features' variance"
    return Drift(float(mean), error, agreement, len(size), unit)


@dataclass(frozen=True)
class Report:
    """The state of a run that keeps."""

    steps: int
    drift: Drift | None
    """On held-out examples; None where there are none."""
    budget: float | None
    strength: float
    """What the pull is multiplied by now."""
    pull: int
    """Every how many steps kept examples pull."""
    c: float | None
    """How much longer shaped steps were made to make the plain one's progress; None: not shaped."""
    time_ratio: float | None
    """The time of keeping over the time of everything else, per step; None before two steps."""
    seconds_per_dream: float | None = None
    """What it took the model to write an example itself, before training; None if it did not."""
    bytes: dict[str, int] = field(default_factory=dict)
    """Of the memory, and of the examples with their answers."""
    uncovered: dict[str, str] = field(default_factory=dict)
    """Trained parameters whose steps are not shaped, and why; the pull reaches them, too."""

    @property
    def within_budget(self) -> bool | None:
        """Whether the drift is within the budget; None without one."""
        if self.budget is None or self.drift is None:
            return None
        return self.drift.mean <= self.budget

    @property
    def sentence(self) -> str:
        """The run in one sentence that a person can repeat."""
        if self.drift is None:
            return f"After {self.steps} steps nothing is known of the drift: no examples are kept."
        text = f"After {self.steps} steps the answers have moved by {self.drift}"
        if self.drift.agreement is not None:
            text += f", and {100 * self.drift.agreement:.0f} of 100 are the same as before"
        if self.within_budget is not None:
            word = "within" if self.within_budget else "beyond"
            text += f": {word} the budget of {self.budget:g}"
        return text + "."

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self) | {"within_budget": self.within_budget, "sentence": self.sentence}

    def __str__(self) -> str:
        return "\n".join([self._kept(), self._cost(), self._covered()])

    def _kept(self) -> str:
        if self.drift is None:
            return f"keep, {self.steps} steps: no examples, so the drift is not known"
        held = f"on {self.drift.examples} examples it was not shaped by"
        parts = [f"keep, {self.steps} steps: drift {self.drift} {held}"]
        if self.drift.agreement is not None:
            parts.append(f"{100 * self.drift.agreement:.1f} % the same top answer")
        if self.within_budget is not None:
            word = "within" if self.within_budget else "BEYOND"
            parts.append(f"{word} the budget of {self.budget:g}")
        return ", ".join(parts)

    def _cost(self) -> str:
        ratio, dream = self.time_ratio, self.seconds_per_dream
        often = {0: "no pull", 1: "pull at every step"}
        parts = [often.get(self.pull, f"pull every {self.pull} steps")]
        parts += [f"strength {self.strength:.3g}"] if self.pull else []
        parts += [] if self.c is None else [f"c {self.c:.2g}"]
        time = "time per step not known yet"
        if ratio is not None:
            time = f"{100 * ratio:+.0f} % time per step"
        before = "" if dream is None else f"; {dream:.2g} s for each example it wrote itself"
        return f"{time} ({', '.join(parts)}); {size(sum(self.bytes.values()))} kept{before}"

    def _covered(self) -> str:
        if self.c is None:
            return "steps are not shaped"
        if not self.uncovered:
            return "every trained parameter is covered"
        what = "steps not shaped, only pulled" if self.pull else "not covered, trained plainly"
        return f"{what}: {listing([f'{name} ({why})' for name, why in self.uncovered.items()])}"


def report_of(keeper: Keeper) -> Report:
    """The report of a keeper as it is now."""
    memory, kept = keeper.memory, keeper.kept
    return Report(
        steps=keeper.steps,
        drift=keeper.drift(),
        budget=keeper.settings.budget,
        strength=keeper.strength,
        pull=keeper.settings.pull,
        c=keeper.factor,
        time_ratio=keeper.time_ratio,
        seconds_per_dream=None if kept is None else kept.seconds_per_dream,
        bytes={
            "memory": 0 if memory is None else memory.bytes,
            "examples": 0 if kept is None else kept.bytes,
        },
        uncovered=_uncovered(keeper),
    )


def _uncovered(keeper: Keeper) -> dict[str, str]:
    if keeper.handle is None or keeper.memory is None:
        return {}
    shaped = {id(tensor) for tensor in keeper.handle._tensors}
    trained = {id(tensor) for tensor in trained_by(keeper.optimizer)}
    return {
        name: keeper.memory.uncovered.get(name, "not in a layer of the memory")
        for name, tensor in keeper.model.named_parameters()
        if id(tensor) in trained - shaped
    }


LATEST = 64
"""Steps that are looked back on."""


class Cost:
    """The time of our own work in each step, beside the time from step to step.

    On a GPU by events in its stream, which nobody waits for before the ratio is asked.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._steps: deque[tuple[Any, list[tuple[Any, Any]]]] = deque(maxlen=LATEST + 1)
        self._since: Any = None

    def step(self) -> None:
        """A step of the optimizer begins, and our work with it."""
        self.start()
        self._steps.append((self._since, []))

    def start(self) -> None:
        """Our work begins."""
        self._since = self._now()

    def stop(self) -> None:
        """Our work is done for now."""
        if self._since is not None and self._steps:
            self._steps[-1][1].append((self._since, self._now()))
        self._since = None

    def ratio(self) -> float | None:
        """Our time over all other time, per step; None before there were two steps."""
        ours = [sum(_seconds(*part) for part in parts) for _, parts in self._steps]
        begun = [begin for begin, _ in self._steps]
        others = [_seconds(a, b) - t for a, b, t in zip(begun, begun[1:], ours, strict=False)]
        return fmean(ours[:-1]) / median(others) if others and median(others) > 0 else None

    def _now(self) -> Any:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


def _seconds(start: Any, end: Any) -> float:
    if isinstance(start, float):
        return float(end - start)
    end.synchronize()
    return float(start.elapsed_time(end)) / 1000
