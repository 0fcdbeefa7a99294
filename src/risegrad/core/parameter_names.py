"""Names for the parameters of an optimizer."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from torch import Tensor
from torch.optim import Optimizer

from risegrad.core.blocks import listing
from risegrad.core.draws import mix

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
