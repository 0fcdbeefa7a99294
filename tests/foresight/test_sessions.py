"""Runs diagnosed as they run: the point of the stream, the session's losses, rows' own steps."""

import argparse
import json

import pytest
import torch
from torch.nn.functional import cross_entropy

from continual.language.tiny_text import save_model, write_task
from continual.tiny import config
from references import assert_close
from riselab.cli import main
from riselab.continual.additions.memory import RunMemory
from riselab.continual.checkpoints import Checkpoints
from riselab.continual.learning import origin_of
from riselab.continual.runs import perform, read_config
from riselab.foresight.reached_point import ReachedPoint
from riselab.foresight.session import (
    SessionProblem,
    diagnose_session,
    earlier_examples,
    remembered_examples,
    rise_of,
)
from riselab.foresight.settings import DiagnosisSettings, read_sections

HOW = DiagnosisSettings(
    examples=8, incoming=6, memory=8, batch=4, draws=2, dampings=(0.3,),
    budget={"probes": 8},
)  # fmt: skip
SGD = {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0, "epochs": 1}


def settings(**changes):
    return read_config(config(**changes))


@pytest.fixture(scope="module")
def plain():
    return settings(head=SGD | {"lr": 0.2}, adapter=SGD | {"lr": 0.1})


@pytest.fixture(scope="module")
def point(plain, tmp_path_factory):
    """Learning is the cost, and a session always begins from the same state."""
    return ReachedPoint.reach(plain, 2, None, tmp_path_factory.mktemp("point"))


def test_the_point_is_where_the_run_would_be(plain, point, tmp_path):
    """The state after the first session is that of the run itself."""
    folder = tmp_path / "run"

    def stop(news):
        if news.get("task") == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        perform(plain, folder, stop)
    state = Checkpoints(folder / "checkpoints", origin_of(plain)).latest()
    torch.testing.assert_close(point.state["host"], state["between"]["host"], rtol=0, atol=0)
    # And a run that has a checkpoint is taken where it is, without learning anything again.
    again = ReachedPoint.reach(plain, 0, folder, tmp_path / "own", lambda news: pytest.fail(news))
    assert again.task == 1
    for name, value in point.state["host"]["adapters"].items():
        assert torch.equal(again.state["host"]["adapters"][name], value)


def test_losses_are_those_of_the_session(point):
    problem = SessionProblem.of(point, rise_of(point.settings), HOW)
    session = problem.training.session
    session.module.eval()
    total = 0.0
    for batch in problem.kept.batches:
        scores = session.logits(problem.reader.batch(batch))[:, : session.seen_before]
        total += cross_entropy(scores, batch["labels"]).item() * len(batch["labels"]) / 8
    assert problem.kept.value() == pytest.approx(total, rel=1e-5)
    assert {label for b in problem.kept.batches for label in b["labels"].tolist()} <= {0, 1}
    assert {label for b in problem.new.batches for label in b["labels"].tolist()} <= {2, 3}
    seen = [tuple(row.flatten().tolist()) for b in problem.kept.batches for row in b["inputs"]]
    others = [tuple(row.flatten().tolist()) for b in problem.others for row in b["inputs"]]
    assert not set(seen) & set(others)


@pytest.mark.parametrize(("remembered", "seen"), [(2, 0), (10, 2), (256, 8)])
def test_informed_rows_are_not_judged_on_what_they_remember(
    remembered, seen, tmp_path, monkeypatch
):
    """Of 16 earlier examples 8 are measured; what the memory looks at is caught in the act."""
    run = settings(rule={"name": "informed", "q": 4}, memory={"examples": remembered})
    fetched = []
    real = RunMemory._remembered

    def watched(memory, training):
        kind = type(training.session.items)
        fetch = kind.fetch

        def noting(items, refs, epoch):
            fetched.extend(refs)
            return fetch(items, refs, epoch)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kind, "fetch", noting)
            return real(memory, training)

    monkeypatch.setattr(RunMemory, "_remembered", watched)
    point = ReachedPoint.reach(run, 2, None, tmp_path)
    assert set(fetched) == remembered_examples(point)
    drawn = earlier_examples(point, HOW.examples + HOW.memory, HOW.seed)
    assert len(set(drawn)) == 16
    assert len({*drawn[:8]} & {*fetched}) == seen
    found = diagnose_session(point, run, HOW, "tiny")
    said = [verdict for verdict in found.verdicts if verdict.startswith("The run's own memory")]
    assert [verdict.split()[4] for verdict in said] == [str(seen)] * (seen > 0)


def test_rows_of_earlier_classes_take_no_part(point):
    """The head's loss is over its new classes: the old rows are in no block and do not move."""
    problem = SessionProblem.of(point, rise_of(point.settings), HOW)
    space = problem.space
    names = dict(zip(space.names, space.shapes, strict=True))
    head = next(name for name, shape in names.items() if name.startswith("1.") and shape)
    assert space.rows_left_out == {head: 2}
    assert space.d == sum(shape.numel() for shape in space.shapes) - 2 * names[head][1]
    wide = dict(zip(space.names, space.tensors(torch.ones(space.d)), strict=True))
    assert (wide[head][:2] == 0).all()
    assert (wide[head][2:] == 1).all()
    assert_close(space.flat([*wide.values()]), torch.ones(space.d))
    operator = problem.operator("ggn", 2)
    u, v = torch.randn(2, space.d, generator=torch.Generator().manual_seed(0))
    assert (u @ (operator @ v)).item() == pytest.approx((v @ (operator @ u)).item(), rel=1e-3)


def test_groups_have_their_own_rates(point):
    problem = SessionProblem.of(point, rise_of(point.settings), HOW)
    scale = problem.space.spread(problem.scale)
    assert set(scale.square().round(decimals=4).tolist()) == {1.0, 2.0}
    operator, g, h = problem.in_steps(problem.operator("ggn", 2))
    x = scale * g  # a step of plain descent in the parameters themselves
    bend = operator.bends(g[:, None]).sum().item()
    assert bend == pytest.approx(
        problem.operator("ggn", 2).bends(x[:, None]).sum().item(), rel=1e-4
    )
    assert_close(h, scale * problem.past_gradient)


def test_steps_leave_the_point_as_it_was(tmp_path):
    """Fine-tuning loads its head without a copy: a step must not reach what is kept."""
    run = read_config({
        "domain": "vision", "host": {"name": "fine-tune"}, "loop": {"device": "cpu"},
        "stream": {"name": "turned-digits", "train_per_class": 4, "test_per_class": 2},
        "model": {"name": "mlp", "pretrained": False, "width": 8, "depth": 1},
        "head": {"epochs": 1}, "adapter": {"epochs": 1},
    })  # fmt: skip
    point = ReachedPoint.reach(run, 2, None, tmp_path)
    before = json.dumps({k: v.tolist() for k, v in point.state["host"]["head"].items()})
    next(iter(point.training().steps(0)))
    assert json.dumps({k: v.tolist() for k, v in point.state["host"]["head"].items()}) == before


def test_a_diagnosis_of_a_session(point):
    """A plain run, looked at in the blocks of a row that shapes."""
    rise = settings(rule={"name": "rise"}, head=SGD, adapter=SGD)
    found = diagnose_session(point, rise, HOW, "tiny")
    assert found.subject == "tiny"
    # The head of new classes beside adapters: shaped with them, in the blocks of the RISE row.
    assert {block.q for block in found.blocks} == {2}
    assert found.step == 0.1
    assert found.rules[0].share.value == 1


@pytest.mark.parametrize(
    ("task", "message"),
    [(1, "task must be 2 or more, got 1"), (9, "task must be at most 3, got 9")],
)
def test_bad_tasks(plain, tmp_path, task, message):
    with pytest.raises(ValueError, match=message):
        ReachedPoint.reach(plain, task, None, tmp_path)


def test_a_language_session(tmp_path):
    for name in ("agnews", "SST-2"):
        write_task(tmp_path / "tasks", name, train=12)
    run = read_config({
        "domain": "language",
        "stream": {"name": "two", "tasks": ["agnews", "SST-2"], "data": str(tmp_path / "tasks")},
        "model": {"weights": str(save_model(tmp_path / "model")), "rank": 2},
        "host": {"name": "seq-lora"}, "rule": {"name": "rise", "chunk": 8},
        "loop": {"batch": 6, "device": "cpu"},
    })  # fmt: skip
    point = ReachedPoint.reach(run, 2, None, tmp_path / "own")
    problem = SessionProblem.of(point, rise_of(point.settings), HOW)
    batch = problem.reader.batch(problem.kept.batches[0])
    problem.training.session.module.eval()
    scores, labels = problem.reader.answers(problem.training.session.module,
                                            problem.kept.batches[0])  # fmt: skip
    loss = problem.training.session.loss(batch, True).item()
    assert cross_entropy(scores, labels).item() == pytest.approx(loss, rel=1e-5)
    found = diagnose_session(point, run, HOW, "words")
    assert all("lora" in block.name for block in found.blocks)
    assert {rule.name for rule in found.rules} >= {"FO", "RISE", "informed, damping 0.3"}
    assert found.rules[-1].share.value > 0


TOML = """
name = "tiny"
domain = "vision"
seeds = [0]
[stream]
name = "digits"
image_size = 8
base = 2
increment = 2
classes = 4
train_per_class = 8
test_per_class = 4
[model]
name = "vit_tiny_patch16_224"
pretrained = false
width = 16
depth = 1
heads = 2
patch = 4
adapter_width = 4
[host]
name = "adapter-classifier"
[head]
epochs = 1
[adapter]
epochs = 1
[loop]
batch = 6
device = "cpu"
[diagnosis]
examples = 8
incoming = 6
memory = 8
batch = 4
draws = 2
dampings = [0.3]
budget = { probes = 8 }
[validation]
steps = [1]
draws = 2
damages = [0.01]
curvatures = ["ggn"]
horizons = [1, 2]
blocks = 3
block_draws = 2
[[rows]]
label = "FO"
baseline = true
rule = { name = "fo" }
[[rows]]
label = "RISE"
rule = { name = "rise" }
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(TOML)
    return str(path)


def test_the_commands(file, tmp_path, capsys):
    out = ["--out", str(tmp_path / "out")]
    assert main(["diagnose", file, "--only", "RISE", *out]) == 0
    text = capsys.readouterr().out
    subject, choice, _, decision, *_ = text.splitlines()
    assert subject == "tiny, RISE (lr=0.01), seed 0: before session 2 of 2 (session 1)"
    assert choice == "the only run that was chosen"
    assert decision.startswith("Use ")
    (found,) = (tmp_path / "out" / "tiny" / "diagnosis").rglob("diagnosis.json")
    content = json.loads(found.read_text())
    assert content["subject"] == subject
    assert {"git", "python", "packages"} <= content["environment"].keys()
    assert main(["local", file, *out]) == 0
    assert "updates of 1 step" in capsys.readouterr().out
    (local,) = (tmp_path / "out").rglob("local.json")
    assert json.loads(local.read_text())["environment"] == content["environment"]


def test_mistakes_are_found_before_any_work(file, capsys):
    for words, message in (
        (["--set", "diagnosis.exmples=3"], "diagnosis.exmples: unknown, did you mean 'examples'?"),
        (["--set", "diagnosis.examples=0"], "examples must be an integer >= 1, got 0"),
        (["--set", "diagnosis.curvature=kfac"], "curvature must be one of hessian, ggn"),
        (["--set", "diagnosis.budget.probes=2"], "probes must be an integer >= 8, got 2"),
        (["--set", "diagnosis.draws=9"], "draws must be an integer >= 1 and <= 4, got 9"),
        (
            ["--set", "validation.step_sizes=[0.1]"],
            "set validation.damages or validation.step_sizes, not both",
        ),
        (["--only", "RICE"], "--only 'RICE': unknown, did you mean 'RISE'?"),
        (["--task", "1"], "--task must be 2 or more, got 1"),
    ):
        for command in ("diagnose", "local"):
            assert main([command, file, *words]) == 2
            assert message in capsys.readouterr().err


def choice_of(path, *words):
    from riselab.commands.diagnose import add_choice, chosen

    parser = argparse.ArgumentParser()
    add_choice(parser)
    return chosen(parser.parse_args([str(path), *words]))


def test_which_run_of_a_sweep_it_is(tmp_path):
    path = tmp_path / "swept.toml"
    path.write_text(TOML.replace("[[rows]]", "[sweep]\nlr = [0.1, 0.2, 0.3]\n[[rows]]", 1))
    found = choice_of(path, "--only", "RISE")
    assert found.cell.row.label == "RISE (lr=0.1)"
    assert found.choice == "the first of 3 runs that --only leaves; a row's label names another"
    named = choice_of(path, "--only", "FO (lr=0.3)")
    assert named.cell.row.label == "FO (lr=0.3)"
    assert named.shaped_like.rule.name == "rise"
    assert named.choice == "the only run that was chosen"


def test_sections_have_defaults():
    diagnosis, validation = read_sections({})
    assert (diagnosis.task, validation.steps) == (0, (1, 4))
