"""Runs of a chat model: through the command, stopped and gone on with, and what is refused."""

import json
import math
import re

import pytest
import torch

from continual.chat import tiny_chat
from continual.chat.tiny_chat import config
from riselab.cli import main
from riselab.continual.chat.adapters import trained_parts
from riselab.continual.chat.model import averaged_back, trainable
from riselab.continual.chat.run import score
from riselab.continual.chat.settings import ChatModelSettings, ChatStreamSettings
from riselab.continual.chat.tasks import build_stream
from riselab.continual.chat.texts import ChatTexts, answer_scores
from riselab.continual.host import silent
from riselab.continual.runs import estimate, needs, perform, read_config, seconds
from riselab.records.record import read_records

EXPERIMENT = """
name = "chats"
domain = "chat"
[stream]
name = "tiny"
tasks = ["letters"]
[model]
rank = 2
[adapter]
steps = 4
[loop]
batch = 12
device = "cpu"
[sweep]
"adapter.lr" = [1e-2, 1e-1]
[[rows]]
label = "plain"
baseline = true
[[rows]]
label = "keep"
rule = { name = "keep", examples = 10 }
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    made = tmp_path_factory.mktemp("chats")
    tiny_chat.write_folders(made)
    return made


def run(root, folder, report=silent, **changes):
    return perform(read_config(config(root, **changes)), folder, report)


def test_by_the_command_and_in_a_report(root, tmp_path, capsys):
    (tmp_path / "chats.toml").write_text(EXPERIMENT)
    places = [f"model.weights={root / 'model'}", f"stream.data={root / 'data'}"]
    places += [f"abilities.folder={root / 'abilities'}", "abilities.tokens=4"]
    sets = [part for place in places for part in ("--set", place)]
    out = tmp_path / "out"
    given = ["run", str(tmp_path / "chats.toml"), "--out", str(out), "--workers", "2", *sets]
    assert main(given) == 0, capsys.readouterr()
    records, problems = read_records([out])
    assert (len(records), problems) == (4, [])
    for record in records:
        found = record.result.metrics
        assert found["forgetting"] == pytest.approx(100 * found["drift"])
        assert found["plasticity"] == record.result.scores["exact_match"].matrix[0][0]
        assert {"wiki_change", "choice_change", "facts_change", "nll"} <= set(found)
        assert set(record.run.inputs) == {"model.weights", "stream.data", "abilities.folder"}
        assert bool(record.result.memory_bytes) == (record.row.method == "keep")
    capsys.readouterr()
    assert main(["report", str(out), "--out", str(tmp_path / "page.html")]) == 0


def test_a_stopped_run_goes_on_as_if_it_had_not_stopped(root, tmp_path):
    changes = {
        "rule": {"name": "keep", "examples": 10},
        "stream": {"tasks": ["letters", "sounds"]},
        "loop": {"checkpoint_seconds": 0},
    }
    whole = run(root, tmp_path / "whole", **changes)

    class Stopped(Exception):
        pass

    def stop(news):
        news_of.append(news)
        if sum("batch" in each for each in news_of) == 5:
            raise Stopped

    news_of = []
    with pytest.raises(Stopped):
        run(root, tmp_path / "part", stop, **changes)
    again = []
    found = run(root, tmp_path / "part", again.append, **changes)
    assert [news["batch"] for news in again if "batch" in news] == [2, 3], "of the second task"
    timeless = ("metrics", "scores", "losses", "memory_bytes")
    assert [len(found["seconds"][name]) for name in ("train", "remember")] == [2, 2]
    assert {key: found[key] for key in timeless} == {key: whole[key] for key in timeless}


RULES = ("informed", "distill", "kl", "replay", "dark-replay", "rise")


@pytest.mark.parametrize("name", RULES)
def test_every_rule_trains(name, root, tmp_path):
    old = {} if name == "rise" else {"old": "prompts", "examples": 4}
    found = run(root, tmp_path, rule={"name": name, **old})
    plain = run(root, tmp_path / "plain")
    assert found["losses"][0]["loss"] == plain["losses"][0]["loss"]
    assert found["metrics"]["nll"] != plain["metrics"]["nll"]
    assert math.isfinite(found["metrics"]["nll"])


@pytest.mark.parametrize("trains", ["lora", "all"])
def test_a_share_of_the_weights(trains):
    model = trained_parts(tiny_chat.llama(), ChatModelSettings(rank=2, trains=trains), 0)
    base, tokens = tiny_chat.llama(), torch.tensor([[1, 4, 5]])
    began = {name: p.detach().clone() for name, p in trainable(model).items()}
    with torch.no_grad():
        for p in trainable(model).values():
            p.add_(0.1 * torch.randn_like(p))
        ended = model(tokens).logits
        with averaged_back(model, began, 0.25):
            part = model(tokens).logits
        torch.testing.assert_close(model(tokens).logits, ended)
        whole = model.merge_and_unload() if trains == "lora" else model
        for p, end in zip(base.parameters(), whole.parameters(), strict=True):
            p.lerp_(end, 0.25)
        torch.testing.assert_close(part, base(tokens).logits)
        assert not torch.allclose(part, ended)


def test_trained_weights_are_found_again_by_their_settings(root, tmp_path, monkeypatch):
    monkeypatch.setenv("RISEGRAD_CACHE", str(tmp_path / "cache"))
    whole = run(root, tmp_path / "whole")
    steps = []
    half = run(root, tmp_path / "half", steps.append, rule={"share": 0.5})
    assert steps == [], "not trained again"
    assert half["metrics"]["drift"] < whole["metrics"]["drift"]
    run(root, tmp_path / "other", steps.append, adapter={"lr": 0.02})
    assert steps


def test_the_model_as_it_comes_is_scored_once_for_all_its_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("RISEGRAD_CACHE", str(tmp_path / "cache"))
    tiny_chat.write_folders(tmp_path)
    model, texts = tiny_chat.llama(), ChatTexts(tiny_chat.tokenizer())
    batch = texts.batch([texts.chat(f"say {a}", "yes") for a in "abcdefnopqrs"])
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(60):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(*answer_scores(model, batch)).backward()
        optimizer.step()
    model.save_pretrained(tmp_path / "model")
    scored = []
    monkeypatch.setattr(
        "riselab.continual.chat.run.score", lambda *given: scored.append(1) or score(*given)
    )
    for lr in (0.01, 0.02):
        found = run(tmp_path, tmp_path / f"{lr}", adapter={"lr": lr})
        assert found["before"] == {"exact_match": [50.0]}, "yes to all, right for one half"
    assert len(scored) == 3, "before, and after each run"


def test_choices_look_at_nothing_that_is_reported(root, tmp_path):
    decides = {"loop": {"score_on": "validation"}}
    found = run(root, tmp_path, **decides)
    none = {"abilities": {"folder": ""}}
    assert run(root, tmp_path / "none", **decides, **none)["metrics"] == found["metrics"]
    assert "wiki" not in found["metrics"]
    assert found["metrics"]["forgetting"] > 0


def test_examples_in_every_form(root, tmp_path):
    said = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}]
    lines = [
        json.dumps({"messages": [*said, {"role": "assistant", "content": f"{n}"}]}) for n in "abc"
    ]
    for split in ("train", "test"):
        (tmp_path / "talk").mkdir(exist_ok=True)
        (tmp_path / "talk" / f"{split}.jsonl").write_text("\n".join(lines))
    (task,) = build_stream(ChatStreamSettings("s", ("talk",), str(tmp_path))).tasks
    assert task.sizes() == {"train": 2, "validation": 1, "test": 3}
    assert task.train[0].prompt == tuple(said)
    both = ChatStreamSettings("s", ("sounds+sounds",), str(root / "data"), "{labels}: {text}?")
    (task,) = build_stream(both).tasks
    assert task.classes == ("x", "z")
    assert {example.prompt for example in task.test} >= {"x, z: hear a?"}
    one = ChatStreamSettings("s", ("sounds",), str(root / "data"), classes=1)
    assert {example.answer for example in build_stream(one)[0].train} == {"x"}


def test_what_is_refused(root, tmp_path):
    for changes, message in (
        ({"rule": {"name": "plain", "damping": 0.2}}, "rule.damping is not used by rule 'plain'"),
        ({"rule": {"name": "kepe"}}, "rule: name must be one of .*did you mean 'keep'"),
        ({"adapter": {"steps": 0}}, "adapter: steps must be an integer >= 1"),
    ):
        with pytest.raises(ValueError, match=message):
            read_config(config(root, **changes))
    prompts = {"rule": {"name": "kl", "old": "prompts"}, "abilities": {"folder": ""}}
    (missing,) = needs(read_config(config(root, **prompts)), {})["missing"]
    assert "needs abilities.folder" in missing
    lacking = {"stream": {"data": str(tmp_path)}, "model": {"weights": str(tmp_path)}}
    lacking["abilities"] = {"folder": str(tmp_path)}
    missing = needs(read_config(config(root, **lacking)), {})["missing"]
    assert [re.search(r"stream.data|model.weights|abilities.folder", m)[0] for m in missing] == [
        "stream.data", "model.weights", "abilities.folder",
    ]  # fmt: skip
    (tmp_path / "odd").mkdir()
    for split in ("train", "test"):
        (tmp_path / "odd" / f"{split}.json").write_text('[{"question": "a"}]')
    with pytest.raises(ValueError, match="an example must have the texts 'prompt' and 'answer'"):
        build_stream(ChatStreamSettings("s", ("odd",), str(tmp_path)))
    with pytest.raises(ValueError, match=r"rule\.examples must be at most 4 prompts, got 60"):
        run(root, tmp_path, rule={"name": "replay", "old": "prompts"})


def test_how_much_work_it_is(root):
    settings = read_config(config(root))
    assert estimate(settings) == {"tasks": 1, "chats": 11, "forward": 24, "backward": 12}
    assert seconds(settings) > 0
    assert needs(settings, {})["missing"] == []


@pytest.mark.parametrize("trains", ["osf", "corda"])
def test_adapters_of_peft_begin_as_the_model_and_learn(root, tmp_path, trains):
    base, tokens = tiny_chat.llama(), torch.tensor([[1, 4, 5, 8]])
    old = [{"input_ids": torch.randint(1, 20, (1, 40))} for _ in range(8)]
    model = trained_parts(tiny_chat.llama(), ChatModelSettings(rank=2, trains=trains), 0, old)
    torch.testing.assert_close(model(tokens).logits, base(tokens).logits, rtol=1e-3, atol=1e-4)
    assert sum(p.numel() for p in trainable(model).values()) > 0
    found = run(root, tmp_path, model={"trains": trains})
    assert found["metrics"]["drift"] > 0


def test_kl_on_new_answers_holds_them_back(root, tmp_path):
    plain = run(root, tmp_path / "plain")
    held = run(root, tmp_path / "held", rule={"name": "kl-new", "weight": 30.0})
    assert held["metrics"]["drift_new"] < plain["metrics"]["drift_new"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rule": {"name": "kl-new"}, "model": {"trains": "all"}}, "kl-new' needs model.trains"),
        ({"rule": {"share": 0.5}, "model": {"trains": "osf"}}, "share needs model.trains = 'lora'"),
    ],
)
def test_what_needs_the_weights_of_then_says_so(root, changes, message):
    with pytest.raises(ValueError, match=message):
        read_config(config(root, **changes))
