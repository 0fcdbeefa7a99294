"""How prompts and answers become tokens."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from risegrad.continual.language.tasks import ANSWER
from risegrad.continual.language.tokens import Limit


def prompt_limit(tokenizer: Any, length: int, cut: Literal["text", "end"]) -> Limit:
    """Long prompts lose the end of their text, or with ``end`` their own; special tokens stay."""
    asking = len(tokenizer(ANSWER, add_special_tokens=False)["input_ids"]) if cut == "text" else 0
    return Limit(length, _ending(tokenizer) + asking)


def answer_tokens(tokenizer: Any, text: str, length: int) -> Tensor:
    """An answer as tokens, with the end that a model has to write."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"][: length - 1]
    return torch.tensor([*ids, tokenizer.eos_token_id])


def _ending(tokenizer: Any) -> int:
    """How many special tokens stand at the end of every text."""
    ids: list[int] = tokenizer("a")["input_ids"]
    special = set(tokenizer.all_special_ids)
    # One that does not know the letter reads it as unknown, which is special too but no end.
    special -= {tokenizer.unk_token_id} - {tokenizer.eos_token_id}
    count = 0
    while count < len(ids) and ids[-1 - count] in special:
        count += 1
    return count
