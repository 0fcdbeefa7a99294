"""Runs diagnosed as they run: the point of the stream, the session's losses, rows' own steps."""

import argparse
import json
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy

from continual.language.tiny_text import save_model, write_task
from continual.tiny import config
from references import assert_close
from risegrad.cli import main
from risegrad.continual.additions.run_memory import RunMemory
from risegrad.continual.run_checkpoints import Checkpoints
from risegrad.continual.runs import perform, read_config
from risegrad.continual.session import silent
from risegrad.continual.stream_learning import origin_of
from risegrad.foresight.followed_run import END, follow, start
from risegrad.foresight.foresight_agreement import AT_A_TIME, RESAMPLES, ranked
from risegrad.foresight.foresight_settings import DiagnosisSettings, read_sections
from risegrad.foresight.local_agreement import rank_correlation
from risegrad.foresight.reached_point import ReachedPoint, comparable, steps_from
from risegrad.foresight.row_steps import (
    ExperimentRow,
    first_steps,
    row_forecasts,
    steps_of_rows,
    walk,
)
from risegrad.foresight.session_diagnosis import diagnose_session, problem_at
from risegrad.foresight.session_problem import earlier_examples, remembered_examples

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


ADAM = {"epochs": 4, "optimizer": "adamw", "lr": 0.01, "schedule": "cosine"}


def stopped_in_session_two(run, folder, epochs):
    """Perform a run until so many more epochs of its second session have been kept."""

    def stop(news):
        stop.second = stop.second or news.get("task") == 2
        stop.kept += stop.second and "loss" in news
        if stop.kept > epochs:
            raise KeyboardInterrupt

    stop.second, stop.kept = False, 0
    with pytest.raises(KeyboardInterrupt):
        perform(run, folder, stop)
    return Checkpoints(folder / "checkpoints", origin_of(run)).latest()["within"]


@pytest.mark.parametrize("rule", ["fo", "rise", "informed"])
def test_inside_a_session_the_next_step_is_the_runs(rule, tmp_path):
    """The run itself is the reference: one epoch further it has taken that step."""
    run = settings(
        rule={"name": rule} | ({} if rule == "rise" else {"q": 4}), head=ADAM, adapter=ADAM,
        loop={"checkpoint_seconds": 0.0, "batch": 16}, stream={"augment": "none"},
    )  # fmt: skip
    before = stopped_in_session_two(run, tmp_path / "run", 2)
    point = ReachedPoint.reach(run, 0, tmp_path / "run", tmp_path / "own")
    after = stopped_in_session_two(run, tmp_path / "run", 1)  # it goes on from where it was
    problem = problem_at(point, [], HOW)
    assert problem.rate == pytest.approx(run.head.lr_at(2))
    row, lengths = ExperimentRow("own", run), (1,)
    ((_, move, training),) = walk(point, row, problem.space, lengths, run.seed)
    for group in training.session.groups:
        for name, parameter in group.parameters.items():
            assert torch.equal(parameter, after["parameters"][group.name][name])
    # Other draws, with the moments that the run has gathered: of about the same length.
    steps = first_steps(point, problem.space, row, 2, seed=0)
    ratio = steps.norm(dim=0) / move.norm()
    assert ((ratio > 0.8) & (ratio < 1.25)).all()
    if rule == "rise":
        assert not torch.allclose(steps[:, 0], steps[:, 1], rtol=0.01)
    # Looking changes nothing of what is kept.
    for name, kept in before["optimizers"].items():
        found = point.within["optimizers"][name]["state"]
        torch.testing.assert_close(found, kept["state"], rtol=0, atol=0)


def test_another_row_goes_on_with_its_own_optimizer(tmp_path):
    run = settings(head=ADAM, adapter=ADAM, loop={"checkpoint_seconds": 0.0})
    stopped_in_session_two(run, tmp_path / "run", 2)
    point = ReachedPoint.reach(run, 0, tmp_path / "run", tmp_path / "own")
    plain = settings(head=SGD | {"epochs": 4, "lr": 0.1}, adapter=SGD | {"epochs": 4, "lr": 0.1})
    training = point.training(plain)
    assert not any(optimizer.state for optimizer in training.optimizers.values())
    next(iter(steps_from(training, point.epoch)))
    rates = {o.param_groups[0]["lr"] for o in training.optimizers.values()}
    assert rates == {plain.head.lr_at(2)}
    ended = replace(point, epoch=4)
    with pytest.raises(ValueError, match="session 2 takes no step: all its epochs are done"):
        _ = problem_at(ended, [], HOW).space


def test_some_steps_ahead_have_the_rate_of_their_epoch(tmp_path):
    run = settings(head=ADAM, adapter=ADAM)  # three steps an epoch
    point = ReachedPoint.reach(run, 2, None, tmp_path)
    rates = [problem_at(point, [], HOW, ahead).rate for ahead in (0, 2, 3, 7, 99)]
    assert rates == [run.head.lr_at(epoch) for epoch in (0, 0, 1, 2, 3)]


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
    found = diagnose_session(point, [ExperimentRow("informed", run)], HOW, "tiny")
    said = [verdict for verdict in found.verdicts if verdict.startswith("Rows with a memory")]
    assert [verdict.split()[4] for verdict in said] == [str(seen)] * (seen > 0)


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


def test_the_change_of_rows_is_that_of_their_steps_at_equal_progress(plain, point):
    """Against a slow reference: each draw's gradient and curvature by hand, draw by draw."""
    row = ExperimentRow("RISE", settings(rule={"name": "rise"}, head=SGD, adapter=SGD))
    space = problem_at(point, [row], HOW).space
    steps = steps_of_rows(point, space, [row, ExperimentRow("FO", plain)], HOW.draws, HOW.seed)
    problem = problem_at(point, [row], HOW)
    operator = problem.operator("ggn", 2)
    g, h = problem.gradient.double(), problem.past_gradient.double()
    plain_row, rise = row_forecasts(operator, problem.gradient, problem.past_gradient, steps)
    wanted = -(g @ steps["FO"].double()).mean()
    for found, moves in ((plain_row, steps["FO"]), (rise, steps["RISE"])):
        factor = wanted / -(g @ moves.double()).mean()
        at_progress = factor * moves.double()
        linear = (h @ at_progress).mean()
        damage = sum(x @ (operator @ x.float()[:, None])[:, 0].double() for x in at_progress.T) / 2
        assert found.linear == pytest.approx(linear.item(), rel=1e-6)
        change = (linear + damage / HOW.draws).item()
        assert found.change.value == pytest.approx(change, rel=1e-4)
        assert found.change.error > 0


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
    subject, choice, _, decision, *_ = text.splitlines()
    assert subject == "tiny, RISE (lr=0.01), seed 0: before session 2 of 2 (session 1)"
    assert choice == "the only run that was chosen"
    assert decision.startswith("Use ")
    (found,) = (tmp_path / "out" / "tiny" / "diagnosis").rglob("diagnosis.json")
    content = json.loads(found.read_text())
    assert content["subject"] == subject
    assert {"git", "python", "packages"} <= content["environment"].keys()
    assert [row["name"] for row in content["rows"]] == ["FO (lr=0.01)", "RISE (lr=0.01)"]
    assert found.with_suffix(".html").exists()
    assert main(["local", file, *out]) == 0
    assert "updates of 1 step" in capsys.readouterr().out
    (local,) = (tmp_path / "out").rglob("local.json")
    assert json.loads(local.read_text())["environment"] == content["environment"]
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


@pytest.mark.parametrize("whole", [False, True])
def test_single_blocks_are_those_of_the_row_or_whole_tensors(file, tmp_path, whole):
    path = tmp_path / "chunks.toml"
    path.write_text(TOML.replace('name = "rise"', 'name = "rise", chunk = 5'))
    words = ["--only", "RISE", "--set", f"validation.whole_tensors={str(whole).lower()}"]
    assert main(["foresight", str(path), *words, "--out", str(tmp_path), "--quiet"]) == 0
    content = json.loads((tmp_path / "tiny" / "foresight" / "foresight.json").read_text())
    sizes = {block["d"] for block in content["blocks"]}
    assert (max(sizes) <= 5) is not whole


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


ROWS = """
[[rows]]
label = "EWC"
additions = [{ name = "ewc" }]
rule = { name = "fo" }
[[rows]]
label = "informed"
rule = { name = "informed" }
"""


def choice_of(path, *words):
    from risegrad.lab.commands.foresight_choice import add_choice, chosen

    parser = argparse.ArgumentParser()
    add_choice(parser)
    return chosen(parser.parse_args([str(path), *words]))


def test_a_sweep_is_compared_at_the_chosen_rate(tmp_path):
    """Of the run's own method the run itself, of the others the middle; all tell their rates."""
    path = tmp_path / "swept.toml"
    path.write_text(TOML.replace("[[rows]]", "[sweep]\nlr = [0.1, 0.2, 0.3]\n[[rows]]", 1) + ROWS)
    found = choice_of(path, "--only", "RISE")
    assert found.cell.row.label == "RISE (lr=0.1)"
    assert [row.label for row in found.rows] == ["FO (lr=0.2)", "RISE (lr=0.1)"]
    assert found.choice == "the first of 3 runs that --only leaves; a row's label names another"
    assert found.left_out == (
        "EWC (additions differ)", "informed (it needs a memory, and this run keeps none)"
    )  # fmt: skip
    named = choice_of(path, "--only", "FO (lr=0.3)")
    assert [row.label for row in named.rows] == ["FO (lr=0.3)", "RISE (lr=0.2)"]
    assert named.choice == "the only run that was chosen"


def test_a_row_without_a_step_left_is_named(tmp_path):
    run = settings(head=ADAM, adapter=ADAM, loop={"checkpoint_seconds": 0.0})
    stopped_in_session_two(run, tmp_path / "run", 2)
    point = ReachedPoint.reach(run, 0, tmp_path / "run", tmp_path / "own")
    short = settings(head=SGD, adapter=SGD)
    rows = [ExperimentRow("short", short), ExperimentRow("own", run)]
    found = diagnose_session(point, rows, HOW, "tiny", left_out=["EWC (additions differ)"])
    assert [row.name for row in found.rows] == ["own"]
    assert found.left_out == (
        "EWC (additions differ)", "short (it has no step left in this session)"
    )  # fmt: skip


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
