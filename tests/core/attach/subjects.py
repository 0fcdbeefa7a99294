"""The subjects of the contract: every optimizer that torch has, in every variant that runs here."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import Optimizer

from risegrad.core.attachment import Attachment, On, attach
from risegrad.core.shapers import SHAPERS, Rise, Shaper

OPTIMIZERS: dict[str, type[Optimizer]] = {
    name: kind
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and issubclass(kind, Optimizer) and kind is not Optimizer
}
"""Found, not listed: a new release's new optimizer is tested, or fails, without being asked."""

ARGUMENTS: dict[str, dict[str, Any]] = {"LBFGS": {"lr": 0.1, "max_iter": 3}}
"""Where the common arguments below are not what an optimizer wants."""
COMMON: dict[str, Any] = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}

SHAPES: dict[str, tuple[int, ...]] = {"weight": (5, 4), "bias": (7,), "temperature": ()}
MATRICES: dict[str, tuple[int, ...]] = {"weight": (5, 4), "other": (3, 6)}
ONLY_MATRICES = {"Muon"}
SPARSE = {"SparseAdam"}
CLOSURE = {"LBFGS"}
REFUSED: dict[str, str] = {
    "LBFGS": "evaluates its closure many times",
    "SparseAdam": "takes sparse gradients, and a shaped one is dense",
}
"""Optimizers that cannot have their gradients shaped, and the documented reason."""

VARIANTS = ("foreach", "fused", "capturable")


@dataclass(frozen=True)
class Subject:
    """An optimizer class with its arguments, and parameters that it can take."""

    name: str
    variant: str = "default"

    @property
    def kind(self) -> type[Optimizer]:
        return OPTIMIZERS[self.name]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return MATRICES if self.name in ONLY_MATRICES else SHAPES

    def make(self, params: Mapping[str, Tensor], **more: Any) -> Optimizer:
        known = inspect.signature(self.kind).parameters
        arguments = {name: value for name, value in COMMON.items() if name in known}
        arguments |= ARGUMENTS.get(self.name, {})
        if self.variant != "default":
            arguments[self.variant] = True
        return self.kind(list(params.values()), **(arguments | more))

    def __str__(self) -> str:
        return f"{self.name}-{self.variant}"


@dataclass
class Run:
    """Parameters, an optimizer on them, and perhaps a shaper on that; no model is needed."""

    subject: Subject
    params: dict[str, Tensor]
    optimizer: Optimizer
    handle: Attachment | None = None
    step: int = 0

    def set_gradients(self) -> dict[str, Tensor]:
        """The gradients of this step, which every run sees alike whatever it did before."""
        for number, param in enumerate(self.params.values()):
            g = fixed(param.shape, 1000 * self.step + number, param.dtype)
            param.grad = g.to_sparse() if self.subject.name in SPARSE else g
        return {name: param.grad.clone() for name, param in self.params.items()}

    def advance(self, steps: int = 1) -> None:
        for _ in range(steps):
            if self.subject.name in CLOSURE:
                self.optimizer.step(self.closure)
            else:
                self.set_gradients()
                self.optimizer.step()
            self.step += 1

    def closure(self) -> Tensor:
        """A bowl whose bottom moves with the step, for optimizers that look around."""
        self.optimizer.zero_grad()
        loss = torch.zeros(())
        for number, param in enumerate(self.params.values()):
            bottom = fixed(param.shape, 1000 * self.step + number)
            stiffness = 1 + fixed(param.shape, number).abs()
            loss = loss + (stiffness * (param - bottom).square()).sum()
        loss.backward()
        return loss

    def attach(self, shaper: Shaper, on: On = "gradient") -> Attachment:
        self.handle = attach(self.optimizer, shaper, self.params, on)
        return self.handle

    def values(self) -> dict[str, Tensor]:
        return {name: param.detach().clone() for name, param in self.params.items()}

    def gradients(self) -> dict[str, Tensor]:
        return {name: param.grad.to_dense().clone() for name, param in self.params.items()}


def fixed(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def start(subject: Subject, dtype: torch.dtype = torch.float32, **more: Any) -> Run:
    params = {
        name: torch.nn.Parameter(fixed(shape, 77 + number, dtype))
        for number, (name, shape) in enumerate(subject.shapes.items())
    }
    return Run(subject, params, subject.make(params, **more))


def sgd(shaper: Shaper | None = None, on: On = "gradient", **more: Any) -> Run:
    """The simplest run there is: what the traps are set for."""
    run = start(Subject("SGD"), **more)
    if shaper is not None:
        run.attach(shaper, on)
    return run


def _subjects() -> Iterator[Subject]:
    for name, kind in OPTIMIZERS.items():
        yield Subject(name)
        for variant in VARIANTS:
            if variant in inspect.signature(kind).parameters:
                subject = Subject(name, variant)
                if _runs_here(subject):
                    yield subject


def _runs_here(subject: Subject) -> bool:
    """Some variants are for accelerators only: torch refuses them itself."""
    try:
        start(subject).advance()
    except (RuntimeError, AssertionError):
        return False
    return True


SUBJECTS = list(_subjects())
SHAPER_CASES: dict[str, Callable[..., Shaper]] = {
    **{kind.__name__: kind for kind in SHAPERS},
    "Rise-directions": lambda **settings: Rise(sampler="directions", **settings),
}

PLACES: tuple[On, ...] = ("gradient", "update")
WORKING = [(s, on) for s in SUBJECTS for on in PLACES if on == "update" or s.name not in REFUSED]

every_subject = pytest.mark.parametrize("subject", SUBJECTS, ids=str)
every_place = pytest.mark.parametrize("on", PLACES)
every_pair = pytest.mark.parametrize(
    ("subject", "on"), WORKING, ids=[f"{s}-{on}" for s, on in WORKING]
)
every_shaper = pytest.mark.parametrize("kind", SHAPERS)

# What an optimizer does with a shaped gradient does not depend on who shaped it. So every optimizer
# meets Rise, and every shaper two usual optimizers: all that can go wrong in one of them is seen.
USUAL = [Subject("SGD"), Subject("AdamW")]
OTHERS = [kind for kind in SHAPER_CASES if kind != "Rise"]
WITH_RULES = [(s, "Rise") for s in SUBJECTS] + [(s, kind) for s in USUAL for kind in OTHERS]
every_subject_every_rule = pytest.mark.parametrize(
    ("subject", "kind"), WITH_RULES, ids=[f"{s}-{kind}" for s, kind in WITH_RULES]
)
WITH_PLACES = [(s, on, "Rise") for s, on in WORKING]
WITH_PLACES += [(s, on, kind) for s in USUAL for on in PLACES for kind in OTHERS]
every_pair_every_rule = pytest.mark.parametrize(
    ("subject", "on", "kind"), WITH_PLACES, ids=["-".join(map(str, each)) for each in WITH_PLACES]
)


def assert_same(actual: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """Bit for bit."""
    assert actual.keys() == wanted.keys()
    different = [name for name in wanted if not torch.equal(actual[name], wanted[name])]
    assert not different, f"not the same bits: {different}"


def grads(params: dict[str, Tensor]) -> dict[str, Tensor | None]:
    return {name: None if p.grad is None else p.grad.clone() for name, p in params.items()}


def steps(run: Run) -> int:
    assert run.handle is not None
    return run.handle.steps


def hooks(optimizer: torch.optim.Optimizer) -> dict[str, list[object]]:
    return {
        name: list(value.values())
        for name, value in vars(optimizer).items()
        if name.endswith("_hooks")
    }


def synced(target: Run, source: Run) -> None:
    with torch.no_grad():
        for name, param in target.params.items():
            param.copy_(source.params[name])


def entries_left(run: Run) -> bool:
    """Saved entries among the live groups: they would be taken for a state to go on from."""
    return any(isinstance(group.get("risegrad"), dict) for group in run.optimizer.param_groups)
