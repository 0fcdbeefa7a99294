"""How prompts and answers become tokens."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from risegrad.common.atomic_files import replacing
from risegrad.continual.language.streams.text_tasks import ANSWER

VERSION = 1
"""Of the way of tokenizing: a change makes older files unknown."""


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


def tokenized(tokenizer: Any, texts: Sequence[str], limit: Limit, folder: Path | None) -> Tokens:
    """The texts' tokens, from ``folder`` if they are there; None keeps nothing."""
    if folder is None:
        return _tokenize(tokenizer, texts, limit)
    path = folder / f"{_name(tokenizer, texts, limit)}.safetensors"
    kept = _load(path, len(texts))
    if kept is None:
        kept = _tokenize(tokenizer, texts, limit)
        try:
            _save(path, kept)
        except OSError as error:  # a full or read-only disk is no reason to stop
            warnings.warn(f"tokens are not kept in {folder} ({error})", stacklevel=2)
    return kept


def _tokenize(tokenizer: Any, texts: Sequence[str], limit: Limit) -> Tokens:
    found = tokenizer(list(texts), verbose=False)["input_ids"] if texts else []
    rows = [limit.apply(list(ids)) for ids in found]
    offsets = torch.tensor([0, *(len(row) for row in rows)]).cumsum(0)
    ids = torch.tensor([token for row in rows for token in row], dtype=torch.int32)
    return Tokens(ids, offsets)


def _name(tokenizer: Any, texts: Sequence[str], limit: Limit) -> str:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    rules = backend.to_str() if backend is not None else repr(sorted(tokenizer.get_vocab().items()))
    name = hashlib.sha256(f"{VERSION} {limit} {rules}".encode())
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        name.update(len(data).to_bytes(8, "big"))
        name.update(data)
    return name.hexdigest()[:40]


def _load(path: Path, count: int) -> Tokens | None:
    if not path.is_file():
        return None
    try:
        found = load_file(path)
        tokens = Tokens(found["ids"], found["offsets"])
        ends = (int(tokens.offsets[0]), int(tokens.offsets[-1]))
        shortest = min(tokens.lengths(), default=0)
        if len(tokens) != count or ends != (0, len(tokens.ids)) or shortest < 0:
            raise ValueError("sizes do not agree")
    except (SafetensorError, OSError, KeyError, ValueError, IndexError) as error:
        warnings.warn(
            f"{path.name} of the token cache is damaged, made anew ({error})", stacklevel=2
        )
        return None
    return tokens


def _save(path: Path, tokens: Tokens) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        save_file({"ids": tokens.ids, "offsets": tokens.offsets}, temporary)


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
