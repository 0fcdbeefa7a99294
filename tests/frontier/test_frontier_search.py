"""``risegrad.frontier`` and ``rise frontier``: whole searches on problems of a moment."""

import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import risegrad
from continual.language.tiny_text import save_model, write_task
from frontier import own_problems
from riselab.cli import main
from riselab.continual import runs
from riselab.continual.chat.settings import RULES as CHAT_RULES
from riselab.continual.custom import problem_name
from riselab.continual.rules import RULES
from riselab.frontier.found import FoundFrontier
from riselab.frontier.grid import FrontierGrid
from riselab.frontier.problem import (
    CHAT_METHODS,
    CHAT_USUAL,
    METHODS,
    USUAL,
    FrontierSettings,
    chosen,
    problem_of,
)

SMALL = FrontierSettings(seeds=3, rates=2, epochs=30)
QUICK = FrontierSettings(seeds=1, rates=2, epochs=1)
TESTS = Path(__file__).parents[1]


def search(out, model=own_problems.problem, methods=("adamw", "rise", "interpolation"), **more):
    given = {"settings": SMALL, "show": False} | more
    return risegrad.frontier(model, methods=methods, minutes=30, out=out, **given)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return search(tmp_path_factory.mktemp("found"))


def test_one_row_per_run_and_per_point_between(found):
    frame = found.frame()
    assert len(frame) == 2 * 2 * 3 + 2 * 3 * 3
    assert set(frame.method) == {"FO (AdamW)", "RISE", "interpolation"}
    assert set(frame.columns) >= {"method", "setting", "seed", "learned", "forgotten", "seconds"}
    assert found.cut == []
    between = frame[frame.method == "interpolation"]
    assert set(between.setting.str.extract(r"share=(.*)")[0]) == {"0.25", "0.5", "0.75"}


def test_forgetting_counts_from_before_training(found):
    for record in found.records:
        matrix = record.result.scores["accuracy"].matrix
        assert matrix[0][0] == record.result.before["accuracy"][0]
        lost = max(matrix[0][0], matrix[1][0]) - matrix[1][0]
        assert record.result.metrics["forgetting"] == pytest.approx(lost)
        assert record.result.metrics["plasticity"] == matrix[1][1]


def test_the_best_setting_and_its_lines(found):
    frame = found.frame()
    means = frame.groupby(["method", "setting"])[["learned", "forgotten"]].mean()
    level = float(means.learned.median())
    best = found.best(learning=level)
    enough = means[means.learned >= level]
    assert best.forgotten.mean <= enough.forgotten.max()
    assert best.learned.mean >= level
    assert best.forgotten.n == 3
    assert best.forgotten.low <= best.forgotten.mean <= best.forgotten.high
    compile("\n".join(best.code), "lines", "exec")
    with pytest.raises(ValueError, match="learning must be at most"):
        found.best(learning=101)


def test_it_is_shown_everywhere(found):
    shown = found._repr_html_()
    assert "<svg" in shown
    assert found.sentence.split(",")[0] in shown
    assert found.figure().to_dict(validate=False)["datasets"]["rows"]
    page = Path(found.files["page"]).read_text(encoding="utf-8")
    assert "To use it" in page
    assert Path(found.files["figure"]).stat().st_size > 1000
    text = str(found)
    assert found.sentence in text
    assert "clip_grad_norm_" in text


def test_the_same_call_repeats_nothing(found, capsys):
    out = Path(found.files["page"]).parent
    again = risegrad.frontier(
        own_problems.problem, methods=("adamw", "rise", "interpolation"), minutes=30, out=out,
        settings=SMALL,
    )  # fmt: skip
    assert "learned" not in capsys.readouterr().out
    assert again.runs == found.runs


def test_nothing_learned_is_said(tmp_path):
    found = search(tmp_path, own_problems.stuck, ("adamw",), settings=QUICK)
    assert found.sentence == (
        "Nothing was learned: no setting is better than the untrained model (25.0 %) on new data "
        "by more than 2 standard errors of the test data (of 3.8 points); the best run has 25.0 %."
    )
    assert "Before training: 25.0 % on new data, 25.0 % on the data to keep." in str(found)
    assert "To use it" not in str(found)
    with pytest.raises(ValueError, match="no setting learned more than an untrained model"):
        _ = found.winner


def test_one_seed_is_said(found):
    one = [run for run in found.records if run.seed == 0]
    alone = FoundFrontier(found.title, found.methods, one)
    assert alone.sentence.startswith("With one seed")


def test_without_a_run_the_reason_is_told(found):
    none = FoundFrontier(found.title, found.methods, [], failed=["FO: ValueError: why"])
    with pytest.raises(RuntimeError, match="no run is done: FO: ValueError: why"):
        _ = none.sentence


def small_images(folder, name, turn, count=40):
    """Two classes: bright on the left or on the right; ``turn`` makes it above or below."""
    random = np.random.default_rng(turn)
    images = random.integers(0, 80, (2 * count, 4, 4), dtype=np.uint8)
    labels = np.arange(2 * count) % 2
    images[labels == 0, :, :2] += 150
    images[labels == 1, :, 2:] += 150
    images = np.rot90(images, turn, axes=(1, 2))
    path = folder / f"{name}.npz"
    np.savez(path, train_images=images[:count], train_labels=labels[:count],
             test_images=images[count:], test_labels=labels[count:])  # fmt: skip
    return path


def test_images_are_taught_first_and_then_kept(tmp_path):
    keep, new = small_images(tmp_path, "keep", 0), small_images(tmp_path, "new", 1)
    found = search(tmp_path / "out", "mlp", ("adamw",), settings=QUICK, keep=keep, new=[new])
    assert [task.known for task in found.records[0].result.tasks] == [True, False]
    assert found.records[0].result.before["accuracy"][0] > 80
    assert not any("does not know" in remark for remark in found.remarks)


def test_a_keep_set_that_is_not_known_is_said(tmp_path):
    keep, new = small_images(tmp_path, "keep", 0), small_images(tmp_path, "new", 1)
    settings = FrontierSettings(
        seeds=1, rates=2, epochs=1, teach=0, changes=("loop.batch=8",), methods=("adamw",)
    )
    grid = FrontierGrid(problem_of("mlp", [str(keep)], [str(new)], settings), settings)
    assert grid.cells[0].settings["loop"]["batch"] == 8
    record = search(
        tmp_path / "out", "mlp", ("adamw",), settings=QUICK, keep=keep, new=new
    ).records[0]
    low = record.result.before | {"accuracy": (50.0, 50.0)}
    unknown = replace(record, result=replace(record.result, before=low))
    found = FoundFrontier("", {"adamw": METHODS["adamw"]}, [unknown])
    assert "does not know 00-keep before training (50.0 %, guessing 50.0 %)" in found.remarks[0]


def test_the_number_of_examples_that_is_said_is_the_one_that_is_used(tmp_path, monkeypatch):
    """Three classes: 32 for training are 10 of each, which makes 30; 50 for testing are 48."""
    monkeypatch.setattr(runs, "seconds", lambda settings: 1000.0)
    random = np.random.default_rng(0)
    for name in ("keep", "new"):
        images = random.integers(0, 255, (160, 4, 4), dtype=np.uint8)
        labels = np.arange(160) % 3
        np.savez(tmp_path / f"{name}.npz", train_images=images[:80], train_labels=labels[:80],
                 test_images=images[80:], test_labels=labels[80:])  # fmt: skip
    settings = FrontierSettings(minutes=10, methods=("adamw",), seeds=1, rates=2, epochs=1,
                                teach=0, out=str(tmp_path / "out"))  # fmt: skip
    places = [[str(tmp_path / f"{name}.npz")] for name in ("keep", "new")]
    grid = FrontierGrid(problem_of("mlp", *places, settings), settings, say=lambda line: None)
    grid.run()
    task = grid.records()[0].result.tasks[1]
    said = "examples: {} of 80 for training and {} of 80 for testing in the largest set"
    assert grid.cut[0] == said.format(task.train, task.test)
    assert (task.train, task.test) == (30, 48)


def test_texts_with_a_small_t5(tmp_path):
    for name in ("agnews", "SST-2"):
        write_task(tmp_path / "far" / name, name)
    save_model(tmp_path / "model")
    settings = FrontierSettings(
        seeds=1, rates=2, examples=8,
        changes=("model.rank=2", "model.source_length=64", "model.target_length=4"),
    )  # fmt: skip
    found = risegrad.frontier(
        tmp_path / "model", keep=tmp_path / "far/agnews/agnews", new=tmp_path / "far/SST-2/SST-2",
        minutes=30, methods=("adamw",), out=tmp_path / "out", settings=settings, show=False,
    )  # fmt: skip
    record = found.records[0]
    assert [(t.name, t.known) for t in record.result.tasks] == [("agnews", True), ("SST-2", False)]
    assert record.result.tasks[1].train == 8
    assert record.setting("host", "name") == "seq-lora"


def test_the_usual_methods_are_those_that_there_are():
    assert set(chosen(())) == set(USUAL)
    assert all(method.rule["name"] in RULES for method in METHODS.values())
    assert set(chosen((), chat=True)) == set(CHAT_USUAL)
    assert set(CHAT_METHODS) <= set(CHAT_RULES)
    assert list(chosen(("kl",), chat=True)) == ["plain", "kl"]
    assert list(chosen(("rise",))) == ["adamw", "rise"]  # something to compare with
    assert list(chosen(("interpolation",))) == ["adamw", "interpolation"]
    with pytest.raises(ValueError, match=r"methods must be one of .*; got 'rize'"):
        chosen(("rize",))
    with pytest.raises(ValueError, match=r"methods must be one of plain, kl, .*; got 'adamw'"):
        chosen(("adamw",), chat=True)


def test_mistakes_in_the_arguments(tmp_path):
    image = str(small_images(tmp_path, "keep", 0))
    text = str(write_task(tmp_path, "agnews"))
    (tmp_path / "empty").mkdir()
    for keep, new, message in (
        ([], [image], "keep must name at least one set of data, got none"),
        ([image], [], "new must name at least one set of data, got none"),
        ([image], [text], "keep and new must be of one kind"),
        ([image], [image], "keep and new must be different sets of data"),
        ([image], [str(tmp_path / "no.npz")], "there are no data at"),
        ([image], [str(tmp_path / "empty")], "data must be a file of chats"),
    ):
        with pytest.raises(ValueError, match=message):
            problem_of("mlp", keep, new, SMALL)
    with pytest.raises(ValueError, match="keep and new must be left out"):
        problem_of(own_problems.problem, [image], [], SMALL)
    with pytest.raises(ValueError, match="cannot be imported"):
        problem_of("no_such_module:problem", [], [], SMALL)
    with pytest.raises(ValueError, match="minutes must be a finite number > 0"):
        FrontierSettings(minutes=0)


def test_a_function_that_gives_something_else(tmp_path):
    with pytest.raises((RuntimeError, TypeError), match="must return an OwnProblem, got dict"):
        search(tmp_path, own_problems.not_a_problem)


def test_a_function_is_known_by_what_it_does():
    """Also where it has no file, as in an interpreter; an address would change with every start."""
    texts = ("lambda seed: [0]", "lambda seed: [1]")
    first, other = (problem_name(eval(text)) for text in texts)
    assert first == problem_name(eval(texts[0]))
    assert first != other
    assert problem_name(own_problems.problem) != problem_name(own_problems.stuck)


def test_the_code_of_the_guide_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = (TESTS.parent / "docs" / "guides" / "frontier.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    for block in blocks:
        exec(compile(block, "frontier.md", "exec"), {"__name__": "guide"})
    with np.load("turned.npz") as made:
        assert made["train_images"].shape == (1200, 8, 8)
    assert "learns" in capsys.readouterr().out
    assert (tmp_path / "frontier-of-mine" / "frontier.html").is_file()


def command(*words):
    return [sys.executable, "-m", "riselab.cli", "frontier", *map(str, words)]


def environment():
    paths = [str(TESTS), str(Path(risegrad.__file__).parents[1])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


WORDS = ("frontier.own_problems:problem", "--methods", "adamw", "--seeds", "1", "--rates", "3")


def test_killed_and_resumed_from_the_shell(tmp_path):
    """SIGKILL after the first run; the same command does the others and no run twice."""
    words = command(*WORDS, "--epochs", "30", "--minutes", "60", "--out", tmp_path / "out")
    with subprocess.Popen(words, env=environment(), stdout=subprocess.PIPE, text=True) as first:
        assert "1 method at 3 rates with one seed" in first.stdout.readline()
        line = first.stdout.readline()
        first.send_signal(signal.SIGKILL)
    assert re.search(r"seed 0: learned [\d.]+ %, forgot [\d.]+ points", line)
    there = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("record.json")}
    assert there
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.count(": learned") == 3 - len(there)
    assert all(path.stat().st_mtime_ns == when for path, when in there.items())
    assert len(list(tmp_path.rglob("record.json"))) == 3
    assert "To use it: FO (AdamW)" in done.stdout
    assert f"figure: {tmp_path / 'out' / 'frontier.png'}" in done.stdout


def test_a_short_time_is_kept_and_said(tmp_path, monkeypatch):
    now = [0.0]
    problem = problem_of(own_problems.problem, [], [], SMALL)
    settings = FrontierSettings(
        minutes=5 / 60, methods=("adamw", "sgd"), seeds=2, rates=2, epochs=1, out=str(tmp_path)
    )
    grid = FrontierGrid(problem, settings, clock=lambda: now[0])

    def run(cell, following):
        FrontierGrid._run(grid, cell, following)
        now[0] += 2.0
        grid.budget.paces[-1] = 2.0

    monkeypatch.setattr(grid, "_run", run)
    grid.run()
    assert len(grid.records()) == 2
    assert grid.cut == [
        "2 of 4 runs for up to 3 rates with one seed",
        "4 runs for up to 3 rates with up to 2 seeds",
    ]


def test_the_command_says_what_is_wrong(tmp_path, capsys):
    assert main(["frontier", "mlp", "--new", str(tmp_path / "no.npz")]) == 2
    assert "keep must name at least one set of data" in capsys.readouterr().err
    assert main(["frontier", "x:y", "--minutes", "-1"]) == 2
    assert "minutes must be a finite number > 0" in capsys.readouterr().err


def test_help_teaches(capsys):
    assert main(["frontier", "--help"]) == 0
    shown = capsys.readouterr().out
    squeezed = "".join(shown.split())  # a name may be cut at the end of a line
    for word in ("module:function", "--keep", "train.json", "risefrontiermlp", *METHODS):
        assert word in squeezed
