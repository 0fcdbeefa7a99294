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

from risegrad.core.shards import local_part


@dataclass(frozen=True)
class WholeStep:
    """What a tied shaper is given: gradients or displacements, to be changed in place."""

    tensors: Mapping[str, Tensor]
    """Those that take part in this step; under FSDP2 sharded ones (``gathered``, ``put``)."""
    left_out: Mapping[str, int]
    """How many of a parameter's first rows must stay as they are."""
    draw: Callable[[Mapping[str, Tensor]], None]
    """Shapes tensors of these names block by block, in place; call it once at most."""


Work = Callable[[WholeStep], None]


class Tie(ABC):
    """A shaper tied to the parameters of one optimizer."""

    leaves: Sequence[str] = ()
    """Parameters that it leaves as plain training leaves them."""

    @abstractmethod
    def ready(self) -> Work:
        """What to do with the step that begins now.

        Called while the parameters have their values; when a displacement is shaped, they have not.
        """

    def notes(self) -> list[str]:
        """Lines for ``print(handle)``."""
        return []


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
    full = getattr(tensor, "full_tensor", None)
    whole: Tensor = tensor if full is None else full()
    return whole


def put(name: str, tensor: Tensor, whole: Tensor) -> None:
    """Write a whole tensor where the tensor, or this process's part of it, lies."""
    part = local_part(name, tensor)
    if part.window is not None:
        here = whole[part.window]
    elif part.reduction is not None:
        here = whole.reshape(-1)[part.start : part.stop].view(part.tensor.shape)
    else:
        here = whole
    part.tensor.copy_(here)
