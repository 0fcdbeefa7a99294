"""The processes that train one model, and how each one's batches and sums come together."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from risegrad.core.blocks import listing
from risegrad.core.shards import check_whole
from risegrad.curvature.batches import check_batches, chosen, form_of, mapped, moved, size_of
from risegrad.memory.layers import named_parameters


@dataclass(frozen=True)
class Ranks:
    """The processes that hold one model; alone without ``group``."""

    group: Any = None
    sharded: bool = False
    """Whether a pass needs all of them at once (FSDP2)."""

    @property
    def count(self) -> int:
        """How many there are."""
        return 1 if self.group is None else dist.get_world_size(self.group)

    @property
    def own(self) -> int:
        """Which of them this one is."""
        return 0 if self.group is None else dist.get_rank(self.group)

    def gather(self, value: Any) -> list[Any]:
        """What each of them has, in their order; all must ask."""
        found = [value] * self.count
        if self.group is not None:
            dist.all_gather_object(found, value, group=self.group)
        return found

    def add(self, total: Tensor) -> None:
        """Their sum, in place; all must ask."""
        if self.group is not None:
            dist.all_reduce(total, group=self.group)


def ranks_of(model: nn.Module) -> tuple[nn.Module, Ranks]:
    """The model to run, and the processes that run it: of DDP and FSDP2, all that train it.

    A plain model is one process's own, also where there are others.
    """
    if isinstance(model, DistributedDataParallel):
        # The module inside: DDP waits for gradients of parameters, which nobody asks for here.
        return model.module, Ranks(model.process_group)
    for name, parameter in model.named_parameters():
        check_whole(name, parameter)
    meshes = {tensor.device_mesh for _, tensor in _sharded(model)}
    if not meshes:
        return model, Ranks()
    _check_data_parallel(model, meshes)
    mesh = next(iter(meshes))
    return model, Ranks(mesh.get_group() if mesh.ndim == 1 else dist.group.WORLD, sharded=True)


def _check_data_parallel(model: nn.Module, meshes: set[Any]) -> None:
    from torch.distributed.fsdp import FSDPModule

    parallel = [
        name
        for name, tensor in _sharded(model)
        if sum(not placement.is_replicate() for placement in tensor.placements) > 1
    ]
    managed = any(isinstance(module, FSDPModule) for module in model.modules())
    if parallel or not managed:
        shown = parallel or [name for name, _ in _sharded(model)]
        raise NotImplementedError(
            f"remember runs under DDP and FSDP2, not with tensor parallelism: {listing(shown)} is "
            "divided in another way; call remember on the whole model before you divide it"
        )
    sizes = {mesh.size() for mesh in meshes}
    several = len(meshes) > 1 or any(mesh.ndim > 1 for mesh in meshes)
    if several and sizes != {dist.get_world_size()}:
        raise NotImplementedError(
            f"remember needs every shard on a mesh of all {dist.get_world_size()} processes, got "
            f"meshes of {sorted(sizes)}"
        )


def _sharded(model: nn.Module) -> Iterator[tuple[str, Any]]:
    # A DTensor can only exist if its module was imported; importing it here would slow everybody.
    module = sys.modules.get("torch.distributed.tensor")
    for name, tensor in named_parameters(model).items():
        if module is not None and isinstance(tensor, module.DTensor):
            yield name, tensor


def check_unsharded(model: nn.Module, what: str) -> None:
    """Refuse FSDP2's shards: of a model that a process holds only a part of."""
    sharded = [name for name, _ in _sharded(model)]
    if sharded:
        raise NotImplementedError(
            f"{what} needs whole parameters, got shards (FSDP2) of {listing(sharded)}: use it on "
            "the whole model, before it is sharded or with its gathered state "
            "(get_model_state_dict with full_state_dict=True)"
        )


@dataclass(frozen=True)
class Round:
    """A batch of this process, while each of the others has one of its own."""

    batch: Any
    counts: bool
    """Not where this process has none left and only keeps step with the others."""
    seen: int
    """Examples of all processes so far."""


def rounds(
    batches: object, device: torch.device, examples: int | None, ranks: Ranks
) -> Iterator[Round]:
    """The batches on the device until ``examples`` were seen, the last one cut."""
    given = _of_one_form(batches, device)
    first = next(given, None)
    given = chain([] if first is None else [first], given)
    if ranks.group is not None and len({*ranks.gather(_digest(first))}) == 1:
        given = islice(given, ranks.own, None, ranks.count)  # all were given the same
    last, seen = first, 0
    while examples is None or seen < examples:
        batch = next(given, None)
        sizes = ranks.gather(0 if batch is None else size_of(batch))
        if not any(sizes):
            return
        if not all(ranks.gather(last is not None)):
            raise ValueError("batches must hold at least one batch in every process")
        before = seen + sum(sizes[: ranks.own])
        own = sizes[ranks.own] if examples is None else min(sizes[ranks.own], examples - before)
        last = last if batch is None else batch
        seen = seen + sum(sizes) if examples is None else min(seen + sum(sizes), examples)
        part = chosen(last, slice(own), sizes[ranks.own]) if 0 < own < sizes[ranks.own] else last
        yield Round(part, own > 0, seen)


def _of_one_form(batches: object, device: torch.device) -> Iterator[Any]:
    expected = None
    for raw in check_batches("batches", batches):
        batch = mapped(_detached, moved(raw, device))
        expected = expected or form_of(batch)
        if form_of(batch) != expected:
            raise ValueError(
                f"batches must all have the form of the first, {expected}; got {form_of(batch)}"
            )
        yield batch


def _detached(tensor: Tensor) -> Tensor:
    return tensor.clone() if tensor.is_inference() else tensor.detach()


def _digest(batch: Any) -> str:
    """The same for equal batches."""
    digest = hashlib.sha256()
    for value in torch.utils._pytree.tree_leaves(batch):
        if isinstance(value, Tensor):
            digest.update(f"{value.dtype} {tuple(value.shape)}".encode())
            plain = value.detach().cpu().contiguous().reshape(-1)
            digest.update(plain.view(torch.uint8).numpy().tobytes())
        else:
            digest.update(repr(value).encode())
    return digest.hexdigest()
