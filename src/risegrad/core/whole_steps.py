"""For shapers that are more than ``c1 g + c2 n``: a step's whole tensors, by name.

A shaper that overrides ``Shaper.tie`` is handed the tensors of every step and may do with them what
it likes, in place; the blockwise draw of its ``coefficients`` is there for it to call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from risegrad.core.shards import is_dtensor, local_part


@dataclass(frozen=True)
class WholeStep:
    """What a tied shaper is given: gradients or displacements, to be changed in place."""

    tensors: Mapping[str, Tensor]
    """Those that take part in this step; under FSDP2 sharded ones (``gathered``, ``put``)."""
    left_out: Mapping[str, int]
    """How many of a parameter's first rows must stay as they are."""
    draw: Callable[[Mapping[str, Tensor]], None]
    """Shapes tensors of these names block by block, in place; call it once at most."""
    gradients: Mapping[str, Tensor] | None = None
    """What the optimizer saw, where ``tensors`` are displacements; None: they are the gradients."""
    downhill: bool = True
    """Whether a displacement is meant to go against its gradient (``maximize`` goes along it)."""


Work = Callable[[WholeStep], None]


class Tie(ABC):
    """A shaper tied to the parameters of one optimizer."""

    leaves: Sequence[str] = ()
    """Parameters that it leaves as plain training leaves them."""
    leaves_decay: bool = False
    """Whether decoupled weight decay stays what it is: displacements come without it."""

    @abstractmethod
    def ready(self) -> Work:
        """What to do with the step that begins now.

        Called while the parameters have their values; when a displacement is shaped, they have not.
        """

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
