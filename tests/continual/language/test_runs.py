"""Whole runs on a few texts: every host and rule, additions, resuming, and the record."""

import pytest
import torch

from continual.language.tiny_text import config, save_model
from risegrad.zeroth_order import spsa
from riselab.continual.devices import Devices
from riselab.continual.host import silent
from riselab.continual.runs import estimate, make_host, perform, read_config
from riselab.continual.training import SessionTraining

HOSTS = ("seq-lora", "inc-lora", "o-lora")


def run(plain, folder, report=silent):
    return perform(read_config(plain), folder, report)


def without_times(result):
    return {name: value for name, value in result.items() if name != "seconds"}


def test_the_record_has_both_scores_zero_shot_and_transfer(data, weights, tmp_path):
    found = run(config(data, weights), tmp_path)
    assert found["main_score"] == "exact_match"
    assert set(found["scores"]) == set(found["before"]) == {"exact_match", "constrained"}
    matrix = found["scores"]["exact_match"]["matrix"]
    assert [len(row) for row in matrix] == [2, 3, 3]
    metrics, before = found["metrics"], found["before"]["exact_match"]
    assert metrics["avg"] == pytest.approx(sum(matrix[2]) / 3)
    assert metrics["last"] == matrix[2][2]
    expected = (matrix[0][1] - before[1] + matrix[1][2] - before[2]) / 2
    assert metrics["forward_transfer"] == pytest.approx(expected)
    assert {"constrained_avg", "constrained_last", "constrained_forgetting"} <= set(metrics)
    union = found["scores"]["exact_match"]["union"]
    assert union[0] == pytest.approx(matrix[0][0])  # the task ahead is not in it


def test_without_zero_shot_rows_end_at_the_diagonal(data, weights, tmp_path):
    found = run(config(data, weights, host={"zero_shot": False}), tmp_path)
    assert [len(row) for row in found["scores"]["constrained"]["matrix"]] == [1, 2, 3]
    assert found["before"] == {}
    assert "forward_transfer" not in found["metrics"]


@pytest.mark.parametrize(
    ("host", "rule"),
    [("seq-lora", {"name": "zo", "q": 1}), ("inc-lora", {"name": "zo", "q": 1}),
     ("o-lora", {"name": "rise"}), ("inc-lora", {"name": "rise", "on": "update"}),
     ("o-lora", {"name": "scaled-fo", "on": "update"})],
)  # fmt: skip
def test_hosts_learn_by_every_kind_of_rule(data, weights, tmp_path, host, rule):
    plain = config(data, weights, host={"name": host, "zero_shot": False}, rule=rule)
    found = run(plain, tmp_path)
    assert len(found["losses"]) == 3
    assert found["trainable"]["lora"] == 12 * 2 * 2 * 16


@pytest.mark.parametrize(
    ("host", "rule", "on"),
    [("seq-lora", "isotropic-noise", "gradient"), ("seq-lora", "covariance-noise", "update"),
     ("o-lora", "covariance-noise", "gradient")],
)  # fmt: skip
def test_noise_controls(data, weights, tmp_path, host, rule, on):
    plain = config(
        data,
        weights,
        stream={"tasks": ["SST-2", "RTE"], "train_size": 4, "test_size": 2},
        host={"name": host, "zero_shot": False},
        rule={"name": rule, "on": on},
    )
    losses = run(plain, tmp_path / "noise")["losses"]
    assert losses == run(plain, tmp_path / "again")["losses"]
    exact = run(plain | {"rule": {"name": "fo"}}, tmp_path / "exact")["losses"]
    assert losses[0] == exact[0]  # one batch: the loss is from before the first step
    assert losses[1] != exact[1]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_scaled_fo_on_the_update_is_a_smaller_step(data, weights, tmp_path, precision):
    """On the gradient AdamW does not see it; on the update each tensor moves less."""
    moved = {}
    for name, on in (("fo", "gradient"), ("scaled-fo", "gradient"), ("scaled-fo", "update")):
        plain = config(data, weights, rule={"name": name, "on": on}, loop={"precision": precision})
        host = make_host(read_config(plain), Devices(precision))
        layer = next(iter(host.kit.model.layers.values()))
        before = layer.A.detach().clone()
        kit = host.kit
        training = SessionTraining(host.begin(0), kit.loop, kit.devices, (), 0)
        training.epoch(0, silent)
        moved[name, on] = (layer.A.detach() - before).norm().item()
    assert moved["scaled-fo", "gradient"] == pytest.approx(moved["fo", "gradient"], rel=0.05)
    assert moved["scaled-fo", "update"] < 0.6 * moved["fo", "gradient"]


@pytest.mark.parametrize("host", ["seq-lora", "o-lora"])
def test_zeroth_order_evaluates_in_float32_whatever_the_precision(data, weights, monkeypatch, host):
    """Under autocast they were off by as much as they are."""
    slopes = {}
    for precision in ("float32", "bfloat16"):
        rule, loop = {"name": "zo", "q": 2}, {"precision": precision}
        plain = config(data, weights, host={"name": host}, rule=rule, loop=loop)
        kit = (made := make_host(read_config(plain), Devices(precision))).kit
        found = slopes[precision] = []
        monkeypatch.setattr(
            "riselab.continual.training.spsa",
            lambda *args, found=found, **kwargs: found.append(spsa(*args, **kwargs)) or found[-1],
        )
        SessionTraining(made.begin(0), kit.loop, kit.devices, (), 0).epoch(0, silent)
    assert len(slopes["float32"]) == 3
    assert slopes["bfloat16"] == slopes["float32"]


def test_training_lowers_the_loss(data, weights, tmp_path):
    stream = {"tasks": ["SST-2"]}
    plain = config(data, weights, stream=stream, adapter={"lr": 0.02, "epochs": 12})
    losses = [entry["loss"] for entry in run(plain, tmp_path)["losses"]]
    assert losses[-1] < 0.7 * losses[0]


class KilledHere(Exception):
    pass


def killed_runs_go_on_to_the_same_end(plain, folder):
    """Killed within a session and between two; each goes on from its checkpoint."""
    expected = without_times(run(plain, folder / "whole"))
    for last in (1, 2, 3):

        def report(news, left=[last]):  # noqa: B006
            left[0] -= "loss" in news
            if left[0] < 0:
                raise KilledHere

        with pytest.raises(KilledHere):
            run(plain, folder / str(last), report)
        assert without_times(run(plain, folder / str(last))) == expected


@pytest.mark.parametrize("host", HOSTS)
def test_a_killed_run_goes_on_to_the_same_end(data, weights, tmp_path, host):
    """Killed before the first task, in the second epoch of the second, and before the third."""
    plain = config(
        data,
        weights,
        host={"name": host},
        rule={"name": "rise"},
        adapter={"epochs": 2},
        loop={"checkpoint_seconds": 0, "batch": 6},
    )
    whole = run(plain, tmp_path / "whole")
    batches = 0

    def killer(task=0, batch=0):
        def kill(news):
            nonlocal batches
            batches += "batch" in news
            if news.get("task") == task or ("batch" in news and batches == batch):
                raise KilledHere

        return kill

    for death in (killer(task=1), killer(batch=7), killer(task=3)):
        with pytest.raises(KilledHere):
            run(plain, tmp_path / "killed", death)
    assert without_times(run(plain, tmp_path / "killed")) == without_times(whole)


def test_processes_that_load_batches_change_nothing(data, weights, tmp_path):
    stream = {"tasks": ["SST-2", "RTE"]}
    additions = [{"name": "replay", "size": 4}]
    found = [
        run(config(data, weights, stream=stream, additions=additions, loop={"workers": n}), folder)
        for n, folder in ((0, tmp_path / "none"), (1, tmp_path / "one"))
    ]
    assert without_times(found[0]) == without_times(found[1])


def test_seeds_differ_in_everything_but_the_examples(data, weights, tmp_path):
    stream = {"train_size": 8, "test_size": 4}
    first = run(config(data, weights, stream=stream, seed=0), tmp_path / "a")
    second = run(config(data, weights, stream=stream, seed=1), tmp_path / "b")
    assert first["tasks"] == second["tasks"]
    assert first["losses"] != second["losses"]
    assert first["before"]["constrained"] == second["before"]["constrained"]


def test_replay_and_ewc_compose_with_seqlora(data, weights, tmp_path):
    additions = [{"name": "replay", "size": 8}, {"name": "ewc", "weight": 10.0, "samples": 4}]
    found = run(config(data, weights, additions=additions), tmp_path)
    plain = run(config(data, weights), tmp_path / "plain")
    assert found["losses"][0] == plain["losses"][0]  # nothing to remember in the first task
    assert found["losses"][1] != plain["losses"][1]


SGD = {"optimizer": "sgd", "lr": 0.1}


@pytest.mark.parametrize("rule", ["fo", "rise"])
def test_an_addition_that_changes_gradients(data, weights, tmp_path, rule):
    stream = {"tasks": ["SST-2", "RTE"]}
    sections = {"stream": stream, "rule": {"name": rule}, "adapter": SGD}
    gpm = {"name": "gpm", "samples": 4}
    found = run(config(data, weights, additions=[gpm], **sections), tmp_path / "with")
    plain = run(config(data, weights, **sections), tmp_path / "without")
    assert found["losses"][0] == plain["losses"][0], "there is nothing to protect yet"
    assert found["losses"][1] != plain["losses"][1]


@pytest.mark.parametrize("addition", ["replay", "ewc", "gpm"])
def test_a_killed_run_with_an_addition_goes_on_to_the_same_end(data, weights, tmp_path, addition):
    sizes = {"replay": {"size": 4}, "ewc": {"samples": 2}}
    plain = config(
        data,
        weights,
        stream={"tasks": ["SST-2", "RTE", "agnews"], "train_size": 4, "test_size": 2},
        host={"zero_shot": False},
        rule={"name": "rise"},
        adapter=SGD,
        additions=[{"name": addition} | sizes.get(addition, {"samples": 2})],
    )
    whole = run(plain, tmp_path / "whole")

    def kill(news):
        if news.get("task") == 3:
            raise KilledHere

    with pytest.raises(KilledHere):
        run(plain, tmp_path / "killed", kill)
    assert without_times(run(plain, tmp_path / "killed")) == without_times(whole)


@pytest.mark.parametrize(
    ("host", "addition", "rule", "message"),
    [
        ("seq-lora", "all-classes", "fo", "'all-classes' does not .* knows no classes to leave"),
        ("seq-lora", "lwf", "fo", "'lwf' needs the scores of all classes seen"),
        ("seq-lora", "gpm", "fo", "'gpm' does not compose with group 'lora': optimizer 'adamw'"),
        ("inc-lora", "replay", "fo", "'replay' does not compose with host 'inc-lora'"),
        ("o-lora", "gpm", "fo", "'gpm' does not compose with host 'o-lora'"),
    ],
)
def test_additions_that_do_not_fit(data, weights, tmp_path, host, addition, rule, message):
    plain = config(
        data,
        weights,
        host={"name": host, "zero_shot": False},
        rule={"name": rule},
        additions=[{"name": addition}],
    )
    with pytest.raises(ValueError, match=message):
        run(plain, tmp_path)


def test_replay_composes_with_zeroth_order(data, weights, tmp_path):
    additions = [{"name": "replay", "size": 8}]
    rule = {"name": "zo", "q": 1}
    assert run(config(data, weights, additions=additions, rule=rule), tmp_path)["losses"]


def test_what_does_not_compose_is_refused(data, weights):
    plain = config(data, weights, host={"name": "o-lora"}, additions=[{"name": "ewc"}])
    with pytest.raises(ValueError, match="'ewc' does not compose with host 'o-lora'"):
        read_config(plain)


@pytest.mark.parametrize("kind", ["bert", "llama", "gpt2", "bart"])
def test_encoders_and_decoders_too(tokenizer, data, tmp_path, kind):
    weights = save_model(tmp_path / "model", kind, tokenizer)
    found = run(config(data, weights, host={"name": "o-lora"}), tmp_path)
    assert ("head" in found["trainable"]) == (kind == "bert")
    again = run(config(data, weights, host={"name": "o-lora"}), tmp_path / "again")
    assert without_times(found) == without_times(again)


def test_an_encoder_cannot_learn_labels_outside_the_set(tokenizer, data, tmp_path):
    weights = save_model(tmp_path / "model", "bert", tokenizer)
    host = make_host(read_config(config(data, weights)), Devices())
    object.__setattr__(host.kit.stream[0].train, "labels", (-1,) * 12)
    with pytest.raises(ValueError, match=r"got 12 others in the training examples of agnews"):
        host.begin(0)


def test_clipping_comes_before_the_shape(data, weights):
    """A shaped gradient has the norm that clipping left, and not a norm that is clipped again."""
    norms = {}
    for clip in (1e-3, 0.0):
        plain = config(data, weights, rule={"name": "rise"}, adapter={"clip": clip, "lr": 1e-8})
        host = make_host(read_config(plain), Devices())
        kit = host.kit
        training = SessionTraining(host.begin(0), kit.loop, kit.devices, (), 0)
        training.epoch(0, silent)
        parameters = training.session.groups[0].parameters.values()
        norms[clip] = torch.stack([p.grad.norm() for p in parameters if p.grad is not None]).norm()
    assert norms[1e-3] < 3e-3 < norms[0.0]


def test_estimate_counts_texts(data, weights):
    plain = config(data, weights, rule={"name": "zo", "q": 2})
    assert estimate(read_config(plain)) == {
        "tasks": 3,
        "train texts": 36,
        "test texts": 18,
        "forward": 36 * 4 + 6 * (3 + 2 + 1) + 18 + 12,
        "backward": 0,
    }


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"host": {"name": "olora"}}, r"host\.name must be one of .*did you mean 'o-lora'"),
        ({"model": {"rank": 0}}, r"model: rank must be an integer >= 1, got 0"),
        ({"model": {"cut": "middle"}}, r"model\.cut: expected one of 'end', 'text'"),
        ({"stream": {"task": []}}, r"stream\.task: unknown, did you mean 'tasks'"),
        ({"adapter": {"lr": 0.0}}, r"adapter: lr must be a finite number > 0, got 0"),
    ],
)
def test_bad_settings(data, weights, sections, message):
    with pytest.raises(ValueError, match=message):
        read_config(config(data, weights, **sections))


def test_scores_on_validation_examples(data, weights, tmp_path):
    stream = {"tasks": ["SST-2"], "validation": 0.25}
    found = run(
        config(data, weights, stream=stream, loop={"score_on": "validation"}), tmp_path / "a"
    )
    assert found["tasks"][0] | {"classes": 0} == {
        "name": "SST-2", "classes": 0, "train": 9, "validation": 3, "test": 6,
    }  # fmt: skip
    shares = [round(100 * n / 3, 6) for n in range(4)]  # of three examples, not of six
    for score in found["scores"].values():
        assert round(score["matrix"][0][0], 6) in shares


def test_no_validation_examples_to_score_on(data, weights, tmp_path):
    with pytest.raises(ValueError, match="agnews has no validation examples to score on"):
        run(config(data, weights, loop={"score_on": "validation"}), tmp_path)
