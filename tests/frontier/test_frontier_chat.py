"""``rise frontier`` on a tiny chat model: which questions are kept, measured on and replayed."""

import gzip
import json

import pytest

import risegrad
from continual.chat import tiny_chat
from riselab.cli import main
from riselab.continual import runs
from riselab.frontier.grid import FrontierGrid
from riselab.frontier.problem import FrontierSettings, problem_of
from riselab.tune.settings import EVERYDAY

ROWS = [{"prompt": f"say {a}", "answer": "yes" if a < "n" else "no"} for a in "abcdefghnopqrstuvw"]
KEEP = [{"prompt": f"tell {a}", "completion": "me"} for a in "abcdefghijkl"]
SHORT = ("--set", "adapter.steps=2", "--set", "model.rank=2", "--set", "abilities.tokens=4",
         "--set", "rule.tokens=4", "--set", "loop.device=cpu")  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    made = tmp_path_factory.mktemp("chats")
    tiny_chat.llama().save_pretrained(made / "model")
    tiny_chat.tokenizer().save_pretrained(made / "model")
    for name, rows in (("letters", ROWS), ("old", KEEP)):
        (made / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return made


def command(root, out, *more):
    given = ["frontier", str(root / "model"), "--new", str(root / "letters.jsonl"), "--out", out]
    return [*map(str, given), "--seeds", "1", "--rates", "2", *SHORT, *more]


@pytest.mark.parametrize("keep", ["dreams", "old.jsonl"])
def test_by_the_command(root, tmp_path, capsys, keep):
    place = keep if keep == "dreams" else str(root / keep)
    words = command(root, tmp_path / "out", "--keep", place, "--set", "rule.examples=4")
    assert main(words) == 0, capsys.readouterr()
    said = capsys.readouterr().out
    assert said.count(" nats per token (") == 8, "four methods at two rates"
    assert "Drift: how far the answers to everything else have moved" in said
    assert "Before training: 0.0 % on new data." in said
    assert "Nothing was learned: no setting is better than the untrained model (0.0 %)" in said
    assert "To use it: " not in said, "two steps teach nothing, so no lines are worth copying"
    assert (tmp_path / "out" / "frontier.html").is_file()
    assert (tmp_path / "out" / "frontier.png").is_file()
    page = (tmp_path / "out" / "frontier.html").read_text(encoding="utf-8")
    assert "learns letters: what is left of its other answers?" in page
    assert "Drift: how far the answers to everything else have moved." in page
    assert "lower is less drift" in page
    assert "what was lost of what must be kept" not in page
    assert main(words) == 0
    assert "% exact, drift" not in capsys.readouterr().out, "nothing is trained twice"


def test_no_question_is_measured_on_that_a_rule_may_use(root):
    problem = problem_of(str(root / "model"), ["dreams"], [str(root / "letters.jsonl")],
                         FrontierSettings())  # fmt: skip
    written = gzip.decompress(problem.files["kept/instructions.jsonl.gz"]).decode().splitlines()
    asked = [json.loads(line)["prompt"] for line in written]
    assert tuple(asked[::2]) == EVERYDAY
    assert "old" not in problem.sections["rule"], "rules dream"
    kept = problem_of(str(root / "model"), [str(root / "old.jsonl")],
                      [str(root / "letters.jsonl")], FrontierSettings())  # fmt: skip
    assert kept.sections["rule"] == {"old": "prompts", "tokens": 64, "examples": 6}
    train, test = (
        {json.loads(line)["prompt"] for line in kept.files[f"letters/{part}.jsonl"].splitlines()}
        for part in ("train", "test")
    )
    assert (len(train), len(test), train & test) == (14, 4, set())


def test_every_method_has_its_lines(root, tmp_path):
    settings = FrontierSettings(
        seeds=1, rates=2, changes=tuple(text for text in SHORT if text != "--set")
    )
    names = ("plain", "kl", "keep", "informed", "distill")
    found = risegrad.frontier(
        root / "model", keep="dreams", new=root / "letters.jsonl", minutes=30, methods=names,
        out=tmp_path, settings=settings, show=False,
    )  # fmt: skip
    lines = {
        curve.name: found._described(curve.settings[0]).code
        for curve in found.frontier.curves.values()
    }
    assert all(len(code) == 3 for code in lines.values())
    assert "callbacks" not in "".join(lines["plain"])
    assert "callbacks=[KeepCallback(examples=60, damping=0.1, pull=1)]" in lines["keep"][1]
    assert "damping=0.1, pull=0" in lines["informed"][1]
    assert "damping=None, pull=1" in lines["pull alone"][1]
    assert "add 1 * keeper.loss() / keeper.strength" in lines["KL"][2]
    for code in lines.values():
        compile("\n".join(code), "lines", "exec")
    assert {run.setting("adapter", "lr") for run in found.records} == {1e-3, 3e-4}


def test_methods_without_old_chats_need_no_others_beside_them(root, tmp_path):
    settings = FrontierSettings(methods=("rise",), out=str(tmp_path), seeds=1, rates=2)
    problem = problem_of(str(root / "model"), ["dreams"], [str(root / "letters.jsonl")], settings)
    cells = FrontierGrid(problem, settings).cells
    assert [cell.settings["rule"]["name"] for cell in cells] == ["plain", "plain", "rise", "rise"]


def test_a_short_time_takes_fewer_steps_and_says_so(root, tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "seconds", lambda settings: 100.0)
    settings = FrontierSettings(minutes=20, out=str(tmp_path), seeds=1)
    problem = problem_of(str(root / "model"), ["dreams"], [str(root / "letters.jsonl")], settings)
    grid = FrontierGrid(problem, settings, clock=lambda: 0.0)
    grid._fit()
    # 1200 seconds for 12 runs, half of each for steps: half of the usual 24.
    assert grid.cut == ["steps: 12 of 24"]
    assert {cell.settings["adapter"]["steps"] for cell in grid.cells} == {12}
    given = FrontierSettings(minutes=20, out=str(tmp_path), seeds=1, changes=("adapter.steps=5",))
    other = FrontierGrid(problem, given, clock=lambda: 0.0)
    other._fit()
    assert other.cut == []
    assert {cell.settings["adapter"]["steps"] for cell in other.cells} == {5}


def test_mistakes(root, tmp_path):
    model, new, old = (str(root / name) for name in ("model", "letters.jsonl", "old.jsonl"))
    (tmp_path / "letters.jsonl").write_text((root / "letters.jsonl").read_text())
    trains = FrontierSettings(changes=("model.trains=osf",))
    with pytest.raises(ValueError, match=r"model\.trains cannot be set: use full"):
        problem_of(model, ["dreams"], [new], trains)
    for keep, learned, message in (
        (["dreams", old], [new], "keep must be 'dreams' alone or files of chats, got both"),
        ([old], [new, str(tmp_path / "letters.jsonl")], "must have different names"),
        (["dreams"], [str(tmp_path / "no.jsonl")], "new must be a file with a chat in JSON"),
        (["dreams"], [str(tmp_path)], "data must be a file of chats"),
    ):
        with pytest.raises(ValueError, match=message):
            problem_of(model, keep, learned, FrontierSettings())
