"""The lines to use a method: around a loop of one's own they train as the run did."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import risegrad
from frontier import own_problems
from risegrad.common.seeds import generator_for, seed_for
from riselab.continual.batches import epoch_batches
from riselab.continual.rules import RULES
from riselab.frontier.found import FoundFrontier
from riselab.frontier.lines import code_of
from riselab.frontier.problem import METHODS, FrontierSettings

EXACT = ("adamw", "sgd", "interpolation")
"""Nothing is drawn, so that the lines must end where the run ended."""
THERE = [name for name, method in METHODS.items() if method.rule["name"] in RULES]


def own_search(out, methods, changes=()):
    settings = FrontierSettings(seeds=1, rates=2, epochs=20, changes=changes)
    return risegrad.frontier(
        own_problems.problem, methods=methods, minutes=30, out=out, settings=settings, show=False
    )


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    return own_search(tmp_path_factory.mktemp("own"), THERE, ("loop.keep_weights=true",))


def setting_of(found, name):
    """The method at its largest rate."""
    return found._described(found.frontier.curves[METHODS[name].label].settings[-1])


def trained(lines, problem, epochs=20, library=risegrad):
    """A person's own loop, with the lines where they say that they belong."""
    names = {"torch": torch, "risegrad": library, "model": problem.model,
             "keep_batches": problem.keep}  # fmt: skip
    begin = [line for line in lines if "# before optimizer" not in line and "# after" not in line]
    (clip,) = [line for line in lines if line.endswith("# before optimizer.step()")]
    exec("\n".join(begin), names)
    for epoch in range(epochs):
        for refs in epoch_batches(len(problem.new), 1, seed=0, task=1, epoch=epoch):
            for _, number in refs:
                names["optimizer"].zero_grad()
                problem.loss(problem.model, problem.new[number]).backward()
                exec(clip, names)
                names["optimizer"].step()
        if "schedule" in names:
            names["schedule"].step()
    exec("\n".join(line for line in lines if line.endswith("# after training")), names)
    right, total = map(
        sum, zip(*(problem.score(problem.model, b) for b in problem.new_test), strict=True)
    )
    return 100 * right / total


@pytest.mark.parametrize("name", [name for name in THERE if name != "ewc"])
def test_the_lines_of_every_method_train_the_model(own, name):
    best, problem = setting_of(own, name), own_problems.problem(0)
    assert len(best.code) <= 5
    before = [p.detach().clone() for p in problem.model.parameters()]
    score = trained(best.code, problem)
    assert any(
        not torch.equal(a, b) for a, b in zip(before, problem.model.parameters(), strict=True)
    )
    if name in EXACT:
        assert score == pytest.approx(best.learned.mean)


@pytest.mark.parametrize("name", ["informed", "keep"])
def test_with_the_draws_of_the_run_the_lines_end_with_its_weights(own, name):
    best, problem = setting_of(own, name), own_problems.problem(0)
    # The lab draws which batches it looks at in which order, and seeds each draw by its purpose.
    order = torch.randperm(8, generator=generator_for(0, "memory", 0)).tolist()
    problem = replace(problem, keep=[problem.keep[number] for number in order])
    score = trained(best.code, problem, library=Drawn)
    assert score == pytest.approx(best.learned.mean)
    (folder,) = Path(own.files["page"]).parent.rglob(f"{name}-lr-0-001-*/weights")
    ended = torch.load(folder / "state.pt", weights_only=True)
    torch.testing.assert_close(problem.model.state_dict(), ended)


class Drawn:
    """``risegrad`` with the seeds that a run of seed 0 takes for what must be kept."""

    Informed, attach = risegrad.Informed, risegrad.attach

    @staticmethod
    def remember(*args, **settings):
        seed = seed_for(0, "memory draws", 0) % 2**31
        return risegrad.remember(*args, seed=seed, **settings)

    @staticmethod
    def keep(*args, **settings):
        keeper = risegrad.keep(*args, seed=seed_for(0, "keep", 0) % 2**31, **settings)
        keeper.settings = replace(keeper.settings, seed=0)  # of the pulls
        return keeper


def test_what_was_set_is_in_the_lines(tmp_path):
    changes = ("adapter.clip=5", "rule.damping=0.07", "memory.rank=3")
    found = own_search(tmp_path, ("adamw", "informed"), changes)
    text = "\n".join(setting_of(found, "informed").code)
    for wanted in ("parameters(), 5.0)", 'damping=0.07, match="progress"', "rank=3", 'on="update"'):
        assert wanted in text


def test_a_large_memory_is_kept_whole_as_in_the_run(own):
    run = next(run for run in own.records if run.row.method == "informed")
    assert "budget" not in "".join(code_of(run).lines)
    large = replace(run, result=replace(run.result, memory_bytes=(0, 11 * 2**20)))
    assert "examples=256, budget=2**40)" in "".join(code_of(large).lines)


def test_a_falling_rate_is_in_the_lines(tmp_path):
    found = own_search(tmp_path, ("adamw",), ("adapter.schedule=cosine",))
    best, problem = setting_of(found, "adamw"), own_problems.problem(0)
    assert trained(best.code, problem) == pytest.approx(best.learned.mean)


def test_a_run_looks_at_so_many_examples_as_the_lines_say(tmp_path):
    found = own_search(tmp_path, ("keep",), ("memory.examples=40",))
    (run,) = (r for r in found.records if r.row.method == "keep" and r.row.swept == "lr=0.001")
    assert "keep_batches, examples=40, damping" in "".join(code_of(run).lines)
    problem = own_problems.problem(0)
    optimizer = torch.optim.AdamW(problem.model.parameters())
    keeper = risegrad.keep(problem.model, optimizer, problem.keep, examples=40)
    assert run.result.memory_bytes[0] == sum(keeper.report()["bytes"].values())


def test_a_method_of_the_lab_alone_is_named_with_its_settings(own):
    (told,) = [line for line in setting_of(own, "ewc").code if line.startswith("#")]
    assert told.startswith("# Only the lab has the rest of it: ")
    had = json.loads(told.partition(": ")[2])
    assert had["additions"][0]["weight"] == 100.0
    assert had["rule"] == {"name": "fo"}


def test_a_whole_network_for_images_is_one_model(tmp_path):
    random = np.random.default_rng(0)
    for name in ("a.npz", "b.npz"):
        shape, labels = random.integers(0, 255, (40, 4, 4), dtype=np.uint8), np.arange(40) % 2
        np.savez(tmp_path / name, train_images=shape, train_labels=labels, test_images=shape,
                 test_labels=labels)  # fmt: skip
    settings = FrontierSettings(seeds=1, rates=2, epochs=1, teach=1, changes=("adapter.clip=0.5",))
    found = risegrad.frontier(
        "mlp", keep=tmp_path / "a.npz", new=tmp_path / "b.npz", methods=("informed",), minutes=30,
        out=tmp_path / "out", settings=settings, show=False,
    )  # fmt: skip
    assert "clip_grad_norm_(model.parameters(), 0.5)" in setting_of(found, "informed").code[-1]
    assert found.records[0].setting("rule", "name") == "fo"


def test_records_without_the_setting_match_had_the_old_one(own):
    run = next(run for run in own.records if run.row.method == "informed")
    del run.config["rule"]["match"]
    assert 'match="norm"' in "".join(code_of(run).lines)


def test_the_winner_is_a_block_of_code_in_a_notebook(own):
    best = FoundFrontier(own.title, own.methods, own.records).best()
    shown = best._repr_markdown_()
    assert shown.startswith(best.method.replace("_", r"\_").split(" ")[0])
    assert "\n\n```python\n" in shown
    assert shown.endswith("\n```")
