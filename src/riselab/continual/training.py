"""Training of one session: batches, gradients exact or estimated, clipping, steps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from risegrad.common.seeds import seed_for
from risegrad.core.attachment import Attachment
from risegrad.zeroth_order import SpsaSettings, spsa
from riselab.common.settings import APART, Checked, Count, NonNegative, PositiveInt, Share
from riselab.continual.additions.addition import Addition, check_session
from riselab.continual.batches import Loader, epoch_batches
from riselab.continual.devices import Devices
from riselab.continual.host import (
    ParameterGroup,
    Ref,
    Report,
    Session,
    SessionBatch,
    TrainingBudget,
)
from riselab.continual.rules import check_scope

HALF = (torch.bfloat16, torch.float16)


AS_OTHERS = TrainingBudget(epochs=0)


@dataclass(frozen=True)
class Loop(Checked):
    """Settings of the loop that do not belong to a host, a rule or a stream."""

    batch: PositiveInt = 48
    """Examples per step, over all devices together."""
    workers: Count = field(default=0, metadata=APART)
    """Processes that load images or texts ahead; 0 loads in the training process, where features
    that are computed once always stay."""
    device: str = "auto"
    """``auto``, or a name that torch knows, such as ``cpu`` or ``cuda:1``."""
    accumulate: PositiveInt = 1
    """Parts in which a batch goes through the model, whose activations then take less memory."""
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    """``bfloat16`` computes under autocast; parameters and the losses of ``zo`` stay float32.
    ``tf32`` rounds inputs of matrix products on CUDA; on other devices it means ``float32``."""
    compile: bool = False
    """Compile the frozen backbone with ``torch.compile``."""
    cache: Literal["auto", "never"] = "auto"
    """Compute the features of frozen parts once (then without augmentation), or every time."""
    first: TrainingBudget = AS_OTHERS
    """How all groups train in the first session, by plain first-order steps, so that methods with
    other rates and rules start from one model; ``epochs = 0``: as in the others."""
    score_on: Literal["test", "validation"] = "test"
    """The examples for scores."""
    interpolate: tuple[Share, ...] = ()
    """After the stream, also score the weights at these shares of the way from the beginning of
    training to its end. It costs only the scoring."""
    checkpoint_seconds: NonNegative = field(default=60.0, metadata=APART)
    """Shortest time between two checkpoints within a session; one follows every session anyway."""
    keep_weights: bool = field(default=False, metadata=APART)
    """Save the trained weights in the run's folder ``weights``: LoRA in PEFT's form, a whole
    network in that of timm or transformers, and always the host's state."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.accumulate > self.batch:
            raise ValueError(
                f"accumulate must be at most batch, {self.batch}: got {self.accumulate}"
            )


class StepTaken(NamedTuple):
    """One step: its number from 1, of how many in the epoch, its examples and its loss."""

    number: int
    of: int
    size: int
    loss: Tensor


class SessionTraining:
    """One session's optimizers, and the steps they take."""

    def __init__(
        self,
        session: Session,
        loop: Loop,
        devices: Devices,
        additions: Sequence[Addition],
        seed: int,
    ) -> None:
        self.session, self.loop, self.devices, self.seed = session, loop, devices, seed
        self.additions = additions
        self.optimizers: dict[str, Optimizer] = {}
        self.step = 0
        self.shaping: dict[str, Attachment] = {}
        self._outside: dict[str, int] = {}
        self._epoch = 0
        self._loader = Loader(session.items, loop.workers, devices.device.type != "cpu")
        _check_zeroth_order(session.as_later)
        check_scope(
            (group.rule, [f"{group.name}.{name}" for name in group.parameters])
            for group in session.as_later.groups
        )
        for addition in additions:
            check_session(session.as_later, addition)
        for group in session.groups:
            optimizer = self._optimizer(group)
            # A new optimizer counts its steps from 0: each session's draws need their own seed.
            shape_seed = seed_for(seed, "shape", session.task, group.name)
            handle = group.rule.attach(optimizer, group.name, group.parameters, shape_seed)
            if handle is not None:
                self.shaping[group.name] = handle
            self.optimizers[group.name] = optimizer
        for addition in additions:
            addition.begin(self)
        _check_served(session, additions)
        self._active: tuple[ParameterGroup, ...] = session.groups

    def _optimizer(self, group: ParameterGroup) -> Optimizer:
        """A new one; groups that train alike share one where a pull is for all of them together."""
        made = group.budget.make_optimizer(group.parameters.values())
        if any(addition.pulls for addition in self.additions):
            for other in self.session.groups:
                there = self.optimizers.get(other.name)
                alike = (other.rule, other.budget.epochs) == (group.rule, group.budget.epochs)
                plain = group.rule.kind.needs == "examples" or not group.rule.shaped
                if there is not None and type(there) is type(made) and alike and plain:
                    there.add_param_group(made.param_groups[0])
                    return there
        return made

    def epoch(self, epoch: int, report: Report) -> float:
        """Pass once over the task's data; the mean loss."""
        total = torch.zeros((), dtype=torch.float64, device=self.devices.device)
        examples = 0
        for taken in self.steps(epoch):
            total += taken.loss.detach().double() * taken.size
            examples += taken.size
            report({"batch": taken.number, "batches": taken.of})
        mean = total.item() / examples
        if not math.isfinite(mean):
            raise FloatingPointError(
                f"the loss of task {self.session.task} became {mean} in epoch {epoch}: "
                "lower lr or set clip"
            )
        return mean

    def steps(self, epoch: int) -> Iterator[StepTaken]:
        """The steps of an epoch, each taken when it is asked for."""
        self._epoch = epoch
        self._activate(epoch)
        torch.manual_seed(seed_for(self.seed, "epoch", self.session.task, epoch, self.devices.rank))
        self.session.module.train()
        plan = self._plan(epoch)
        mine = [self._parts(self.devices.share(refs)) for refs in plan]
        fetched = self._loader.batches(list(itertools.chain(*mine)), epoch)
        for number, (refs, parts) in enumerate(zip(plan, mine, strict=True)):
            batches = [next(fetched).to(self.devices.device) for _ in parts]
            loss = self._take_step(batches, len(refs), refs[-1][0])
            yield StepTaken(number + 1, len(plan), len(refs), loss)
        assert next(fetched, None) is None, "every batch is of a step"  # and the loader is free

    @property
    def every_class(self) -> bool:
        """Whether a step's loss sees the rows of all classes so far, without any replayed one."""
        return any(addition.every_class or addition.needs_logits for addition in self.additions)

    def loss(self, batch: SessionBatch) -> Tensor:
        """What a step on this batch descends: the session's loss, and the additions' penalties."""
        every_class = any(addition.every_class for addition in self.additions)
        return self._loss(batch, 1.0, every_class)

    def state_dict(self) -> dict[str, Any]:
        """Step, parameters and optimizers, for a checkpoint inside the session."""
        return {
            "step": self.step,
            "parameters": {
                group.name: {n: p.detach().cpu().clone() for n, p in group.parameters.items()}
                for group in self.session.groups
            },
            "optimizers": {name: o.state_dict() for name, o in self.optimizers.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what ``state_dict`` returned."""
        self.step = state["step"]
        with torch.no_grad():
            for group in self.session.groups:
                for name, parameter in group.parameters.items():
                    parameter.copy_(state["parameters"][group.name][name])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])

    @property
    def exact_parameters(self) -> dict[str, Parameter]:
        """The parameters that train by exact gradients now, by group and name."""
        return {
            f"{group.name}.{name}": parameter
            for group in self._active
            if group.rule.exact
            for name, parameter in group.parameters.items()
        }

    def backward(self, refs: Sequence[Ref]) -> Tensor:
        """Leave the gradient of the loss on the named examples, and return the loss."""
        parts = self._parts(self.devices.share(refs))
        batches = [self.session.items.fetch(part, self._epoch) for part in parts]
        batches = [batch.to(self.devices.device) for batch in batches]
        return self._backward(batches, len(refs), True, penalties=False)

    def examples(self, refs: Sequence[Ref], size: int) -> Iterator[SessionBatch]:
        """The named examples in batches of ``size``: this process's share of them."""
        mine = list(self.devices.share(refs))
        parts = [mine[start : start + size] for start in range(0, len(mine), size)]
        for batch in self._loader.batches(parts, self.session.epochs):
            yield batch.to(self.devices.device)

    def _parts(self, refs: Sequence[Ref]) -> list[list[Ref]]:
        """What goes through the model together; one part is empty if there are no examples."""
        count = max(1, min(self.loop.accumulate, len(refs)))
        cuts = [number * len(refs) // count for number in range(count + 1)]
        return [list(refs[start:end]) for start, end in itertools.pairwise(cuts)]

    def _shares(self, batches: Sequence[SessionBatch], size: int) -> list[float]:
        """What the mean over each part counts in the mean over ``size`` examples of all processes:
        as many as are in all parts here, divided by what each mean is over."""
        weights = [self.session.weight(batch) for batch in batches]
        here = sum(map(len, batches)) / size
        return [here * (weight / (sum(weights) or 1)) for weight in weights]

    def _backward(
        self,
        batches: Sequence[SessionBatch],
        size: int,
        every_class: bool,
        penalties: bool = True,
    ) -> Tensor:
        parameters = self.exact_parameters
        for parameter in parameters.values():
            parameter.grad = None
        total = torch.zeros((), device=self.devices.device)
        for batch, share in zip(batches, self._shares(batches, size), strict=True):
            with self.devices.autocast():
                loss = self._loss(batch, share, every_class, penalties)
            if loss.requires_grad:
                loss.backward()  # type: ignore[no-untyped-call]
            total = total + loss.detach()
        self.devices.total_gradients(parameters.values())
        return self.devices.total(total)

    def _loss(
        self, batch: SessionBatch, share: float, every_class: bool, penalties: bool = True
    ) -> Tensor:
        """The mean over a part of a batch, times its share in the whole."""
        if len(batch) == 0:
            return torch.zeros((), device=self.devices.device)
        additions = self.additions if penalties else ()
        loss, logits = self._bare_loss(batch, every_class, additions)
        for addition in additions:
            extra = addition.penalty(self.session, batch, logits)
            loss = loss if extra is None else loss + extra
        return loss.float() * share

    def _bare_loss(
        self, batch: SessionBatch, every_class: bool, additions: Sequence[Addition]
    ) -> tuple[Tensor, Tensor | None]:
        """The session's own loss, and the logits if an addition needs them."""
        session = self.session
        if not any(addition.needs_logits for addition in additions):
            return session.loss(batch, every_class), None
        assert session.logits is not None  # checked at the start, as is the next
        assert session.loss_of_logits is not None
        logits = session.logits(batch)
        return session.loss_of_logits(logits, batch, every_class), logits

    def _take_step(self, batches: Sequence[SessionBatch], size: int, last_task: int) -> Tensor:
        replays = last_task != self.session.task  # replayed examples stand at the end
        every_class = replays or any(addition.every_class for addition in self.additions)
        self._leave_out(every_class)
        loss: Tensor | None = None
        if self.exact_parameters:
            loss = self._backward(batches, size, every_class)
            for addition in self.additions:
                addition.adjust(self, lambda: self._backward(batches, size, every_class))
        if any(not group.rule.exact for group in self._active):
            estimated = self._estimate(batches, size, every_class)
            loss = estimated if loss is None else loss
        for group in self._active:
            if group.budget.clip:
                clip_grad_norm_(group.parameters.values(), group.budget.clip)
        for optimizer in dict.fromkeys(self.optimizers[group.name] for group in self._active):
            optimizer.step()
        self.step += 1
        assert loss is not None, "a session has at least one active group in every epoch"
        return loss

    def _leave_out(self, every_class: bool) -> None:
        """Noise and estimates keep off the rows that this step's loss does not see."""
        # Whoever needs the scores of all classes puts them into the loss.
        seen = every_class or any(addition.needs_logits for addition in self.additions)
        outside = {} if seen else self.session.outside
        if outside == self._outside:
            return
        self._outside = outside
        for group, handle in self.shaping.items():
            rows = {name: outside.get(f"{group}.{name}", 0) for name in handle.layout.names}
            handle.leave_out(rows)

    def _estimate(self, batches: Sequence[SessionBatch], size: int, every_class: bool) -> Tensor:
        """Zeroth-order gradients: one perturbation of all such groups, as MeZO does.

        Never under autocast: two losses of bfloat16 that differ by ``epsilon`` differ by rounding.
        """
        groups = [group for group in self._active if not group.rule.exact]
        rule = groups[0].rule
        named = {
            f"{group.name}.{name}": parameter
            for group in groups
            for name, parameter in group.parameters.items()
        }
        seen = {name: _rest(p, self._outside.get(name, 0)) for name, p in named.items()}
        _require_gradients(seen.values(), True)
        settings = SpsaSettings(
            q=rule.q, epsilon=rule.epsilon, variant=rule.variant, norm_matched=rule.norm_matched
        )
        pairs = list(zip(batches, self._shares(batches, size), strict=True))

        def loss() -> Tensor:
            found = [self._loss(batch, share, every_class) for batch, share in pairs]
            return self.devices.total(torch.stack(found).sum())

        estimate = spsa(
            loss,
            seen,
            settings,
            seed=seed_for(self.seed, "spsa", self.session.task),
            step=self.step,
            model=self.session.module,
        )
        for name, parameter in named.items():
            _take_gradient(parameter, seen[name])
        _require_gradients(named.values(), False)
        return torch.tensor(estimate.loss, device=self.devices.device)

    def _plan(self, epoch: int) -> list[list[tuple[int, int]]]:
        task = self.session.task
        plan = epoch_batches(
            self.session.examples,
            self.loop.batch,
            seed=self.seed,
            task=task,
            epoch=epoch,
            lengths=self.session.lengths,
        )
        for number, refs in enumerate(plan):
            size = len(refs)
            for addition in self.additions:
                refs += addition.replayed(task, epoch, number, size)
        return plan

    def _activate(self, epoch: int) -> None:
        """Groups whose budget is spent stop; exact gradients reach only those that use them."""
        self._active = tuple(g for g in self.session.groups if epoch < g.budget.epochs)
        for group in self.session.groups:
            active = group in self._active
            _require_gradients(group.parameters.values(), active and group.rule.exact)
            first = next(iter(group.parameters.values()))
            for settings in self.optimizers[group.name].param_groups:
                if active and settings["params"][0] is first:
                    settings["lr"] = group.budget.lr_at(epoch)


def _check_zeroth_order(session: Session) -> None:
    zeroth = [group.rule for group in session.groups if not group.rule.exact]
    if len(set(zeroth)) > 1:
        raise ValueError(f"all zeroth-order groups must have one rule, got {zeroth}")
    held = itertools.chain(session.parameters.items(), session.module.named_parameters())
    half = next((pair for pair in held if pair[1].dtype in HALF), None)
    if zeroth and half is not None:
        raise ValueError(
            "the rule zo needs a model in float32, because a difference of two losses does not "
            f"survive half precision: {half[0]} is {half[1].dtype}; call .float() on the model "
            "before its host begins"
        )


def _check_served(session: Session, additions: Sequence[Addition]) -> None:
    """An informed rule without a memory would train plainly, and nobody would notice."""
    served = {"", *(addition.serves for addition in additions)}
    for group in session.groups:
        rule = group.rule
        if rule.kind.needs not in served:
            raise ValueError(
                f"rule {rule.name!r} of group {group.name!r} needs the run's memory among the "
                "additions: see made_additions in riselab.continual.learning"
            )


def _rest(parameter: Parameter, rows: int) -> Tensor:
    """The parameter without its first rows, in the same memory."""
    return parameter.detach()[rows:] if rows else parameter


def _take_gradient(parameter: Parameter, rest: Tensor) -> None:
    """The gradient of what ``_rest`` gave, with zeros for the rows before it."""
    if rest is not parameter and rest.grad is not None:
        rows = rest.grad.new_zeros(len(parameter) - len(rest), *rest.shape[1:])
        parameter.grad = torch.cat([rows, rest.grad])


def _require_gradients(parameters: Iterable[Tensor], required: bool) -> None:
    for parameter in parameters:
        parameter.requires_grad_(required)
