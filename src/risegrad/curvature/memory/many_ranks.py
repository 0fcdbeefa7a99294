"""Several processes that remember one model together, each by its own examples.

Everything that a memory is made of is a sum over examples: so it is added up over the processes,
and is the same in all of them, whatever their number.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from risegrad.core.blocks import listing
from risegrad.core.shards import check_whole
from risegrad.curvature.memory.layer_names import named_parameters


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
            "divided otherwise; remember the whole model before it is divided"
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
