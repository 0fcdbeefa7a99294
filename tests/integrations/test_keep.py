"""``KeepCallback`` in the Trainer and in TRL's, on a tiny chat model made on the spot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainingArguments

import risegrad
from keeping.chat import llama, tokenizer

peft = pytest.importorskip("peft")
from risegrad.integrations.keep import (  # noqa: E402
    FOLDER,
    KeepCallback,
    create_keep_optimizer,
)
from risegrad.keeping.keeper import keeper_of  # noqa: E402

CHATS = [
    [{"role": "user", "content": asked}, {"role": "assistant", "content": told}]
    for asked, told in [("who", "me"), ("why", "so"), ("how", "like this"), ("when", "now")] * 4
]


def adapted() -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return peft.get_peft_model(
            llama(), peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"])
        )


def rows(chats: Any = CHATS) -> list[dict[str, Any]]:
    tokens = tokenizer()
    ids = [tokens.apply_chat_template(chat, tokenize=True)["input_ids"][:14] for chat in chats]
    return [{"input_ids": row[:9], "labels": row[:9]} for row in ids]


def trainer(model: Any, folder: Path, callback: KeepCallback, **changes: Any) -> Trainer:
    settings: dict[str, Any] = {
        "per_device_train_batch_size": 4,
        "max_steps": 4,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "save_strategy": "no",
        "logging_steps": 2,
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }
    data = changes.pop("data", rows())
    arguments = TrainingArguments(str(folder), **settings | changes)
    return Trainer(
        model, arguments, train_dataset=data, processing_class=tokenizer(), callbacks=[callback]
    )


def parameters(model: Any) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters() if p.requires_grad])


def test_a_trainer_needs_one_callback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, callback = adapted(), KeepCallback(examples=10)
    training = trainer(model, tmp_path, callback, gradient_accumulation_steps=2)
    training.train()
    keeper = callback.keeper
    assert keeper is not None
    assert keeper.steps == 4
    assert keeper.kept is not None
    assert keeper.kept.seen == 10
    lines = [line for line in training.state.log_history if "keep/drift" in line]
    assert [line["step"] for line in lines] == [2, 4, 4]
    assert {"loss", "keep/strength", "keep/c"} <= lines[0].keys()
    assert "nats per token on 2 examples" in capsys.readouterr().out
    assert keeper_of(training.optimizer) is None
    signed = json.loads((tmp_path / "risegrad.json").read_text())
    assert signed["keep"]["steps"] == 4
    assert signed["keep"]["sentence"] in (tmp_path / "README.md").read_text()


def test_the_pull_has_the_trainers_precision(tmp_path: Path) -> None:
    model, callback = adapted(), KeepCallback(CHATS, examples=10)
    seen: set[torch.dtype] = set()
    first = next(m for m in model.modules() if isinstance(m, torch.nn.Linear))
    first.register_forward_hook(
        lambda _, __, out: None if first.training else seen.add(out.dtype)  # a pull, or a look
    )
    trainer(model, tmp_path, callback, max_steps=1, bf16=True).train()
    assert seen == {torch.bfloat16}


def test_it_resumes_bit_for_bit_with_what_it_kept(tmp_path: Path) -> None:
    def train(folder: Path, resume: Path | None = None) -> Any:
        model, callback = adapted(), KeepCallback(examples=10, budget=0.05)
        changes: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2}
        trainer(model, folder, callback, **changes).train(
            resume_from_checkpoint=None if resume is None else str(resume)
        )
        return parameters(model), callback.keeper

    whole, first = train(tmp_path)
    resumed, second = train(tmp_path, tmp_path / "checkpoint-2")
    assert torch.equal(whole, resumed)
    assert (second.steps, second.strength) == (4, first.strength)
    with pytest.raises(ValueError, match="the saved keeper is missing at"):
        train(tmp_path / "other", tmp_path / "checkpoint-2")


def test_a_run_that_did_not_keep_is_not_resumed(tmp_path: Path) -> None:
    plain = trainer(adapted(), tmp_path, KeepCallback(), save_strategy="steps", save_steps=2)
    plain.remove_callback(KeepCallback)
    plain.train()
    with pytest.raises(ValueError, match="that run trained without KeepCallback"):
        trainer(adapted(), tmp_path, KeepCallback()).train(
            resume_from_checkpoint=str(tmp_path / "checkpoint-2")
        )


def test_one_task_after_the_other(tmp_path: Path) -> None:
    model, callback = adapted(), KeepCallback(CHATS[:8], examples=8)
    for number, data in enumerate((rows(CHATS[:8]), rows(CHATS[8:]))):
        trainer(model, tmp_path / str(number), callback, data=data).train()
    keeper = callback.keeper
    assert keeper is not None
    assert keeper.kept is not None
    assert (keeper.steps, keeper.kept.seen) == (8, 16)
    assert (tmp_path / "1" / FOLDER / "keeper.json").is_file()


def test_texts_and_messages_with_a_tokenizer() -> None:
    model = llama()
    keeper = risegrad.keep(
        model, torch.optim.SGD(model.parameters()), CHATS, tokenizer=tokenizer(), examples=8
    )
    assert keeper.kept is not None
    (first, *_) = keeper.kept.pulled
    assert bool((first.batch["labels"] == -100).any())  # of a chat only the answers count
    keeper.detach()
    texts = ["who are you", "why not"] * 3
    with pytest.raises(ValueError, match="tokenizer is needed"):
        risegrad.keep(model, torch.optim.SGD(model.parameters()), texts)


def test_an_optimizer_in_pefts_form() -> None:
    model = adapted()
    chats = [*CHATS]
    optimizer = create_keep_optimizer(
        model, torch.optim.AdamW, lr=1e-3, old=chats, tokenizer=tokenizer(), weight_decay=0.1
    )
    assert optimizer.param_groups[0]["weight_decay"] == 0.1
    keeper = keeper_of(optimizer)
    assert keeper is not None
    assert keeper.report()["uncovered"] == {}
    for p in model.parameters():
        p.requires_grad_(False)
    with pytest.raises(ValueError, match="every parameter of the model is frozen"):
        create_keep_optimizer(model, torch.optim.AdamW, lr=1e-3)


def test_in_trls_trainer(tmp_path: Path) -> None:
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    callback, data = KeepCallback(examples=8), [{"messages": chat} for chat in CHATS]
    settings = trl.SFTConfig(
        str(tmp_path), max_steps=2, report_to=[], use_cpu=True, save_strategy="no", logging_steps=1,
        disable_tqdm=True, dataloader_pin_memory=False, bf16=False, max_length=32,
    )  # fmt: skip
    trl.SFTTrainer(
        llama(), settings, train_dataset=datasets.Dataset.from_list(data),
        processing_class=tokenizer(), callbacks=[callback],
        peft_config=peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"]),
    ).train()  # fmt: skip
    assert callback.keeper is not None
    assert callback.keeper.steps == 2
