"""Exact match as the benchmark compares, and constrained choice against brute force."""

import pytest
import torch
from torch.nn.functional import log_softmax

from continual.language.tiny_text import config, make_model, save_model
from riselab.continual.devices import Devices
from riselab.continual.language.batches import padded
from riselab.continual.language.models import LanguageModelSettings, wrap
from riselab.continual.language.scoring import hits, label_scores, normalized, written
from riselab.continual.runs import make_host, read_config

PROMPTS = ["one two three", "red", "four five six seven good bad"]
LABELS = ["World", "Science or Technology", "very negative", "negative", "very", "Good"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("World", "world"),
        (" Science or\nTechnology. ", "science or technology"),
        ("Society & Culture", "society culture"),
        ("very-negative", "verynegative"),
        ("«Good»", "«good»"),
        ("", ""),
        ("A: b\tC", "a b c"),
    ],
)
def test_normalization(text, expected):
    assert normalized(text) == expected


def model_of(kind, tokenizer):
    settings = LanguageModelSettings(rank=2, target_length=6)
    kinds = {"t5": "seq2seq", "bart": "seq2seq", "gpt2": "decoder", "llama": "decoder"}
    return wrap(make_model(kind, tokenizer), tokenizer, settings, kinds[kind])


def answer(tokenizer, text):
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return torch.tensor([*ids, tokenizer.eos_token_id])


def brute_force(model, prompt, label):
    """One example and one label at a time, without any padding."""
    if model.kind == "seq2seq":
        out = model.net(input_ids=prompt[None], labels=label[None])
        logs = log_softmax(out.logits[0], -1)
    else:
        out = model.net(input_ids=torch.cat([prompt, label])[None])
        logs = log_softmax(out.logits[0, len(prompt) - 1 : -1], -1)
    return sum(float(row[token]) for row, token in zip(logs, label, strict=True))


@pytest.mark.parametrize("kind", ["t5", "bart", "gpt2", "llama"])
@torch.no_grad()
def test_label_scores_are_those_of_brute_force(tokenizer, kind, monkeypatch):
    monkeypatch.setattr("riselab.continual.language.scoring.ROWS", 20)  # several parts
    model = model_of(kind, tokenizer)
    rows = [torch.tensor(ids) for ids in tokenizer(PROMPTS)["input_ids"]]
    labels = [answer(tokenizer, label) for label in LABELS]
    side = "left" if model.kind == "decoder" else "right"
    source, mask = padded(rows, 0, side)
    encoded = None
    if model.kind == "seq2seq":
        encoded = model.net.get_encoder()(input_ids=source, attention_mask=mask)
    found = label_scores(model, source, mask, labels, encoded)
    expected = [[brute_force(model, row, label) for label in labels] for row in rows]
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["t5", "gpt2", "llama"])
@torch.no_grad()
def test_padding_changes_neither_answers_nor_scores(tokenizer, kind):
    """A decoder's prompts are padded on the left; also in half precision no pad leaks in."""
    model = model_of(kind, tokenizer)
    rows = [torch.tensor(ids) for ids in tokenizer(PROMPTS)["input_ids"]]
    labels = [answer(tokenizer, label) for label in LABELS]

    def answers(texts):
        source, mask = padded(texts, 0, "left" if model.kind == "decoder" else "right")
        encoded = None
        if model.kind == "seq2seq":
            encoded = model.net.get_encoder()(input_ids=source, attention_mask=mask)
        return written(model, source, mask, encoded), label_scores(
            model, source, mask, labels, encoded
        )

    together, scores = answers(rows)
    alone = [answers([row]) for row in rows]
    assert together == [texts[0] for texts, _ in alone]
    torch.testing.assert_close(scores, torch.cat([s for _, s in alone]), rtol=1e-4, atol=1e-4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(answers(rows)[1], scores, rtol=0.02, atol=0.05)


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
@torch.no_grad()
def test_writing_is_greedy(tokenizer, kind):
    model = model_of(kind, tokenizer)
    rows = [torch.tensor(ids) for ids in tokenizer(PROMPTS)["input_ids"]]
    for row in rows:
        ids = row[None] if kind == "gpt2" else torch.tensor([[0]])
        start = ids.shape[1]
        for _ in range(6):
            more = {"input_ids": ids} if kind == "gpt2" else {
                "input_ids": row[None], "decoder_input_ids": ids
            }  # fmt: skip
            following = model.net(**more).logits[:, -1].argmax(-1, keepdim=True)
            ids = torch.cat([ids, following], 1)
            if following.item() == tokenizer.eos_token_id:
                break
        expected = tokenizer.decode(ids[0, start:], skip_special_tokens=True)
        mask = torch.ones_like(row)[None]
        encoded = None
        if kind == "t5":
            encoded = model.net.get_encoder()(input_ids=row[None], attention_mask=mask)
        assert written(model, row[None], mask, encoded) == [expected]


def test_hits_count_answers(data, weights, monkeypatch):
    host = make_host(read_config(config(data, weights)), Devices())
    texts = host.kit.stream[0].test

    def tell(model, source, mask, encoded):
        return ["WORLD."] * len(source)

    monkeypatch.setattr("riselab.continual.language.scoring.written", tell)
    exact, _, total = hits(host.kit, 0, "test").tolist()
    assert (exact, total) == (texts.answers.count("World"), 6)


@pytest.mark.parametrize("wrote", ["", "-", "..."])
def test_labels_outside_the_set_never_count(data, weights, monkeypatch, wrote):
    """Of "-" in MNLI normalization leaves nothing, and of a model that writes nothing too."""
    host = make_host(read_config(config(data, weights)), Devices())
    split = host.kit.stream[0].test
    object.__setattr__(split, "labels", (-1,) * len(split))
    object.__setattr__(split, "answers", ("-",) * len(split))
    monkeypatch.setattr(
        "riselab.continual.language.scoring.written",
        lambda _, source, *rest: [wrote] * len(source),
    )
    assert hits(host.kit, 0, "test").tolist() == [0, 0, 6]


def test_an_encoder_chooses_among_all_labels_or_its_own(tokenizer, data, tmp_path):
    save_model(tmp_path, "bert", tokenizer)
    host = make_host(read_config(config(data, tmp_path)), Devices())
    assert host.kit.model.kind == "encoder"
    with torch.no_grad():
        host.kit.classifier.bias[host.kit.labels.index("Good")] = 100.0
        host.kit.classifier.bias[host.kit.labels.index("World")] = 50.0
    scores = host.score([0, 1])
    assert [score.hits for score in scores["exact_match"]] == [0, 3]
    assert [score.hits for score in scores["constrained"]] == [2, 3]
