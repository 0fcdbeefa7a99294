"""Where kept examples come from: given ones, or what the model writes itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from risegrad.common.optional_imports import need
from risegrad.curvature.memory.kept_data import TextForm, kind_of, prepared
from risegrad.curvature.memory.kept_data import _is_text as is_text
from risegrad.curvature.memory.many_ranks import Ranks
from risegrad.curvature.memory.memory import Memory
from risegrad.curvature.memory.remembered_batches import rounds
from risegrad.curvature.memory.remembered_outputs import Of
from risegrad.curvature.memory.remembering import remember
from risegrad.curvature.operators.batch_forms import moved, size_of
from risegrad.curvature.targets import unwrapped
from risegrad.keeping.answers import features, predictions
from risegrad.keeping.dreams import dreamed
from risegrad.keeping.kept_examples import Group, Kept, singles, split
from risegrad.keeping.looking import Look
from risegrad.keeping.settings import KeepSettings

T = TypeVar("T")


def kept_of(look: Look, old: Any, settings: KeepSettings) -> tuple[Memory | None, Kept]:
    """What the model knows of these examples now: a memory of four fifths, and all its answers."""
    given = rounds(_batches(look, old, settings), look.device, settings.examples, Ranks())
    batches = _same(look, [now.batch for now in given])
    if not batches:
        raise ValueError("old must hold examples, got none")
    to_pull, to_hold = split(batches, settings.seed)
    answered, of = _answered(look, [*to_pull, *to_hold])
    pulled, held = (
        tuple(group for group in groups if len(group.answers.values))
        for groups in (answered[: len(to_pull)], answered[len(to_pull) :])
    )
    if not pulled or not held:
        raise ValueError("old must hold positions that count; every label of most examples is -100")
    memory = None
    if settings.damping is not None:
        memory = remember(
            look.model,
            to_pull,
            examples=None,
            of=of,
            predict=settings.predict,
            seed=settings.seed,
        )
        memory = _same(look, memory)
    seen = sum(map(size_of, batches))
    return memory, Kept(pulled, tuple(_counted(look, g) for g in held), seen)


def _same(look: Look, value: T) -> T:
    """What the first process has, in all that train the model together: where two differ by
    rounding, their models would drift apart."""
    if look.ranks.group is None:
        return value
    plain: Any = moved(value, torch.device("cpu")) if isinstance(value, list) else value
    first: T = look.ranks.gather(plain)[0]
    return first


@torch.no_grad()
def _answered(look: Look, batches: Sequence[Any]) -> tuple[list[Group], Of]:
    with look.quietly():
        rows = [look.rows(batch) for batch in batches]
        of = look.of(batches[0])
    answers = [predictions(part) for part in rows] if of == "predictions" else features(rows)
    groups = [Group(b, a, size_of(b)) for b, a in zip(batches, answers, strict=True)]
    return groups, of


@torch.no_grad()
def _counted(look: Look, group: Group) -> Group:
    """With the rows of each of its examples: the error of a drift is one over examples."""
    with look.quietly():
        counts = tuple(len(look.rows(batch)) for batch in singles(group.batch))
    return Group(group.batch, group.answers, group.examples, counts)


def _batches(look: Look, old: Any, settings: KeepSettings) -> Any:
    tokenizer = settings.tokenizer
    if old is not None:
        if tokenizer is None and shows_text(old):
            tokenizer = tokenizer_of(look.model)
        return prepared(old, look.model, TextForm(tokenizer, answers_only=True))
    if kind_of(look.model) == "reads":
        raise ValueError(
            f"old is needed: {type(look.model).__name__} does not write text of its own; give "
            "examples of what it is used for (inputs are enough, labels are not needed)"
        )
    if tokenizer is None:
        tokenizer = tokenizer_of(look.model)
    return dreamed(
        look.model,
        tokenizer,
        settings.examples,
        prompts=settings.prompts,
        system=settings.system,
        batch=32,
        seed=settings.seed,
    )


def shows_text(old: Any) -> bool:
    """Whether a list or dataset is one of texts or messages, which need a tokenizer."""
    indexed = hasattr(old, "__getitem__") and hasattr(old, "__len__") and len(old)
    return bool(indexed) and is_text(old[0], TextForm().text_field)


def tokenizer_of(model: nn.Module) -> Any:
    """The one that lies beside the model, by the name that it was loaded by."""
    name = getattr(unwrapped(model), "name_or_path", "")
    if not name:
        raise ValueError("tokenizer is needed: the model does not know the name it was loaded by")
    try:
        return need("transformers", "language").AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise ValueError(f"tokenizer is needed: none is at {name!r} ({error})") from error
