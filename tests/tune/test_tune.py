"""``rise tune`` on tiny chat models: what it leaves, stopping and going on, and what is refused."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("trl")
pytest.importorskip("peft")
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

import risegrad
from continual.chat import tiny_chat
from riselab.cli import main
from riselab.continual.chat.texts import ChatTexts
from riselab.tune.chats import plain, read_chats, split
from riselab.tune.page import page, sentence, text
from riselab.tune.run import LENGTH, RECORD, WORK, Pace, Tuning, beside, read_record
from riselab.tune.settings import EVERYDAY, TASKS, TuneSettings

ROWS = [{"prompt": f"say {a}{b}", "answer": "yes" if a < "n" else "no"}
        for a in "abcdnopq" for b in "xyz"]  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tune")
    tiny_chat.llama().save_pretrained(made / "model")
    tiny_chat.tokenizer().save_pretrained(made / "model")
    write(made / "letters.jsonl", ROWS)
    return made


def write(path: Path, rows: list[Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def command(root: Path, out: Path, *more: str) -> list[str]:
    given = ["tune", str(root / "model"), "--new", str(root / "letters.jsonl"), "--out", str(out)]
    return [*given, *more]


def settings(root: Path, out: Path, **changes: Any) -> TuneSettings:
    given = {"model": str(root / "model"), "new": str(root / "letters.jsonl"), "out": str(out)}
    return TuneSettings(**given | {"steps": 4} | changes)


@pytest.fixture(scope="module")
def both(root: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folders of one training that keeps and of one that does not."""
    out = tmp_path_factory.mktemp("both") / "adapter"
    assert main(command(root, out, "--steps", "4")) == 0
    assert main(command(root, out, "--steps", "4", "--plain")) == 0
    return out, out.with_name("adapter-plain")


def test_it_leaves_a_plain_adapter_its_card_a_record_and_a_page(
    root: Path, both: tuple[Path, Path]
) -> None:
    from peft import AutoPeftModelForCausalLM

    out, _ = both
    there = {path.name for path in out.iterdir()}
    assert there >= {"adapter_model.safetensors", "README.md", "tune.json", "tune.html"}
    assert WORK not in there, "checkpoints are for a training that is not done"
    record = read_record(out)
    assert record["keep"]["sentence"] in (out / "README.md").read_text()
    assert (record["method"], record["steps"]) == ("keep", 4)
    assert record["examples"] == {"learned": 19, "held": 5}
    assert {"commit", "dirty"} <= record["git"].keys()
    assert record["environment"]["packages"]["transformers"]
    # Against the plainest way: one answer after the other, by the adapter as peft loads it.
    model = AutoPeftModelForCausalLM.from_pretrained(out).eval()
    base = AutoModelForCausalLM.from_pretrained(root / "model").eval()
    _, held = split(read_chats("new", str(root / "letters.jsonl")))
    for found, of in ((record["after"], model), (record["before"], base)):
        nll, right = by_hand(of, held)
        assert found["nll"] == pytest.approx(nll, rel=1e-4)
        assert found["exact"] == pytest.approx(right)


def by_hand(model: Any, held: list[Any]) -> tuple[float, float]:
    tokenizer, losses, right = tiny_chat.tokenizer(), [], []
    for example in held:
        asked = [{"role": "user", "content": example.prompt}]
        begun = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
        first = tokenizer(begun, add_special_tokens=False)["input_ids"]
        last = tokenizer(f"{example.answer}</s>", add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            logits = model(torch.tensor([first + last])).logits[0, len(first) - 1 : -1]
        losses.append(float(cross_entropy(logits, torch.tensor(last), reduction="sum")))
        right.append(logits.argmax(-1).tolist() == last)
    return sum(losses) / len(losses), 100 * sum(right) / len(right)


def test_plain_training_is_the_same_without_keeping(both: tuple[Path, Path]) -> None:
    kept, plainly = map(read_record, both)
    assert kept["before"] == plainly["before"]
    assert kept["keep"]["steps"] == 4
    assert plainly["keep"] is None
    assert "Plain training: no step was shaped." in (both[1] / "README.md").read_text()
    assert all(0 < record["after"]["drift"] < 0.1 for record in (kept, plainly))
    weights = [load_file(out / "adapter_model.safetensors") for out in both]
    assert any(not torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_the_page_shows_both_side_by_side(both: tuple[Path, Path]) -> None:
    kept, plainly = map(read_record, both)
    for folder in both:
        shown = (folder / "tune.html").read_text(encoding="utf-8")
        assert "After, kept" in shown
        assert "After, plain" in shown
        assert all(question in shown for question in EVERYDAY[:10] if "'" not in question)
    said = sentence(kept, plainly)
    assert said.startswith("After 4 steps of training with keep the model answers ")
    assert " Plain training: " in said
    assert [line.label for line in page(kept, plainly).parts[0].blocks[0].lines] == [  # type: ignore[union-attr]
        "before", "plain training", "kept",
    ]  # fmt: skip
    alone = page(kept)
    assert "After, plain" not in str(alone)
    assert sentence(kept) in text(kept)


def test_the_same_command_again_trains_nothing(
    root: Path, both: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    out, _ = both
    before = (out / "adapter_model.safetensors").stat().st_mtime_ns
    assert main(command(root, out, "--steps", "4")) == 0
    assert "is done" in capsys.readouterr().out
    assert (out / "adapter_model.safetensors").stat().st_mtime_ns == before
    assert main(command(root, out, "--steps", "5")) == 1
    assert "out already has another training: choose a new folder" in capsys.readouterr().err


def test_another_task_is_not_shown_beside(root: Path, both: tuple[Path, Path]) -> None:
    out, plainly = both
    assert beside(out, read_record(out))["method"] == "plain"
    assert beside(plainly, read_record(plainly))["method"] == "keep"
    other = read_record(out)
    other["identity"]["new"] = "something else"
    assert beside(out, other) == {}


STOPPED = """
import sys, time
from riselab.tune.run import Tuning
from riselab.tune.settings import TuneSettings
model, new, out = sys.argv[1:]
Tuning(TuneSettings(model, new, out, steps=60, save_seconds=0.0)).run()
"""


def test_killed_and_resumed_it_ends_where_it_would_have_ended(root: Path, tmp_path: Path) -> None:
    where = os.environ | {"PYTHONPATH": str(Path(risegrad.__file__).parents[1])}
    out, whole = tmp_path / "part", tmp_path / "whole"
    places = [str(root / "model"), str(root / "letters.jsonl"), str(out)]
    with subprocess.Popen(
        [sys.executable, "-c", STOPPED, *places], env=where, stdout=subprocess.PIPE
    ) as first:
        while not list(out.glob("work/checkpoint-*/trainer_state.json")):
            assert first.poll() is None
            time.sleep(0.02)
        first.send_signal(signal.SIGKILL)
    assert not (out / RECORD).is_file(), "it was done before it was killed"
    said: list[str] = []
    found = Tuning(settings(root, out, steps=60), said.append).run()
    assert any(line.startswith("going on after step ") for line in said)
    assert found["steps"] == 60
    expected = Tuning(settings(root, whole, steps=60), said.append).run()
    assert found["after"] == expected["after"]
    first_weights, others = (load_file(p / "adapter_model.safetensors") for p in (out, whole))
    assert all(torch.equal(first_weights[name], others[name]) for name in others)


def test_all_weights_and_chats_to_keep(root: Path, tmp_path: Path) -> None:
    old = [{"prompt": f"tell {a}", "answer": "me"} for a in "abcdefghijkl"]
    given = write(tmp_path / "old.jsonl", old)
    found = Tuning(settings(root, tmp_path / "out", keep=given, budget=0.5, full=True)).run()
    assert found["keep"]["within_budget"] is True
    assert found["optimizer"]["lr"] == 1e-4
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    base = AutoModelForCausalLM.from_pretrained(root / "model")
    moved = [n for n, p in base.named_parameters() if not torch.equal(p, model.get_parameter(n))]
    assert len(moved) == len(list(base.parameters()))


class Clock:
    """Steps of ``cost`` seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, minutes: float) -> None:
        self.now, self.said = 0.0, list[str]()
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        given = TuneSettings("m", "n", minutes=minutes, save_seconds=1000)
        self.pace = Pace(given, folder, 0.0, 10.0, self.said.append, 50, 0.0)
        self.control = type("Control", (), {"should_training_stop": False})()

    def run(self, cost: float, slower: float = 1.0) -> int:
        state = type("State", (), {"global_step": 0})()
        self.pace.on_train_begin(None, state, self.control)
        while not self.control.should_training_stop:
            self.now += cost
            cost *= slower
            state.global_step += 1
            self.pace.on_step_end(None, state, self.control)
        return int(state.global_step)


def test_the_number_of_steps_follows_from_the_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    short = Clock(monkeypatch, tmp_path, minutes=1)
    assert short.run(cost=5.0) == 10, "50 of 60 seconds, 10 being for measuring"
    assert short.said == ["a step takes 5.00 s: 10 steps fit into 1 minutes"]
    long = Clock(monkeypatch, tmp_path, minutes=60)
    assert long.run(cost=5.0) == 50
    assert "are enough, and fit into" in long.said[0]
    hardly = Clock(monkeypatch, tmp_path, minutes=0.01)
    assert hardly.run(cost=5.0) == 4
    slowing = Clock(monkeypatch, tmp_path, minutes=2)
    slowing.run(cost=1.0, slower=1.2)
    assert slowing.now <= 120


def test_the_rate_rises_and_falls_to_zero_however_many_steps_there_are(tmp_path: Path) -> None:
    pace = Pace(TuneSettings("m", "n"), tmp_path, 0.0, 0.0, print, 20, 0.0)
    assert [pace.share(n) for n in (0, 1, 20)] == [0.5, 1.0, 0.0]
    pace.steps = 10
    assert pace.share(10) == 0.0


def test_chats_in_every_form(tmp_path: Path) -> None:
    talk = [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello"},
        {"role": "user", "content": "and now"},
        {"role": "assistant", "content": "bye"},
    ]
    asked = [{"role": "user", "content": "who"}]
    rows: list[Any] = [
        {"messages": talk},
        {"prompt": "a", "completion": "b"},
        {"prompt": "c", "answer": "d"},
        {"prompt": asked, "completion": [{"role": "assistant", "content": "me"}]},
    ]
    found = read_chats("new", write(tmp_path / "chats.jsonl", rows * 2))
    assert [(e.prompt, e.answer) for e in found[:5]] == [
        (tuple(talk[:2]), "hello"), (tuple(talk[:4]), "bye"), ("a", "b"), ("c", "d"),
        (tuple(asked), "me"),
    ]  # fmt: skip
    again = read_chats("new", write(tmp_path / "again.jsonl", [plain(e) for e in found]))
    assert again[:5] == [*found[:1], found[0], *found[1:4]], "the answers before it count as well"
    (tmp_path / "chats.jsonl.gz").write_bytes(
        gzip.compress((tmp_path / "chats.jsonl").read_bytes())
    )
    assert read_chats("new", str(tmp_path / "chats.jsonl.gz")) == found


def test_long_chats_keep_their_answers(root: Path, tmp_path: Path) -> None:
    rows = [{"prompt": "a" * 2 * LENGTH, "answer": f"no{c}"} for c in "abcdefghijkl"]
    tuning = Tuning(settings(root, tmp_path / "out", new=write(tmp_path / "long.jsonl", rows)))
    tuning.texts = ChatTexts(tiny_chat.tokenizer(), LENGTH)
    (first, *_) = tuning._rows(tuning.learned)
    assert len(first["input_ids"]) == LENGTH
    assert sum(first["completion_mask"]) == 4  # three letters and the end


def test_the_task_of_the_package_is_strict_and_can_be_told_apart() -> None:
    assert TASKS == ("support",)
    examples = read_chats("new", "support")
    learned, held = split(examples)
    assert (len(learned), len(held)) == (64, 16)
    assert len({e.prompt for e in examples}) == 80
    assert {e.answer for e in held} <= {e.answer for e in learned}
    assert not {str(e.prompt) for e in examples} & set(EVERYDAY)


def test_mistakes_in_the_arguments(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = str(root / "letters.jsonl")
    few = write(tmp_path / "few.jsonl", ROWS[:9])
    silent = write(
        tmp_path / "silent.jsonl", [*ROWS, {"messages": [{"role": "user", "content": "x"}]}]
    )
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"prompt": "a", "answer": "b"}\n{"prompt"\n')
    (tmp_path / "empty").mkdir()
    model, missing = str(root / "model"), str(tmp_path / "no.jsonl")
    for given, message in (
        (
            [model, "--new", missing],
            "new must be a file with a chat in JSON on each line, or",
        ),
        ([model, "--new", few], "new must have at least 10 answers, got 9"),
        (
            [model, "--new", silent],
            "line 25: messages must be a list of {'role', 'content'}",
        ),
        ([model, "--new", str(broken)], "line 2: Expecting"),
        ([model, "--new", good, "--keep", missing], "keep must be a file with a chat in JSON"),
        ([str(tmp_path / "empty"), "--new", good], "there is no config.json"),
        ([model, "--new", good, "--minutes", "0"], "minutes must be a finite number > 0"),
        ([model, "--new", good, "--budget", "-1"], "budget must be a finite number >= 0"),
        (
            [model, "--new", good, "--plain", "--keep", good],
            "keep has no effect with plain, which keeps",
        ),
        ([model, "--new", good, "--plain", "--budget", "1"], "budget has no effect with plain"),
    ):
        assert main(["tune", *given, "--out", str(tmp_path / "out")]) == 2, given
        assert message in " ".join(capsys.readouterr().err.split())


def test_the_folder_is_no_part_of_what_a_result_depends_on(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = Tuning(settings(root, tmp_path / "out"))
    default = Tuning(settings(root, Path(TuneSettings("model", "new").out)))
    assert default.state["identity"] == given.state["identity"]
    assert (tmp_path / "adapter").is_dir()


def test_a_folder_of_another_training_is_refused_before_anything_is_trained(
    root: Path, tmp_path: Path
) -> None:
    (tmp_path / "out" / WORK).mkdir(parents=True)
    (tmp_path / "out" / WORK / "state.json").write_text(json.dumps({"identity": {"seed": 7}}))
    with pytest.raises(ValueError, match=r"out already has another training.*seed was 7"):
        Tuning(settings(root, tmp_path / "out"))
