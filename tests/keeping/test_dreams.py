"""Examples that a model makes itself."""

import pytest
import torch
from torch import nn

import risegrad
from keeping.chat import llama, tokenizer
from memory.subjects import VOCABULARY, bert, gpt2, t5, with_lora
from risegrad.keeping import examples as sources
from risegrad.keeping import looking
from risegrad.memory.ranks import Ranks


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


def chats(n=6, **options):
    model = llama()
    return model, risegrad.dreamed(model, tokenizer(), n, **({"length": 8, "batch": 4} | options))


def texts_of(batches):
    """Each example in full, and what of it counts."""
    found, tokens = [], tokenizer()
    for batch in batches:
        for ids, mask, labels in zip(*batch.values(), strict=True):
            whole = tokens.decode(ids[mask.bool()])
            found.append((whole, tokens.decode(labels[labels != -100])))
    return found


@pytest.mark.parametrize("system", [None, "be kind"])
def test_a_chat_model_asks_itself_in_its_template_and_only_the_answer_counts(system):
    _, batches = chats(system=system)
    head = "<s>user " if system is None else "<s>system be kind</s><s>user "
    for whole, counted in texts_of(batches):
        assert whole.startswith(head)
        question, middle, answer = whole.removeprefix(head).partition("</s><s>assistant ")
        assert question.strip()
        assert "<s>" not in question
        assert middle
        assert counted == answer
        assert len(answer.removesuffix("</s>")) >= 1


def test_half_of_the_answers_may_be_long():
    _, batches = chats(n=40, batch=20, length=8)
    short, long = ([int((row != -100).sum()) for row in b["labels"]] for b in batches)
    assert max(short) <= 8 < max(long) <= 24


def test_prompts_are_the_users_turns():
    _, batches = chats(n=3, prompts=["why", "who"])
    questions = [whole.partition("</s>")[0] for whole, _ in texts_of(batches)]
    assert questions == ["<s>user why", "<s>user who", "<s>user why"]


def test_degenerate_dreams_are_drawn_again_or_refused(monkeypatch):
    tokens = tokenizer(chat=False)
    model, drawn = llama(), []

    def generate(input_ids, **_):
        drawn.append(len(input_ids))
        tail = (
            [[5, 5, 5], [2, 0, 0], [5, 6, 7]] if len(drawn) == 1 else [[8, 9, 2]] * len(input_ids)
        )
        return torch.cat([input_ids, torch.tensor(tail)], 1)

    monkeypatch.setattr(model, "generate", generate)
    (batch,) = risegrad.dreamed(model, tokens, 3, length=3)
    assert drawn == [3, 2]
    assert batch["input_ids"].tolist() == [[1, 8, 9, 2], [1, 8, 9, 2], [1, 5, 6, 7]]

    def repeats(input_ids, **_):
        return torch.cat([input_ids, torch.full((len(input_ids), 3), 5)], 1)

    monkeypatch.setattr(model, "generate", repeats)
    with pytest.raises(ValueError, match="usable examples: 3 of 3 are empty or one token"):
        risegrad.dreamed(model, tokens, 3, length=3)


def test_a_generative_model_needs_no_examples(monkeypatch):
    """The whole first line of the product, on a tiny causal model with LoRA."""
    model = with_lora(llama(), ["q_proj", "v_proj"], filled=False).float()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-2)
    monkeypatch.setattr(sources, "tokenizer_of", lambda _: tokenizer())
    keeper = risegrad.keep(model, optimizer, examples=16)
    assert sum(len(g.batch["input_ids"]) for g in keeper.kept.held) == 3
    ids = tokenizer()("<s>user hi</s><s>assistant no</s>", return_tensors="pt")["input_ids"]
    model.train()
    for _ in range(6):
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
    assert "nats per token on 3 examples" in str(keeper)
    assert keeper.drift().mean > 0
    assert keeper.report()["uncovered"] == {}


def test_a_tokenizer_is_found_by_the_models_name_or_asked_for(tmp_path):
    twin = llama()
    with pytest.raises(ValueError, match="tokenizer is needed: the model does not say where"):
        risegrad.keep(twin, torch.optim.SGD(twin.parameters()))
    tokenizer().save_pretrained(tmp_path)
    twin.name_or_path = str(tmp_path)
    keeper = risegrad.keep(twin, torch.optim.SGD(twin.parameters()), examples=4)
    assert keeper.kept.seen == 4


def test_a_sharded_model_does_not_write(monkeypatch):
    """Its processes would wait for each other where one of them ends a text sooner."""
    monkeypatch.setattr(looking, "_apart", lambda model, _: (model, Ranks(sharded=True)))
    model = llama()
    with pytest.raises(ValueError, match=r"old is needed: a sharded model .* before fully_shard"):
        risegrad.keep(model, torch.optim.SGD(model.parameters()), tokenizer=tokenizer())


def test_progress_is_told():
    seen = []
    model = llama()
    risegrad.dreamed(
        model, tokenizer(), 5, length=4, batch=2, progress=lambda *both: seen.append(both)
    )
    assert seen == [(2, 5), (3, 5), (5, 5)]
    keeper = risegrad.keep(
        model, torch.optim.SGD(model.parameters()), tokenizer=tokenizer(), examples=4
    )
    assert keeper.report()["seconds_per_dream"] > 0
    assert str(keeper).splitlines()[1].endswith(" s for each example it wrote itself")


def trained(change, dtype=torch.float32):
    """Two steps of a kept causal model that was changed in some way; its parameters."""
    model = llama().to(dtype)
    model.model.layers[0].self_attn.attention_dropout = 0.0
    called = change(model)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    ids = torch.randint(3, 30, (16, 7), generator=torch.Generator().manual_seed(2))
    keeper = risegrad.keep(called, optimizer, [{"input_ids": ids, "labels": ids}], examples=16)
    model.train()
    for part in ids.split(8):
        optimizer.zero_grad()
        called(input_ids=part, labels=part).loss.backward()
        optimizer.step()
    assert keeper.drift().mean > 0
    return torch.cat([p.detach().flatten() for p in model.parameters()]).float()


def checkpointed(model):
    model.gradient_checkpointing_enable()
    return model


def compiled(model):
    return torch.compile(model, backend="eager")


@pytest.mark.parametrize("change", [checkpointed, compiled])
def test_checkpointing_and_compiling_change_nothing(change):
    torch.testing.assert_close(trained(change), trained(lambda model: model))


def test_half_precision():
    exact, half = trained(lambda m: m), trained(lambda m: m, torch.bfloat16)
    assert bool(half.isfinite().all())
    assert float((exact - half).norm() / exact.norm()) < 0.15


def test_an_encoder_without_a_head_keeps_its_features():
    model = bert().bert.float()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    drawn = torch.Generator().manual_seed(1)
    old = [{"input_ids": torch.randint(1, VOCABULARY, (12, 6), generator=drawn)}]
    keeper = risegrad.keep(model, optimizer, old)
    assert keeper.drift().mean < 1e-6
    model(**old[0]).last_hidden_state[:, 0].square().sum().backward()
    optimizer.step()
    assert keeper.drift().mean > 0
    assert "of the features' variance on 2 examples" in str(keeper)
    keeper.detach()
    with pytest.raises(ValueError, match="old is needed: BertModel does not generate text"):
        risegrad.keep(model, optimizer)
