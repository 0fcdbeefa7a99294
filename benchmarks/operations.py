"""What a piece of work puts into a device's queue, counted without a device."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

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


class Operations(TorchDispatchMode):
    """Counts operations by name; views and memory that nobody writes to are no work."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    @property
    def waits(self) -> set[str]:
        """Those after which the host waits."""
        return {*self.counts} & WAITS

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if not func.is_view and not name.startswith("empty"):
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))
