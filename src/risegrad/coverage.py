"""What an attachment covers: the optimizer's parameters as they are now, laid out in blocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor
from torch.optim import Optimizer

from risegrad.blocks import exempted, listing, resolve_blocks
from risegrad.layout import Layout, make_layout
from risegrad.naming import held_by_name, with_late_names
from risegrad.shapers import Shaper, resolve_q
from risegrad.sharding import check_whole


@dataclass(frozen=True)
class Coverage:
    layout: Layout
    tensors: list[Tensor]
    """One for each name of the layout."""
    present: list[list[int]]
    """What the optimizer held when this was made."""

    def is_current(self, optimizer: Optimizer) -> bool:
        return self.present == _present(optimizer)


def cover(optimizer: Optimizer, shaper: Shaper, names: Mapping[Tensor, str]) -> Coverage:
    """All parameters of an optimizer that are not exempt, or an error that says what is wrong."""
    held = held_by_name(optimizer, with_late_names(names, optimizer))
    for name in exempted(held, shaper.exempt):
        del held[name]
    if not held:
        raise ValueError("nothing to shape: exempt names every parameter of the optimizer")
    for name, (tensor, _) in held.items():
        _check_shapeable(name, tensor)
    blocks = resolve_blocks(shaper.blocks, {name: group for name, (_, group) in held.items()})
    sizes = {name: tensor.numel() for name, (tensor, _) in held.items()}
    layout = make_layout(blocks, resolve_q(shaper.q, tuple(blocks.members)), sizes)
    return Coverage(layout, [held[name][0] for name in layout.names], _present(optimizer))


def check_disjoint(coverages: Iterable[Coverage]) -> None:
    """No parameter may be shaped twice, under whatever names."""
    taken: set[Tensor] = set()
    for coverage in coverages:
        pairs = zip(coverage.layout.names, coverage.tensors, strict=True)
        shared = [name for name, tensor in pairs if tensor in taken]
        if shared:
            raise ValueError(
                f"already shaped by another attachment: {listing(shared)}; detach that one, or "
                "divide the parameters between the two with exempt"
            )
        taken.update(coverage.tensors)


def check_left_out(name: str, rows: int, known: Mapping[str, Tensor]) -> None:
    """Refuse rows that a parameter does not have."""
    if name not in known:
        raise ValueError(f"no shaped parameter is called {name!r}; there are {listing([*known])}")
    shape = tuple(known[name].shape)
    most = shape[0] if shape else 0
    if isinstance(rows, bool) or not isinstance(rows, int):
        raise TypeError(f"rows of {name!r} must be an integer, got {rows!r}")
    if not 0 <= rows <= most:
        raise ValueError(f"rows of {name!r} must be 0 to {most} (shape {shape}), got {rows}")


def _present(optimizer: Optimizer) -> list[list[int]]:
    return [[id(tensor) for tensor in group["params"]] for group in optimizer.param_groups]


def _check_shapeable(name: str, tensor: Tensor) -> None:
    if not tensor.is_floating_point():
        raise TypeError(f"parameter {name!r} is {tensor.dtype}; shaping needs real numbers")
    check_whole(name, tensor)
