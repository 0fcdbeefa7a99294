"""What evaluating a loss may disturb besides parameters: random states, modes and buffers.

All evaluations of one step see the same random numbers (common random numbers): the global
generators are seeded from (seed, step) before each and put back after it. Replaying the state that
was found would also be common, but as it is left as found, every step of a loop that draws nothing
itself would see the same dropout mask.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from risegrad.core.draws import mix

Closure = Callable[[], Tensor | float]

_EVALUATION = 0x5EED  # sets the numbers of evaluations apart from those of directions


class LossEvaluator:
    """Evaluates a loss and leaves everything else as it was: random states, modes, buffers."""

    def __init__(self, model: nn.Module | None, seed: int, step: int) -> None:
        if model is not None and not isinstance(model, nn.Module):
            raise TypeError(f"model must be a torch.nn.Module or None, got {type(model).__name__}")
        modules = () if model is None else tuple(model.modules())
        self._seed = mix(seed, step, _EVALUATION)
        self._generators = Generators()
        self._modes = [(module, module.training) for module in modules]
        self._buffers = [
            Buffer(module, key, tensor, None if tensor is None else tensor.clone())
            for module in modules
            for key, tensor in module._buffers.items()
        ]

    def loss(self, closure: Closure) -> float:
        """What the closure returns, as a float; nothing but its result is left of the call."""
        self._generators.seed(self._seed)
        try:
            return _scalar(closure())
        finally:
            self._generators.put_back()
            for module, training in self._modes:
                module.training = training
            for buffer in self._buffers:
                buffer.put_back()


@dataclass(frozen=True)
class Buffer:
    """A module's buffer: the tensor that was there and what it held."""

    module: nn.Module
    key: str
    tensor: Tensor | None
    value: Tensor | None

    def put_back(self) -> None:
        """Give the module its tensor again, with the value it had."""
        if self.module._buffers.get(self.key) is not self.tensor:
            self.module._buffers[self.key] = self.tensor
        if self.tensor is not None and self.value is not None:
            put_back(self.tensor, self.value)


@torch.no_grad()
def put_back(tensor: Tensor, value: Tensor) -> None:
    """Give a tensor its value again, if it has another one now.

    Writing what is there already would spoil a backward pass that is still to come, and would fail
    for a buffer that torch made by ``expand``.
    """
    if not _same_bytes(tensor, value):
        tensor.copy_(value)


def _same_bytes(one: Tensor, other: Tensor) -> bool:
    """Bytes and not numbers: what is not a number does not equal itself."""
    if one.is_meta:
        return True
    if one.layout is not torch.strided or one.shape != other.shape:
        return False
    first, second = (x.detach().contiguous().view(-1).view(torch.uint8) for x in (one, other))
    return torch.equal(first, second)


class Generators:
    """The global generators of Python, numpy and torch, and their states when found."""

    def __init__(self) -> None:
        self._python = random.getstate()
        self._numpy = np.random.get_state()  # noqa: NPY002 - the global one is what is protected
        self._cpu = torch.get_rng_state()
        self._devices = [(device, device.read()) for device in accelerators()]

    def seed(self, seed: int) -> None:
        """Seed all of them."""
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        # torch.manual_seed would also queue a seed for devices that are not in use yet.
        torch.default_generator.manual_seed(seed)
        for device, _ in self._devices:
            device.seed(seed)

    def put_back(self) -> None:
        """Set all of them back to the state they had."""
        random.setstate(self._python)
        np.random.set_state(self._numpy)  # noqa: NPY002
        torch.set_rng_state(self._cpu)
        for device, state in self._devices:
            device.write(state)


class Device(NamedTuple):
    """The global generators of one kind of device: read their state, write it, seed them."""

    read: Callable[[], Any]
    write: Callable[[Any], None]
    seed: Callable[[int], None]


def accelerators() -> list[Device]:
    """The kinds of devices in use that have global generators of their own."""
    found = [
        Device(kind.get_rng_state_all, kind.set_rng_state_all, kind.manual_seed_all)
        for kind in (torch.cuda, torch.xpu)
        if kind.is_available() and kind.is_initialized()
    ]
    if torch.backends.mps.is_available():
        mps = torch.mps
        found.append(Device(mps.get_rng_state, mps.set_rng_state, mps.manual_seed))
    return found


def _scalar(loss: object) -> float:
    if isinstance(loss, Tensor):
        if loss.numel() != 1:
            raise ValueError(
                f"closure must return a scalar loss, got a tensor of shape {tuple(loss.shape)}"
            )
        if not loss.is_floating_point():
            raise TypeError(f"closure must return a real floating-point loss, got {loss.dtype}")
        return loss.item()
    if isinstance(loss, bool) or not isinstance(loss, Real):
        raise TypeError(
            f"closure must return a scalar tensor or a number, got {type(loss).__name__}"
        )
    return float(loss)


class _Eager:
    """How many are inside ``uncompiled``, and what stood before the first came."""

    lock = threading.Lock()
    inside = 0
    stance: Any = None
    fused = True


@contextmanager
def uncompiled() -> Iterator[None]:
    """Models run as they are written, so that hooks see everything.

    Compiled code does not see hooks that were added later, and torch's fused encoder layer passes
    by those of its parts. Both switches are for all threads, and two that put back what they found
    would leave them changed: so the first to come sets them, and the last to go puts them back.
    """
    with _Eager.lock:
        if not _Eager.inside:
            _Eager.stance = torch.compiler.set_stance("force_eager")
            _Eager.fused = torch.backends.mha.get_fastpath_enabled()
            torch.backends.mha.set_fastpath_enabled(False)
        _Eager.inside += 1
    try:
        yield
    finally:
        with _Eager.lock:
            _Eager.inside -= 1
            if not _Eager.inside:
                _Eager.stance.__exit__(None, None, None)
                torch.backends.mha.set_fastpath_enabled(_Eager.fused)
