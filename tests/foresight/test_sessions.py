"""Runs diagnosed as they run: the point of the stream, the session's losses, rows' own steps."""

import json

import pytest
import torch
from torch.nn.functional import cross_entropy

from continual.language.tiny_text import save_model, write_task
from continual.tiny import config
from references import assert_close
from risegrad.cli import main
from risegrad.continual.run_checkpoints import Checkpoints
from risegrad.continual.runs import perform, read_config
from risegrad.continual.session import silent
from risegrad.continual.stream_learning import origin_of
from risegrad.foresight.followed_run import END, follow, start
from risegrad.foresight.foresight_agreement import AT_A_TIME, RESAMPLES, ranked
from risegrad.foresight.foresight_settings import DiagnosisSettings, read_sections
from risegrad.foresight.local_agreement import rank_correlation
from risegrad.foresight.reached_point import ReachedPoint, comparable
from risegrad.foresight.row_steps import ExperimentRow, first_steps
from risegrad.foresight.session_diagnosis import diagnose_session, problem_at

HOW = DiagnosisSettings(
    examples=8, incoming=6, memory=8, batch=4, draws=2, dampings=(0.3,),
    budget={"probes": 8, "adam_draws": 0},
)  # fmt: skip
SGD = {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0, "epochs": 1}


def settings(**changes):
    return read_config(config(**changes))


@pytest.fixture(scope="module")
def plain():
    return settings(head=SGD | {"lr": 0.2}, adapter=SGD | {"lr": 0.1})


@pytest.fixture
def point(plain, tmp_path):
    return ReachedPoint.reach(plain, 2, None, tmp_path)


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


def test_inside_a_session(plain, tmp_path):
    folder, two = tmp_path / "run", settings(loop={"checkpoint_seconds": 0.0})

    def stop(news):
        if news.get("task") == 2:
            stop.second = True
        if getattr(stop, "second", False) and "loss" in news:
            stop.epochs = getattr(stop, "epochs", 0) + 1
            if stop.epochs == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        perform(two, folder, stop)
    point = ReachedPoint.reach(two, 0, folder, tmp_path / "own")
    assert point.task == 1
    assert point.within is not None
    training = point.training()
    assert training.step == point.within["step"] > 0
    for name, value in point.within["parameters"]["adapter"].items():
        found = dict(training.session.groups[0].parameters)[name]
        assert torch.equal(found.detach(), value)


def test_losses_are_those_of_the_session(point):
    problem = problem_at(point, [], HOW)
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


def test_rows_of_earlier_classes_take_no_part(point):
    """The head's loss is over its new classes: the old rows are in no block and do not move."""
    problem = problem_at(point, [], HOW)
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
    problem = problem_at(point, [], HOW)
    scale = problem.space.spread(problem.scale)
    assert set(scale.square().round(decimals=4).tolist()) == {1.0, 2.0}
    operator, g, h = problem.in_steps(problem.operator("ggn", 2))
    x = scale * g  # a step of plain descent in the parameters themselves
    bend = operator.bends(g[:, None]).sum().item()
    assert bend == pytest.approx(
        problem.operator("ggn", 2).bends(x[:, None]).sum().item(), rel=1e-4
    )
    assert_close(h, scale * problem.past_gradient)


def test_a_rows_first_step_is_its_optimizers(plain, point):
    problem = problem_at(point, [], HOW)
    moves = first_steps(point, problem.space, ExperimentRow("FO", plain), 2, seed=0)
    assert not torch.equal(moves[:, 0], moves[:, 1])  # other batches
    problem = problem_at(point, [], HOW)
    before = problem.kept.value()
    training = point.training(seed=1234)
    batch = next(iter(training.steps(0)))
    assert batch.number == 1
    assert problem_at(point, [], HOW).kept.value() == before  # everything is put back


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
    first_steps(point, problem_at(point, [], HOW).space, ExperimentRow("FO", run), 2, seed=0)
    assert json.dumps({k: v.tolist() for k, v in point.state["host"]["head"].items()}) == before


def test_a_diagnosis_of_rows(plain, point):
    rows = [
        ExperimentRow("RISE", settings(rule={"name": "rise"}, head=SGD, adapter=SGD)),
        ExperimentRow("FO", plain),
        ExperimentRow(
            "Adam", settings(head={"optimizer": "adamw"}, adapter={"optimizer": "adamw"})
        ),
    ]
    found = diagnose_session(point, rows, HOW, "tiny")
    assert [rule.name for rule in found.rows] == ["FO", "Adam", "RISE"]
    assert found.rows[0].share.value == 1
    assert found.rows[0].share.error == pytest.approx(0, abs=1e-12)
    assert all(rule.products == HOW.draws for rule in found.rows)
    assert found.subject == "tiny"
    # The head of new classes beside adapters: shaped with them, in the blocks of the RISE row.
    assert {block.q for block in found.blocks} == {2}
    assert found.step == 0.1
    assert "Adam" in str(found)


def test_what_can_share_a_point(plain):
    assert comparable(plain, settings(rule={"name": "rise"}))
    assert not comparable(plain, settings(host={"name": "learnable-classifier"}))


@pytest.mark.parametrize(
    ("task", "message"),
    [(1, "task must be 2 or more, got 1"), (9, "task must be at most 3, got 9")],
)
def test_bad_tasks(plain, tmp_path, task, message):
    with pytest.raises(ValueError, match=message):
        ReachedPoint.reach(plain, task, None, tmp_path)


def test_a_followed_run_is_the_run(plain, tmp_path):
    """Looking ahead changes nothing: the scores are those of ``rise run``."""
    how = DiagnosisSettings(examples=8, incoming=6, memory=0, batch=4, draws=2, curvature="hessian")
    found = list(follow(start(plain), ExperimentRow("FO", plain), "FO", how, (1, 3)))
    result = perform(plain, tmp_path, silent)
    matrix = result["scores"]["accuracy"]["matrix"]
    assert [session.task for session in found] == [2, 3]
    for session in found:
        row, before = matrix[session.task - 1], matrix[session.task - 2]
        assert session.learned == pytest.approx(row[session.task - 1])
        lost = [b - a for b, a in zip(before, row, strict=False)][: session.task - 1]
        assert session.forgetting == pytest.approx(sum(lost) / len(lost))
        assert [moment.steps for moment in session.moments] == [1, 3, END]
        assert session.length == 3 * 1


def test_small_steps_come_true():
    """One step of a small rate is inside the quadratic picture."""
    small = settings(head=SGD | {"lr": 0.01}, adapter=SGD | {"lr": 0.01}, loop={"batch": 16})
    how = DiagnosisSettings(
        examples=16, incoming=16, memory=0, batch=16, draws=4, curvature="hessian"
    )
    for session in follow(start(small), ExperimentRow("FO", small), "FO", how, (1,)):
        first = session.moments[0]
        # One batch is the whole task, so every draw is the step that is taken.
        assert first.predicted == pytest.approx(first.true, rel=0.1, abs=3e-6)


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
    problem = problem_at(point, [], HOW)
    batch = problem.reader.batch(problem.kept.batches[0])
    problem.training.session.module.eval()
    scores, labels = problem.reader.answers(problem.training.session.module,
                                            problem.kept.batches[0])  # fmt: skip
    loss = problem.training.session.loss(batch, True).item()
    assert cross_entropy(scores, labels).item() == pytest.approx(loss, rel=1e-5)
    found = diagnose_session(point, [ExperimentRow("RISE", run)], HOW, "words")
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
budget = { probes = 8, adam_draws = 0 }
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
    assert text.startswith("Use ")
    (found,) = (tmp_path / "out" / "tiny" / "diagnosis").rglob("diagnosis.json")
    content = json.loads(found.read_text())
    assert content["subject"].startswith("tiny, RISE, seed 0: before session 2 of 2")
    assert [row["name"] for row in content["rows"]] == ["FO", "RISE"]
    assert found.with_suffix(".html").exists()
    assert main(["local", file, *out]) == 0
    assert "updates of 1 step" in capsys.readouterr().out
    assert [path.name for path in (tmp_path / "out").rglob("local.json")] == ["local.json"]
    assert main(["foresight", file, *out]) == 0
    text = capsys.readouterr().out
    assert "Over 2 sessions" in text
    assert "Block score S, 1 step:" in text
    content = json.loads((tmp_path / "out" / "tiny" / "foresight" / "foresight.json").read_text())
    assert [session["method"] for session in content["sessions"]] == ["FO", "RISE"]
    assert [row["steps"] for row in content["horizons"]] == [1, 2, 0]
    assert len(content["blocks"]) == 3 * 2
    # Again: all parts are there.
    assert main(["foresight", file, *out, "--quiet"]) == 0
    again = json.loads((tmp_path / "out" / "tiny" / "foresight" / "foresight.json").read_text())
    assert again["sessions"] == content["sessions"]


@pytest.mark.parametrize("command", ["diagnose", "local", "foresight"])
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "diagnosis.exmples=3"], "diagnosis.exmples: unknown, did you mean 'examples'?"),
        (["--set", "diagnosis.examples=0"], "examples must be an integer >= 1, got 0"),
        (["--set", "diagnosis.curvature=kfac"], "curvature must be one of hessian, ggn"),
        (["--set", "diagnosis.budget.probes=2"], "probes must be an integer >= 8, got 2"),
        (["--set", "diagnosis.draws=9"], "draws must be an integer >= 1 and <= 4, got 9"),
        (["--set", "validation.step_sizes=[0.1]"], "validation.damages is not used by"),
        (["--only", "RICE"], "--only 'RICE': unknown, did you mean 'RISE'?"),
    ],
)
def test_mistakes_are_found_before_any_work(file, command, words, message, capsys):
    assert main([command, file, *words]) == 2
    assert message in capsys.readouterr().err


def test_a_task_that_cannot_be(file, capsys):
    assert main(["diagnose", file, "--task", "1"]) == 2
    assert "--task must be 2 or more, got 1" in capsys.readouterr().err


def test_sections_have_defaults():
    diagnosis, validation = read_sections({})
    assert (diagnosis.task, validation.steps) == (0, (1, 4))


def test_intervals_are_those_of_plain_resampling():
    """Slow and obvious: one resample after the other."""
    generator = torch.Generator().manual_seed(3)
    a = torch.randn(12, generator=generator)
    b = a + torch.randn(12, generator=generator)
    b[3] = b[4]
    found = ranked(a.tolist(), b.tolist())
    draws = torch.Generator().manual_seed(0)
    again = []
    for _ in range(RESAMPLES // AT_A_TIME):
        for chosen in torch.randint(12, (AT_A_TIME, 12), generator=draws).tolist():
            again.append(rank_correlation([a[i].item() for i in chosen],
                                          [b[i].item() for i in chosen]))  # fmt: skip
    again.sort()
    assert found.value == rank_correlation(a.tolist(), b.tolist())
    assert found.low == pytest.approx(again[int(0.025 * 999)], abs=1e-9)
    assert found.high == pytest.approx(again[int(0.975 * 999)], abs=1e-9)
    assert ranked([1.0, 2.0], [1.0, 2.0]).value is None
