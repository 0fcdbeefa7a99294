"""Abilities: a case whose result is known by hand, and the ways of measuring against plain ones."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from continual.chat import tiny_chat
from risegrad.integrations.forgetting_meter import ForgettingMeter
from riselab.continual.chat.abilities import (
    Abilities,
    AbilitySettings,
    evenly,
    facts_of,
    instructions,
)
from riselab.continual.chat.texts import Chat, ChatTexts, answer_scores, greedy

TOKENIZER = tiny_chat.tokenizer()
SIZE = len(TOKENIZER)
END = TOKENIZER.eos_token_id


class Bigram(nn.Module):
    """Each token says how likely every next one is: 0.9 for one of them, the rest alike."""

    def __init__(self, follows, most=0.9):
        super().__init__()
        chances = torch.full((SIZE, SIZE), (1 - most) / (SIZE - 1), dtype=torch.float64)
        for token in range(SIZE):
            chances[token, follows.get(token, END)] = most
        self.table = nn.Parameter(chances.log())
        self.generation_config = SimpleNamespace(eos_token_id=END)
        self.device = torch.device("cpu")

    def forward(self, input_ids, logits_to_keep=0, past_key_values=None, **_):
        cache = SimpleNamespace(batch_repeat_interleave=lambda n: None)
        logits = self.table[input_ids[:, -logits_to_keep:]]
        return SimpleNamespace(logits=logits, past_key_values=cache)


def token(letter):
    (found,) = TOKENIZER(letter, add_special_tokens=False)["input_ids"]
    return found


def test_a_case_that_is_known_by_hand(tmp_path):
    tiny_chat.write_lines(tmp_path / "instructions.jsonl.gz", [{"prompt": "tell"}])
    tiny_chat.write_lines(tmp_path / "wiki.jsonl.gz", [{"text": "aba"}])
    choice = [{"task": "t", "prompt": "x", "options": ["ab", "b"], "answer": 0}]
    tiny_chat.write_lines(tmp_path / "choice.jsonl.gz", choice)
    facts = [{"prompt": f"T of {a} is", "answers": [a]} for a in "abcde"]
    tiny_chat.write_lines(tmp_path / "facts.jsonl.gz", facts)
    # An answer begins after " ": it is "ab" and then the end.
    a, b, blank = token("a"), token("b"), token(" ")
    was = Bigram({blank: a, a: b, b: END})
    now = Bigram({blank: b, a: b, b: END})
    abilities = Abilities(was, TOKENIZER, tmp_path, AbilitySettings(wiki=1, choice=1, facts=5))
    found = abilities.compare(now)

    likely, other = 0.9, 0.1 / (SIZE - 1)
    at_first = (likely - other) * math.log(likely / other)  # of the three tokens only "a" moved
    assert found["drift"] == pytest.approx(at_first / 3, rel=1e-6)
    assert found["agreement"] == pytest.approx(200 / 3)
    assert found["wiki"] == pytest.approx(-(math.log(likely) + math.log(other)) / 2)
    assert found["wiki_change"] == 0
    # Per character, " ab" was likelier than " b"; now it is not.
    assert (abilities.before["choice"], found["choice"], found["choice_change"]) == (100, 0, -100)
    # "a" was likelier than its four rivals, the others than three that are as likely as they.
    assert abilities.before["facts"] == pytest.approx(100 / 5)
    assert found["facts"] == pytest.approx(100 / 5)
    same = abilities.compare(was)
    assert same["drift"] == pytest.approx(0, abs=1e-12)
    assert same["agreement"] == 100

    # The same in one's own training: a drift and the loss on wiki in nats, the others in percent.
    meter = ForgettingMeter(was, abilities.evaluators(), every=None)
    was.table.data.copy_(now.table.data)
    reading = meter.measure()
    assert reading.rises == {
        "drift": pytest.approx(at_first / 3, rel=1e-6), "wiki": 0, "choice": None, "facts": None,
    }  # fmt: skip
    assert {name: score.percent for name, score in reading.scores.items()} == {
        "drift": pytest.approx(200 / 3), "wiki": 50, "choice": 0, "facts": pytest.approx(100 / 5),
    }  # fmt: skip
    assert meter.start.scores["choice"].percent == 100
    counts = {name: each.examples for name, each in abilities.evaluators().items()}
    assert counts == {"drift": 1, "wiki": 1, "choice": 1, "facts": 5}


def test_obedience_in_ones_own_training(tmp_path):
    """It says "ab", as it is told to end, and then "b"."""
    pytest.importorskip("lm_eval")
    told = {"instruction_id_list": ["startend:end_checker"], "kwargs": [{"end_phrase": "ab"}]}
    tiny_chat.write_lines(tmp_path / "instructions.jsonl.gz", [{"prompt": "tell"} | told])
    a, b, blank = token("a"), token("b"), token(" ")
    model = Bigram({blank: a, a: b, b: END})
    abilities = Abilities(model, TOKENIZER, tmp_path, AbilitySettings(follow=1))
    meter = ForgettingMeter(model, abilities.evaluators(), every=None)
    model.table.data.copy_(Bigram({blank: b, a: b, b: END}).table.data)
    found = [reading.scores["followed"].percent for reading in (meter.start, meter.measure())]
    assert found == [100, 0]
    assert abilities.evaluators()["followed"].examples == 1


def test_the_base_agrees_with_its_own_greedy_answers():
    model, texts = tiny_chat.llama(), ChatTexts(TOKENIZER)
    chats = greedy(model, texts, ["tell a", "say it all", "be"], 8, batch=2)
    assert all(0 < chat.answer <= 8 for chat in chats)
    with torch.no_grad():
        scores, labels = answer_scores(model, texts.batch(chats))
    assert torch.equal(scores.argmax(-1), labels)


def test_answers_are_scored_as_without_padding_and_cache():
    model, texts = tiny_chat.llama().double(), ChatTexts(TOKENIZER)
    chats = [texts.chat("say a", "yes"), texts.chat("be kind", "no way")]
    with torch.no_grad():
        scores, labels = answer_scores(model, texts.batch(chats))
        alone = []
        for chat in chats:
            logits = model(torch.tensor([chat.tokens])).logits[0]
            alone.append(logits[-chat.answer - 1 : -1])
    torch.testing.assert_close(scores, torch.cat(alone))
    assert labels.tolist() == [t for chat in chats for t in chat.tokens[-chat.answer :]]
    assert TOKENIZER.decode(chats[0].tokens) == "<s>user say a</s>\n<s>assistant yes</s>"


def test_continuations_are_as_likely_as_in_one_pass():
    model = tiny_chat.llama().double()
    abilities = Abilities(model, TOKENIZER, "", AbilitySettings())
    said = [" a", " a cat", " no"]
    with torch.no_grad():
        found = abilities._likelihoods(model, "what is it", said)
        for value, text in zip(found, said, strict=True):
            whole = abilities._texts.text("what is it" + text)
            logs = model(torch.tensor([whole])).logits[0, :-1].log_softmax(-1)
            each = logs.gather(1, torch.tensor(whole[1:])[:, None])
            torch.testing.assert_close(value, each[-len(text) :].sum())


def test_chats_of_ones_own_stand_in_place_of_the_folder(tmp_path):
    tiny_chat.write_abilities(tmp_path)
    model, own = tiny_chat.llama(), [Chat([1, 4, 5, 6, 2], 2)]
    found = Abilities(model, TOKENIZER, tmp_path, AbilitySettings(), own=own).compare(model)
    assert set(found) == {"drift", "agreement"}


def test_what_is_measured_is_kept_by_its_content(tmp_path, monkeypatch):
    monkeypatch.setenv("RISEGRAD_CACHE", str(tmp_path / "cache"))
    tiny_chat.write_abilities(tmp_path)
    model, other = tiny_chat.llama(), tiny_chat.llama(1)
    first = Abilities(model, TOKENIZER, tmp_path).compare(other)
    (file,) = (tmp_path / "cache" / "chat").iterdir()
    monkeypatch.setattr(Abilities, "_now", None)
    assert Abilities(model, TOKENIZER, tmp_path).compare(other) == first
    monkeypatch.undo()
    monkeypatch.setenv("RISEGRAD_CACHE", str(tmp_path / "cache"))
    file.write_bytes(file.read_bytes()[:-1])
    assert Abilities(model, TOKENIZER, tmp_path).compare(other) == first, "damaged: made again"
    Abilities(other, TOKENIZER, tmp_path)
    assert len(list((tmp_path / "cache" / "chat").iterdir())) == 2


def test_instructions_to_measure_on_are_not_those_to_replay(tmp_path):
    tiny_chat.write_abilities(tmp_path)
    measured, others = instructions(tmp_path, AbilitySettings(prompts=2))
    assert (measured, others) == (["tell a", "tell c"], [f"tell {a}" for a in "bdfh"])


def test_facts_have_rivals_of_their_own_kind():
    rows = [{"prompt": f"The color of {n} is", "answers": [c]} for n, c in enumerate("rgbrk")]
    rows.append({"prompt": "The size of it is", "answers": ["10"]})
    found = facts_of(rows)
    assert len(found) == 5, "of one kind alone there is nothing to compare with"
    prompt, right, wrong, kind = found[0]
    assert (prompt, right, sorted(wrong), kind) == (
        "The color of 0 is",
        "r",
        list("bgk"),
        "The color",
    )


def test_every_kind_has_its_turn():
    assert evenly(["a1", "a2", "a3", "b1"], 3, lambda text: text[0]) == ["a1", "b1", "a2"]
