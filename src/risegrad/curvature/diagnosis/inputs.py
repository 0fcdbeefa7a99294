"""What ``diagnose`` may be given: model or Trainer, batches, loss, optimizer, how to measure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from risegrad.common.checks import check_choice, check_int, check_kind, check_number
from risegrad.core.optimizers import is_adaptive, unwrapped
from risegrad.core.shapers import Rise
from risegrad.curvature.estimates import ProductBudget
from risegrad.curvature.objective import Loss, check_loss
from risegrad.curvature.products import KINDS, Kind
from risegrad.curvature.space import Space
from risegrad.curvature.targets import Predict
from risegrad.memory.factor import check_damping
from risegrad.memory.memory import check_memory

OptimizerLike = str | Optimizer
PLAIN_DESCENT, ADAPTIVE = "sgd", "adam"
EPSILON = 1e-8
Progress = Callable[[int, int], None]
"""Called with the products spent and the most that there will be."""


@dataclass(frozen=True)
class BatchLoss:
    """How a batch gives a loss, where its form does not say it."""

    loss: Loss | None = None
    """A module or a function of (prediction, target); None: cross-entropy."""
    predict: Predict | None = None
    """``predict(model, batch) -> (prediction, target)``; None: pairs, and mappings with labels."""

    def __post_init__(self) -> None:
        check_loss(self.loss)
        if self.predict is not None and not callable(self.predict):
            raise TypeError(f"predict must be a function, got {type(self.predict).__name__}")


@dataclass(frozen=True)
class Measurement:
    """How curvature is measured.

    >>> Measurement(damping=0.0)
    Traceback (most recent call last):
    ValueError: damping must be a finite number > 0, got 0.0
    """

    curvature: Kind = "ggn"
    """``hessian`` (may be negative), ``ggn``, ``empirical-fisher`` or ``fisher``."""
    damping: float | None = None
    """Added to the curvature for the signal in flat directions; None: the average curvature."""
    budget: ProductBudget = field(default_factory=ProductBudget)
    """How many products with the curvature may be spent, and on what."""
    seed: int = 0
    """Of all random vectors."""
    dampings: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0)
    """Of informed steps: each costs one product; none leaves them out."""
    optimizer: OptimizerLike | None = None
    """What you train with: ``"sgd"``, ``"adam"`` for any that divides a gradient by its size, or
    the optimizer itself, whose moments are then used; None: a Trainer's own, else ``"sgd"``."""
    progress: Progress | None = field(default=None, compare=False, repr=False)
    """Called with the products spent and the most that there will be."""

    def __post_init__(self) -> None:
        check_choice("curvature", self.curvature, KINDS)
        if self.damping is not None:
            check_number("damping", self.damping, above=0)
        if not isinstance(self.budget, ProductBudget):
            raise TypeError(f"budget must be a ProductBudget, got {type(self.budget).__name__}")
        check_int("seed", self.seed)
        # A list does, too; a number alone would fail later, without its name.
        if not isinstance(self.dampings, list):
            check_kind("dampings", self.dampings, tuple, "a list of numbers, such as (0.1, 0.3)")
        for damping in self.dampings:
            check_damping(damping)

    @property
    def positive(self) -> bool:
        """Whether no direction can have negative curvature."""
        return self.curvature != "hessian"


BATCHES = 8
"""Of a Trainer's data set, at most."""
SFT = "trl.trainer.sft_trainer"
"""The module of TRL's SFTTrainer."""
PIECES = 4
"""Batches that one pair of tensors is cut into, where it has as many examples."""


def check_options(rise: object, memory: object, batch_loss: object, measurement: object) -> None:
    """The kinds of what ``diagnose`` is told beyond model and batches."""
    if rise is not None:
        check_kind("rise", rise, Rise, "a risegrad.Rise: other rules are always compared with it")
    check_memory(memory)
    if batch_loss is not None:
        check_kind("batch_loss", batch_loss, BatchLoss, "a BatchLoss, such as BatchLoss(loss=...)")
    if measurement is not None:
        allowed = "a Measurement, such as Measurement(seed=1)"
        check_kind("measurement", measurement, Measurement, allowed)


def problem_of(model: Any, historical: Any, incoming: Any) -> tuple[nn.Module, Any, Any]:
    """A module, and batches of what it must keep and of what it is to learn."""
    if _is_trainer(model):
        return _of_trainer(model, historical, incoming)
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"model must be a torch module or a transformers Trainer, got {type(model).__name__}"
        )
    if incoming is None:
        raise TypeError("incoming must be batches of what is to be learned, got None")
    return model, _cut(historical), _cut(incoming)


def _is_trainer(model: Any) -> bool:
    return all(hasattr(model, name) for name in ("get_train_dataloader", "get_eval_dataloader"))


def _of_trainer(trainer: Any, historical: Any, incoming: Any) -> tuple[nn.Module, Any, Any]:
    """Batches as the Trainer collates them; its own data sets where none are given."""
    _check_loss(trainer)
    if historical is None:
        historical = _only(trainer.eval_dataset, "historical", "the Trainer's eval_dataset")
    for name, given in (("historical", historical), ("incoming", incoming)):
        _check_examples(name, given)
    if historical is None:
        raise TypeError(
            "historical must be a data set of what is to be kept, got None, and the Trainer has no "
            "eval_dataset"
        )
    if incoming is None and trainer.train_dataset is None:
        raise TypeError(
            "incoming must be a data set of what is to be learned, got None, and the Trainer has "
            "no train_dataset"
        )
    # Training shuffles by global random numbers: always the same here, and put back.
    with torch.random.fork_rng(devices=range(torch.accelerator.device_count())):
        torch.manual_seed(0)
        old = _trainer_batches(trainer.get_eval_dataloader(historical))
        own = incoming is None
        loader = trainer.get_train_dataloader() if own else trainer.get_eval_dataloader(incoming)
        return trainer.model, old, _trainer_batches(loader)


def _only(given: Any, name: str, whose: str) -> Any:
    """A Trainer may have several data sets by name, of which one must be meant."""
    if not isinstance(given, Mapping):
        return given
    if len(given) != 1:
        raise ValueError(
            f"{name} must be one data set, got None, and {whose} has {len(given)}: "
            f"{', '.join(map(str, given))}; give one of them as {name}"
        )
    return next(iter(given.values()))


def _check_examples(name: str, given: Any) -> None:
    """A Trainer makes batches itself: of batches it would make batches of batches."""
    batches = isinstance(given, list | tuple) and bool(given) and _is_batch(given[0])
    if batches or isinstance(given, Mapping | DataLoader):
        what = "a list of batches" if batches else f"a {type(given).__name__}"
        raise TypeError(
            f"{name} must be a data set of single examples where a Trainer is given, got {what}; "
            "with batches, give the Trainer's model in its place"
        )


def _is_batch(found: Any) -> bool:
    """Rows of tokens with as many labels; the choices of one example have a single label."""
    if not isinstance(found, Mapping) or "input_ids" not in found or "labels" not in found:
        return False
    tokens, labels = found["input_ids"], found["labels"]
    if not isinstance(tokens, Tensor) or not isinstance(labels, Tensor):
        return False
    return tokens.ndim > 1 and labels.ndim > 0 and len(tokens) == len(labels)


def _check_loss(trainer: Any) -> None:
    """What is diagnosed is the model's own loss."""
    what = _own_loss(trainer)
    if what:
        raise ValueError(
            f"diagnose needs a Trainer that uses its model's own loss, got {what}; pass the model, "
            "batches, and the loss as batch_loss=BatchLoss(...)"
        )


def _own_loss(trainer: Any) -> str:
    """What gives a Trainer another loss than its model's; empty if nothing does.

    Any ``compute_loss`` that is not transformers' counts: one that agrees today, such as a penalty
    on the way from the present weights, need not agree after a step.
    """
    smoothing = getattr(trainer.args, "label_smoothing_factor", 0.0)
    if smoothing:
        return f"label_smoothing_factor={smoothing}"
    if getattr(trainer, "compute_loss_func", None) is not None:
        return "compute_loss_func"
    if "compute_loss" in vars(trainer):
        return "a compute_loss that was put in its place"
    owner = next((kind for kind in type(trainer).__mro__ if "compute_loss" in vars(kind)), None)
    if owner is None or owner.__module__.split(".")[0] == "transformers":
        return ""
    if owner.__module__ == SFT and owner.__name__ == "SFTTrainer":
        return _other_than_tokens(trainer)
    return f"{owner.__name__}.compute_loss"


def _other_than_tokens(trainer: Any) -> str:
    """TRL's ``compute_loss`` measures as it goes; its loss is the model's own, the mean over the
    batch's tokens, unless it is told otherwise."""
    kind = getattr(trainer.args, "loss_type", "nll")
    if kind != "nll":
        return f"loss_type={kind!r}"
    return "the auxiliary loss of its experts" if getattr(trainer, "aux_loss_enabled", 0) else ""


def _trainer_batches(loader: Any) -> list[Any]:
    return [_plain(batch) for batch in islice(loader, BATCHES)]


def _plain(batch: Any) -> Any:
    """A ``BatchEncoding`` as a dictionary."""
    return dict(batch) if isinstance(batch, Mapping) or hasattr(batch, "keys") else batch


def _cut(given: Any) -> Any:
    """A pair of tensors in a few batches; everything else is batches already."""
    pair = isinstance(given, tuple) and len(given) == 2
    if not pair or not all(isinstance(part, Tensor) and part.ndim for part in given):
        return given
    inputs, target = given
    if len(inputs) != len(target):
        raise ValueError(
            f"inputs and target must have equally many rows, got {len(inputs)} and {len(target)}"
        )
    count = max(1, min(PIECES, len(inputs)))
    return list(zip(inputs.chunk(count), target.chunk(count), strict=True))


def optimizer_of(given: OptimizerLike | None, model: Any) -> OptimizerLike:
    """What was given; else what a Trainer trains with; plain descent where nothing is known."""
    if isinstance(given, str):
        check_choice("optimizer", given, (PLAIN_DESCENT, ADAPTIVE))
        return given
    if isinstance(given, Optimizer):
        return unwrapped(given)
    if given is not None:
        raise TypeError(
            f"optimizer must be 'sgd', 'adam' or a torch optimizer, got {type(given).__name__}"
        )
    if isinstance(model, nn.Module):
        return PLAIN_DESCENT
    made = getattr(model, "optimizer", None)  # a Trainer makes it when training begins
    if isinstance(made, Optimizer):
        return unwrapped(made)
    named = getattr(getattr(model, "args", None), "optim", PLAIN_DESCENT)
    name = str(getattr(named, "value", named))
    return PLAIN_DESCENT if "sgd" in name else ADAPTIVE


def plain_step(
    optimizer: OptimizerLike, g: Tensor, space: Space, parameters: Mapping[str, Tensor]
) -> Tensor | None:
    """The direction of an adaptive optimizer's next step; None where it is the gradient's."""
    if isinstance(optimizer, str):
        return None if optimizer == PLAIN_DESCENT else signs(g)
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    held = [name for name in space.names if id(parameters[name]) in groups]
    if not held:
        raise ValueError("optimizer must hold parameters of the model, got one that has none")
    if not is_adaptive(optimizer):
        return None
    unit = float(groups[id(parameters[held[0]])]["lr"]) or 1.0
    pieces = []
    for name, piece in zip(space.names, space.tensors(g), strict=True):
        found = adaptive_direction(optimizer, parameters[name], piece)
        group = groups.get(id(parameters[name]))
        pieces.append(found * (float(group["lr"]) / unit if group else 0.0))
    return uphill_never(g, space.flat(pieces))


def uphill_never(g: Tensor, step: Tensor) -> Tensor:
    """The signs instead of a step that momentum leads uphill, where nothing has equal progress."""
    return step if bool(torch.dot(g.double(), step.double()) > 0) else signs(g)


def adaptive_direction(optimizer: Optimizer, parameter: Tensor, g: Tensor) -> Tensor:
    """Adam's next step with its moments as they are; the signs where it has none yet."""
    state = optimizer.state.get(parameter, {})
    if "exp_avg" not in state or "exp_avg_sq" not in state:
        return signs(g)
    group = next(
        one for one in optimizer.param_groups if any(p is parameter for p in one["params"])
    )
    first, second = group["betas"]
    taken = float(state["step"]) + 1
    mean = first * state["exp_avg"] + (1 - first) * g
    square = second * state["exp_avg_sq"] + (1 - second) * g.square()
    root = (square / (1 - second**taken)).sqrt() + group.get("eps", EPSILON)
    found: Tensor = mean / (1 - first**taken) / root
    return found.to(g)


def signs(g: Tensor) -> Tensor:
    """The first step of Adam, and every one whose second moment has settled at the gradient's."""
    return g / (g.abs() + EPSILON)
