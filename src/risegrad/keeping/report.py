"""What a keeper says of its run: three lines, one sentence, and everything as plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from risegrad.core.blocks import listing
from risegrad.curvature.memory.memory import size
from risegrad.keeping.drift import Drift
from risegrad.keeping.looking import trained_by

if TYPE_CHECKING:
    from risegrad.keeping.keeper import Keeper


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
    bytes: dict[str, int] = field(default_factory=dict)
    """Of the memory, and of the examples with their answers."""
    uncovered: dict[str, str] = field(default_factory=dict)
    """Trained parameters whose steps are not shaped, and why; the pull reaches them, too."""

    @property
    def within_budget(self) -> bool | None:
        """Whether the drift is within the budget; None without one."""
        known = self.budget is not None and self.drift is not None
        return self.drift.mean <= self.budget if known else None  # type: ignore[union-attr, operator]

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
        more = {"within_budget": self.within_budget, "sentence": self.sentence}
        return asdict(self) | more

    def __str__(self) -> str:
        return "\n".join([self._kept(), self._cost(), self._covered()])

    def _kept(self) -> str:
        if self.drift is None:
            return f"keep, {self.steps} steps: no examples, so the drift is not known"
        same = self.drift.agreement
        words = "" if same is None else f", {100 * same:.1f} % the same top answer"
        held = f"on {self.drift.examples} examples it was not shaped by"
        within = {True: ", within the budget", False: ", BEYOND the budget", None: ""}
        allowed = within[self.within_budget] + (
            "" if self.budget is None else f" of {self.budget:g}"
        )
        return f"keep, {self.steps} steps: drift {self.drift} {held}{words}{allowed}"

    def _cost(self) -> str:
        ratio = self.time_ratio
        time = (
            "time per step not known yet"
            if ratio is None
            else f"{100 * ratio:+.0f} % time per step"
        )
        often = {0: "no pull", 1: "pull at every step"}.get(
            self.pull, f"pull every {self.pull} steps"
        )
        pull = f"{often}, strength {self.strength:.3g}" if self.pull else often
        factor = "" if self.c is None else f", c {self.c:.2g}"
        return f"{time} ({pull}{factor}); {size(sum(self.bytes.values()))} kept"

    def _covered(self) -> str:
        if self.c is None:
            return "steps are not shaped"
        if not self.uncovered:
            return "every trained parameter is covered"
        shown = [f"{name} ({reason})" for name, reason in self.uncovered.items()]
        return (
            f"steps not shaped, only pulled: {listing(shown)}"
            if self.pull
            else (f"not covered, left as plain training leaves it: {listing(shown)}")
        )


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
        bytes={
            "memory": 0 if memory is None else memory.bytes,
            "examples": 0 if kept is None else kept.bytes,
        },
        uncovered=_uncovered(keeper),
    )


def _uncovered(keeper: Keeper) -> dict[str, str]:
    if keeper.attachment is None or keeper.memory is None:
        return {}
    shaped = {id(tensor) for tensor in keeper.attachment._tensors}
    trained = {id(tensor) for tensor in trained_by(keeper.optimizer)}
    return {
        name: keeper.memory.uncovered.get(name, "not in a layer that is remembered")
        for name, tensor in keeper.model.named_parameters()
        if id(tensor) in trained - shaped
    }
