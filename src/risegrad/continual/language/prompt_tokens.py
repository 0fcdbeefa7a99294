"""How prompts and answers become tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from risegrad.continual.language.streams.text_tasks import ANSWER


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
