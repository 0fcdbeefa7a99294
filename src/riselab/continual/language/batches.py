"""Batches of text: padded to their longest, in the form that each kind of model reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from riselab.continual.host import Ref
from riselab.continual.language.streams.settings import ANSWER


@dataclass(frozen=True)
class Tokens:
    """Texts as token ids: ``ids[offsets[i]:offsets[i + 1]]`` is text i."""

    ids: Tensor
    offsets: Tensor

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Tensor:
        return self.ids[self.offsets[index] : self.offsets[index + 1]].long()

    def lengths(self) -> list[int]:
        """How many tokens each text has."""
        return self.offsets.diff().tolist()


@dataclass(frozen=True)
class Limit:
    """At most ``length`` tokens; of longer texts, the last ``tail`` stay and the middle goes."""

    length: int
    tail: int = 0

    def apply(self, ids: list[int]) -> list[int]:
        """
        >>> Limit(5, tail=2).apply([1, 2, 3, 4, 5, 6, 7])
        [1, 2, 3, 6, 7]
        """
        if len(ids) <= self.length:
            return ids
        return ids[: self.length - self.tail] + ids[len(ids) - self.tail :]


def tokenized(tokenizer: Any, texts: Sequence[str], limit: Limit) -> Tokens:
    """The texts' tokens.

    They are not kept on disk: 16,000 prompts of a T5 take about 7 seconds of one busy core, which
    is little beside training on them.
    """
    found = tokenizer(list(texts), verbose=False)["input_ids"] if texts else []
    rows = [limit.apply(list(ids)) for ids in found]
    offsets = torch.tensor([0, *(len(row) for row in rows)]).cumsum(0)
    ids = torch.tensor([token for row in rows for token in row], dtype=torch.int32)
    return Tokens(ids, offsets)


def prompt_limit(tokenizer: Any, length: int, cut: Literal["text", "end"]) -> Limit:
    """Long prompts lose the end of their text, or with ``end`` their own; special tokens stay."""
    asking = len(tokenizer(ANSWER, add_special_tokens=False)["input_ids"]) if cut == "text" else 0
    return Limit(length, _ending(tokenizer) + asking)


def answer_tokens(tokenizer: Any, text: str, length: int) -> Tensor:
    """An answer as tokens, with the end that a model has to write."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"][: length - 1]
    return torch.tensor([*ids, tokenizer.eos_token_id])


def _ending(tokenizer: Any) -> int:
    """How many special tokens end every text."""
    ids: list[int] = tokenizer("a")["input_ids"]
    special = set(tokenizer.all_special_ids)
    # One that does not know the letter reads it as unknown, which is special too but no end.
    special -= {tokenizer.unk_token_id} - {tokenizer.eos_token_id}
    count = 0
    while count < len(ids) and ids[-1 - count] in special:
        count += 1
    return count


IGNORED = -100
"""Places that no loss looks at."""


@dataclass(frozen=True)
class TextBatch:
    """``source`` ``[n, s]`` with its ``mask``. ``targets`` are answers ``[n, t]`` for an
    encoder-decoder, the source without its prompts for a decoder, and classes ``[n]`` for an
    encoder."""

    source: Tensor
    mask: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.source)

    def to(self, target: torch.device) -> TextBatch:
        """The same batch on another device."""
        source, mask, targets = (
            tensor.to(target, non_blocking=True)
            for tensor in (self.source, self.mask, self.targets)
        )
        return TextBatch(source, mask, targets)

    def pin_memory(self) -> TextBatch:
        """The same batch in pinned memory, which copies to a GPU faster."""
        return TextBatch(
            self.source.pin_memory(), self.mask.pin_memory(), self.targets.pin_memory()
        )


@dataclass(frozen=True)
class Answered:
    """One task's prompts and answers as tokens. ``answers[i]`` is a row of ``written``.

    ``classes[i]`` is the answer's place among all labels of the stream, -1 if it is none of them.
    """

    prompts: Tokens
    answers: tuple[int, ...]
    written: tuple[Tensor, ...]
    classes: tuple[int, ...]

    @staticmethod
    def of(
        prompts: Tokens,
        answers: Sequence[str],
        write: Callable[[str], Tensor] | None,
        labels: Sequence[str] = (),
    ) -> Answered:
        """From the answers' texts; ``write`` makes tokens of one, None for a model that does not
        write."""
        texts = tuple(dict.fromkeys(answers))
        places = {text: place for place, text in enumerate(texts)}
        classes = {label: place for place, label in enumerate(labels)}
        return Answered(
            prompts,
            tuple(places[answer] for answer in answers),
            tuple(map(write, texts)) if write else (),
            tuple(classes.get(answer, -1) for answer in answers),
        )

    def answer(self, index: int) -> Tensor:
        """The tokens of the answer to one example."""
        return self.written[self.answers[index]]


@dataclass(frozen=True)
class TextItems:
    """Training examples of all tasks so far, for one kind of model."""

    at_hand: ClassVar[bool] = False
    kind: Literal["seq2seq", "decoder", "encoder"]
    tasks: dict[int, Answered]
    pad: int

    def fetch(self, refs: Sequence[Ref], epoch: int) -> TextBatch:
        """The named examples as one padded batch."""
        if not refs:
            empty = torch.empty(0, 1, dtype=torch.int64)
            return TextBatch(empty, empty, empty)
        prompts = [self.tasks[task].prompts[index] for task, index in refs]
        if self.kind == "encoder":
            classes = torch.tensor([self.tasks[task].classes[index] for task, index in refs])
            return TextBatch(*padded(prompts, self.pad), classes)
        answers = [self.tasks[task].answer(index) for task, index in refs]
        if self.kind == "seq2seq":
            targets = pad_sequence(answers, batch_first=True, padding_value=IGNORED)
            return TextBatch(*padded(prompts, self.pad), targets)
        whole = [torch.cat(pair) for pair in zip(prompts, answers, strict=True)]
        silent = [
            torch.cat([torch.full_like(prompt, IGNORED), answer])
            for prompt, answer in zip(prompts, answers, strict=True)
        ]
        targets = pad_sequence(silent, batch_first=True, padding_value=IGNORED)
        return TextBatch(*padded(whole, self.pad), targets)


def padded(rows: Sequence[Tensor], pad: int, side: str = "right") -> tuple[Tensor, Tensor]:
    """Rows as one matrix, and a mask of the places that hold them.

    >>> ids, mask = padded([torch.tensor([5, 6]), torch.tensor([7])], pad=0, side="left")
    >>> ids.tolist(), mask.tolist()
    ([[5, 6], [0, 7]], [[1, 1], [0, 1]])
    """
    ids = pad_sequence(list(rows), batch_first=True, padding_value=pad, padding_side=side)
    ones = [torch.ones_like(row) for row in rows]
    return ids, pad_sequence(ones, batch_first=True, padding_value=0, padding_side=side)
