"""The encoder for short texts: it learns, and scores as a slow reference does."""

import json
import re
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModel

from continual.language.test_processes import two_processes
from continual.language.test_runs import killed_runs_go_on_to_the_same_end, run
from continual.language.tiny_text import WORDS, config, save_model
from riselab.continual.devices import Devices
from riselab.continual.host import silent
from riselab.continual.runs import make_host, perform, read_config
from riselab.continual.training import SessionTraining

TASKS = {"colours": ["red", "green", "blue"], "num-bers": ["one", "two_three", "red"]}


def write_intents(root, sizes=(24, 12)):
    """Names of folders that no pool has; a word of the text tells its label; "red" is in both."""
    for shift, (name, labels) in enumerate(TASKS.items()):
        (root / name).mkdir(parents=True)
        (root / name / "labels.json").write_text(json.dumps(labels))
        for split, count in zip(("train", "test"), sizes, strict=True):
            examples = [
                {
                    "sentence": " ".join(["", WORDS[6 + n % 3 + 3 * shift], *WORDS[12:][: n % 4]]),
                    "label": labels[n % 3],
                }
                for n in range(count)
            ]
            (root / name / f"{split}.json").write_text(json.dumps(examples))
    return root


@pytest.fixture(scope="session")
def intents(tmp_path_factory):
    return write_intents(tmp_path_factory.mktemp("intents"))


@pytest.fixture(scope="session")
def encoder(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("encoder"), "bert")


@pytest.fixture
def plain(intents, encoder):
    def make(**sections):
        sections["host"] = {"name": "label-encoder"} | sections.get("host", {})
        sections["stream"] = {"tasks": list(TASKS)} | sections.get("stream", {})
        return config(intents, encoder, **sections)

    return make


def host_of(made):
    return make_host(read_config(made), Devices())


def slow_vector(host, text):
    """The mean of one text's last states, by itself, in float64."""
    model = host.kit.model
    net = model.net.double().eval()
    with torch.no_grad():
        states = net(**model.tokenizer([text], return_tensors="pt")).last_hidden_state[0]
    model.net.float()
    mean = states.mean(0)
    return mean / mean.norm()


def test_it_learns(plain, tmp_path):
    adapter = {"lr": 0.03, "epochs": 20}
    found = run(plain(adapter=adapter, model={"dropout": 0.0}), tmp_path)
    assert found["main_score"] == "accuracy"
    assert set(found["trainable"]) == {"lora"}
    before, after = found["before"]["accuracy"], found["scores"]["accuracy"]["matrix"]
    for task in range(2):
        assert after[task][task] > max(before[task], 90)
    side = found["scores"]["all_labels"]["matrix"]
    assert side[1][0] <= after[1][0]
    assert found["metrics"]["all_labels_avg"] == pytest.approx((side[1][0] + side[1][1]) / 2)


def test_labels_are_embedded_by_the_pretrained_model_as_plain_words(plain):
    host = host_of(plain())
    assert host.kit.labels == ("red", "green", "blue", "one", "two_three")
    for label, vector in zip(host.kit.labels, host.labels, strict=True):
        torch.testing.assert_close(
            vector.double(), slow_vector(host, label.replace("_", " ")), rtol=1e-4, atol=1e-5
        )
    before = host.labels.clone()
    kit = host.kit
    SessionTraining(host.begin(0), kit.loop, kit.devices, (), 0).epoch(0, silent)
    assert torch.equal(before, host.labels)


@pytest.mark.parametrize("main", ["accuracy", "stream_labels"])
def test_scores_are_those_of_a_slow_reference(plain, main):
    host = host_of(plain(adapter={"lr": 0.05}, host={"main": main}))
    kit = host.kit
    SessionTraining(host.begin(0), kit.loop, kit.devices, (), 0).epoch(0, silent)
    host.finish(0)
    found = host.score([0, 1])
    labels = torch.stack([slow_vector(host_of(plain()), x.replace("_", " ")) for x in kit.labels])
    seen = {0: [0, 1, 2], 1: [0, 1, 2, 3, 4]}  # learned, and the task's own
    assert list(found) == [main, "all_labels" if main == "accuracy" else "accuracy"]
    for task, own in enumerate(([0, 1, 2], [3, 4, 0])):
        choices = {"accuracy": own, "all_labels": seen[task], "stream_labels": [0, 1, 2, 3, 4]}
        for name in found:
            allowed = choices[name]
            hits = 0
            for text, answer in zip(
                kit.stream[task].test.prompts, kit.stream[task].test.answers, strict=True
            ):
                cosines = labels @ slow_vector(host, text)
                hits += kit.labels[max(allowed, key=lambda place: cosines[place])] == answer
            assert (found[name][task].hits, found[name][task].total) == (hits, 12)


def test_the_loss_is_over_the_tasks_own_labels_or_all_seen(plain):
    host = host_of(plain(host={"scale": 5.0}, model={"dropout": 0.0}))
    host.kit.model.module.eval()
    session = host.begin(1)
    session.module.eval()
    assert session.seen_before == 3
    batch = session.items.fetch([(1, 0), (1, 1), (1, 2), (1, 5)], 0)
    assert batch.targets.tolist() == [3, 4, 0, 0]
    with torch.no_grad():
        scores = session.logits(batch)
        texts = torch.stack([slow_vector(host, host.kit.stream[1].train.prompts[n]) for n in
                             (0, 1, 2, 5)])  # fmt: skip
        torch.testing.assert_close(
            scores.double(), 5 * texts @ host.labels.double().T, rtol=1e-4, atol=1e-4
        )
        own = torch.log_softmax(scores[:, [3, 4, 0]], 1)[range(4), [0, 1, 2, 2]]
        every = torch.log_softmax(scores, 1)[range(4), [3, 4, 0, 0]]
        for every_class, expected in ((False, -own.mean()), (True, -every.mean())):
            torch.testing.assert_close(session.loss(batch, every_class), expected)
            torch.testing.assert_close(session.loss_of_logits(scores, batch, every_class), expected)


@pytest.mark.parametrize(
    ("addition", "budget"),
    [
        ({"name": "lwf"}, {}),
        ({"name": "replay", "size": 6}, {}),
        ({"name": "all-classes"}, {}),
        ({"name": "ewc", "samples": 4}, {}),
        ({"name": "gpm", "samples": 4}, {"optimizer": "sgd"}),
    ],
)
def test_additions(plain, tmp_path, addition, budget):
    without = run(plain(adapter=budget), tmp_path / "without")
    found = run(plain(additions=[addition], adapter=budget), tmp_path / "with")
    assert found["losses"][0] == without["losses"][0]  # nothing to protect yet
    assert found["losses"][-1] != without["losses"][-1]


def test_a_killed_run_goes_on_to_the_same_end(plain, tmp_path):
    made = plain(adapter={"epochs": 2}, loop={"checkpoint_seconds": 0.0})
    killed_runs_go_on_to_the_same_end(made, tmp_path)


@pytest.mark.slow  # three interpreters load transformers
def test_two_processes_learn_what_one_learns(plain, intents, tmp_path):
    path = save_model(tmp_path / "model", "bert") / "config.json"
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    path.write_text(json.dumps(json.loads(path.read_text()) | still))
    made = plain(model={"weights": str(tmp_path / "model"), "dropout": 0.0})
    expected = perform(read_config(made), tmp_path / "one", silent)
    for found in two_processes(made, tmp_path / "two"):
        assert found["scores"] == expected["scores"]
        for mine, other in zip(found["losses"], expected["losses"], strict=True):
            assert mine["loss"] == pytest.approx(other["loss"], rel=1e-4)


def test_it_reads_the_sentence_alone_unless_told(plain):
    assert host_of(plain()).kit.stream[0].test.prompts[1] == f"{WORDS[7]} fine"
    asked = host_of(plain(stream={"prompt": "instruction"})).kit.stream[0].test.prompts[1]
    assert re.fullmatch(
        r"Task:TC\nDataset:colours\nWhat is the topic .*\nOption: red, green, blue \n .*\nAnswer:",
        asked,
    )


def test_a_model_that_writes_is_refused(intents, weights):
    with pytest.raises(ValueError, match=r"'label-encoder' needs an encoder such as BERT, got t5"):
        host_of(config(intents, weights, host={"name": "label-encoder"},
                       stream={"tasks": list(TASKS)}))  # fmt: skip


def test_labels_of_the_same_words_are_refused(tmp_path, plain):
    root = write_intents(tmp_path)
    (root / "colours" / "labels.json").write_text('["red", "green", "blue", "two three"]')
    made = plain(stream={"data": str(root)})
    with pytest.raises(ValueError, match=r"differ in their words.* got 'two three', which reads"):
        host_of(made)


def test_no_test_examples_of_the_split(plain, tmp_path):
    with pytest.raises(ValueError, match="colours has no validation examples to score on"):
        run(plain(loop={"score_on": "validation"}), tmp_path)


def test_the_experiment_file_runs(intents, encoder, tmp_path):
    from riselab.experiments.cells import expand
    from riselab.experiments.file import load_experiment

    given = [
        f"model.weights={encoder}", f"stream.data={intents}", f"stream.tasks={list(TASKS)}",
        "stream.train_size=12", "stream.test_size=6", "seeds=[0]", "model.rank=2",
    ]  # fmt: skip
    cells = expand(load_experiment("banking77", given), read_config)
    assert {cell.config["adapter"]["optimizer"] for cell in cells} == {"adamw", "sgd"}
    found = perform(read_config(cells[0].settings), Path(tmp_path), silent)
    assert len(found["scores"]["accuracy"]["matrix"]) == 2


def test_peft_loads_the_kept_adapter(plain, encoder, tmp_path):
    """``loop.keep_weights``: on the encoder as transformers loads it."""
    made = plain(loop={"keep_weights": True}, adapter={"lr": 0.03})
    perform(read_config(made), tmp_path, silent)
    kept, words = tmp_path / "weights", torch.arange(3, 11).reshape(2, 4)
    ours = host_of(made)
    ours.load_state_dict(torch.load(kept / "state.pt"))
    base = AutoModel.from_pretrained(encoder).eval()
    with torch.no_grad():
        before = base(input_ids=words).last_hidden_state
        expected = ours.kit.model.net.eval()(input_ids=words).last_hidden_state
        found = PeftModel.from_pretrained(base, kept).eval()(input_ids=words).last_hidden_state
    assert (expected - before).abs().max() > 1e-4, "something was learned"
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert not (kept / "head.safetensors").exists(), "it has no head"


def test_o_lora_adds_a_pair_for_every_task_across_the_earlier_ones(plain, tmp_path):
    """Its penalty by the formula, frozen pairs, and what it leaves of the overlap."""
    overlaps = {}
    for lambda1 in (0.0, 5.0):
        made = plain(
            host={"name": "o-label-encoder", "lambda1": lambda1, "lambda2": 0.1},
            adapter={"lr": 0.02, "epochs": 5}, model={"dropout": 0.0},
        )  # fmt: skip
        host = host_of(made)
        kit = host.kit
        SessionTraining(host.begin(0), kit.loop, kit.devices, (), 0).epoch(0, silent)
        host.finish(0)
        frozen = {name: layer.past_A.clone() for name, layer in kit.model.layers.items()}
        session = host.begin(1)
        kit.model.module.eval()
        batch = session.items.fetch([(1, 0), (1, 1)], 0)
        bare = host._loss(host._scores(batch, 1), batch, 1, False)
        pairs = [(frozen[name], layer) for name, layer in kit.model.layers.items()]
        expected = sum(
            lambda1 * (old @ layer.A.T).abs().sum() + 0.1 * (layer.A.norm() + layer.B.norm())
            for old, layer in pairs
        )
        torch.testing.assert_close(session.loss(batch, False), bare + expected)
        training = SessionTraining(session, kit.loop, kit.devices, (), 0)
        for epoch in range(5):
            training.epoch(epoch, silent)
        found = [(old @ layer.A.detach().T).abs().sum() for old, layer in pairs]
        overlaps[lambda1] = float(sum(found))
        host.finish(1)
        for name, layer in kit.model.layers.items():
            assert torch.equal(layer.past_A[: len(frozen[name])], frozen[name])
    assert overlaps[5.0] < overlaps[0.0] / 2


OSF = {"trains": "osf", "rank": 8}
"""The rank is the default: it is of LoRA, and anything else would be refused."""


@pytest.mark.parametrize("sections", [{"host": {"name": "o-label-encoder"}}, {"model": OSF}])
def test_rivals_that_were_killed_go_on_to_the_same_end(plain, tmp_path, sections):
    made = plain(adapter={"epochs": 2}, loop={"checkpoint_seconds": 0.0}, **sections)
    killed_runs_go_on_to_the_same_end(made, tmp_path)


def test_osf_moves_weights_across_their_large_singular_directions_only(plain):
    """What a dense SVD of the pretrained weight calls large stays, after real steps. By SGD: Adam
    divides a projected gradient element by element."""
    adapter = {"optimizer": "sgd", "lr": 10.0}
    host = host_of(plain(model=OSF | {"targets": ["query"]}, adapter=adapter))
    kit = host.kit
    layers = {n: m for n, m in kit.model.net.named_modules() if n.endswith(".query")}
    SessionTraining(host.begin(0), kit.loop, kit.devices, (), 0).epoch(0, silent)
    assert set(kit.model.trained) == {
        f"{name}.osf_svd_params.default.{part}"
        for name in layers for part in ("U_low", "S_low", "V_low")
    }  # fmt: skip
    for layer in layers.values():
        before = layer.base_layer.weight
        left, _, right = torch.linalg.svd(before.double())
        half = min(before.shape) // 2
        now = layer(torch.eye(before.shape[1])) - layer.base_layer.bias
        moved = now.T.double() - before.double()
        assert moved.norm() > 1e-3
        inside = left[:, :half].T @ moved @ right[:half].T
        assert inside.norm() < 1e-3 * moved.norm()
