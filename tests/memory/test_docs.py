"""The page's example is code that runs, and does what the page says."""

from pathlib import Path

import torch
from torch import nn

import risegrad
from risegrad.memory.moments import COLUMNS
from risegrad.memory.remembering import LEAST, MOST, RANK, SMALL

PAGE = (Path(__file__).parents[2] / "docs" / "informed.md").read_text(encoding="utf-8")


def task(seed):
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(16, 6, generator=generator), torch.randint(3, (16,), generator=generator))
        for _ in range(4)
    ]


def test_the_example_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    names = {
        "torch": torch,
        "model": model,
        "old_batches": task(1),
        "new_batches": task(2),
        "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-2),
    }
    exec(PAGE.split("## Penalty")[1].split("```python")[1].split("```")[0], names)
    assert set(names["shares"]) == set(names["damage"]) == {"0", "2"}
    assert all(0 < share < 1 for share in names["shares"].values())
    assert all(value > 0 for value in names["damage"].values())
    assert names["memory"]["0"].examples == 128
    assert any((p - before[name]).abs().max() > 0 for name, p in model.named_parameters())
    assert isinstance(names["memory"], risegrad.Memory)


def test_attaching_as_the_page_says():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))

    def train(model, optimizer, batches):
        for inputs, target in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), target).backward()
            optimizer.step()

    names = {
        "risegrad": risegrad,
        "train": train,
        "model": model,
        "old_batches": task(1),
        "new_batches": task(2),
        "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-2),
    }
    section = PAGE.split("## Attach")[1]
    exec(section.split("```python")[1].split("```")[0], names)
    assert names["handle"].steps == 4
    assert names["memory"]["0"].examples == 128


def test_the_numbers_on_the_page():
    assert (
        f"take at most {SMALL // 2**20} MiB together, otherwise {RANK} eigenpairs of each" in PAGE
    )
    assert f"otherwise as many eigenpairs as fit, {LEAST} to {MOST}." in PAGE
    assert f"d ({COLUMNS}k + 8)" in PAGE
