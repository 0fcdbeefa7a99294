"""``rise frontier --full``: all weights of a text model, at rates of their own."""

from dataclasses import replace

import pytest

import risegrad
from continual.language.tiny_text import save_model, write_task
from frontier import own_problems
from riselab.cli import main
from riselab.frontier.grid import FrontierGrid
from riselab.frontier.problem import FrontierSettings, problem_of
from riselab.records.record import read_record


@pytest.fixture
def texts(tmp_path):
    """The places of data to keep and to learn."""
    for name in ("agnews", "SST-2"):
        write_task(tmp_path / "far" / name, name)
    return [str(tmp_path / "far" / name / name) for name in ("agnews", "SST-2")]


def test_all_weights_of_a_small_t5(tmp_path, texts, capsys):
    save_model(tmp_path / "model")
    lengths = ("--set", "model.source_length=64", "--set", "model.target_length=4")
    words = ["frontier", str(tmp_path / "model"), "--full", "--keep", texts[0], "--new", texts[1],
             "--methods", "adamw,sgd,informed", "--seeds", "1", "--rates", "2", "--examples", "8",
             "--minutes", "30", "--out", str(tmp_path / "out"), *lengths]  # fmt: skip
    assert main(words) == 0
    assert "FO (AdamW)" in capsys.readouterr().out
    records = [read_record(path) for path in (tmp_path / "out").rglob("record.json")]
    assert {run.setting("model", "trains") for run in records} == {"all"}
    assert {frozenset(run.result.trainable) for run in records} == {frozenset({"network"})}
    rates = {
        method: {run.setting("adapter", "lr") for run in records if run.row.method == method}
        for method in ("FO (AdamW)", "FO (SGD)", "informed")
    }
    assert rates == {
        "FO (AdamW)": {1e-4, 3e-5}, "FO (SGD)": {1e-2, 3e-3}, "informed": {1e-4, 3e-5},
    }  # fmt: skip
    ranks = {run.setting("memory", "rank") for run in records if run.row.method == "informed"}
    assert ranks == {64}


def test_all_weights_of_a_small_encoder_from_python(tmp_path, texts):
    model = save_model(tmp_path / "model", "bert")
    settings = FrontierSettings(
        seeds=1, rates=2, examples=8, changes=("model.source_length=64",)
    )  # fmt: skip
    found = risegrad.frontier(
        model, keep=texts[0], new=texts[1], minutes=30, methods=("adamw",), full=True,
        out=tmp_path / "out", settings=settings, show=False,
    )  # fmt: skip
    assert found.records[0].setting("host", "name") == "label-encoder"
    assert set(found.records[0].result.trainable) == {"network"}
    assert found.title.startswith("model (all weights) learns")


def test_full_where_it_says_nothing_or_the_opposite(tmp_path, texts):
    full, images = FrontierSettings(full=True), [tmp_path / "keep.npz", tmp_path / "new.npz"]
    for path in images:
        path.touch()
    message = r"full is only for .*: other models always train all weights, got it with"
    with pytest.raises(ValueError, match=f"{message} 'mlp'"):
        problem_of("mlp", [str(images[0])], [str(images[1])], full)
    with pytest.raises(ValueError, match=message):
        problem_of(own_problems.problem, [], [], full)
    model, keep, new = str(save_model(tmp_path / "model")), texts[:1], texts[1:]
    with pytest.raises(ValueError, match=r"model\.trains cannot be set: use full"):
        problem_of(model, keep, new, FrontierSettings(changes=("model.trains=all",)))
    rank = replace(full, changes=("model.rank=16",), methods=("adamw",), out=str(tmp_path / "out"))
    grid = FrontierGrid(problem_of(model, keep, new, rank), rank)
    with pytest.raises(ValueError, match=r"no row uses model\.rank, which is of LoRA"):
        _ = grid.cells
