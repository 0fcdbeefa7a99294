"""GPM: weights move only across the inputs that earlier tasks had."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from risegrad.common.seeds import generator_for
from risegrad.core.undisturbed import uncompiled
from riselab.common.settings import Limits, NonNegative, PositiveInt
from riselab.continual.additions.addition import Addition, AdditionSettings, Training
from riselab.continual.host import ParameterGroup, Ref, Session

NOISE = 1e-12
"""Directions with less than this share of the inputs' energy are rounding."""


@dataclass(frozen=True)
class GpmSettings(AdditionSettings):
    """How much of the inputs of a task is protected."""

    name: str = "gpm"
    samples: PositiveInt = 125
    """Examples of each task whose inputs are looked at."""
    epsilon: Annotated[float, Limits(above=0, at_most=1)] = 0.97
    """The share of the inputs' energy (squared norm) that the protected directions must hold."""
    increment: NonNegative = 0.003
    """Added to ``epsilon`` with every task, up to 1."""
    batch: PositiveInt = 25
    """Examples per forward pass while looking."""
    summary: ClassVar[str] = "GPM: gradients orthogonal to the inputs of earlier tasks"

    def make(self, seed: int) -> Gpm:
        """GPM with these settings."""
        return Gpm(self, seed)


class Gpm(Addition):
    """``G - G M M^T`` for every weight, with M a basis of its layer's earlier inputs.

    It happens after shaping, last of all before the optimizer, so that RISE cannot turn the step
    back into the protected directions. Other parameters of such a group (biases) stop after the
    first task. A group without linear layers (the head) is left alone.
    """

    name = "gpm"

    def __init__(self, settings: GpmSettings, seed: int) -> None:
        self.settings, self.seed = settings, seed
        self.bases: dict[str, Tensor] = {}
        """By the weight's name: orthonormal columns, float64."""

    def check(self, session: Session) -> None:
        if not session.linears:
            raise ValueError(
                "addition 'gpm' needs trained linear layers whose inputs it can look at, and the "
                "host's session offers none (linears); heads are not projected"
            )
        for group in _groups(session):
            _check_group(group)

    def begin(self, training: Training) -> None:
        if not self.bases:
            return
        linears = training.session.linears
        projections: dict[Tensor, Tensor] = {}
        for name, layer in linears.items():
            # Without a basis its inputs were zero so far: any step keeps its outputs.
            basis = self.bases.get(name, torch.empty(layer.in_features, 0))
            projections[layer.weight] = basis.to(layer.weight)
        for group in _groups(training.session):
            hook = _projecting(list(group.parameters.values()), projections)
            training.optimizers[group.name].register_step_pre_hook(hook)

    def end(self, training: Training) -> None:
        session, settings = training.session, self.settings
        generator = generator_for(self.seed, "gpm", session.task)
        order = torch.randperm(session.examples, generator=generator).tolist()
        refs = [(session.task, index) for index in order[: settings.samples]]
        share = min(1.0, settings.epsilon + settings.increment * session.task)
        for name, gram in input_grams(training, refs, settings.batch).items():
            basis = extended(self.bases.get(name), gram.cpu(), share)
            if basis.shape[1]:
                self.bases[name] = basis

    def state_dict(self) -> dict[str, Any]:
        return {"bases": dict(self.bases)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.bases = dict(state["bases"])


def extended(basis: Tensor | None, gram: Tensor, share: float) -> Tensor:
    """The basis with as few new directions as make it hold ``share`` of the inputs' energy.

    ``gram = R R^T`` has all that is needed of the inputs R (one per column): its trace is their
    energy, and its leading eigenvectors off the basis are what the SVD of ``R - M M^T R`` gives.
    """
    gram = gram.double()
    width = len(gram)
    basis = gram.new_empty(width, 0) if basis is None else basis
    total = gram.trace()
    if total <= 0:
        return basis
    across = torch.eye(width, dtype=gram.dtype) - basis @ basis.T
    values, vectors = torch.linalg.eigh(across @ gram @ across)
    values, vectors = values.flip(0).clamp(min=0), vectors.flip(1)
    held = 1 - values.sum() / total
    reached = held + values.cumsum(0) / total
    count = 0 if held >= share else int((reached < share).sum()) + 1
    count = min(count, int((values > NOISE * total).sum()), width - basis.shape[1])
    both = torch.cat([basis, across @ vectors[:, :count]], dim=1)
    return torch.cat([basis, torch.linalg.qr(both).Q[:, basis.shape[1] :]], dim=1)


def input_grams(training: Training, refs: Sequence[Ref], size: int) -> dict[str, Tensor]:
    """``sum x x^T`` over all inputs x of each linear layer (every token of every example)."""
    session, devices = training.session, training.devices
    kind = torch.float32 if devices.device.type == "mps" else torch.float64
    grams: dict[str, Tensor] = {
        name: torch.zeros(layer.in_features, layer.in_features, dtype=kind, device=devices.device)
        for name, layer in session.linears.items()
    }

    def watch(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def add(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            rows = inputs[0].detach().flatten(0, -2).to(kind)
            grams[name] += rows.T @ rows

        return add

    with ExitStack() as stack:
        for name, layer in session.linears.items():
            stack.callback(layer.register_forward_pre_hook(watch(name)).remove)
        stack.enter_context(uncompiled())
        with torch.no_grad():
            for batch in training.examples(refs, size):
                with devices.autocast():
                    session.loss(batch, False)
    return {name: devices.total(gram) for name, gram in grams.items()}


def _projecting(
    held: Sequence[Parameter], projections: Mapping[Tensor, Tensor]
) -> Callable[..., None]:
    @torch.no_grad()
    def project(*_: object) -> None:
        for parameter in held:
            if parameter.grad is None:
                continue
            basis = projections.get(parameter)
            if basis is None:
                parameter.grad = torch.zeros_like(parameter)
            else:
                parameter.grad = parameter.grad - (parameter.grad @ basis) @ basis.T

    return project


def _groups(session: Session) -> list[ParameterGroup]:
    """Those that have linear layers."""
    weights = {layer.weight for layer in session.linears.values()}
    return [g for g in session.groups if not weights.isdisjoint(g.parameters.values())]


def _check_group(group: ParameterGroup) -> None:
    """The step must lie in the span of the projected gradients, or nothing is guaranteed."""
    reason = ""
    if group.budget.optimizer != "sgd":
        reason = (
            f"optimizer {group.budget.optimizer!r}: it divides the gradient element by element, "
            "which turns the step back into the protected directions; use 'sgd'"
        )
    elif group.budget.weight_decay > 0:
        reason = (
            f"weight_decay {group.budget.weight_decay:g}: it moves weights along the protected "
            "directions too; use 0"
        )
    elif group.rule.shaped and group.rule.on == "update":
        reason = (
            "rule.on 'update': the displacement is shaped after the projected step, which turns it "
            "back into the protected directions; use 'gradient'"
        )
    if reason:
        raise ValueError(f"addition 'gpm' does not compose with group {group.name!r}: {reason}")
