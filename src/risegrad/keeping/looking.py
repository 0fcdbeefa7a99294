"""Running a model for a look at what it answers: nothing of it remains but the answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from risegrad.curvature.batches import form_of, moved
from risegrad.curvature.targets import Reader, as_found
from risegrad.memory.outputs import Of, Reading, choose_rows
from risegrad.memory.ranks import Ranks, ranks_of


class SeenPrecision:
    """A hook that notes the autocast around a model's forward pass in training.

    A copy of the model gets one of its own: the model may be copied and pickled with it.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.dtype = torch.get_autocast_dtype(kind)
        self.enabled = torch.is_autocast_enabled(kind)

    def __call__(self, module: nn.Module, args: Any) -> None:
        """Before the model runs."""
        if module.training:
            self.dtype = torch.get_autocast_dtype(self.kind)
            self.enabled = torch.is_autocast_enabled(self.kind)

    def again(self) -> torch.autocast:
        """The same autocast, without its cache: a weight there may be one from before a step."""
        return torch.autocast(self.kind, self.dtype, self.enabled, cache_enabled=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.kind,)


class Look:
    """Runs one model as it is written and in eval mode: no dropout, no running statistics.

    In the precision that its forward pass in training has: until that was seen, that of the place
    where this is made. Modes, random states and buffers come back. At the first look all buffers
    are held, later only those that a look was found to change: of a quantized model they may be all
    of its weights.
    """

    def __init__(
        self, model: nn.Module, of: Of | None, predict: Reading | None, together: bool | None = None
    ) -> None:
        self.model, self.ranks = _apart(model, together)
        self._of, self._predict = of, predict
        self._ways: dict[str, Callable[[nn.Module, Any], Tensor]] = {}
        self._restless: set[tuple[nn.Module, str]] | None = None
        self.precision = SeenPrecision(self.device.type)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next((p.device for p in self.model.parameters()), torch.device("cpu"))

    def rows(self, batch: Any) -> Tensor:
        """One row for each prediction (or feature vector) that counts; only inside ``quietly``."""
        batch = moved(batch, self.device)
        form = form_of(batch)
        if form not in self._ways:
            self._ways[form] = choose_rows(self.model, batch, self.of(batch), self._predict)
        return self._ways[form](self.model, batch)

    def of(self, batch: Any) -> Of:
        """What is kept; where that was left open, predictions if the model gives any."""
        if self._of is None:
            found = () if self._predict else Reader(self.model, batch).run(self.model, batch)
            plain = isinstance(found, Tensor | tuple) or hasattr(found, "logits")
            self._of = "predictions" if plain else "features"
        return self._of

    @contextmanager
    def quietly(self) -> Iterator[None]:
        """While the model is looked at."""
        before = [
            (module, key, tensor, _version(tensor))
            for module in self.model.modules()
            for key, tensor in module._buffers.items()
        ]
        try:
            with as_found(self.model, self._restless), self.precision.again():
                try:
                    yield
                finally:
                    changed = {(m, k) for m, k, tensor, was in before if _moved(m, k, tensor, was)}
                    self._restless = changed | (self._restless or set())
        finally:
            _reshard(self.model)


def _version(tensor: Tensor | None) -> int:
    return -1 if tensor is None or tensor.is_inference() else tensor._version


def _moved(module: nn.Module, key: str, tensor: Tensor | None, was: int) -> bool:
    return module._buffers.get(key) is not tensor or _version(tensor) != was


def _reshard(model: nn.Module) -> None:
    """FSDP2 leaves its outermost weights gathered after a forward pass without a backward pass, and
    a step in between would not reach the gathered copy."""
    for module in model.modules():
        reshard = getattr(module, "reshard", None)
        if callable(reshard) and hasattr(module, "unshard"):
            reshard()


def _apart(model: nn.Module, together: bool | None) -> tuple[nn.Module, Ranks]:
    """The model without what wraps it, and the processes that train it."""
    inside: Any = model.module if isinstance(model, nn.DataParallel) else model
    inside, ranks = ranks_of(getattr(inside, "_orig_mod", inside))
    inside = getattr(inside, "_orig_mod", inside)
    several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    if ranks.group is None and several:
        if together is None:
            raise ValueError(
                f"cannot tell whether all {dist.get_world_size()} processes train one model: pass "
                "the model wrapped in DDP, or together=True; "
                "together=False if each process trains another model"
            )
        ranks = Ranks(dist.group.WORLD) if together else ranks
    return inside, ranks


def trained_by(optimizer: torch.optim.Optimizer) -> Sequence[Tensor]:
    """The parameters that the optimizer trains."""
    held = [tensor for group in optimizer.param_groups for tensor in group["params"]]
    return [tensor for tensor in held if tensor.requires_grad]
