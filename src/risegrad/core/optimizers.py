"""What a shaper must know about torch's optimizers, and about the wrappers around them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from risegrad.common.checks import check_choice
from risegrad.core.shards import all_zero


def unwrapped(optimizer: Optimizer) -> Optimizer:
    """The torch optimizer inside accelerate's and Lightning's wrappers: it makes the real steps."""
    inner = getattr(optimizer, "optimizer", None)
    return unwrapped(inner) if isinstance(inner, Optimizer) else optimizer


def check_can_be_shaped(optimizer: object, on: str) -> None:
    """Refuse, with the reason, what cannot work."""
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}"
        )
    check_choice("on", on, ("gradient", "update"))
    if any(group.get("differentiable") for group in optimizer.param_groups):
        raise ValueError("a differentiable optimizer cannot be shaped: the step happens in place")
    if on == "gradient" and isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(
            "L-BFGS evaluates its closure many times in a step, and a line search over randomly "
            'shaped gradients means nothing: attach with on="update"'
        )
    if on == "gradient" and isinstance(optimizer, torch.optim.SparseAdam):
        raise ValueError(
            'SparseAdam takes sparse gradients, and a shaped one is dense: attach with on="update"'
        )


PLAIN = (torch.optim.SGD, torch.optim.ASGD, torch.optim.LBFGS)


def is_adaptive(optimizer: Optimizer) -> bool:
    """Whether it divides gradients by their own size, or may do so: of all but a few of torch's
    own nothing is known here, and what is right for adaptive ones is right for others, too."""
    return not isinstance(optimizer, PLAIN)


def only_creates_state(optimizer: Optimizer, kwargs: Mapping[str, object]) -> bool:
    """Whether this is not a training step, but the one by which torch's distributed checkpoints
    create an optimizer's state: ``step(closure=None)`` without a state, with rates and gradients
    of zero. A warm-up that begins at rate 0 has gradients."""
    called_so = "closure" in kwargs and kwargs["closure"] is None and not optimizer.state
    still = called_so and all(float(group.get("lr", 1)) == 0 for group in optimizer.param_groups)
    return still and all_zero(_gradients(optimizer))


def _gradients(optimizer: Optimizer) -> list[Tensor]:
    held = [p.grad for group in optimizer.param_groups for p in group["params"]]
    return [gradient for gradient in held if gradient is not None]


def has_gradients(optimizer: Optimizer) -> bool:
    """Whether any parameter of the optimizer has a gradient."""
    return any(p.grad is not None for group in optimizer.param_groups for p in group["params"])


def scaler_skips(optimizer: Optimizer) -> bool:
    """Whether a GradScaler found infinities; it leaves the skipping to a fused optimizer, whose
    step then runs and changes nothing."""
    found_inf = getattr(optimizer, "found_inf", None)
    return found_inf is not None and bool(found_inf)


DECOUPLED_NAMES = ("adamw", "lion", "muon", "adafactor")


def decay_kept(optimizer: Optimizer, group: Mapping[str, Any]) -> float | Tensor | None:
    """What decoupled weight decay leaves of a group's parameters in a step: ``1 - lr * decay``.

    None if there is no decay or it is part of the gradient. Torch's groups say whether it is
    decoupled, of other optimizers the names of their classes.
    """
    names = " ".join(kind.__name__ for kind in type(optimizer).__mro__).lower()
    named = any(part in names for part in DECOUPLED_NAMES)
    rate, decay = group.get("lr"), group.get("weight_decay")
    if not group.get("decoupled_weight_decay", named) or rate is None or not decay:
        return None
    kept: float | Tensor = 1 - rate * decay
    return kept
