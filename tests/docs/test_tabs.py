"""The code in the tabs of the first pages runs, in each framework, with the reader's own names."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from risegrad.core.attachment import Attachment

DOCS = Path(__file__).parents[2] / "docs"
FRAMEWORKS = ("PyTorch", "Hugging Face", "Lightning", "Avalanche")
TAB = re.compile(r'^=== "([^"]+)"\n\n((?:    .*\n|\n)+)', re.MULTILINE)
CODE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
TRAINS = re.compile(r"train\(|fit\(")
CLASSES, EXAMPLES = 4, 256
Names = dict[str, Any]


def snippets(page: str, framework: str) -> list[str]:
    tabs = TAB.findall((DOCS / page).read_text(encoding="utf-8"))
    mine = [textwrap.dedent(text) for name, text in tabs if name == framework]
    return [code for text in mine for code in CODE.findall(text)]


def examples(seed: int) -> TensorDataset:
    inputs = torch.randn(EXAMPLES, 8, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(inputs, inputs[:, :CLASSES].argmax(1))


def batches(seed: int) -> list[Any]:
    return list(DataLoader(examples(seed), batch_size=32))


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, CLASSES))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, data: list[Any]) -> None:
    for inputs, target in data:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), target).backward()
        optimizer.step()


def pytorch() -> Names:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return {"model": model, "optimizer": optimizer, "train": train}


def hugging_face() -> Names:
    transformers = pytest.importorskip("transformers")
    datasets = pytest.importorskip("datasets")
    size = {"vocab_size": 16, "hidden_size": 16, "intermediate_size": 16}
    heads = {"num_hidden_layers": 1, "num_attention_heads": 2}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**size, **heads))
    rows = torch.randint(16, (EXAMPLES, 8)).tolist()
    data = datasets.Dataset.from_dict({"input_ids": rows, "labels": rows}).with_format("torch")
    arguments = transformers.TrainingArguments("out", max_steps=2, report_to=[])
    given = {"model": model, "arguments": arguments, "old": data, "new": data}
    return {**given, "Trainer": transformers.Trainer}


def lightning() -> Names:
    pl = pytest.importorskip("lightning.pytorch")

    class Module(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.net(inputs)

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            return nn.functional.cross_entropy(self(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    return {"pl": pl, "module": Module(), "loader": DataLoader(examples(1), batch_size=32)}


def avalanche() -> Names:
    benchmarks = pytest.importorskip("avalanche.benchmarks")
    from avalanche.benchmarks.utils import AvalancheDataset, DataAttribute
    from avalanche.training import Naive

    def dataset(seed: int) -> Any:
        data = examples(seed)
        targets = DataAttribute(data.tensors[1].tolist(), "targets")
        tasks = DataAttribute([0] * len(data), "targets_task_labels", use_in_getitem=True)
        return AvalancheDataset(data, data_attributes=[targets, tasks])

    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    benchmark = benchmarks.benchmark_from_datasets(train=[dataset(0), dataset(1)])
    return {"model": model, "optimizer": optimizer, "benchmark": benchmark, "Naive": Naive}


GIVEN: dict[str, Callable[[], Names]] = dict(
    zip(FRAMEWORKS, (pytorch, hugging_face, lightning, avalanche), strict=True)
)


@pytest.mark.filterwarnings("ignore")  # the trainers' advice about workers and loggers
@pytest.mark.parametrize("page", ["index.md", "start.md"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_code_of_a_tab_runs(
    framework: str, page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = snippets(page, framework)
    assert found
    for code in found:
        names = GIVEN[framework]() | {"old_batches": batches(0), "new_batches": batches(1)}
        exec(compile(code, f"{page} ({framework})", "exec"), names)
        handles = [getattr(value, "handle", value) for value in names.values()]
        if TRAINS.search(code):
            assert all(h.steps > 0 for h in handles if isinstance(h, Attachment)), code
