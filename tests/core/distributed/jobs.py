"""What the workers do: train one small model under an engine, and say what happened.

The same functions run in the test's own process with ``engine="plain"``: that is the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from risegrad.core.attachment import Attachment, On, attach
from risegrad.core.shapers import Shaper
from risegrad.memory.memory import Memory
from risegrad.memory.penalty import Anchor, interpolate, retract
from risegrad.memory.remembering import remember

BATCH = 8
INPUTS = 6


class Net(nn.Module):
    """Sizes that no world size above one divides, and a tensor most processes hold nothing of."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(INPUTS, 7)
        self.scale = nn.Parameter(torch.ones(1))
        self.second = nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)) * self.scale)


class Wide(nn.Module):
    """One tensor of more than a tile of draws, cut in the middle of a tile at every world size."""

    def __init__(self) -> None:
        super().__init__()
        self.only = nn.Linear(INPUTS, 11500)

    def forward(self, x: Tensor) -> Tensor:
        return self.only(x).view(-1, 100, 115).mean(1)[:, :3].clone()


class Even(nn.Module):
    """Sizes that FSDP2 can cut along the second dimension (it wants an even cut there)."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 12)
        self.second = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(nn.functional.pad(x, (0, 2)))))


class Idle(Net):
    """A layer that the loss does not depend on: its gradients stay None."""

    def __init__(self) -> None:
        super().__init__()
        self.idle = nn.Linear(3, 5)


class LoraLayer(nn.Module):
    """A layer with an adapter beside it, under the names that peft gives."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.base_layer = nn.Linear(inputs, outputs)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(inputs, 2, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(2, outputs, bias=False)})

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) + self.lora_B["default"](self.lora_A["default"](x))


class Adapted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = LoraLayer(INPUTS, 7)
        self.second = nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(INPUTS, 7), nn.LayerNorm(7)
        self.second = nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.norm(torch.tanh(self.first(x))))


MODELS = {model.__name__: model for model in (Net, Wide, Even, Idle, Adapted, Normed)}
OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
}


@dataclass(frozen=True)
class Setting:
    """One training run."""

    shaper: Shaper | None
    engine: str = "plain"
    model: str = "Net"
    optimizer: str = "adamw"
    on: On = "gradient"
    steps: int = 3
    dtype: torch.dtype = torch.float32
    clip: float | None = None
    accumulate: int = 1
    left_out: tuple[tuple[str, int], ...] = ()

    def under(self, engine: str, **changes: Any) -> Setting:
        return replace(self, engine=engine, **changes)


@dataclass
class Run:
    """A model in training."""

    setting: Setting
    share: tuple[int, int]
    """Which part of the global batch this process takes, of how many."""
    model: nn.Module
    optimizer: torch.optim.Optimizer
    handle: Attachment | None
    step: int = 0

    def advance(self, steps: int) -> None:
        for _ in range(steps):
            self.gradients()
            self.optimizer.step()
            self.step += 1

    def gradients(self) -> None:
        """The gradients of this process's share of the step's global batch, clipped."""
        self.optimizer.zero_grad()
        mine, parts = self.share, self.setting.accumulate
        x, y = (whole.chunk(mine[1])[mine[0]] for whole in batch(self.step, self.setting.dtype))
        for number, (inputs, targets) in enumerate(
            zip(x.chunk(parts), y.chunk(parts), strict=True)
        ):
            with synchronized(self.model, number == parts - 1):
                ((self.model(inputs) - targets).square().mean() / parts).backward()
        if self.setting.engine == "partly sharded":
            average([p for p in self.model.parameters() if not isinstance(p, DTensor)])
        if self.setting.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.setting.clip)

    def parameters(self) -> dict[str, Tensor]:
        return {plain(name): whole(p) for name, p in self.model.named_parameters()}

    def shaped(self) -> dict[str, Tensor]:
        gradients = ((name, p.grad) for name, p in self.model.named_parameters())
        return {plain(name): whole(g) for name, g in gradients if g is not None}


def batch(step: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 + step)
    x = torch.randn(BATCH, INPUTS, generator=generator)
    return x.to(dtype), torch.randn(BATCH, 3, generator=generator).to(dtype)


@contextmanager
def synchronized(model: nn.Module, now: bool) -> Iterator[None]:
    """Whether the engine sums gradients after this backward pass: only after the last."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(now)
    with (
        model.no_sync() if isinstance(model, DistributedDataParallel) and not now else nullcontext()
    ):
        yield


def average(parameters: list[nn.Parameter]) -> None:
    """What an engine does for the parameters it manages."""
    for parameter in parameters:
        dist.all_reduce(parameter.grad)
        parameter.grad.div_(dist.get_world_size())


def plain(name: str) -> str:
    return name.removeprefix("module.")


def whole(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).clone()


def start(setting: Setting, rank: int = 0, size: int = 1) -> Run:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = MODELS[setting.model]().to(setting.dtype)
    model = wrapped(model, setting.engine, size)
    optimizer = OPTIMIZERS[setting.optimizer](model.parameters())
    handle = None
    if setting.shaper is not None:
        handle = attach(optimizer, setting.shaper, model.named_parameters(), setting.on)
        handle.leave_out(dict(setting.left_out))
    # The processes of one tensor-parallel pair work on the same examples.
    share = (rank // 2, size // 2) if setting.engine == "tensor parallel" else (rank, size)
    return Run(setting, share, model, optimizer, handle)


def wrapped(model: nn.Module, engine: str, size: int) -> nn.Module:
    if engine == "plain":
        return model
    if engine == "ddp":
        return DistributedDataParallel(model)
    options: dict[str, Any] = {}
    if engine == "hybrid":
        options["mesh"] = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("copy", "shard"))
    if engine == "columns":
        options["shard_placement_fn"] = lambda p: Shard(1) if p.dim() == 2 else Shard(0)
    if engine == "tensor parallel":
        mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("shard", "tensor"))
        plan = {"first": ColwiseParallel(), "second": RowwiseParallel()}
        parallelize_module(model, mesh["tensor"], plan)
        options["mesh"] = mesh["shard"]
    if engine == "partly sharded":
        fully_shard(model.second)
        return model
    # One call per layer, as people do: without a mesh, each call makes one of its own.
    for child in model.children():
        fully_shard(child, **options)
    return fully_shard(model, **options)


class Messages(TorchDispatchMode):
    """Every collective that is started under it: its name and how many numbers it carries."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # so that its local operations come by one at a time
        if "c10d" in func.namespace:
            tensors = [t for t in torch.utils._pytree.tree_leaves(args) if isinstance(t, Tensor)]
            self.sent.append((func.name().split("::")[1], sum(t.numel() for t in tensors)))
        return func(*args, **(kwargs or {}))


def train(rank: int, size: int, setting: Setting) -> dict[str, Any]:
    """The first shaped gradient, the messages of the optimizer's steps, the last parameters."""
    run = start(setting, rank, size)
    state = torch.random.get_rng_state()
    messages = Messages()
    run.gradients()
    with messages:
        run.optimizer.step()
    run.step += 1
    first = run.shaped()
    run.advance(setting.steps - 1)
    return {
        "shaped": first,
        "parameters": run.parameters(),
        "messages": messages.sent,
        "steps": None if run.handle is None else run.handle.steps,
        "untouched": torch.equal(state, torch.random.get_rng_state()),
    }


def with_a_nan(rank: int, size: int, setting: Setting) -> dict[str, bool]:
    """Whether each gradient is finite after a step in which one process held one NaN."""
    run = start(setting, rank, size)
    run.gradients()
    if rank == 0:
        run.model.first.weight.grad.to_local().view(-1)[0] = torch.nan
    run.optimizer.step()
    return {name: bool(gradient.isfinite().any()) for name, gradient in run.shaped().items()}


def refused(rank: int, size: int, setting: Setting) -> tuple[str, bool]:
    """The error of a step, and whether the gradients were left as they were."""
    run = start(setting, rank, size)
    run.gradients()
    before = run.shaped()
    try:
        run.optimizer.step()
    except NotImplementedError as error:
        after = run.shaped()
        return str(error), all(torch.equal(before[name], after[name]) for name in before)
    return "no error", False


def remembered(
    rank: int, size: int, setting: Setting, given: str, rank_kept: int | None = None
) -> dict[str, Any]:
    """What is remembered of three batches, of which each process has its own, or all have all."""
    model = start(setting, rank, size).model
    pairs = [batch(number, setting.dtype) for number in range(3)]
    batches = [(x, y.argmax(-1)) for x, y in pairs]
    mine = batches if given == "the same" else batches[rank::size]
    memory = remember(model, mine, examples=20, rank=rank_kept)
    found = {
        f"{name} {part}": side.product(torch.eye(side.dim, dtype=setting.dtype))
        for name, layer in memory.items()
        for part, side in layer.parts.items()
    }
    counts = [memory.source["examples"], memory.source["predictions"]]
    return {"sides": found, "counts": counts, "hash": memory.hash}


def memory_refusals(rank: int, size: int, setting: Setting, memory: Memory) -> list[str]:
    """What penalties and the like say of a model that is cut, and ``remember`` of some."""
    model = start(setting, rank, size).model
    x = torch.ones(4, INPUTS, dtype=setting.dtype)
    asked: list[Callable[[], Any]] = [
        lambda: memory.anchor(model),
        lambda: memory.penalty(model),
        lambda: memory.damage(Anchor({}), model),
        lambda: retract(model, {}, memory),
        lambda: interpolate(model, {}, 0.5),
    ]
    if setting.engine == "tensor parallel":
        asked = [lambda: remember(model, [x])]
    found = []
    for ask in asked:
        try:
            ask()
        except NotImplementedError as error:
            found.append(str(error))
        else:
            found.append("no error")
    return found


def flattened(rank: int, size: int, shaper: Shaper) -> str:
    """The error of attaching to FSDP1, whose parameters are parts of a flat vector."""
    model = FullyShardedDataParallel(Even(), use_orig_params=True, device_id=torch.device("cpu"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        attach(optimizer, shaper, model.named_parameters())
    except NotImplementedError as error:
        return str(error)
    return "no error"


def divided_optimizer(rank: int, size: int, setting: Setting) -> dict[str, Tensor]:
    """DDP with torch's ZeroRedundancyOptimizer, which keeps a part of the state per process."""
    run = start(setting.under("ddp", shaper=None), rank, size)
    run.optimizer = ZeroRedundancyOptimizer(
        run.model.parameters(), torch.optim.AdamW, lr=0.01, weight_decay=0.1
    )
    assert setting.shaper is not None
    attach(run.optimizer, setting.shaper, run.model.named_parameters(), setting.on)
    run.advance(setting.steps)
    return run.parameters()


def save(rank: int, size: int, setting: Setting, path: str, form: str) -> None:
    """Train, then write a checkpoint: ``sharded``, ``flat`` or ``full`` (one file)."""
    run = start(setting, rank, size)
    run.advance(setting.steps)
    # Without gradients at hand, torch makes a step of its own for optimizers that have no state.
    run.optimizer.zero_grad()
    states = collected(run, form)
    if form != "full":
        dcp.save(states, checkpoint_id=path)
    elif rank == 0:
        torch.save(states, path)
    if form == "full":
        dist.barrier()


def resume(
    rank: int, size: int, setting: Setting, path: str, form: str, done: int
) -> dict[str, Any]:
    """Start anew, load a checkpoint of a run that made ``done`` steps, and train on."""
    run = start(setting, rank, size)
    if form == "full":
        # Only the first process reads; torch sends every other one its part.
        states = (
            torch.load(path, weights_only=True) if rank == 0 else {"model": {}, "optimizer": {}}
        )
    else:
        states = collected(run, form)
        dcp.load(states, checkpoint_id=path)
    options = loading_options(form)
    set_model_state_dict(run.model, states["model"], options=options)
    set_optimizer_state_dict(run.model, run.optimizer, states["optimizer"], options=options)
    assert run.handle is not None
    loaded, run.step = run.handle.steps, done
    run.advance(setting.steps)
    return {"parameters": run.parameters(), "loaded": loaded, "steps": run.handle.steps}


def resuming_error(rank: int, size: int, setting: Setting, path: str, form: str) -> str:
    try:
        resume(rank, size, setting, path, form, 0)
    except ValueError as error:
        return str(error)
    return "no error"


def collected(run: Run, form: str) -> dict[str, Any]:
    options = StateDictOptions(
        full_state_dict=form == "full",
        cpu_offload=form == "full",
        flatten_optimizer_state_dict=form == "flat",
    )
    return {
        "model": get_model_state_dict(run.model, options=options),
        "optimizer": get_optimizer_state_dict(run.model, run.optimizer, options=options),
    }


def loading_options(form: str) -> StateDictOptions:
    return StateDictOptions(
        full_state_dict=form == "full",
        broadcast_from_rank0=form == "full",
        flatten_optimizer_state_dict=form == "flat",
    )
