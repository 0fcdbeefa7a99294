"""Put a shaper in front of any torch optimizer's step, by hooks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from risegrad.core import saved_state
from risegrad.core.blocks import Layout
from risegrad.core.coverage import (
    Coverage,
    Named,
    check_disjoint,
    check_left_out,
    cover,
    distinct_seed,
    held_by_name,
    little_is_left,
    names_by_tensor,
    summary,
    taking_part,
)
from risegrad.core.displacements import kept_by_decay, writable_gradient
from risegrad.core.optimizers import (
    check_can_be_shaped,
    has_gradients,
    only_creates_state,
    scaler_skips,
    unwrapped,
)
from risegrad.core.shaped_step import shape_tensors, shape_whole
from risegrad.core.shapers import Shaper
from risegrad.core.shards import Kept, Starts, Work, exact_products

On = Literal["gradient", "update"]
Closure = Callable[[], Any]


def attach(
    optimizer: Optimizer,
    shaper: Shaper,
    params: Named | None = None,
    on: On = "gradient",
    advise: bool = True,
) -> Attachment:
    """Shape every step of ``optimizer`` from now on; the training loop does not change.

    ``params`` names the parameters, usually ``model.named_parameters()``; those that the optimizer
    does not have are ignored. With ``on="gradient"``, the paper's rule, each step first replaces
    the gradients in place, after any clipping in the loop. With ``on="update"`` the optimizer steps
    as usual and its displacement is shaped, including the part from weight decay (``Informed`` at
    matched progress leaves decoupled decay alone).

    It warns if the shaper does not work in this place and, unless ``advise=False``, if so
    little of the mean is left that most parameters would hardly learn.

    >>> model = torch.nn.Linear(3, 2)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> from risegrad.core.shapers import Rise
    >>> handle = attach(optimizer, Rise(q=4), params=model.named_parameters())
    >>> handle.steps
    0
    """
    optimizer = unwrapped(optimizer)
    if not isinstance(shaper, Shaper):
        raise TypeError(f"shaper must be a Shaper such as Rise or Informed, got {shaper!r}")
    check_can_be_shaped(optimizer, on)
    attachment = Attachment(optimizer, shaper, names_by_tensor(params, optimizer), on)
    reasons = [shaper.misplaced(optimizer, on), attachment.advice() if advise else None]
    for reason in filter(None, reasons):
        warnings.warn(reason, stacklevel=2)
    return attachment


class Attachment:
    """A shaper attached to an optimizer. ``print`` shows what it does to every block.

    Copies and pickles of the optimizer do not have it, because torch drops their hooks:
    attach again, and load ``state_dict()``.
    """

    def __init__(
        self, optimizer: Optimizer, shaper: Shaper, names: dict[Tensor, str], on: On
    ) -> None:
        self.shaper = shaper
        self.on = on
        self.steps = 0
        """How many times gradients (or updates) were shaped; the draws depend on this number."""
        self._optimizer = optimizer
        self._names = names
        self._seeded = shaper
        self._coverage: Coverage
        self._handles: list[Any] = []
        self._moving: dict[str, Tensor] | None = None
        self._starts: Starts | None = None
        self._work: Work | None = None
        self._awaited = False
        self._left_out: dict[str, int] = {}
        self._loaded: saved_state.Saved | None = None
        self._counts = True
        held_by_name(optimizer, names)  # only groups added later may bring names of their own
        _lay_out_together([*_attached(optimizer), self])
        self.steps = _spent(optimizer).get(self._seeded.seed, 0)
        self._adopt()
        self._handles = self._register()
        _ATTACHED.setdefault(optimizer, WeakSet()).add(self)
        saved_state.mark(optimizer.param_groups)

    @property
    def layout(self) -> Layout:
        """The blocks, and the names and sizes of the parameters in them."""
        return self._coverage.layout

    @property
    def _tensors(self) -> list[Tensor]:
        return self._coverage.tensors

    def detach(self) -> None:
        """Take the shaper off; the optimizer continues as if it had never been there."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        _ATTACHED.get(self._optimizer, WeakSet()).discard(self)
        spent, seed = _spent(self._optimizer), self._seeded.seed
        spent[seed] = max(self.steps, spent.get(seed, 0))
        if not _attached(self._optimizer):
            saved_state.unmark(self._optimizer.param_groups)

    def cover(self, params: Named) -> None:
        """Name parameters unknown when attaching, before the next step after they were added."""
        self._names = names_by_tensor(params, self._optimizer) | self._names

    def leave_out(self, rows: Mapping[str, int]) -> None:
        """From now on, the first ``rows`` of these parameters take no part in a step.

        Use it if the loss does not see those rows, for instance the old classes of a head whose
        loss is over the new ones: their gradient is zero, and noise must not reach them. They are
        neither shaped nor counted in ``d``; another call replaces this one.
        """
        self._follow_optimizer()
        known = dict(zip(self.layout.names, self._tensors, strict=True))
        for name, count in rows.items():
            check_left_out(name, count, known)
        self._left_out = {name: count for name, count in rows.items() if count}

    def settings(self) -> dict[str, object]:
        """Everything that the draws depend on but the step, as plain data."""
        layout = saved_state.describe_layout(self.layout)
        return self.shaper.settings() | {"on": self.on, "layout": layout}

    def state_dict(self) -> dict[str, object]:
        """What is also saved in the optimizer's own ``state_dict()``."""
        self._follow_optimizer()
        version, carried = saved_state.VERSION, self._carried()
        state = {"version": version, "step": self.steps, "settings": self.settings()}
        return state | {"carried": carried} if carried else state

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Continue from a state with these settings; any other is an error and changes nothing."""
        self._follow_optimizer()
        self._go_on(saved_state.checked(state, self.settings()))

    @property
    def factor(self) -> float:
        """The factor that lengthened the last step to a plain step's progress; 1 without matching.

        The number lies on the device: reading it waits for the step."""
        tie = self._coverage.tie
        return 1.0 if tie is None else tie.factor

    def advice(self) -> str | None:
        """What to change if most parameters would hardly learn, with numbers; None if all is well.

        Attaching warns with it.
        """
        self._follow_optimizer()
        return little_is_left(self.shaper, taking_part(self.layout, self._absent()))

    def __str__(self) -> str:
        self._follow_optimizer()
        table = summary(self.shaper, self.layout, self.on, self._absent())
        tie = self._coverage.tie
        with exact_products(*self._tensors[:1]):
            return "\n".join([table, *([] if tie is None else tie.notes())])

    def __repr__(self) -> str:
        return f"<Attachment of {self.shaper!r} on {self.on}, {self.steps} steps>"

    def __getstate__(self) -> dict[str, Any]:
        # Hooks do not travel, so a copy (of a model that keeps its handle, say) is a detached one.
        return vars(self) | {"_handles": []}

    # --- what the hooks do ---

    def _before_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        self._moving = self._starts = self._work = None  # a step that failed may have left them
        if scaler_skips(optimizer):
            return None
        self._counts = not only_creates_state(optimizer, kwargs)
        self._follow_optimizer()
        # torch runs this hook before the closure computes gradients, so the closure does the work.
        self._awaited = (args[1:2] or (kwargs.get("closure"),))[0] is not None
        tie = self._coverage.tie
        if self.on == "update":
            # An optimizer that needs no gradients (zeroth-order) moves what requires them.
            anyone = self._awaited or not has_gradients(optimizer)
            self._moving = {
                name: tensor
                for name, tensor in zip(self.layout.names, self._tensors, strict=True)
                if tensor.grad is not None or (anyone and tensor.requires_grad)
            }
        with torch.no_grad(), exact_products(*self._tensors[:1]):
            if tie is not None:
                self._work = tie.begin(self._moving)
            elif self._moving is not None:
                self._starts = Starts(self._moving)
        if self.on == "update":
            return None
        if len(args) > 1 and args[1] is not None:
            return (args[0], self._shaping(args[1]), *args[2:]), kwargs
        if kwargs.get("closure") is not None:
            return args, kwargs | {"closure": self._shaping(kwargs["closure"])}
        self._shape([writable_gradient(tensor) for tensor in self._tensors])
        return None

    def _shaping(self, closure: Closure) -> Closure:
        steps = self.steps

        def closure_then_shape() -> Any:
            if self.steps != steps:
                raise RuntimeError(
                    "the optimizer evaluates its closure more than once in a step, and gradients "
                    'are shaped once per step: attach with on="update"'
                )
            loss = closure()
            self._shape([writable_gradient(tensor) for tensor in self._tensors])
            return loss

        return closure_then_shape

    @torch.no_grad()
    def _after_step(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        moving, self._moving = self._moving, None
        if moving is None:
            return
        if self._awaited and has_gradients(optimizer):  # a closure has made them meanwhile
            moving = {name: tensor for name, tensor in moving.items() if tensor.grad is not None}
        tensors = [moving.get(name) for name in self.layout.names]
        if self._starts is None:
            self._shape(tensors, [tensor.grad for tensor in self._tensors])
            return
        with self._starts.displaced(moving):
            self._shape([None if tensor is None else tensor.detach() for tensor in tensors])
        self._starts = None

    def _shape(
        self, tensors: list[Tensor | None], gradients: list[Tensor | None] | None = None
    ) -> None:
        with exact_products(*self._tensors[:1]):
            arguments = (self._seeded, self.layout, tensors, self.steps, self._left_out)
            if self._work is None:
                shape_tensors(*arguments)
            else:
                uphill = any(group.get("maximize") for group in self._optimizer.param_groups)
                shape_whole(self._work, *arguments, gradients, not uphill, self._kept())
        self._work = None
        self.steps += self._counts

    def _kept(self) -> Kept | None:
        tie = self._coverage.tie
        if self.on == "gradient" or tie is None or not tie.leaves_decay:
            return None
        pairs = zip(self._tensors, self._coverage.groups, strict=True)
        return kept_by_decay(self._optimizer, dict(zip(self.layout.names, pairs, strict=True)))

    def _save(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        saved_state.put(state_dict, self.state_dict())

    def _load(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
        self._follow_optimizer()
        groups, self._loaded = saved_state.take(saved_state.groups_of(state_dict), self.settings())
        if self._loaded is None:
            raise ValueError(
                "this optimizer state was saved without a risegrad attachment (or with fewer of "
                "them): to start shaping from it, detach, load it, and attach again"
            )
        return state_dict | {"param_groups": groups}

    def _loaded_well(self, optimizer: Optimizer) -> None:
        if self._loaded is not None:
            self._go_on(self._loaded)
            self._loaded = None
        saved_state.mark(optimizer.param_groups)

    def _carried(self) -> dict[str, float]:
        tie = self._coverage.tie
        return {} if tie is None else tie.carried()

    def _go_on(self, saved: saved_state.Saved) -> None:
        self.steps = saved.step
        if self._coverage.tie is not None:
            self._coverage.tie.carry(saved.carried)

    # --- keeping up with the optimizer ---

    def _register(self) -> list[Any]:
        optimizer = self._optimizer
        # A compiled step must not trace into the draws.
        before = torch.compiler.disable(self._before_step)  # type: ignore[no-untyped-call]
        after = torch.compiler.disable(self._after_step)  # type: ignore[no-untyped-call]
        return [
            optimizer.register_step_pre_hook(before),
            optimizer.register_step_post_hook(after),
            optimizer.register_state_dict_post_hook(self._save),
            optimizer.register_load_state_dict_pre_hook(self._load),
            optimizer.register_load_state_dict_post_hook(self._loaded_well),
        ]

    def _adopt(self) -> None:
        """Go on from a state that was loaded before attaching (Trainer and Lightning do so)."""
        groups, saved = saved_state.take(self._optimizer.param_groups, self.settings())
        if saved is not None:
            self._go_on(saved)
            for group, cleaned in zip(self._optimizer.param_groups, groups, strict=True):
                if group is not cleaned:
                    group.pop(saved_state.KEY)
                    group.update(cleaned)

    def _follow_optimizer(self) -> None:
        """Parameters may have been added since the last step; a detached one stays as it was."""
        if self._handles and not self._coverage.is_current(self._optimizer):
            _lay_out_together(_attached(self._optimizer))

    def _absent(self) -> list[int]:
        """How many elements of each parameter take no part, as far as can be known before a step.

        Frozen ones all of theirs, the others their rows that are left out.
        """
        return [
            self._left_out.get(name, 0) * tensor.shape[1:].numel()
            if tensor.requires_grad or tensor.grad is not None
            else tensor.numel()
            for name, tensor in zip(self.layout.names, self._tensors, strict=True)
        ]

    def _settle(self, coverage: Coverage) -> None:
        if self._handles and coverage.tie is not None:
            coverage.tie.carry(self._carried())
        self._coverage = coverage
        first = coverage.layout.names[0]
        seed = distinct_seed(self.shaper.seed, first, self.shaper.stream)
        self._seeded = replace(self.shaper, seed=seed)


_ATTACHED: WeakKeyDictionary[Optimizer, WeakSet[Attachment]] = WeakKeyDictionary()


def shaping(model: nn.Module, *optimizers: Optimizer) -> list[Attachment]:
    """The attachments that are at work on parameters of this model now: those of the optimizers
    that train it or, without any, of whatever optimizer there is."""
    found = [a for each in optimizers or _ATTACHED for a in _attached(unwrapped(each))]
    own = {id(tensor) for tensor in model.parameters()} if found else set()
    return [a for a in found if any(id(tensor) in own for tensor in a._tensors)]


_SPENT: WeakKeyDictionary[Optimizer, dict[int, int]] = WeakKeyDictionary()


def _spent(optimizer: Optimizer) -> dict[int, int]:
    """By seed of the draws: the steps of attachments that were taken off, so that one that is put
    on again does not repeat their noise."""
    return _SPENT.setdefault(optimizer, {})


def _attached(optimizer: Optimizer) -> list[Attachment]:
    return list(_ATTACHED.get(optimizer, ()))


def _lay_out_together(attachments: list[Attachment]) -> None:
    """Lay out all attachments of an optimizer as it is now: either all of them or none."""
    coverages = [cover(a._optimizer, a.shaper, a._names) for a in attachments]
    check_disjoint(coverages)
    for attachment, coverage in zip(attachments, coverages, strict=True):
        attachment._settle(coverage)
