"""What may be given as examples: each form as TRL's SFTTrainer prepares its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from risegrad.memory.examples import TextForm, kind_of, prepared

datasets = pytest.importorskip("datasets")
trl = pytest.importorskip("trl")
from transformers import (  # noqa: E402
    BertConfig,
    BertForSequenceClassification,
    T5Config,
    T5ForConditionalGeneration,
)

from integrations.words import (  # noqa: E402
    ANSWERS,
    MARKED,
    PLAIN,
    QUESTIONS,
    TEXTS,
    said,
    tokenizer,
    writer,
)
from risegrad.integrations.transformers import text_form  # noqa: E402

PAIRS = [{"prompt": q, "completion": f" {a}"} for q, a in zip(QUESTIONS, ANSWERS, strict=True)]
CHATS = [said(q, a) + said(a, q) for q, a in zip(QUESTIONS, ANSWERS, strict=True)]
CHAT_PAIRS = [
    {"prompt": said(q, a)[:1], "completion": said(q, a)[1:]}
    for q, a in zip(QUESTIONS, ANSWERS, strict=True)
]
SHARED = [
    {"conversations": [{"from": m["role"], "value": m["content"]} for m in chat]} for chat in CHATS
]


def rows(batches: Any) -> list[tuple[list[int], list[int]]]:
    """Tokens and labels of each example, without padding, in the order of their tokens."""
    found = []
    for batch in batches:
        assert set(batch) == {"input_ids", "attention_mask", "labels"}
        for ids, mask, labels in zip(*map(batch.get, batch), strict=True):
            found.append((ids[mask == 1].tolist(), labels[mask == 1].tolist()))
            assert bool((labels[mask == 0] == -100).all())
    return sorted(found)


def of_trl(data: list[Any], folder: Path, template: str, **options: Any) -> Any:
    arguments = trl.SFTConfig(
        str(folder), report_to=[], use_cpu=True, bf16=False, packing=options.pop("packing", False),
        **{"max_length": None} | options,
    )  # fmt: skip
    return trl.SFTTrainer(
        writer(), args=arguments, train_dataset=datasets.Dataset.from_list(data),
        processing_class=tokenizer(template),
    )  # fmt: skip


MARKS = {"assistant_only_loss": True}


@pytest.mark.parametrize(
    ("data", "template", "options"),
    [
        ([{"text": text} for text in TEXTS], PLAIN, {"max_length": 3}),
        ([{"story": text} for text in TEXTS], PLAIN, {"dataset_text_field": "story"}),
        (PAIRS, PLAIN, {}),
        (PAIRS, PLAIN, {"completion_only_loss": False}),
        ([{"messages": chat} for chat in CHATS], PLAIN, {}),
        ([{"messages": chat} for chat in CHATS], MARKED, MARKS),
        (SHARED, PLAIN, {}),
        (CHAT_PAIRS, PLAIN, {}),
        (CHAT_PAIRS, MARKED, MARKS),
    ],
)
def test_as_trl_prepares_its_own(
    tmp_path: Path, data: list[Any], template: str, options: Any
) -> None:
    trainer = of_trl(data, tmp_path, template, **options)
    wanted = sorted((row["input_ids"], row["labels"]) for row in trainer.train_dataset)
    form = text_form(trainer.args, tokenizer(template))
    for examples in (data, datasets.Dataset.from_list(data)):
        assert rows(prepared(examples, writer(), form)) == wanted


def test_lists_alone() -> None:
    form = TextForm(tokenizer())
    named = [{"text": text} for text in TEXTS]
    assert rows(prepared(TEXTS, writer(), form)) == rows(prepared(named, writer(), form))
    named = [{"messages": chat} for chat in CHATS]
    assert rows(prepared(CHATS, writer(), form)) == rows(prepared(named, writer(), form))


def test_answers_are_found_without_marks_in_the_template() -> None:
    plain, marked = (TextForm(tokenizer(t), answers_only=True) for t in (PLAIN, MARKED))
    assert rows(prepared(CHATS, writer(), plain)) == rows(prepared(CHATS, writer(), marked))
    questions = [chat[:1] for chat in CHATS]
    assert all(ids == labels for ids, labels in rows(prepared(questions, writer(), plain)))


@pytest.mark.parametrize("tokenized", [False, True])
def test_what_is_kept_is_not_packed(tmp_path: Path, tokenized: bool) -> None:
    data = [{"text": text} for text in TEXTS]
    loader = of_trl(data, tmp_path, PLAIN, packing=True, max_length=16).get_train_dataloader()
    packed = next(iter(loader))
    assert len(packed["input_ids"]) == 1, "TRL puts texts behind each other here"
    form = TextForm(tokenizer(), max_length=16)
    wanted = rows(prepared(data, writer(), form))
    kept: Any = [{"input_ids": ids} for ids, _ in wanted] if tokenized else data
    assert rows(prepared(kept, writer(), form, loader)) == wanted
    assert rows(prepared(loader.dataset, writer(), form, loader)) == wanted, "packed ones, too"


def test_models_that_do_not_go_on_writing() -> None:
    words = tokenizer()
    small = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    answers = T5ForConditionalGeneration(T5Config(vocab_size=16, decoder_start_token_id=0, **small))
    found = next(iter(prepared(PAIRS, answers, TextForm(words))))
    pairs = {
        tuple(words(p["prompt"])["input_ids"]): words(p["completion"])["input_ids"] for p in PAIRS
    }
    for ids, mask, labels in zip(*map(found.get, found), strict=True):
        assert pairs[tuple(ids[mask == 1].tolist())] == labels[labels != -100].tolist()
    config = BertConfig(
        vocab_size=16, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=8, max_position_embeddings=16,
    )  # fmt: skip
    reads = BertForSequenceClassification(config)
    labelled = [{"text": text, "label": number % 2} for number, text in enumerate(TEXTS)]
    (batch,) = prepared(labelled, reads, TextForm(words))
    assert batch["labels"].shape == (len(TEXTS),)
    assert reads(**batch).loss.isfinite()
    assert (kind_of(answers), kind_of(reads), kind_of(writer())) == ("answers", "reads", "writes")
    with pytest.raises(TypeError, match="prompt and completion are for models that write"):
        next(iter(prepared(PAIRS, reads, TextForm(words))))


def test_batches_stay_as_they_are() -> None:
    batches = [{"input_ids": torch.ones(2, 3).long(), "labels": torch.ones(2, 3).long()}]
    assert prepared(batches, writer()) is batches
    pairs = [(torch.ones(2, 3), torch.ones(2).long())]
    assert prepared(pairs, torch.nn.Linear(3, 2)) is pairs


@pytest.mark.parametrize(
    ("examples", "template", "message"),
    [
        ("one two", PLAIN, r"a single text, 'one two': pass a list of texts"),
        (CHATS, None, "messages need a chat template, and .* has none: set"),
        ([{"prompt": "one", "completion": said("one", "two")}], PLAIN, "must both be texts, or"),
        ([{"text": 3}], PLAIN, "'text' must be a text, got int: pass texts"),
        ([{"text": None}], PLAIN, "examples with 'text' hold no text: pass texts"),
        ([{"messages": "one"}], PLAIN, "examples with 'messages' hold no text: pass texts"),
    ],
)
def test_says_what_to_give(examples: Any, template: str | None, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        list(prepared(examples, writer(), TextForm(tokenizer(template))))


def test_says_what_to_give_without_a_tokenizer() -> None:
    with pytest.raises(TypeError, match="these are texts, and there is no tokenizer"):
        next(iter(prepared(TEXTS, writer())))
    split = datasets.DatasetDict({"train": datasets.Dataset.from_list(PAIRS)})
    with pytest.raises(TypeError, match="several splits, train: pass one of them"):
        prepared(split, writer())
    other = datasets.Dataset.from_list([{"question": "one", "answer": "two"}] * 3)
    form = TextForm(tokenizer())
    from transformers import default_data_collator

    loader = torch.utils.data.DataLoader([], collate_fn=default_data_collator)
    with pytest.raises(TypeError, match="'question', 'answer' cannot be collated: pass texts"):
        next(iter(prepared(other, writer(), form, loader)))


def test_collators_that_take_raw_texts() -> None:
    """One that makes tokens of them is used; one that leaves them as they are (GRPO's) is not."""
    raw = datasets.Dataset.from_list([{"prompt": text} for text in TEXTS])
    form = TextForm(tokenizer())

    def counting(rows: list[Any]) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.tensor([[len(row["prompt"])] for row in rows])}

    for collate, width in ((counting, 1), (list, 7)):  # the longest text
        loader = torch.utils.data.DataLoader(raw, batch_size=8, collate_fn=collate)
        (batch,) = prepared(raw, writer(), form, loader)
        assert batch["input_ids"].shape == (len(TEXTS), width)
