"""Examples that a model makes itself."""

import pytest
import torch
from torch import nn

import risegrad
from curvature.memory.subjects import VOCABULARY, gpt2, t5, with_lora


class Tokenizer:
    """One token per letter."""

    pad_token_id, bos_token_id, eos_token_id = 0, None, 1

    def __call__(self, text):
        return {"input_ids": [2 + ord(letter) % (VOCABULARY - 2) for letter in text]}


def lm(make):
    model = make().float().train()
    model.generation_config.bos_token_id = None
    return model


def dreamed(make=gpt2, n=5, **options):
    return risegrad.dreamed(lm(make), Tokenizer(), n, **({"length": 5, "batch": 2} | options))


@pytest.mark.parametrize("make", [gpt2, t5])
@pytest.mark.parametrize("prompts", [None, ["abc", "de"]])
def test_dreams_are_batches_to_remember(make, prompts):
    batches = dreamed(make, prompts=prompts)
    assert [len(b["input_ids"]) for b in batches] == [2, 2, 1]
    for batch in batches:
        assert set(batch) == {"input_ids", "attention_mask", "labels"}
        counted = batch["labels"] != -100
        assert counted.any(1).all()
        if make is gpt2:
            assert torch.equal(counted, batch["attention_mask"].bool())
            assert torch.equal(batch["labels"][counted], batch["input_ids"][counted])
    memory = risegrad.remember(lm(make), batches, examples=5)
    assert memory.source["examples"] == 5


def test_prompts_come_first_and_in_turn():
    first, second = dreamed(prompts=["abc", "de"], n=3)
    tokens = Tokenizer()
    assert first["input_ids"][0, :3].tolist() == tokens("abc")["input_ids"]
    assert first["input_ids"][1, :2].tolist() == tokens("de")["input_ids"]
    assert second["input_ids"][0, :3].tolist() == tokens("abc")["input_ids"]
    (asked,) = dreamed(t5, prompts=["abc"], n=1)
    assert asked["input_ids"].tolist() == [tokens("abc")["input_ids"]]


def test_texts_end_at_their_end():
    for batch in dreamed(n=40, length=7, batch=40):
        for row, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True):
            inner = row[mask.bool()][1:-1]
            assert 1 not in inner.tolist()


def test_the_seed_decides_and_the_world_stays():
    before = torch.get_rng_state()
    one, two, other = dreamed(), dreamed(), dreamed(seed=1)
    assert all(torch.equal(a["input_ids"], b["input_ids"]) for a, b in zip(one, two, strict=True))
    assert any(
        a["input_ids"].shape != b["input_ids"].shape or (a["input_ids"] != b["input_ids"]).any()
        for a, b in zip(one, other, strict=True)
    )
    torch.set_rng_state(before)
    model = lm(gpt2)
    state = torch.get_rng_state()
    risegrad.dreamed(model, Tokenizer(), 2, length=3)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training


def test_an_adapted_model_dreams_too():
    model = with_lora(gpt2(), ["c_attn"], fan_in_fan_out=True).float()
    batches = risegrad.dreamed(model, Tokenizer(), 3, length=5)
    assert len(risegrad.remember(model, batches, examples=3)) == 1


ASKED = [
    {"top_p": 0.01},
    {"temperature": 0.01, "typical_p": 0.2},
    {"num_beams": 3, "no_repeat_ngram_size": 1},
    {"repetition_penalty": 5.0},
    {"num_return_sequences": 2},
    {"return_dict_in_generate": True, "output_scores": True},
    {"min_new_tokens": 5, "max_length": 3, "suppress_tokens": [3, 4]},
]


@pytest.mark.parametrize("adapted", [False, True])
@pytest.mark.parametrize("make", [gpt2, t5])
@pytest.mark.parametrize("asked", ASKED, ids=lambda asked: next(iter(asked)))
def test_dreams_are_plain_samples_whatever_the_model_is_set_to(asked, make, adapted):
    def model():
        found = lm(make)
        if not adapted:
            return found
        if make is gpt2:
            options = {"fan_in_fan_out": True, "task_type": "CAUSAL_LM"}
            return with_lora(found, ["c_attn"], **options).float()
        return with_lora(found, ["q"], task_type="SEQ_2_SEQ_LM").float()

    options = {"length": 6, "batch": 3}
    plain, other = model(), model()
    inner = other.get_base_model() if adapted else other
    own = inner.generation_config
    for name, value in asked.items():
        setattr(own, name, value)
    before = own.to_dict()
    wanted = risegrad.dreamed(plain, Tokenizer(), 6, prompts=["ab"], **options)
    found = risegrad.dreamed(other, Tokenizer(), 6, prompts=["ab"], **options)
    for one, two in zip(wanted, found, strict=True):
        assert all(torch.equal(one[key], two[key]) for key in one)
    assert inner.generation_config is own
    assert own.to_dict() == before


def test_a_failed_dream_leaves_the_settings(monkeypatch):
    model = lm(gpt2)
    own = model.generation_config

    def fail(**_):
        raise KeyError("no")

    monkeypatch.setattr(model, "generate", fail)
    with pytest.raises(KeyError, match="no"):
        risegrad.dreamed(model, Tokenizer(), 1)
    assert model.generation_config is own


class NoEnds(Tokenizer):
    eos_token_id = None


BAD = [
    (lambda: dreamed(n=0), ValueError, "n must be an integer >= 1, got 0"),
    (lambda: dreamed(length=0), ValueError, "length must be an integer >= 1, got 0"),
    (lambda: dreamed(batch=0), ValueError, "batch must be an integer >= 1, got 0"),
    (lambda: dreamed(temperature=0), ValueError, "temperature must be a finite number > 0, got 0"),
    (lambda: dreamed(prompts=[]), ValueError, "prompts must hold at least one text, got none"),
    (lambda: risegrad.dreamed(nn.Linear(2, 2), Tokenizer(), 1), TypeError,
     "model must be one that generates text, got Linear"),
    (lambda: risegrad.dreamed(lm(gpt2), NoEnds(), 1), ValueError, r"no first token .*prompts="),
]  # fmt: skip


@pytest.mark.parametrize(("make", "kind", "message"), BAD)
def test_bad_dreams(make, kind, message):
    with pytest.raises(kind, match=message):
        make()
