"""AdaptFormer-style adapters: a small bottleneck beside every block."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from risegrad.continual.vision.backbone import ViTSettings


class Adapter(nn.Module):
    """``scale * up(dropout(relu(down(x))))``; the identity beside it makes it a no-op at start."""

    def __init__(
        self, width: int, bottleneck: int, scale: float, dropout: float, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.down = nn.Linear(width, bottleneck)
        self.up = nn.Linear(bottleneck, width)
        self.scale, self.dropout = scale, nn.Dropout(dropout)
        nn.init.kaiming_uniform_(self.down.weight, a=math.sqrt(5), generator=generator)
        for start_at_zero in (self.down.bias, self.up.weight, self.up.bias):
            nn.init.zeros_(start_at_zero)

    def forward(self, x: Tensor) -> Tensor:
        """``scale * up(dropout(relu(down(x))))``."""
        up: Tensor = self.up(self.dropout(torch.relu(self.down(x))))
        return up * self.scale


def make_adapters(
    settings: ViTSettings, width: int, depth: int, generator: torch.Generator
) -> nn.ModuleList:
    """One adapter per block."""
    size, scale, dropout = (
        settings.adapter_width,
        settings.adapter_scale,
        settings.adapter_dropout,
    )
    with torch.random.fork_rng(devices=[]):  # nn.Linear draws before we set its weights
        return nn.ModuleList(Adapter(width, size, scale, dropout, generator) for _ in range(depth))


def adapter_linears(adapters: nn.ModuleList) -> dict[str, nn.Linear]:
    """The linear layers by the names of their weights among the adapters' parameters."""
    return {
        f"{name}.weight": module
        for name, module in adapters.named_modules()
        if isinstance(module, nn.Linear)
    }
