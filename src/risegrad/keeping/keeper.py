"""``Keeper``: what ``risegrad.keep`` puts on an optimizer so that steps keep what was known."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from risegrad.core.attachment import Attachment, attach
from risegrad.core.optimizers import has_gradients, only_creates_state, scaler_skips, unwrapped
from risegrad.keeping.examples import ROOM, KeepSettings, Kept, kept_of, taken
from risegrad.keeping.files import write_keeper
from risegrad.keeping.looking import Look, trained_by
from risegrad.keeping.pull import (
    EVERY,
    STRENGTH,
    STRONGEST,
    add,
    agreed,
    kept_losses,
    pulled,
    strength_after,
)
from risegrad.keeping.report import Cost, Drift, drift_of, report_of
from risegrad.memory.informed import Informed, right_place
from risegrad.memory.memory import Memory
from risegrad.memory.sides import variants_named_like_lora

KEY, MARK = "risegrad_keep", "kept"
"""Under which a keeper's state rides in the optimizer's own, in its first group."""
PATIENCE = 5
"""Measurements beyond the budget at the strongest pull, after which a person is told."""


class Keeper:
    """Pulls before a step, shapes after it, and measures. ``print`` shows how well it keeps.

    ``with risegrad.keep(...) as keeper:`` detaches it at the end.
    """

    def __init__(
        self,
        look: Look,
        optimizer: Optimizer,
        memory: Memory | None,
        kept: Kept | None,
        settings: KeepSettings,
    ) -> None:
        self.memory, self.kept, self.settings = memory, kept, settings
        self.steps = 0
        """Optimizer steps since the beginning."""
        self.strength = STRENGTH
        """What the pull is multiplied by; a budget moves it."""
        self.handle: Attachment | None = None
        """What shapes the steps."""
        self.optimizer = optimizer
        self._look = look
        self._cost = Cost(look.device)
        self._pulls = 0
        self._own_loss = False
        self._counts = True
        self._measured: tuple[int, Drift] | None = None
        self._handles: list[Any] = []
        self._beyond = 0
        self._attach(optimizer)

    def loss(self) -> Tensor:
        """The distance from the kept answers on a few examples, for your own loss.

        ``(loss + keeper.loss()).backward()``; from the first call on, steps no longer pull.
        """
        self._own_loss = True
        with self._look.quietly():
            found = self.strength * torch.stack([*self._next_losses()]).sum()
        self._pulls += 1
        return found

    def drift(self, within: int | None = None) -> Drift | None:
        """How far the answers to held-out examples have moved; None without examples.

        Measured now, unless that happened ``within`` the last so many steps.
        """
        if self.kept is None:
            return None
        if self._measured is not None and within is not None:
            step, known = self._measured
            if self.steps - step <= within:
                return known
        self._measured = self.steps, drift_of(self._look, self.kept.held)
        return self._measured[1]

    def report(self) -> dict[str, Any]:
        """Everything about the run as plain data, and one sentence about it."""
        return report_of(self).plain()

    def then(self, new: Any = None, optimizer: Optimizer | None = None) -> Self:
        """From now on also keep what was just learned: call it between two tasks.

        ``new``: examples of the task just learned, in any form that ``keep`` takes (None: the
        model's samples). ``optimizer``: that of the next task, if it is another one.
        """
        memory, kept = kept_of(self._look, new, self.settings)
        if self.memory is not None and memory is not None:
            memory = self.memory + memory
        if self.kept is not None:
            kept = self.kept.joined(kept, ROOM * self.settings.examples, self.settings.seed)
        self.detach()
        self.memory, self.kept, self._measured = memory, kept, None
        self._attach(self.optimizer if optimizer is None else unwrapped(optimizer))
        return self

    def save(self, folder: Any) -> None:
        """Memory, examples, answers and state, for ``risegrad.keep(..., resume=folder)``."""
        write_keeper(self, folder)

    def detach(self) -> None:
        """Remove everything; the optimizer is plain again."""
        for handle in self._handles:
            handle.remove()
        if self.handle is not None:
            self.handle.detach()
        if self._handles:
            self.optimizer.param_groups[0].pop(KEY, None)
            _KEEPERS.pop(self.optimizer, None)
        self._handles, self.handle = [], None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.detach()

    def __str__(self) -> str:
        return str(report_of(self))

    def __repr__(self) -> str:
        return f"<Keeper of {type(self.model).__name__}, {self.steps} steps>"

    @property
    def model(self) -> nn.Module:
        """The model, without what wraps it."""
        return self._look.model

    @property
    def factor(self) -> float | None:
        """How much longer the last shaped step was made to make the plain one's progress."""
        return None if self.handle is None else self.handle.factor

    @property
    def time_ratio(self) -> float | None:
        """The time that keeping takes per step over the time of everything else."""
        return self._cost.ratio()

    # --- what the hooks do ---

    def _attach(self, optimizer: Optimizer) -> None:
        """Ours around those of the attachment, which must see the pull and be measured, too."""
        self.optimizer = optimizer

        def hook(register: Callable[..., Any], work: Callable[..., Any]) -> None:
            self._handles.append(register(torch.compiler.disable(work)))  # type: ignore[no-untyped-call]

        before, after = optimizer.register_step_pre_hook, optimizer.register_step_post_hook
        try:
            hook(before, self._before_step)
            hook(after, lambda *_: self._cost.start())
            if self.memory is not None and self.settings.damping is not None:
                exempt = variants_named_like_lora(self.model)
                shaper = Informed(self.memory, self.settings.damping, exempt=exempt)
                names = self.model.named_parameters()
                self.handle = attach(optimizer, shaper, names, right_place(optimizer))
            hook(before, lambda _, args, kwargs: _after_closure(args, kwargs, self._cost.stop))
            hook(after, self._after_step)
            self._handles += [
                self.model.register_forward_pre_hook(self._look.precision),
                optimizer.register_state_dict_post_hook(self._save),
                optimizer.register_load_state_dict_post_hook(self._load),
            ]
            self._adopt(optimizer)
            _KEEPERS[optimizer] = ref(self)
        except BaseException:
            self.detach()
            raise

    def _before_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        self._cost.step()
        self._counts = not (scaler_skips(optimizer) or only_creates_state(optimizer, kwargs))
        if not self._counts:
            return None
        self._hold()
        return _after_closure(args, kwargs, self._pull)

    def _after_step(self, *_: Any) -> None:
        self.steps += self._counts
        self._cost.stop()

    def _hold(self) -> None:
        """Let the strength follow the drift, if there is a budget and it is time."""
        budget = self.settings.budget
        if budget is None or not self.steps or self.steps % EVERY:
            return
        drift = self.drift()
        assert drift is not None
        mean = agreed(drift.mean, self._look)
        self.strength = strength_after(self.strength, mean, budget)
        self._beyond = self._beyond + 1 if mean > budget and self.strength == STRONGEST else 0
        if self._beyond == PATIENCE:
            warnings.warn(
                f"keep: the drift is {drift} at step {self.steps}, the budget {budget:g}, and the "
                f"pull has had its greatest strength for {PATIENCE * EVERY} steps: a lower "
                "learning rate would help",
                stacklevel=2,
            )

    def _pull(self) -> None:
        self._cost.start()
        every = self.settings.pull
        if self._own_loss or not every or self.steps % every or not has_gradients(self.optimizer):
            return
        parameters = trained_by(self.optimizer)
        with torch.enable_grad(), self._look.quietly():
            gradients = pulled(self._next_losses(), self._look, parameters)
        add(parameters, gradients, self.strength, self.optimizer)
        self._pulls += 1  # not of a pull that failed

    def _next_losses(self) -> Iterator[Tensor]:
        if self.kept is None:
            raise ValueError("there are no examples: this keeper has a memory only")
        ranks, pulled = self._look.ranks, self.kept.pulled
        first = self._pulls * ranks.count
        shares = [taken(pulled, first + rank, self.settings.seed) for rank in range(ranks.count)]
        # Shards are gathered by all processes at once, so all must run the model as often.
        passes = max(map(len, shares)) if ranks.sharded else 0
        return kept_losses(self._look, shares[ranks.own], passes)

    # --- the state, which rides in the optimizer's own ---

    def state_dict(self) -> dict[str, int | float]:
        """What changes in a run beside the attachment: a few numbers."""
        return {"steps": self.steps, "pulls": self._pulls, "strength": self.strength}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        if set(state) != {"steps", "pulls", "strength"}:
            raise ValueError(f"damaged state of a keeper: got {dict(state)!r}")
        self.steps, self._pulls = int(state["steps"]), int(state["pulls"])
        self.strength = float(state["strength"])
        self._measured = None

    def _save(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        state_dict["param_groups"][0][KEY] = self.state_dict()

    def _load(self, optimizer: Optimizer) -> None:
        if KEY not in optimizer.param_groups[0]:
            warnings.warn(
                "keep: this optimizer state was saved without a keeper; the keeper's strength and "
                "step count stay as they are",
                stacklevel=3,
            )
        self._adopt(optimizer)

    def _adopt(self, optimizer: Optimizer) -> None:
        """Take a state that was loaded, also one from before there was a keeper."""
        held = optimizer.param_groups[0].get(KEY, MARK)
        if held != MARK:
            self.load_state_dict(held)
        # Flattened distributed checkpoints load only what they find in the live group.
        optimizer.param_groups[0][KEY] = MARK


_KEEPERS: WeakKeyDictionary[Optimizer, ref[Keeper]] = WeakKeyDictionary()


def keeper_of(optimizer: Optimizer) -> Keeper | None:
    """The keeper that is at work on an optimizer."""
    held = _KEEPERS.get(unwrapped(optimizer))
    return None if held is None else held()


def _after_closure(
    args: tuple[Any, ...], kwargs: dict[str, Any], work: Callable[[], None]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Do the work when gradients are there: now, or when the step's closure has made them."""
    positional = len(args) > 1 and args[1] is not None
    closure = args[1] if positional else kwargs.get("closure")
    if closure is None:
        work()
        return None

    def closure_then_work() -> Any:
        loss = closure()
        work()
        return loss

    if positional:
        return (args[0], closure_then_work, *args[2:]), kwargs
    return args, kwargs | {"closure": closure_then_work}
