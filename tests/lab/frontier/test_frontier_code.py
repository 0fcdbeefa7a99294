"""The lines to use a method: each program is run, and what it does is compared with the run."""

import tomllib
from dataclasses import replace

import numpy as np
import pytest
import torch

import risegrad
from continual.language.tiny_text import make_model, make_tokenizer, save_model, write_task
from lab.frontier import own_problems
from riselab.continual.batches import epoch_batches
from riselab.experiments.cells import expand
from riselab.experiments.file import Experiment, RowTable
from riselab.frontier.found import FoundFrontier
from riselab.frontier.grid import FrontierGrid
from riselab.frontier.lines import code_of
from riselab.frontier.problem import METHODS, FrontierSettings, problem_of
from riselab.running import workload

EXACT = ("adamw", "sgd", "interpolation")
"""Nothing is drawn, so that the lines must end where the run ended."""


def own_search(out, methods, changes=()):
    settings = FrontierSettings(seeds=1, rates=2, epochs=20, changes=changes)
    return risegrad.frontier(
        own_problems.problem, methods=methods, minutes=30, out=out, settings=settings, show=False
    )


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    return own_search(tmp_path_factory.mktemp("own"), tuple(METHODS))


class AsInTheRun:
    """Batches in the order that the lab has in each epoch."""

    def __init__(self, batches, seed=0):
        self.batches, self.seed, self.epoch = batches, seed, 0

    def __iter__(self):
        plan = epoch_batches(len(self.batches), 1, seed=self.seed, task=1, epoch=self.epoch)
        self.epoch += 1
        return (self.batches[number] for refs in plan for _, number in refs)


def setting_of(found, name):
    """The method at its largest rate."""
    return found._described(found.frontier.curves[METHODS[name].label].settings[-1])


def trained(lines, problem):
    names = {"model": problem.model, "loss": problem.loss, "keep_batches": problem.keep}
    exec("\n".join(lines), names | {"new_batches": AsInTheRun(problem.new)})
    return problem.model


@pytest.mark.parametrize("name", [name for name in METHODS if name != "ewc"])
def test_the_lines_of_every_method_train_as_the_run_did(own, name):
    best, problem = setting_of(own, name), own_problems.problem(0)
    assert best.use.language == "python"
    before = [p.detach().clone() for p in problem.model.parameters()]
    model = trained(best.code, problem)
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    right, total = map(sum, zip(*(problem.score(model, b) for b in problem.new_test), strict=True))
    if name in EXACT:
        assert 100 * right / total == pytest.approx(best.learned.mean)
    elif name == "informed":  # nearly: what a memory is made from is drawn
        assert 100 * right / total == pytest.approx(best.learned.mean, abs=3)


def test_what_was_set_is_in_the_lines(tmp_path):
    changes = ("adapter.clip=5", "rule.damping=0.07", "adapter.schedule=cosine")
    found = own_search(tmp_path, ("adamw", "informed"), changes)
    text = "\n".join(setting_of(found, "informed").code)
    for wanted in ("parameters(), 5.0)", "damping=0.07", "range(20)", "T_max=20"):
        assert wanted in text
    best = setting_of(found, "adamw")
    problem = own_problems.problem(0)
    model = trained(best.code, problem)
    right = sum(problem.score(model, batch)[0] for batch in problem.new_test)
    assert 100 * right / 128 == pytest.approx(best.learned.mean)


def test_what_the_lines_do_not_follow_is_said(tmp_path):
    changes = ("rule.only=['model.0.*']", "memory.change=diagonal")
    found = own_search(tmp_path, ("adamw", "informed"), changes)
    text = " ".join(line.strip("# ") for line in setting_of(found, "informed").code)
    assert "The run also had" in text
    assert "rule.only=['model.0.*']" in text
    assert "memory.change=diagonal" in text


def test_a_method_of_the_lab_alone_is_told_as_a_row(own):
    """The row, in an experiment with the sections of the search, is the very same run."""
    best = setting_of(own, "ewc")
    assert best.use.language == "toml"
    assert "Only the lab has EWC" in best.code[0]
    (row,) = tomllib.loads("\n".join(best.code))["rows"]
    assert row["additions"][0]["weight"] == 100.0
    settings = FrontierSettings(epochs=20)
    problem = problem_of(own_problems.problem, [], [], settings)
    experiment = Experiment(name="mine", title="", domain=problem.domain, rows=(RowTable(**row),),
                            seeds=(0,), **problem.sections)  # fmt: skip
    (cell,) = expand(experiment, workload.load().read_config)
    assert cell.id in {record.id for record in own.records}


def images(folder, *names):
    random = np.random.default_rng(0)
    for name in names:
        shape = random.integers(0, 255, (40, 4, 4), dtype=np.uint8)
        labels = np.arange(40) % 2
        np.savez(folder / name, train_images=shape, train_labels=labels, test_images=shape,
                 test_labels=labels)  # fmt: skip
    return [str(folder / name) for name in names]


def test_images_with_two_new_sets(tmp_path):
    """Network and head are clipped each by itself; after each new set it is remembered, too."""
    keep, other, *new = images(tmp_path, "a.npz", "b.npz", "c.npz", "d.npz")
    settings = FrontierSettings(seeds=1, rates=2, epochs=1, teach=1, changes=("adapter.clip=0.5",))
    found = risegrad.frontier(
        "mlp", keep=[keep, other], new=new, methods=("informed",), minutes=30,
        out=tmp_path / "out", settings=settings, show=False,
    )  # fmt: skip
    lines = setting_of(found, "informed").code
    clipped = [line.strip() for line in lines if "clip_grad_norm_" in line]
    assert clipped == [
        "torch.nn.utils.clip_grad_norm_(network.parameters(), 0.5)",
        "torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)",
    ]
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 8), torch.nn.ReLU())
    batches = [(torch.rand(4, 4, 4), torch.arange(4) % 2) for _ in range(10)]
    names = {
        "network": network, "head": torch.nn.Linear(8, 2), "keep_sets": [batches, batches],
        "new_sets": [batches, batches], "loss": own_problems.loss,
    }  # fmt: skip
    exec("\n".join(lines), names)
    assert names["memory"]


@pytest.fixture(scope="module")
def text_grid(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    for name in ("agnews", "SST-2"):
        write_task(folder / "far" / name, name)
    save_model(folder / "model")
    settings = FrontierSettings(
        seeds=1, rates=2, examples=8, methods=tuple(METHODS), out=str(folder / "out"),
        changes=("model.rank=2", "model.source_length=64", "model.target_length=4",
                 "model.dropout=0.0"),
    )  # fmt: skip
    places = [[str(folder / "far" / name / name)] for name in ("agnews", "SST-2")]
    grid = FrontierGrid(problem_of(str(folder / "model"), *places, settings), settings, print)
    grid.run()
    return grid


@pytest.mark.parametrize("name", [name for name in METHODS if name != "ewc"])
def test_the_lines_for_texts_train_lora_alone(text_grid, name):
    assert text_grid.targets() == ("q", "v")
    label = METHODS[METHODS[name].of or name].label
    run = next(run for run in text_grid.records() if run.row.method == label)
    use = code_of(run, text_grid.targets(), "0.5" if METHODS[name].of else "")
    text = "\n".join(use.lines)
    assert 'r=2, lora_alpha=32, lora_dropout=0.0, target_modules=["q", "v"]' in text
    assert "of 8 texts" in text
    before = make_model("t5", make_tokenizer())
    tokens = torch.randint(3, 20, (3, 8, 6), generator=torch.Generator().manual_seed(0))
    batches = [{"input_ids": rows, "labels": rows[:, :3].contiguous()} for rows in tokens]
    names = {
        "model": make_model("t5", make_tokenizer()), "new_batches": batches,
        "keep_batches": batches, "loss": lambda model, batch: model(**batch).loss,
    }  # fmt: skip
    exec(text, names)
    after = dict(names["model"].named_parameters())
    kept = {n.replace(".base_layer", ""): p for n, p in after.items() if "lora_" not in n}
    for n, parameter in before.named_parameters():
        assert torch.equal(kept[f"base_model.model.{n}"], parameter)
    assert any(p.count_nonzero() for n, p in after.items() if "lora_B" in n)


def test_a_memory_beyond_the_usual_budget_is_asked_for_as_the_run_had_it(text_grid):
    """A run that keeps all eigenpairs goes by no budget; ``remember`` does, unless told."""
    run = next(run for run in text_grid.records() if run.row.method == "informed")
    large = replace(run, result=replace(run.result, memory_bytes=(5, 300 * 2**20 + 1)))
    assert "budget" not in "".join(code_of(run, text_grid.targets()).lines)
    assert ", budget=301 * 2**20)" in "".join(code_of(large, text_grid.targets()).lines)


def test_a_head_that_was_trained_beside_an_encoder_is_named(text_grid):
    run = next(iter(text_grid.records()))
    both = replace(run, result=replace(run.result, trainable={"lora": 9, "head": 3}))
    for one, named in ((run, False), (both, True)):
        assert ("modules_to_save" in " ".join(code_of(one, ("q",)).lines)) is named


def test_the_winner_is_a_block_of_code_in_a_notebook(own):
    best = FoundFrontier(own.title, own.methods, own.records).best()
    shown = best._repr_markdown_()
    assert shown.startswith(best.method.replace("_", r"\_").split(" ")[0])
    assert f"\n\n```{best.use.language}\n" in shown
    assert shown.endswith("\n```")
