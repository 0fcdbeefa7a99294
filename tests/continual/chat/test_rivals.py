"""Rivals that hold a LoRA's layers, against brute force; whether answers do what they are told."""

import json
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import cross_entropy

from continual.chat import tiny_chat
from continual.chat.tiny_chat import config
from riselab.continual.chat.adapters import trained_parts
from riselab.continual.chat.anchors import Ewc, KroneckerAnchor
from riselab.continual.chat.following import checkable, followed
from riselab.continual.chat.model import trainable
from riselab.continual.chat.settings import ChatModelSettings
from riselab.continual.chat.texts import ChatTexts, answer_scores
from riselab.continual.host import silent
from riselab.continual.runs import needs, perform, read_config

TEXTS = ChatTexts(tiny_chat.tokenizer())
CHATS = [TEXTS.chat("say a", "yes"), TEXTS.chat("be kind", "no way"), TEXTS.chat("hi", "a")]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    made = tmp_path_factory.mktemp("rivals")
    tiny_chat.write_folders(made)
    return made


def adapted(trains="lora", old=(), **settings):
    chosen = ChatModelSettings(rank=2, trains=trains, **settings)
    return trained_parts(tiny_chat.llama().double(), chosen, 0, old).double()


def layers(model):
    return {n: m for n, m in model.named_modules() if hasattr(m, "lora_A")}


def moved(layer):
    """What a LoRA adds to its weight."""
    return layer.get_delta_weight("default")


def shaken(model, by=0.1):
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in trainable(model).values():
            p.add_(by * torch.randn(p.shape, generator=generator, dtype=p.dtype))
    return model


def test_ewc_is_the_squared_gradient_of_each_chat_times_the_squared_move():
    model, held = adapted(), Ewc()
    names = {n for n, p in model.named_parameters() if p.requires_grad}
    held.look(model, [TEXTS.batch(CHATS[:2]), TEXTS.batch(CHATS[2:])])
    assert {n for n, p in model.named_parameters() if p.requires_grad} == names
    expected = dict.fromkeys(layers(model), 0.0)
    for chat in CHATS:
        alone = tiny_chat.llama().double()
        scores, labels = answer_scores(alone, TEXTS.batch([chat]))
        cross_entropy(scores, labels, reduction="sum").backward()
        for name in expected:
            plain = alone.get_submodule(name.removeprefix("base_model.model."))
            expected[name] = expected[name] + plain.weight.grad.square() / len(CHATS)
    assert held.penalty(model).item() == 0
    shaken(model)
    by_hand = sum((expected[n] * moved(m).square()).sum() / 2 for n, m in layers(model).items())
    torch.testing.assert_close(held.penalty(model), by_hand)
    # What comes later counts from where the model is then, with the mean over all chats.
    held.look(model, [TEXTS.batch(CHATS[:1])])
    assert held.penalty(model).item() == 0
    assert held.chats == 4
    assert held.bytes == sum(
        8 * (m.get_base_layer().weight.numel() + sum(p.numel() for p in m.parameters()
             if p.requires_grad)) for m in layers(model).values()
    )  # fmt: skip


def test_the_kronecker_anchor_is_the_memory_s_penalty():
    model, held = adapted(), KroneckerAnchor(0)
    held.look(model, [TEXTS.batch(CHATS)])
    assert held.penalty(model).item() == 0
    shaken(model)
    assert held.penalty(model).item() == pytest.approx(held.memory.penalty(model).item())
    assert held.penalty(model).item() > 0
    held.look(model, [TEXTS.batch(CHATS)])
    assert held.penalty(model).item() == 0


def test_oplora_moves_nothing_along_the_strongest_singular_vectors():
    model, base = shaken(adapted("oplora", protect=3)), tiny_chat.llama().double()
    for name, layer in layers(model).items():
        weight = base.get_submodule(name.removeprefix("base_model.model.")).weight
        left, values, right = torch.linalg.svd(weight)
        change = moved(layer)
        assert change.abs().max() > 1e-4
        # The basis is stored in single precision.
        assert (left[:, :3].T @ change).abs().max() < 1e-6 * change.abs().max() * 100
        assert (change @ right[:3].T).abs().max() < 1e-6 * change.abs().max() * 100
        kept = (weight + change) @ right[:3].T
        torch.testing.assert_close(kept, left[:, :3] * values[:3], rtol=1e-4, atol=1e-4)


def test_lora_null_begins_as_the_model_and_where_inputs_are_least():
    old = [TEXTS.batch([chat]) for chat in CHATS[:1]]
    model, base = adapted("lora-null", old), tiny_chat.llama().double()
    tokens = torch.tensor([[1, 4, 5, 8]])
    torch.testing.assert_close(model(tokens).logits, base(tokens).logits, rtol=1e-5, atol=1e-6)
    inputs = {}
    for name, layer in layers(model).items():
        plain = base.get_submodule(name.removeprefix("base_model.model."))
        plain.register_forward_pre_hook(lambda _, x, n=name: inputs.update({n: x[0][0]}))
        assert moved(layer).abs().max() > 1e-4
    with torch.no_grad():
        base(old[0]["input_ids"])
    for name, layer in layers(model).items():
        a = layer.lora_A["default"].weight
        used = (inputs[name] @ a.T).detach().norm() / a.detach().norm()
        least = torch.linalg.svdvals(inputs[name])
        width = inputs[name].shape[1]
        smallest = float(least[-1]) if len(least) == width else 0.0
        assert float(used) < max(10 * smallest, 1e-5), "its rows are in what the inputs use least"


@pytest.mark.parametrize(
    "changes",
    [
        {"rule": {"name": "ewc", "examples": 4, "old": "prompts"}},
        {"rule": {"name": "kron-anchor", "examples": 4, "old": "prompts"}},
        {"rule": {"name": "covariance-noise"}},
        {"model": {"trains": "oplora", "protect": 2}},
        {"model": {"trains": "lora-null"}, "rule": {"examples": 4, "old": "prompts"}},
    ],
    ids=["ewc", "anchor", "noise", "oplora", "lora-null"],
)
def test_every_rival_learns_a_stream_and_goes_on_where_it_stopped(root, tmp_path, changes):
    if "rule" in changes and changes.get("model"):
        changes = {"model": changes["model"]}
    changes = changes | {"stream": {"tasks": ["letters", "sounds"]}}
    settings = read_config(config(root, **changes, loop={"checkpoint_seconds": 0}))
    whole = perform(settings, tmp_path / "whole", silent)

    def stop(news):
        seen.append(news)
        if sum("batch" in each for each in seen) == 5:
            raise InterruptedError

    seen = []
    with pytest.raises(InterruptedError):
        perform(settings, tmp_path / "part", stop)
    again = perform(settings, tmp_path / "part", silent)
    assert again["metrics"] == whole["metrics"]
    plain = perform(read_config(config(root, stream=changes["stream"])), tmp_path / "p", silent)
    assert whole["metrics"]["nll"] != plain["metrics"]["nll"]


def test_a_strong_penalty_holds(root, tmp_path):
    for name in ("ewc", "kron-anchor"):
        rule = {"name": name, "examples": 4, "old": "prompts"}
        drifts = []
        for weight in (1e-6, 1e6):
            settings = read_config(config(root, rule=rule | {"weight": weight}))
            drifts.append(
                perform(settings, tmp_path / f"{name}{weight}", silent)["metrics"]["drift"]
            )
        assert drifts[1] < 0.5 * drifts[0], name


def test_instructions_that_yes_obeys_do_not_count(monkeypatch):
    rows = [
        {"prompt": "Write at least 3 words, without commas.", "key": 0,
         "instruction_id_list": ["length_constraints:number_words", "punctuation:no_comma"],
         "kwargs": [{"relation": "at least", "num_words": 3}, {}]},
        {"prompt": "Say two sentences.", "key": 1,
         "instruction_id_list": ["length_constraints:number_sentences"],
         "kwargs": [{"relation": "at least", "num_sentences": 2}]},
        {"prompt": "Say cat.", "key": 2, "instruction_id_list": ["keywords:existence"],
         "kwargs": [{"keywords": ["cat"]}]},
    ]  # fmt: skip
    assert [row["key"] for row in checkable(rows)] == [0, 2]
    answers = {"Write": [7, 8, 9], "Say ca": [7]}
    said = {(7, 8, 9): "a cat, sat down", (7,): "no"}
    chat = SimpleNamespace

    def greedy(model, texts, prompts, most, batch):
        found = [next(a for word, a in answers.items() if p.startswith(word)) for p in prompts]
        return [chat(tokens=a, answer=len(a)) for a in found]

    monkeypatch.setattr("riselab.continual.chat.following.greedy", greedy)
    texts = chat(tokenizer=chat(decode=lambda t, skip_special_tokens: said[tuple(t)]))
    found = followed(None, texts, checkable(rows), 9)
    # The comma does not count, because "Yes" has none; of the other two, one is obeyed.
    assert found == {"answer_tokens": 2.0, "followed": 50.0}
    assert followed(None, texts, [], 9) == {}


def test_what_a_rival_needs_is_said(root):
    for rule in ("ewc", "kl-new"):
        with pytest.raises(ValueError, match=f"{rule}' needs model.trains = 'lora' or 'oplora'"):
            read_config(config(root, rule={"name": rule}, model={"trains": "osf"}))
    following = config(root, abilities={"follow": 3})
    assert needs(read_config(following), {})["missing"] == []


def test_the_answers_obedience_stands_in_the_result(root, tmp_path):
    asked = {"prompt": "tell a", "key": 0, "kwargs": [{"keywords": ["zebra"]}],
             "instruction_id_list": ["keywords:existence"]}  # fmt: skip
    tiny_chat.write_lines(tmp_path / "abilities" / "instructions.jsonl.gz", [asked])
    folder = {"folder": str(tmp_path / "abilities"), "follow": 1, "written": 5}
    found = perform(read_config(config(root, abilities=folder)), tmp_path / "run", silent)
    assert found["metrics"]["followed"] == 0
    assert 0 < found["metrics"]["answer_tokens"] <= 5
    assert json.dumps(found["metrics"]["followed_change"]) == "0.0"
