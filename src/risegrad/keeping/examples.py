"""The examples that are kept: those to pull with, those held out, and how many there may be."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from risegrad.common.checks import check_int, check_number
from risegrad.common.imports import need
from risegrad.common.seeds import generator_for
from risegrad.curvature.batches import IGNORED, chosen, moved, size_of, tensors_of
from risegrad.curvature.targets import unwrapped
from risegrad.keeping.answers import Answers, features, predictions
from risegrad.keeping.dreams import dreamed
from risegrad.keeping.looking import Look
from risegrad.memory.examples import TextForm, is_text, kind_of, prepared
from risegrad.memory.factor import check_damping
from risegrad.memory.memory import DAMPING, Memory
from risegrad.memory.outputs import Of, Reading
from risegrad.memory.ranks import Ranks, rounds
from risegrad.memory.remembering import remember, shown

PULLED = 8
"""Examples of one pull."""
TOKENS = 512
"""Tokens of a group at most, with its padding: the scores of a large vocabulary are most of what a
pass needs memory for."""
LENGTH = 40
"""Tokens of a question and of a short answer that a model writes itself; the others are longer."""
ROWS = 4096
"""Predictions that a memory is made of, at most: more hardly change it and take as long as training
on them."""
HELD_OUT = 5
"""Of how many examples one is held out: never pulled with nor remembered, for the drift."""
ROOM = 8
"""Of how many tasks as large as the first all examples stay; then those of earlier ones make room,
so that every example that was ever given is as likely to be there."""


@dataclass(frozen=True)
class Group:
    """A few examples of one batch, and what the model answered to them."""

    batch: Any
    answers: Answers
    examples: int
    counts: tuple[int, ...]
    """The rows of each example."""


@dataclass(frozen=True)
class Kept:
    """All of them."""

    pulled: tuple[Group, ...]
    held: tuple[Group, ...]
    seen: int
    """Examples that were given so far, those that made room included."""
    seconds_per_dream: float | None = None
    """What it took the model to write one itself; None if it did not, or was resumed."""

    def joined(self, new: Kept, room: int, seed: int) -> Kept:
        """With those of another task, at random so many of each that ``room`` examples are left."""
        seen = self.seen + new.seen
        share = self.seen / seen

        def both(here: Sequence[Group], there: Sequence[Group], most: int) -> tuple[Group, ...]:
            if count(here) + count(there) <= most:
                return (*here, *there)
            first = _some(here, round(share * most), seed, seen)
            return (*first, *_some(there, most - count(first), seed, seen + 1))

        held = max(1, room // HELD_OUT)
        return Kept(
            both(self.pulled, new.pulled, room - held),
            both(self.held, new.held, held),
            seen,
            new.seconds_per_dream or self.seconds_per_dream,
        )

    @property
    def bytes(self) -> int:
        """What the examples and the answers take."""
        groups = (*self.pulled, *self.held)
        return sum(g.answers.bytes + sum(t.nbytes for t in tensors_of(g.batch)) for g in groups)


def count(groups: Sequence[Group]) -> int:
    """The examples in them."""
    return sum(group.examples for group in groups)


def split(batches: Sequence[Any], seed: int) -> tuple[list[Any], list[Any]]:
    """Small batches to pull with, and others of the fifth that is held out; at random."""
    sizes = [size_of(batch) for batch in batches]
    total = sum(sizes)
    if total < 2:
        raise ValueError(f"old must hold at least two examples, one to be held out; got {total}")
    order = torch.randperm(total, generator=generator_for(seed, "keep", "split"))
    held = torch.zeros(total, dtype=torch.bool)
    held[order[: max(1, total // HELD_OUT)]] = True
    parts: tuple[list[Any], list[Any]] = [], []
    start = 0
    for batch, size in zip(batches, sizes, strict=True):
        here = order[(order >= start) & (order < start + size)]
        for side, into in zip((False, True), parts, strict=True):
            index = here[held[here] == side] - start
            into += [trimmed(chosen(batch, few, size)) for few in _alike(batch, index, size)]
        start += size
    return parts


def singles(batch: Any) -> Iterator[Any]:
    """A batch's examples one by one, without their padding."""
    size = size_of(batch)
    return (trimmed(chosen(batch, slice(n, n + 1), size)) for n in range(size))


def trimmed(batch: Any) -> Any:
    """Without what is padding at the end of every row."""
    mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
    if not isinstance(mask, Tensor) or mask.ndim != 2:
        return batch
    most, shape = int(_lengths(batch, len(mask)).max()), mask.shape

    def is_along(value: Any) -> bool:
        tokens = isinstance(value, Tensor) and (value.ndim == 2 or not value.is_floating_point())
        return bool(tokens and value.shape[:2] == shape)

    return {name: value[:, :most] if is_along(value) else value for name, value in batch.items()}


def _alike(batch: Any, index: Tensor, size: int) -> Iterator[Tensor]:
    """A few examples at a time, of about one length and with not too many tokens."""
    lengths = _lengths(batch, size)
    few: list[int] = []
    for number in index[lengths[index].argsort(stable=True)].tolist():
        if few and (len(few) == PULLED or (len(few) + 1) * int(lengths[number]) > TOKENS):
            yield torch.tensor(few)
            few = []
        few.append(number)
    if few:
        yield torch.tensor(few)


def _lengths(batch: Any, size: int) -> Tensor:
    """The tokens of each example up to its last; 1 of what is no text."""
    inputs = batch if isinstance(batch, Mapping) else {}
    mask, labels, ids = (inputs.get(name) for name in ("attention_mask", "labels", "input_ids"))
    if isinstance(mask, Tensor) and mask.ndim == 2:
        used = mask != 0
        if isinstance(labels, Tensor) and labels.shape == mask.shape:
            used = used | (labels != IGNORED)
        return (mask.shape[1] - used.flip(1).int().argmax(1)).cpu()
    width = ids.shape[1] if isinstance(ids, Tensor) and ids.ndim == 2 else 1
    return torch.full((size,), width)


def taken(groups: Sequence[Group], number: int, seed: int) -> Sequence[Group]:
    """The groups of pull ``number``: about eight examples, in a new order in every round.

    A pure function, so that a resumed run pulls with what it would have.
    """
    together: list[list[Group]] = []
    for group in groups:
        if together and count(together[-1]) + group.examples <= PULLED:
            together[-1].append(group)
        else:
            together.append([group])
    turn, at = divmod(number, len(together))
    order = torch.randperm(len(together), generator=generator_for(seed, "keep", "pull", turn))
    return together[order.tolist()[at]]


def _some(groups: Sequence[Group], most: int, seed: int, seen: int) -> list[Group]:
    """At random so many groups that there are not more than ``most`` examples, but at least one."""
    order = torch.randperm(len(groups), generator=generator_for(seed, "keep", "room", seen))
    found: list[Group] = []
    for number in order.tolist():
        if not found or count(found) + groups[number].examples <= most:
            found.append(groups[number])
    return found


PLAIN = ("examples", "budget", "pull", "damping", "seed", "of")


@dataclass(frozen=True)
class KeepSettings:
    """The arguments of ``risegrad.keep``, checked."""

    examples: int = 128
    """How many are kept of each task, at most; a fifth of them is held out."""
    budget: float | None = None
    """How much may be lost, in nats per token (or prediction); None: as little as it comes to."""
    pull: int = 1
    """Every how many steps kept examples pull; 0: never."""
    damping: float | None = DAMPING
    """Of the shaping; None: steps are not shaped."""
    of: Of | None = None
    """What is kept: "predictions", "features", the name of a module, or a function; None:
    predictions, or features of a model without a head."""
    predict: Reading | None = None
    """``predict(model, batch)`` for batches of an unusual form."""
    tokenizer: Any = None
    prompts: Sequence[str] | None = None
    """What the model's own samples answer or go on from."""
    system: str | None = None
    """The system prompt of its own chats."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_number("examples", self.examples, at_least=2, whole=True)
        check_number("pull", self.pull, at_least=0, whole=True)
        check_int("seed", self.seed)
        if self.damping is not None:
            check_damping(self.damping)
        if self.budget is not None:
            check_number("budget", self.budget, above=0)
            if not self.pull:
                raise ValueError("budget works by the strength of the pull: pull must be >= 1")
        if self.damping is None and not self.pull:
            raise ValueError("damping=None and pull=0 switch off both shape and pull")

    def plain(self) -> dict[str, Any]:
        """Those that are numbers and words, for a file."""
        named = {name: getattr(self, name) for name in PLAIN}
        return named | {"of": "a function" if callable(self.of) else self.of}


T = TypeVar("T")


def kept_of(look: Look, old: Any, settings: KeepSettings) -> tuple[Memory | None, Kept]:
    """What the model knows of these examples now: a memory of four fifths, and all its answers."""
    begun = time.perf_counter()
    raw = _batches(look, old, settings)
    per_dream = (time.perf_counter() - begun) / settings.examples if old is None else None
    given = rounds(raw, look.device, settings.examples, Ranks())
    batches = _same(look, [now.batch for now in given])
    if not batches:
        raise ValueError("old must hold examples, got none")
    to_pull, to_hold = split(batches, settings.seed)
    answered, of = _answered(look, [*to_pull, *to_hold])
    pulled, held = (
        tuple(group for group in groups if sum(group.counts))
        for groups in (answered[: len(to_pull)], answered[len(to_pull) :])
    )
    if not pulled or not held:
        raise ValueError("old must have labels other than -100; most examples have none")
    memory = None
    if settings.damping is not None:
        how: dict[str, Any] = {"of": of, "predict": settings.predict, "seed": settings.seed}
        rows = _some_rows(pulled, settings.seed)
        memory = _same(look, remember(look.model, rows, examples=None, **how))
    seen = sum(map(size_of, batches))
    return memory, Kept(pulled, held, seen, per_dream)


def _some_rows(groups: Sequence[Group], seed: int) -> list[Any]:
    """Batches with about so many rows as a memory needs, at random."""
    order = torch.randperm(len(groups), generator=generator_for(seed, "keep", "memory"))
    found: list[Any] = []
    rows = 0
    for number in order.tolist():
        if rows < ROWS:
            found.append(groups[number].batch)
            rows += sum(groups[number].counts)
    return found


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
    found: list[Any] = []
    counts = []
    sizes = [size_of(batch) for batch in batches]
    with look.quietly(), shown(True, sum(sizes), look.ranks, "answers of now") as told:
        of = look.of(next(singles(batches[0])))
        for number, (batch, size) in enumerate(zip(batches, sizes, strict=True), 1):
            rows = look.rows(batch)
            # At once: the scores of all batches would be gigabytes.
            found.append(predictions(rows) if of == "predictions" else rows)
            counts.append(_counts(look, batch, size, len(rows)))
            told(sum(sizes[:number]), sum(sizes))
    answers = found if of == "predictions" else features(found)
    return list(map(Group, batches, answers, sizes, counts)), of


def _counts(look: Look, batch: Any, size: int, rows: int) -> tuple[int, ...]:
    """The rows of each example: the error of a drift is one over examples."""
    guesses = [torch.ones(size, dtype=torch.long)]
    labels = batch.get("labels") if isinstance(batch, Mapping) else None
    if isinstance(labels, Tensor) and labels.ndim == 2:
        guesses += [(part != IGNORED).sum(1) for part in (labels, labels[:, 1:])]
    for guess in guesses:
        if int(guess.sum()) == rows:
            return tuple(guess.tolist())
    return tuple(len(look.rows(part)) for part in singles(batch))


def _batches(look: Look, old: Any, settings: KeepSettings) -> Any:
    tokenizer = settings.tokenizer
    if old is not None:
        if tokenizer is None and shows_text(old):
            tokenizer = tokenizer_of(look.model)
        return prepared(old, look.model, TextForm(tokenizer, answers_only=True))
    if kind_of(look.model) == "reads":
        raise ValueError(
            f"old is needed: {type(look.model).__name__} does not generate text; pass examples "
            "of its use (inputs are enough, labels are not needed)"
        )
    if look.ranks.sharded:
        raise ValueError(
            "old is needed: a sharded model (FSDP2) cannot generate text, because its processes "
            "would have to end at the same token; call risegrad.dreamed before fully_shard"
        )
    if tokenizer is None:
        tokenizer = tokenizer_of(look.model)
    how = {name: getattr(settings, name) for name in ("prompts", "system", "seed")}
    return dreamed(
        look.model, tokenizer, settings.examples,
        length=LENGTH, batch=32, progress=not look.ranks.own, **how,
    )  # fmt: skip


def shows_text(old: Any) -> bool:
    """Whether a list or dataset is one of texts or messages, which need a tokenizer."""
    indexed = hasattr(old, "__getitem__") and hasattr(old, "__len__") and len(old)
    return bool(indexed) and is_text(old[0], TextForm().text_field)


def tokenizer_of(model: nn.Module) -> Any:
    """The one that lies beside the model, by the name that it was loaded by."""
    name = getattr(unwrapped(model), "name_or_path", "")
    if not name:
        raise ValueError("tokenizer is needed: the model does not say where it was loaded from")
    try:
        return need("transformers", "language").AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise ValueError(f"tokenizer is needed: found none at {name!r} ({error})") from error
