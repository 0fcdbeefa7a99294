"""A tensor's local elements and their place in the whole, for plain and sharded tensors.

FSDP2 gives DTensors. Shaping one needs three things: the local elements, their positions in the
whole (so that a shard draws its own part of the noise), and the processes over which squared norms
and dot products must be summed.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, TypeGuard

import torch
from torch import Tensor

from risegrad.core.draws import TILE, Noise

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor


Reduction = tuple["DeviceMesh", tuple[int, ...]]
"""A device mesh and those of its dimensions over which a tensor is sharded."""
Window = tuple[slice, ...]
"""A part of a tensor, one slice per dimension."""


@dataclass(slots=True)  # not frozen: one is made per tensor and step
class LocalPart:
    """The elements of a tensor that this process holds, in the order of the whole's flat index."""

    tensor: Tensor
    start: int
    """Position of the first local element, where the local elements are one run of the whole."""
    whole: torch.Size
    reduction: Reduction | None = None
    window: Window | None = None
    """The local part of the whole, where it is not one run: sharded along a later dimension."""
    _flat: Tensor | None = None

    @property
    def flat(self) -> Tensor:
        """The elements as a vector: of channels_last and other strided tensors a copy.

        Positions are those of the logical index, not of memory, and a sum over strided memory
        would round differently. Copies live until ``put_back``, so that there are few at a time.
        """
        if self._flat is None:
            self._flat = self.tensor.contiguous().view(-1)
        return self._flat

    @property
    def stop(self) -> int:
        """The position in the whole after the last local element."""
        return self.start + self.tensor.numel()

    def of(self, whole: Tensor) -> Tensor:
        """The same part of another tensor of the whole's shape."""
        if self.window is not None:
            return whole[self.window]
        if self.reduction is None:
            return whole
        return whole.reshape(-1)[self.start : self.stop].view(self.tensor.shape)

    def after(self, rows: int) -> LocalPart:
        """The same without the first rows of the whole."""
        if not rows:  # also where there are none: a single number
            return self
        row = self.whole[1:].numel()
        first = self.start // row if self.window is None else self.window[0].start
        here = min(max(rows - first, 0), len(self.tensor))
        window = self.window and (slice(first + here, self.window[0].stop), *self.window[1:])
        start = self.start + here * row if window is None else 0
        return LocalPart(self.tensor[here:], start, self.whole, self.reduction, window)

    def normals(self, noise: Noise, offset: int, start: int, stop: int) -> Tensor:
        """Standard normals for those of the whole's elements ``start..stop`` that are here.

        ``offset`` is the position of the whole's first element.
        """
        if self.window is not None:
            return torch.cat(list(self._window_normals(self.window, noise, offset)))
        return noise.normals(self.tensor, offset + start, offset + stop)

    def put_back(self) -> None:
        """Write a copy back, if there is one."""
        if self._flat is not None and not self.tensor.is_contiguous():
            self.tensor.copy_(self._flat.view(self.tensor.shape))
        self._flat = None

    def _window_normals(self, window: Window, noise: Noise, offset: int) -> Iterator[Tensor]:
        """Draw for a few rows of the whole at a time, and keep the columns that are here."""
        row = self.whole[1:].numel()
        several = max(1, 16 * TILE // row)
        for low in range(window[0].start, window[0].stop, several):
            high = min(low + several, window[0].stop)
            room = self.tensor.new_empty((high - low) * row)
            normals = noise.draws.normals(room, offset + low * row, noise.direction)
            yield normals.view(high - low, *self.whole[1:])[:, *window[1:]].reshape(-1)


def check_whole(name: str, parameter: Tensor) -> None:
    """Refuse the flat shards of FSDP1, which do not say what part of which tensor they are."""
    if getattr(parameter, "_fsdp_flattened", False):
        raise NotImplementedError(
            f"parameter {name!r} was flattened by FullyShardedDataParallel (FSDP1): "
            "use fully_shard (FSDP2; fsdp_version: 2 in accelerate)"
        )


def local_part(name: str, tensor: Tensor) -> LocalPart:
    """The local part of a gradient or displacement; writing to its ``flat`` changes the tensor."""
    if is_dtensor(tensor):
        return _dtensor_part(name, tensor)
    return LocalPart(tensor, 0, tensor.shape)


def local(tensor: Tensor) -> Tensor:
    """The elements that are here, to be changed in place."""
    return tensor.to_local() if is_dtensor(tensor) else tensor


def reduced(partial: Tensor, reduction: Reduction) -> Tensor:
    """Sums over the processes that hold the other shards."""
    import torch.distributed as dist

    mesh, dims = reduction
    # With CPU offloading the gradients are in main memory, but messages go between the devices.
    message = partial.to(mesh.device_type).contiguous()  # gloo takes it for that
    for dim in dims:
        dist.all_reduce(message, group=mesh.get_group(dim))
    return message.to(partial.device)


def all_zero(tensors: Sequence[Tensor]) -> bool:
    """Whether all elements are zero, those of other processes included."""
    counts: dict[Reduction | None, int] = {}
    for tensor in tensors:
        part = local_part("gradient", tensor)
        found = int(part.tensor.detach().to_dense().count_nonzero())
        counts[part.reduction] = counts.get(part.reduction, 0) + found
    return not any(
        found if reduction is None else int(reduced(torch.tensor([found]), reduction))
        for reduction, found in counts.items()
    )


def is_dtensor(tensor: Tensor) -> TypeGuard[DTensor]:
    """Whether it is a tensor of FSDP2 or tensor parallelism."""
    # A DTensor can only exist if its module was imported; importing it here would slow everybody.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def _dtensor_part(name: str, tensor: DTensor) -> LocalPart:
    local, whole = tensor.to_local(), tensor.shape
    sharded = tuple(dim for dim, p in enumerate(tensor.placements) if not p.is_replicate())
    if not sharded:
        return LocalPart(local, 0, whole)
    window = _window(name, tensor)
    if local.shape != tuple(part.stop - part.start for part in window):
        raise _not_supported(name, tensor, f"and a local part of shape {tuple(local.shape)}")
    reduction = (tensor.device_mesh, sharded)
    if local.shape[1:] == whole[1:]:
        start = window[0].start * whole[1:].numel()
        return LocalPart(local, start, whole, reduction)
    return LocalPart(local, 0, whole, reduction, window)


def _window(name: str, tensor: DTensor) -> Window:
    """The part of the whole that is here: cut after cut, each as ``torch.chunk`` makes it."""
    mesh, window = tensor.device_mesh, [slice(0, size) for size in tensor.shape]
    for mesh_dim, dim in _cuts(name, tensor):
        part = window[dim]
        size = -(-(part.stop - part.start) // mesh.size(mesh_dim))
        start = min(part.start + mesh.get_local_rank(mesh_dim) * size, part.stop)
        window[dim] = slice(start, min(start + size, part.stop))
    return tuple(window)


def _cuts(name: str, tensor: DTensor) -> list[tuple[int, int]]:
    """(mesh dimension, tensor dimension) of each cut, in the order in which they were made."""
    first: list[tuple[int, int]] = []
    second: list[tuple[int, int]] = []
    for mesh_dim, placement in enumerate(tensor.placements):
        if placement.is_replicate():
            continue
        dim, factor = getattr(placement, "dim", None), getattr(placement, "split_factor", 1)
        if dim is None:
            raise _not_supported(name, tensor)
        # FSDP2 over tensor parallelism cuts what tensor parallelism, a later dimension of the mesh,
        # has already cut. torch calls that a strided shard; the result is an ordinary window.
        if factor != 1 and factor != _pieces_by_later_cuts(tensor, mesh_dim, dim):
            raise _not_supported(name, tensor)
        (first if factor == 1 else second).append((mesh_dim, dim))
    return first + second


def _pieces_by_later_cuts(tensor: DTensor, mesh_dim: int, dim: int) -> int:
    later = range(mesh_dim + 1, tensor.device_mesh.ndim)
    cuts = [d for d in later if getattr(tensor.placements[d], "dim", None) == dim]
    return prod(tensor.device_mesh.size(d) for d in cuts)


def _not_supported(name: str, tensor: DTensor, more: str = "") -> NotImplementedError:
    return NotImplementedError(
        f"parameter {name!r} has placements {tuple(tensor.placements)} {more}".rstrip()
        + "; shaping needs each to be Shard or Replicate"
    )


Kept = Mapping[str, float | Tensor]
"""What decoupled weight decay leaves of parameters; of one group it is one object."""


@dataclass(frozen=True)
class WholeStep:
    """What a tied shaper is given: gradients, or parameters that have moved, to be changed."""

    tensors: Mapping[str, Tensor]
    """Those that take part in this step; under FSDP2 sharded ones (``gathered``, ``put``)."""
    left_out: Mapping[str, int]
    """How many of a parameter's first rows must stay as they are."""
    draw: Callable[[Mapping[str, Tensor]], None]
    """Shapes tensors of these names block by block, in place; call it once at most."""
    gradients: Mapping[str, Tensor] | None = None
    """What the optimizer saw, where ``tensors`` are parameters; None: they are the gradients."""
    downhill: bool = True
    """Whether a displacement is meant to go against its gradient (``maximize`` goes along it)."""
    kept: Kept | None = None
    """Where displacements are to come without weight decay."""


Work = Callable[[WholeStep], None]


class Starts:
    """Where tensors stood before a step; those that cannot move need no copy."""

    def __init__(self, moving: Mapping[str, Tensor]) -> None:
        here = [local(tensor.detach()) for tensor in moving.values()]
        copies = [torch.empty_like(tensor) for tensor in here]
        if here:
            torch._foreach_copy_(copies, here)
        self._values = dict(zip(moving, copies, strict=True))

    @contextmanager
    def displaced(self, tensors: Mapping[str, Tensor], kept: Kept | None = None) -> Iterator[None]:
        """While active, these parameters hold their displacements: no third copy of them.

        ``kept``: what decoupled weight decay left of each; then it is no part of a displacement.
        """
        here = [local(tensor.detach()) for tensor in tensors.values()]
        starts = [self._values[name] for name in tensors]
        decayed: dict[int, tuple[float | Tensor, list[Tensor]]] = {}
        for name in tensors.keys() & (kept or {}).keys():
            share = (kept or {})[name]
            decayed.setdefault(id(share), (share, []))[1].append(self._values[name])
        for share, own in decayed.values():
            torch._foreach_mul_(own, share)
        if here:
            torch._foreach_sub_(here, starts)
        try:
            yield
        finally:
            if here:
                torch._foreach_add_(here, starts)


def displacing(
    work: Work, moving: Mapping[str, Tensor], names: Collection[str] | None = None
) -> Work:
    """The same work while parameters (of these names) hold their displacements."""
    own = moving if names is None else {name: moving[name] for name in names if name in moving}
    starts = Starts(own)

    def displaced(step: WholeStep) -> None:
        there = {name: tensor for name, tensor in step.tensors.items() if name in own}
        with starts.displaced(there, step.kept):
            work(step)

    return displaced


class Tie(ABC):
    """A shaper tied to the parameters of one optimizer."""

    leaves: Sequence[str] = ()
    """Parameters that it leaves as plain training leaves them."""
    leaves_decay: bool = False
    """Whether decoupled weight decay stays what it is: displacements come without it."""

    @abstractmethod
    def ready(self) -> Work:
        """What to do with the step that begins now.

        Called while the parameters have their values; when a displacement is shaped, they hold it.
        """

    def begin(self, moving: Mapping[str, Tensor] | None) -> Work:
        """The same for these parameters, which are about to move; None: gradients are shaped.

        Its work finds them moved. Who does not say otherwise works on what they hold then.
        """
        work = self.ready()
        return work if moving is None else displacing(work, moving)

    def notes(self) -> list[str]:
        """Lines for ``print(handle)``."""
        return []

    @property
    def factor(self) -> float:
        """By how much the last step was lengthened beside what plain training would have made."""
        return 1.0

    def carried(self) -> dict[str, float]:
        """What one step leaves to the next, beside their number; it is saved with the optimizer."""
        return {}

    def carry(self, numbers: Mapping[str, float]) -> None:  # noqa: B027  # most carry nothing
        """Go on from such numbers; those that are missing are as at the start."""


@contextmanager
def exact_products(*tensors: Tensor) -> Iterator[None]:
    """Without autocast where these tensors lie: it would round products to half precision."""
    with ExitStack() as stack:
        for kind in {tensor.device.type for tensor in tensors}:
            if torch.amp.is_autocast_available(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def gathered(tensor: Tensor) -> Tensor:
    """The whole of a tensor, which may be sharded: then all processes must ask, in one order."""
    if not is_dtensor(tensor):
        return tensor
    whole: Tensor = tensor.full_tensor()
    return whole


def put(name: str, tensor: Tensor, whole: Tensor) -> None:
    """Write a whole tensor where the tensor, or this process's part of it, lies."""
    part = local_part(name, tensor)
    part.tensor.copy_(part.of(whole))
