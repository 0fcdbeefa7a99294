"""What a piece of work puts into a device's queue, counted without a device."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

WAITS = frozenset(
    {
        "_local_scalar_dense",
        "item",
        "nonzero",
        "is_nonzero",
        "equal",
        "_to_cpu",
        "masked_select",
        "unique_consecutive",
    }
)
"""After each of these the host needs a number of the device, and waits until it is there."""


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations by name; views and memory that nobody writes to are no work."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()
        self.bytes = 0
        """That are read and written."""

    @property
    def waits(self) -> set[str]:
        """Those after which the host waits."""
        return {*self.counts} & WAITS

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        if not func.is_view and not name.startswith("empty"):
            self.counts["nonzero" if _chooses(name, args) else name] += 1
            written = found if found is not None else args[0]  # of operations in place on lists
            tensors = [t for t in tree_leaves((args, written)) if isinstance(t, Tensor)]
            self.bytes += sum(t.numel() * t.element_size() for t in tensors)
        return found


def _chooses(name: str, args: Any) -> bool:
    """Whether it is an index by truth values: how many are true must be known first."""
    if not name.startswith(("index", "_index")):
        return False
    indices = [t for t in tree_leaves(args[1:2]) if isinstance(t, Tensor)]
    return any(t.dtype in (torch.bool, torch.uint8) for t in indices)
