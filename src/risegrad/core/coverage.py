"""What an attachment covers: the optimizer's parameters as they are now, laid out in blocks."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import torch
from torch import Tensor
from torch.optim import Optimizer

from risegrad.common.text_columns import text_columns
from risegrad.core.blocks import BlockRow, Layout, exempted, listing, make_layout, resolve_blocks
from risegrad.core.draws import mix
from risegrad.core.shapers import Shaper, q_of_blocks
from risegrad.core.shards import Tie, check_whole
from risegrad.theory.calibration import q_for

Named = Iterable[tuple[str, Tensor]] | Mapping[str, Tensor]

WRAPPERS = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""What DDP, torch.compile, FSDP and activation checkpointing put into parameter names."""


def plain_name(name: str) -> str:
    """A parameter's name without what wrappers added, so that it is the same in every setting.

    >>> plain_name("module._orig_mod.layer.weight")
    'layer.weight'
    """
    return ".".join(part for part in name.split(".") if part not in WRAPPERS) or name


def names_by_tensor(params: Named | None, optimizer: Optimizer) -> dict[Tensor, str]:
    """The name of every tensor in ``params``; a tied tensor keeps its first name."""
    names: dict[Tensor, str] = {}
    for name, tensor in _pairs(params, optimizer):
        names.setdefault(tensor, name)
    plain = {tensor: plain_name(name) for tensor, name in names.items()}
    # A model may have its own attribute called "module": then nothing is stripped.
    return plain if len(set(plain.values())) == len(plain) else names


def with_late_names(names: Mapping[Tensor, str], optimizer: Optimizer) -> dict[Tensor, str]:
    """Known names, and those of groups that were added with names of their own."""
    late = {tensor: plain_name(name) for name, tensor in _own_pairs(optimizer)}
    return late | dict(names)


def held_by_name(
    optimizer: Optimizer, names: Mapping[Tensor, str]
) -> dict[str, tuple[Tensor, int]]:
    """The optimizer's parameters and their group numbers by name, in the optimizer's own order.

    That order, unlike the model's, only grows at its end when a group is added later: so the draws
    of the parameters before it stay what they were, also when the run is resumed.
    """
    group_of = {
        tensor: number
        for number, group in enumerate(optimizer.param_groups)
        for tensor in group["params"]
    }
    _check_named(group_of, names)
    held: dict[str, tuple[Tensor, int]] = {}
    for tensor, number in group_of.items():
        name = names[tensor]
        if name in held:
            raise ValueError(
                f"params names two different parameters {name!r}: give every parameter of the "
                "optimizer its own name"
            )
        held[name] = (tensor, number)
    return held


def distinct_seed(seed: int, first: str, stream: int = 0) -> int:
    """A seed for the attachment whose first parameter has this name.

    Attachments with the same seed, on one optimizer or on two optimizers of one model (Muon for
    the matrices, AdamW for the rest), must not draw the same numbers for different parameters.
    Where two models have the same names, ``stream`` tells them apart.
    """
    name = int.from_bytes(hashlib.sha256(first.encode()).digest()[:8], "big")
    return mix(seed, name, stream) if stream else mix(seed, name)


def _check_named(group_of: Mapping[Tensor, int], names: Mapping[Tensor, str]) -> None:
    nameless = [
        f"{tuple(tensor.shape)} in group {number}"
        for tensor, number in group_of.items()
        if tensor not in names
    ]
    if nameless:
        raise ValueError(
            "params must name every parameter of the optimizer; it also has tensors of shape "
            f"{listing(nameless)} (a model that was wrapped or changed after the optimizer was "
            "made, or a group added without names: handle.cover(...) names it)"
        )


def _pairs(params: Named | None, optimizer: Optimizer) -> list[tuple[str, Tensor]]:
    if params is None:
        # An optimizer that was given named parameters knows them itself.
        if any("param_names" not in group for group in optimizer.param_groups):
            raise TypeError(
                "params is needed: pass model.named_parameters() here, or to the optimizer itself"
            )
        return _own_pairs(optimizer)
    if not isinstance(params, Iterable):
        raise _not_pairs(params)
    pairs = list(params.items() if isinstance(params, Mapping) else params)
    for pair in pairs:
        if not (isinstance(pair, tuple) and len(pair) == 2):
            raise _not_pairs(pair)
        if not (isinstance(pair[0], str) and isinstance(pair[1], Tensor)):
            raise _not_pairs(*pair)
    return pairs


def _own_pairs(optimizer: Optimizer) -> list[tuple[str, Tensor]]:
    return [
        pair
        for group in optimizer.param_groups
        if "param_names" in group
        for pair in zip(group["param_names"], group["params"], strict=True)
    ]


def _not_pairs(*came: object) -> TypeError:
    kinds = ", ".join(type(part).__name__ for part in came)
    return TypeError(
        "params must be (name, parameter) pairs such as model.named_parameters(), "
        f"got {kinds if len(came) == 1 else f'a pair of ({kinds})'}"
    )


MOST_ROWS = 40
HEAD = ("block", "dimension", "q", "tau", "mean factor")
SIZES = 2
"""Columns of a table for a shaper that draws nothing."""


def summary(shaper: Shaper, layout: Layout, on: str, absent: Sequence[int]) -> str:
    """A table of blocks (dimension, q, tau, mean factor) and one line about all of them.

    The first ``absent`` elements of each parameter are not counted: they take no part now.
    """
    rows = taking_part(layout, absent)
    drawn = len(HEAD) if shaper.q is not None else SIZES
    head, *shown = text_columns([line[:drawn] for line in (HEAD, *map(_cells, rows))])
    if len(shown) > MOST_ROWS:
        half = MOST_ROWS // 2
        shown = [*shown[:half], f"... {len(shown) - 2 * half} more ...", *shown[-half:]]
    below = totals(rows) if shaper.q is not None else f"{_counts(rows)}; nothing is drawn"
    return "\n".join([_title(shaper, on), head, *shown, below, *_note(absent)])


def totals(rows: Sequence[BlockRow]) -> str:
    """The blocks in one line: how many there are, and how much of the mean is left."""
    factors = [row.mean_factor for row in rows]
    taus = [row.tau for row in rows]
    return (
        f"{_counts(rows)}; "
        f"mean factor {min(factors):.4f} to {max(factors):.4f} (median {median(factors):.4f}); "
        f"tau {min(taus):.4f} to {max(taus):.4f}"
    )


def _counts(rows: Sequence[BlockRow]) -> str:
    blocks, elements = sum(row.count for row in rows), sum(row.count * row.d for row in rows)
    return f"{blocks:,} blocks, {elements:,} elements"


def taking_part(layout: Layout, absent: Sequence[int]) -> tuple[BlockRow, ...]:
    """The rows with their present dimensions; without those of which nothing takes part."""
    if not any(absent):
        return layout.rows
    counts = [row.count for row in layout.rows]
    sizes = torch.split(layout.taking_part(absent).long(), counts)
    rows = [
        replace(row, d=d, count=count)
        for row, present in zip(layout.rows, sizes, strict=True)
        for d, count in sorted(Counter(present.tolist()).items(), reverse=True)
        if d
    ]
    return tuple(rows) or layout.rows


def _note(absent: Sequence[int]) -> list[str]:
    if not any(absent):
        return []
    left = f"{sum(absent):,} elements are frozen or left out"
    return [f"d counts what has a gradient in a step: {left}"]


def _title(shaper: Shaper, on: str) -> str:
    exempt = f", exempt: {', '.join(shaper.exempt)}" if shaper.exempt else ""
    stream = f", stream {shaper.stream}" if shaper.stream else ""
    return f"{type(shaper).__name__} on {on}, seed {shaper.seed}{stream}{exempt}"


def _label(row: BlockRow) -> str:
    return row.name if row.count == 1 else f"{row.name} ({row.count:,} chunks)"


def _cells(row: BlockRow) -> tuple[str, ...]:
    figures = f"{row.d:,}", str(row.q), f"{row.tau:.4f}", f"{row.mean_factor:.4f}"
    return _label(row), *figures


@dataclass(frozen=True)
class Coverage:
    """An optimizer's parameters, laid out in blocks."""

    layout: Layout
    tensors: list[Tensor]
    """One for each name of the layout."""
    groups: list[int]
    """The number of the parameter group that each is in."""
    present: list[list[int]]
    """What the optimizer held when this was made."""
    tie: Tie | None = None
    """Of a shaper that works on whole tensors."""

    def is_current(self, optimizer: Optimizer) -> bool:
        """Whether the optimizer still holds what it held then."""
        return self.present == _present(optimizer)


def cover(optimizer: Optimizer, shaper: Shaper, names: Mapping[Tensor, str]) -> Coverage:
    """All parameters of an optimizer that are not exempt, or an error that says what is wrong."""
    names = with_late_names(names, optimizer)
    held = held_by_name(optimizer, names)
    for name in exempted(held, shaper.exempt):
        del held[name]
    if not held:
        raise ValueError("nothing to shape: exempt names every parameter of the optimizer")
    tie = shaper.tie({name: tensor for tensor, name in names.items()}, [*held])
    for name in () if tie is None else tie.leaves:
        del held[name]
    for name, (tensor, _) in held.items():
        _check_shapeable(name, tensor)
    blocks = resolve_blocks(shaper.blocks, {name: group for name, (_, group) in held.items()})
    sizes = {name: tensor.numel() for name, (tensor, _) in held.items()}
    layout = make_layout(blocks, q_of_blocks(shaper, blocks, sizes), sizes)
    tensors = [held[name][0] for name in layout.names]
    groups = [held[name][1] for name in layout.names]
    return Coverage(layout, tensors, groups, _present(optimizer), tie)


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


LITTLE = 0.05
"""A mean factor below this is hardly a gradient any more: tried with the usual rates, a model with
0.004 had learned nothing when plain training was done."""
SHOWN = 0.5
"""What the way out keeps."""


def little_is_left(shaper: Shaper, rows: Sequence[BlockRow]) -> str | None:
    """A warning with numbers and the way out, if most elements have a mean factor below 0.05."""
    if shaper.q is None or getattr(shaper, "mean", "scaled") == "exact":
        return None
    elements = sum(row.d * row.count for row in rows)
    low = [row for row in rows if row.mean_factor < LITTLE]
    few = sum(row.d * row.count for row in low)
    if 2 * few <= elements:
        return None
    middle = _middle(rows)
    return (
        f"{type(shaper).__name__} leaves little to learn from: {few / elements:.0%} of "
        f"{elements:,} elements have a mean factor below {LITTLE:g}. A typical block ({middle.d:,} "
        f"elements, q={middle.q}) keeps {middle.mean_factor:.4f} of its gradient's mean, and the "
        f"rest of the step is noise. {_way_out(shaper, middle)}; or raise the learning "
        "rate and compare. print(handle) shows every block"
    )


def _way_out(shaper: Shaper, middle: BlockRow) -> str:
    if not shaper.needs_q:
        return f"q={q_for(SHOWN, middle.d):,} would leave half of it there, q=None all of it"
    return (
        f"{type(shaper).__name__}(keep={SHOWN:g}) chooses blocks and q that leave half of it "
        f"(by hand: smaller blocks, blocks=64, or a larger q)"
    )


def _middle(rows: Sequence[BlockRow]) -> BlockRow:
    """The row of the middle element, in the order of the mean factor."""
    ordered = sorted(rows, key=lambda row: row.mean_factor)
    half, seen = sum(row.d * row.count for row in rows) / 2, 0
    for row in ordered:
        seen += row.d * row.count
        if seen >= half:
            return row
    return ordered[-1]
