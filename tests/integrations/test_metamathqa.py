"""Our rows in peft's comparison: prepared as it reads them, and trained by its own script.

The script here is a stand-in with the interface of the real one, which needs a GPU and the hub.
"""

import json
import sys
from pathlib import Path

import pytest

from benchmarks.studies import metamathqa
from benchmarks.studies.metamathqa import Row, prepare, rows, run_inside

DEFAULTS = {
    "model_id": "tiny", "max_seq_length": 16, "max_steps": 3, "seed": 7,
    "optimizer_kwargs": {"lr": 1e-4, "weight_decay": 0.1},
}  # fmt: skip
UTILS = """
import json, types
import torch
from continual.language.tiny_text import make_model, make_tokenizer

def get_train_config(path):
    plain = json.load(open("default_training_params.json")) | json.load(open(path))
    return types.SimpleNamespace(**plain)

def get_tokenizer(*, model_id, max_seq_length):
    return make_tokenizer()

def get_model(tokenizer):
    return make_model("gpt2", tokenizer)

def get_optimizer_and_scheduler(model, *, optimizer_type, max_steps, lr_scheduler_arg, **kwargs):
    optimizer = getattr(torch.optim, optimizer_type)(model.parameters(), **kwargs)
    return optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
"""
RUN = """
import json, sys
import torch
from utils import get_model, get_optimizer_and_scheduler, get_tokenizer, get_train_config

def main(path):
    config = get_train_config(path + "/training_params.json")
    torch.manual_seed(config.seed)
    tokenizer = get_tokenizer(model_id=config.model_id, max_seq_length=config.max_seq_length)
    model = get_model(tokenizer)
    optimizer, schedule = get_optimizer_and_scheduler(
        model, optimizer_type="AdamW", max_steps=config.max_steps, lr_scheduler_arg=None,
        **config.optimizer_kwargs,
    )
    ids = torch.arange(4, 16).view(2, 6)
    for _ in range(config.max_steps):
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        schedule.step()
    end = sum(float(p.double().sum()) for p in model.parameters())
    last = {"test accuracy": 0.5, "forgetting": end}
    name = "/".join(path.split("/")[1:]).replace("/", "--")
    content = {"train_info": {"metrics": [last]}, "lr": config.optimizer_kwargs["lr"]}
    json.dump(content, open(f"results/{name}.json", "w"))

if __name__ == "__main__":
    main(sys.argv[-1])
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    there = tmp_path / "peft" / metamathqa.INSIDE
    like = there / "experiments" / "lora" / "llama-3.2-3B-rank32"
    like.mkdir(parents=True)
    (there / "results").mkdir()
    (like / "adapter_config.json").write_text('{"r": 32}')
    (there / "default_training_params.json").write_text(json.dumps(DEFAULTS))
    (there / "utils.py").write_text(UTILS)
    (there / "run.py").write_text(RUN)
    monkeypatch.chdir(there)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", [*sys.argv])
    return there


def test_the_file_has_three_methods_at_three_rates() -> None:
    found = rows()
    assert len({row.name for row in found}) == len(found) == 9
    assert {row.method for row in found} == {"plain", "informed", "keep"}
    assert all(len(row.name.split("/")) == 2 for row in found)  # as the comparison demands


def test_a_row_differs_from_theirs_in_rate_and_seed_only(place: Path) -> None:
    (row,) = (row for row in rows() if row.method == "keep" and row.rate == 2e-4)
    folder = prepare(place, row)
    assert json.loads((folder / "adapter_config.json").read_text()) == {"r": 32}
    params = json.loads((folder / "training_params.json").read_text())
    assert params == {"optimizer_kwargs": {"lr": 2e-4, "weight_decay": 0.1}, "seed": 0}


def test_another_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="is it method_comparison/MetaMathQA of peft"):
        prepare(tmp_path, rows()[0])


@pytest.mark.parametrize("method", ["plain", "informed", "keep"])
def test_their_script_trains_our_rows(
    place: Path, method: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"plain": {}, "informed": {"pull": 0}, "keep": {}}[method] | {"examples": 6}
    ends = {}
    for name in ("plain", method):
        monkeypatch.delitem(sys.modules, "utils", raising=False)
        row = Row(name, 1e-2, 0, options, "lora/llama-3.2-3B-rank32")
        prepare(place, row)
        run_inside(row)
        result = place / "results" / f"{row.name.replace('/', '--')}.json"
        ends[name] = json.loads(result.read_text())["train_info"]["metrics"][0]["forgetting"]
    monkeypatch.delitem(sys.modules, "utils", raising=False)
    said = capsys.readouterr().out
    assert (f"-{method}-lr_0.01-seed_0: " in said) == (method != "plain")
    assert (ends[method] == ends["plain"]) == (method == "plain")


def test_results_are_told(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = rows()[0]
    content = {"train_info": {"metrics": [{"test accuracy": 0.482, "forgetting": 0.0312}]}}
    (place / "results" / f"{row.name.replace('/', '--')}.json").write_text(json.dumps(content))
    metamathqa.main([str(place.parents[1]), "--prepare"])
    assert f"{row.name}: 0.482, +0.0312" in capsys.readouterr().out
