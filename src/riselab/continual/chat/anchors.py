"""Penalties in the loss that hold a chat model's layers near what they were: EWC, Kronecker anchor.

Both measure how far LoRA has moved the weight of each layer, and weigh that by a curvature that old
chats gave: its diagonal (EWC), or Kronecker factors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from risegrad.memory.memory import Memory
from risegrad.memory.penalty import Anchor
from risegrad.memory.remembering import remember
from riselab.continual.chat.adapters import lora_layers
from riselab.continual.chat.texts import Batch, answer_scores


class Hold(Protocol):
    """A penalty, which learns of old chats and can be stored."""

    def look(self, model: Any, batches: Sequence[Batch]) -> None:
        """Add what these chats need; from now on, count from the model as it is."""

    def penalty(self, model: Any) -> Tensor:
        """To add to the loss, times a weight."""

    @property
    def bytes(self) -> int:
        """Of everything that is stored."""


class KroneckerAnchor:
    """``sum tr(D dW S dW') / 2`` by a memory of the old chats."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.memory: Memory | None = None
        self.anchor: Anchor | None = None

    def look(self, model: Any, batches: Sequence[Batch]) -> None:
        """A memory of these chats, added to that of earlier ones."""
        new = remember(model, batches, examples=None, seed=self.seed, progress=False)
        self.memory = new if self.memory is None else self.memory + new
        self.anchor = self.memory.anchor(model)

    def penalty(self, model: Any) -> Tensor:
        """Of the move since the anchor."""
        assert self.memory is not None
        return self.memory.penalty(model, self.anchor)

    @property
    def bytes(self) -> int:
        """Of memory and anchor."""
        parts = (self.memory, self.anchor)
        return sum(part.bytes for part in parts if part is not None)


class Ewc:
    """``sum F dW^2 / 2``, ``F`` the mean squared gradient of a chat's loss: online EWC.

    ``F`` is of the weight under a LoRA, not of its two matrices: when training begins one of them
    is zero, so that the other one's gradient is zero too, and nothing would hold it.
    """

    def __init__(self) -> None:
        self.fisher: dict[str, Tensor] = {}
        self.chats = 0
        self.then: dict[str, tuple[Tensor, Tensor]] = {}

    def look(self, model: Any, batches: Sequence[Batch]) -> None:
        """One backward pass for each chat."""
        weights = {name: layer.get_base_layer().weight for name, layer in lora_layers(model)}
        sums = {n: self.fisher.get(n, torch.zeros_like(w)) * self.chats for n, w in weights.items()}
        for weight in weights.values():
            weight.requires_grad_(True)
        try:
            for batch in (one for together in batches for one in _singly(together)):
                scores, labels = answer_scores(model, batch)
                loss = cross_entropy(scores.float(), labels, reduction="sum")
                found = torch.autograd.grad(loss, list(weights.values()))
                for name, gradient in zip(weights, found, strict=True):
                    sums[name] += gradient.square()
                self.chats += 1
        finally:
            for weight in weights.values():
                weight.requires_grad_(False)
        self.fisher = {name: total / self.chats for name, total in sums.items()}
        self.then = {name: (b.detach().clone(), a.detach().clone())
                     for name, layer in lora_layers(model) for b, a in [_pair(layer)]}  # fmt: skip

    def penalty(self, model: Any) -> Tensor:
        """Of the move since the last look."""
        terms = []
        for name, layer in lora_layers(model):
            (b, a), (b0, a0) = _pair(layer), self.then[name]
            terms.append((self.fisher[name] * (b @ a - b0 @ a0).square()).sum())
        return torch.stack(terms).sum() / 2

    @property
    def bytes(self) -> int:
        """Of the Fisher diagonal, and of what training began with."""
        then = (tensor for pair in self.then.values() for tensor in pair)
        return sum(t.numel() * t.element_size() for t in (*self.fisher.values(), *then))


def _pair(layer: Any) -> tuple[Tensor, Tensor]:
    """``B``, scaled, and ``A``: their product is what a LoRA adds to the weight."""
    (name,) = layer.lora_A
    return layer.lora_B[name].weight * layer.scaling[name], layer.lora_A[name].weight


def _singly(batch: Batch) -> Iterator[Batch]:
    """Each chat of a batch by itself, without the padding before it."""
    for row in range(len(batch["input_ids"])):
        start = int((batch["attention_mask"][row] == 0).sum())
        yield {name: tensor[row : row + 1, start:] for name, tensor in batch.items()}


def hold(name: str, seed: int) -> Hold:
    """The penalty of this rule."""
    return Ewc() if name == "ewc" else KroneckerAnchor(seed)
