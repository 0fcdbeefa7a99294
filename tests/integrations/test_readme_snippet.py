"""The README's snippets learn, and the informed one keeps: run as they stand there, on digits."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import risegrad
from integrations.old_and_new import NEW, OLD, batches, knowing, percent

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


LOOP = """
for inputs, labels in loader:
    optimizer.zero_grad()
    cross_entropy(model(inputs), labels).backward()
    optimizer.step()
"""


def snippets() -> list[str]:
    text = README.read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def run(code: str, model: nn.Module, **given: Any) -> dict[str, Any]:
    names = {"torch": torch, "risegrad": risegrad, "model": model, "cross_entropy": cross_entropy}
    exec(compile(code, "README.md", "exec"), names | given)
    return names


def test_rise_learns(capsys: pytest.CaptureFixture[str]) -> None:
    (snippet,) = (code for code in snippets() if "Rise(" in code)
    model = WithLoss()
    assert percent(model, NEW) < 20
    run(snippet, model, loader=batches(NEW, False) * 40)
    assert "mean factor" in capsys.readouterr().out
    assert percent(model, NEW) > 70


def test_keep_learns_and_keeps(capsys: pytest.CaptureFixture[str]) -> None:
    """Beside plain training of the same steps, at its rate."""
    (snippet,) = (code for code in snippets() if "keep(model, optimizer)" in code)
    # This network does not write text: it needs examples.
    snippet = snippet.replace("keep(model, optimizer) ", "keep(model, optimizer, old) ")
    ends = {}
    for name, code in {"plain": LOOP, "keep": snippet.replace("...  #", LOOP + "#")}.items():
        model = knowing()
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        old, new = batches(OLD, False), batches(NEW, False)
        run(code, model, optimizer=optimizer, loader=new * 40, old=old)
        ends[name] = percent(model, OLD), percent(model, NEW)
    assert ends["keep"][1] > 80
    assert ends["keep"][0] > ends["plain"][0] + 10
    assert "nats per prediction" in capsys.readouterr().out
