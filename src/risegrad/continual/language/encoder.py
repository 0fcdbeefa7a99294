"""Encoders cannot write, so they classify: one row per label text of the whole stream."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn


class LabelHead(nn.Module):
    """Linear on the mean of the last hidden states over the text."""

    def __init__(self, width: int, labels: tuple[str, ...], generator: torch.Generator) -> None:
        super().__init__()
        self.labels = labels
        bound = 1 / math.sqrt(width)
        drawn = torch.empty(len(labels), width).uniform_(-bound, bound, generator=generator)
        self.weight = nn.Parameter(drawn)
        self.bias = nn.Parameter(torch.zeros(len(labels)))

    def forward(self, net: Any, source: Tensor, mask: Tensor) -> Tensor:
        states = net(input_ids=source, attention_mask=mask).last_hidden_state
        weights = mask.unsqueeze(-1).to(states.dtype)
        mean = (states * weights).sum(1) / weights.sum(1).clamp(min=1)
        return nn.functional.linear(mean, self.weight, self.bias)
