"""Token ids of many texts in one array, made once and kept on disk.

The file is named by a hash of everything that determines it: tokenizer, texts and limits. Its
format is safetensors, which holds numbers only, and it is written beside its name and renamed.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from risegrad.files import replacing

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
