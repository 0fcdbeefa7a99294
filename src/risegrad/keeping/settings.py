"""What was asked of a keeper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from risegrad.common.checks import check_int, check_number
from risegrad.curvature.memory.memory import DAMPING
from risegrad.curvature.memory.memory_side import check_damping
from risegrad.curvature.memory.remembered_outputs import Of, Reading

PLAIN = ("examples", "budget", "pull", "damping", "seed", "of")


@dataclass(frozen=True)
class KeepSettings:
    """The arguments of ``risegrad.keep``, checked."""

    examples: int = 128
    """How many are kept of each task, at most; a fifth of them is held out."""
    budget: float | None = None
    """How much may be lost, in nats per token (or prediction); None: as little as it comes to."""
    pull: int = 1
    """Every how many steps kept examples pull; 0: never."""
    damping: float | None = DAMPING
    """Of the shaping; None: steps are not shaped."""
    of: Of | None = None
    """What is kept: "predictions", "features", the name of a module, or a function; None:
    predictions, or features of a model without a head."""
    predict: Reading | None = None
    """``predict(model, batch)`` for batches of an unusual form."""
    tokenizer: Any = None
    prompts: Sequence[str] | None = None
    """What the model's own samples answer or go on from."""
    system: str | None = None
    """The system prompt of its own chats."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_number("examples", self.examples, at_least=2, whole=True)
        check_number("pull", self.pull, at_least=0, whole=True)
        check_int("seed", self.seed)
        if self.damping is not None:
            check_damping(self.damping)
        if self.budget is not None:
            check_number("budget", self.budget, above=0)
            if not self.pull:
                raise ValueError("budget is held by the strength of the pull: pull must be >= 1")
        if self.damping is None and not self.pull:
            raise ValueError("damping=None and pull=0 leave nothing that keeps")

    def plain(self) -> dict[str, Any]:
        """Those that are numbers and words, for a file."""
        named = {name: getattr(self, name) for name in PLAIN}
        return named | {"of": "a function" if callable(self.of) else self.of}
