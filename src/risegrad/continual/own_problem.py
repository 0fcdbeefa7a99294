"""A person's own model, data, loss and score: what one function gives, and the lab trains."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True)
class OwnProblem:
    """What the function returns; it is called with a seed, and anew for every run.

    A batch is whatever ``loss`` and ``score`` understand: the lab moves its tensors to the device
    and hands it over, one batch per step.
    """

    model: nn.Module
    """The model as it is before training; parameters that require gradients are trained."""
    keep: Sequence[Any]
    """Batches of what must be kept; never trained on, a memory is made from them."""
    new: Sequence[Any]
    """Batches of what is to be learned; each is one step, in a new order in every epoch."""
    loss: Callable[[nn.Module, Any], Tensor]
    """The mean loss of a batch."""
    score: Callable[[nn.Module, Any], tuple[int, int]]
    """Right answers in a batch, and how many there are."""
    predict: Callable[[nn.Module, Any], Tensor] | None = None
    """A row of scores for each prediction in a batch, for a memory; None reads pairs of inputs and
    targets, and mappings with ``labels`` as transformers has them."""
    keep_test: Sequence[Any] = ()
    """Batches to score what is kept; empty: ``keep`` itself."""
    new_test: Sequence[Any] = ()
    """Batches to score what is learned; empty: ``new`` itself."""

    def __post_init__(self) -> None:
        if not isinstance(self.model, nn.Module):
            raise TypeError(f"model must be a torch module, got {type(self.model).__name__}")
        for name in ("keep", "new"):
            if not len(getattr(self, name)):
                raise ValueError(f"{name} must have at least one batch, got none")
        if not any(parameter.requires_grad for parameter in self.model.parameters()):
            raise ValueError("model must have parameters that require gradients, got none")


ProblemMaker = Callable[[int], OwnProblem]

GIVEN = "given:"
_given: dict[str, ProblemMaker] = {}


def name_of(make: ProblemMaker) -> str:
    """A name for a function of this process, by which ``maker`` finds it: its name and content."""
    content = hashlib.sha256(_source(make)).hexdigest()[:16]
    name = f"{GIVEN}{getattr(make, '__name__', 'function')}-{content}"
    _given[name] = make
    return name


def _source(make: ProblemMaker) -> bytes:
    """What the function does, the same in every process; of what is no function, its kind."""
    try:
        return inspect.getsource(make).encode()
    except (OSError, TypeError):  # typed into an interpreter, or made by exec
        code = getattr(make, "__code__", None)
        return _compiled(code) if isinstance(code, CodeType) else repr(type(make)).encode()


def _compiled(code: CodeType) -> bytes:
    inner = (_compiled(c) if isinstance(c, CodeType) else repr(c).encode() for c in code.co_consts)
    return b"\0".join([code.co_code, repr(code.co_names).encode(), *inner])


def maker(name: str) -> ProblemMaker:
    """The function of this name: ``module:function``, or one that ``name_of`` was asked about."""
    if name.startswith(GIVEN):
        if name not in _given:
            raise ValueError(f"{name!r} is a function of another process; give it again")
        return _given[name]
    module, _, function = name.partition(":")
    if not module or not function:
        raise ValueError(f"a function must be named as module:function, got {name!r}")
    if os.getcwd() not in sys.path:  # the script of a command does not look in its own folder
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{name!r} cannot be imported: {error}") from error
    if not callable(found):
        raise ValueError(f"{name!r} must be a function, got {type(found).__name__}")
    make: ProblemMaker = found
    return make


def made(name: str, seed: int) -> OwnProblem:
    """The problem with this seed; an error says what the function gave instead."""
    found = maker(name)(seed)
    if not isinstance(found, OwnProblem):
        raise TypeError(f"{name} must return an OwnProblem, got {type(found).__name__}")
    return found
