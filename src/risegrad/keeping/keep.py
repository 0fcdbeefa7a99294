"""``keep``: one call that makes an optimizer's steps keep what a model knows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import LBFGS, Optimizer

from risegrad.common.checks import check_kind
from risegrad.core.optimizers import check_can_be_shaped, unwrapped
from risegrad.keeping.examples import KeepSettings, kept_of
from risegrad.keeping.files import read_keeper
from risegrad.keeping.keeper import Keeper, keeper_of
from risegrad.keeping.looking import Look
from risegrad.memory.informed import right_place
from risegrad.memory.memory import DAMPING, Memory
from risegrad.memory.outputs import Of, Reading


def keep(
    model: nn.Module,
    optimizer: Optimizer,
    old: Any = None,
    *,
    tokenizer: Any = None,
    examples: int = 128,
    budget: float | None = None,
    pull: int = 1,
    damping: float | None = DAMPING,
    of: Of | None = None,
    predict: Reading | None = None,
    prompts: Sequence[str] | None = None,
    system: str | None = None,
    seed: int = 0,
    together: bool | None = None,
    resume: str | Path | None = None,
) -> Keeper:
    """Keep what ``model`` knows while ``optimizer`` trains it; loop and rate do not change.

    ``old``: examples of what must be kept, as batches, a dataset, texts or chats (with a
    ``tokenizer``); labels are not needed. Without it a model that generates text writes its own
    examples, a chat model in chats (``prompts``, ``system``). A ``Memory`` keeps without examples.

    ``budget``: how much may be lost, in nats per token or prediction. ``examples``: the largest
    number to keep; a fifth of them is held out to measure the drift. ``pull``: they pull every so
    many steps (0: never). ``damping``: strength of the shaping (None: no shaping). ``of``,
    ``predict``: what to keep, as in ``risegrad.remember``. ``together``: whether all processes
    train this one model (None: if it is wrapped in DDP or FSDP2). ``resume``: a folder that
    ``keeper.save`` wrote.
    """
    settings = KeepSettings(
        examples, budget, pull, damping, of, predict, tokenizer, prompts, system, seed
    )
    check_kind("model", model, nn.Module, "a torch module")
    look, optimizer = Look(model, of, predict, together), unwrapped(optimizer)
    _check_optimizer(look.model, optimizer, settings)
    if resume is not None:
        memory, kept, state = read_keeper(Path(resume), look, settings)
        keeper = Keeper(look, optimizer, memory, kept, settings)
        if not keeper.steps:  # else the optimizer was loaded before, and knows better
            keeper.load_state_dict(state)
        return keeper
    if isinstance(old, Memory):
        _check_without_examples(old, look.model, settings)
        return Keeper(look, optimizer, old, None, settings)
    return Keeper(look, optimizer, *kept_of(look, old, settings), settings)


def _check_optimizer(model: nn.Module, optimizer: Optimizer, settings: KeepSettings) -> None:
    """What is wrong with the optimizer is said before anything is run."""
    check_can_be_shaped(optimizer, "update")
    check_can_be_shaped(optimizer, right_place(optimizer))
    if isinstance(optimizer, LBFGS) and settings.pull:
        raise ValueError(
            "L-BFGS evaluates its closure many times in a step, and a pull would not be part of "
            "the loss that it searches along: pass pull=0, or add keeper.loss() to your own"
        )
    if keeper_of(optimizer) is not None:
        raise ValueError(
            "this optimizer already has a keeper: call its then(...) or detach() first"
        )
    own = {id(parameter) for parameter in model.parameters()}
    held = [p for group in optimizer.param_groups for p in group["params"]]
    if not any(id(parameter) in own for parameter in held):
        raise ValueError(
            "the optimizer has no parameter of the model: pass the model that it trains"
        )
    if not any(p.requires_grad for p in held if id(p) in own):
        raise ValueError("nothing is trained: every parameter of the optimizer is frozen")


def _check_without_examples(memory: Memory, model: nn.Module, settings: KeepSettings) -> None:
    if settings.pull:
        raise ValueError("a memory has no examples to pull with: pass pull=0, or examples as old")
    if settings.damping is None:
        raise ValueError("damping=None switches off shaping, and a memory can only shape")
    memory.check_fits(model)
