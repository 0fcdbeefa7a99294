"""One process or several: device, precision, and sums over processes.

Trained parts are small (adapters, heads), so gradients are added up directly instead of wrapping
the model: the numbers are those of one process, and zeroth-order groups exchange scalars only.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import Parameter

from risegrad.common.environment import cores

T = TypeVar("T")


class Devices:
    """Where a run computes. Started by torchrun or ``--processes``, all processes share the work.

    Whether there are several is read from the environment that torchrun sets and from nothing else:
    it does not depend on a GPU being there.
    """

    def __init__(self, precision: str = "float32", device: str = "auto") -> None:
        self.precision = precision
        self.device = _device(device)
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        several = int(os.environ.get("WORLD_SIZE", "1")) > 1
        if several and not dist.is_initialized():
            dist.init_process_group(_backend(self.device))
        self.rank: int = dist.get_rank() if several else 0
        self.count: int = dist.get_world_size() if several else 1

    @property
    def main(self) -> bool:
        """Whether this process writes files and reports."""
        return self.rank == 0

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """This process's part of a batch; together the parts are the batch."""
        return items[self.rank :: self.count]

    def autocast(self) -> AbstractContextManager[Any]:
        """A context in which torch computes in this precision."""
        if self.precision != "bfloat16":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    @contextlib.contextmanager
    def inside(self, model: nn.Module) -> Iterator[None]:
        """While every pass of the model is in this precision, whoever makes it, as accelerate does:
        what a rule keeps is then computed as it is trained."""
        if self.precision != "bfloat16":
            yield
            return
        forward: Any = model.forward
        patched = "forward" in model.__dict__
        model.forward = torch.autocast(self.device.type, dtype=torch.bfloat16)(forward)
        try:
            yield
        finally:
            del model.forward
            if patched:
                model.forward = forward

    def total(self, value: Tensor) -> Tensor:
        """The sum over processes."""
        if self.count == 1:
            return value
        summed = value.detach().clone()
        dist.all_reduce(summed)
        return summed

    def total_gradients(self, parameters: Iterable[Parameter]) -> None:
        """Add up the gradients; a process without examples has none and counts as zero.

        What has a gradient in no process keeps none: a gradient of zeros is something else, with
        which momentum and decay would move it.
        """
        if self.count == 1:
            return
        every = list(parameters)
        known = torch.tensor([float(p.grad is not None) for p in every], device=self.device)
        for parameter, processes in zip(every, self.total(known).tolist(), strict=True):
            if processes:
                mine = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                parameter.grad = self.total(mine)


def _device(name: str) -> torch.device:
    """The device of this process: the accelerators of a machine are given out in turn."""
    if name != "auto":
        return torch.device(name)
    # Asked in this order: torch 2.6 raises instead of naming an accelerator that is not there.
    there = torch.accelerator.is_available()
    found = torch.accelerator.current_accelerator() if there else None
    if found is None:
        return torch.device("cpu")
    if "LOCAL_RANK" not in os.environ:
        return found
    place = int(os.environ["LOCAL_RANK"]) % torch.accelerator.device_count()
    torch.accelerator.set_device_index(place)
    return torch.device(found.type, place)


def described(name: str) -> tuple[str, str]:
    """The kind of device that ``loop.device`` means here, and which it is, with its memory."""
    device = _device(name)
    if device.type == "cpu":
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return "cpu", f"the CPU ({cores()} cores, {memory / 1e9:.1f} GB of memory)"
    if device.type != "cuda" or not torch.cuda.is_available():
        return device.type, device.type
    found = torch.cuda.get_device_properties(device)
    return "cuda", f"{found.name} ({found.total_memory / 1e9:.1f} GB of memory)"


def _backend(device: torch.device) -> str:
    """gloo where processes share an accelerator, which NCCL and similar backends refuse."""
    alone = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) <= torch.accelerator.device_count()
    return dist.get_default_backend_for_device(device) if alone else "gloo"
