"""The README's first snippet learns: it is run as it stands there, on digits."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from integrations.old_and_new import NEW, batches, knowing, percent

README = Path(__file__).parents[2] / "README.md"


class WithLoss(nn.Module):
    """``model(batch).loss``, as transformers has it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = knowing()

    def forward(self, batch: Any) -> Any:
        if isinstance(batch, torch.Tensor):
            return self.net(batch)
        return SimpleNamespace(loss=cross_entropy(self.net(batch[0]), batch[1]))


def test_the_first_snippet_learns(capsys: pytest.CaptureFixture[str]) -> None:
    text = README.read_text(encoding="utf-8")
    snippet = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[0]
    if "keep=" not in snippet:
        pytest.skip("the README's first snippet does not use keep= yet")
    model = WithLoss()
    assert percent(model, NEW) < 20
    loader = batches(NEW, False) * 40
    exec(compile(snippet, "README.md", "exec"), {"torch": torch, "model": model, "loader": loader})
    assert "mean factor" in capsys.readouterr().out
    assert percent(model, NEW) > 70
