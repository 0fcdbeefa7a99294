"""``keep=`` of the callbacks: texts and messages in TRL, in the Trainer and in Lightning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from risegrad.memory.examples import TextForm, prepared

datasets = pytest.importorskip("datasets")
trl = pytest.importorskip("trl")
from integrations.test_kept_data import CHATS, PAIRS  # noqa: E402
from integrations.words import MARKED, PLAIN, TEXTS, tokenizer, writer  # noqa: E402
from risegrad.integrations.keep import KeepCallback  # noqa: E402
from risegrad.integrations.transformers import (  # noqa: E402
    ForgettingCallback,
    text_form,
)

KEPT = [text.removesuffix(" <eos>") for text in TEXTS]


def sft(folder: Path, callbacks: list[Any], template: str = PLAIN, **options: Any) -> Any:
    """A TRL trainer of two steps on messages."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = writer()
    arguments = trl.SFTConfig(
        str(folder), report_to=[], use_cpu=True, bf16=False, max_steps=2, save_strategy="no",
        disable_tqdm=True, dataloader_pin_memory=False, **{"max_length": 16} | options,
    )  # fmt: skip
    data = datasets.Dataset.from_list([{"messages": chat} for chat in CHATS])
    return trl.SFTTrainer(
        model, args=arguments, train_dataset=data, processing_class=tokenizer(template),
        callbacks=callbacks,
    )  # fmt: skip


def loss_of(model: Any, batches: Any) -> float:
    """The model's own loss, text by text, over all tokens that count."""
    losses, counts = [], []
    with torch.no_grad():
        for batch in batches:
            for ids, mask, labels in zip(*map(batch.get, batch), strict=True):
                row = {"input_ids": ids[mask == 1][None], "labels": labels[mask == 1][None]}
                counts.append(int((row["labels"][:, 1:] != -100).sum()))
                losses.append(float(model.eval()(**row).loss) * counts[-1])
    return sum(losses) / sum(counts)


@pytest.mark.parametrize(
    "options",
    [{}, {"packing": True}, {"padding_free": True, "max_length": None}],
    ids=["padded", "packed", "padding-free"],
)
@pytest.mark.parametrize("keep", [KEPT, CHATS, PAIRS], ids=["texts", "messages", "pairs"])
def test_in_trl(tmp_path: Path, keep: list[Any], options: Any) -> None:
    forgetting = ForgettingCallback({"old": keep}, every=1)
    keeping = KeepCallback(keep, examples=len(keep))
    training = sft(tmp_path, [keeping, forgetting], **options)
    form = text_form(training.args, tokenizer())
    before = loss_of(training.model, prepared(keep, training.model, form))
    training.train()
    assert forgetting.meter is not None
    assert forgetting.meter.start.scores["old"].loss == pytest.approx(before, rel=1e-5)
    assert forgetting.meter._kept["old"].examples == len(keep), "counted by text"
    assert keeping.keeper is not None
    assert keeping.keeper.kept is not None
    assert keeping.keeper.kept.seen == len(keep)


def test_only_answers_count_where_they_count_in_training(tmp_path: Path) -> None:
    forgetting = ForgettingCallback({"old": CHATS}, every=1)
    training = sft(tmp_path, [forgetting], MARKED, assistant_only_loss=True)
    answers = TextForm(tokenizer(), max_length=16, answers_only=True)
    before = loss_of(training.model, prepared(CHATS, training.model, answers))
    training.train()
    assert forgetting.meter is not None
    assert forgetting.meter.start.scores["old"].loss == pytest.approx(before, rel=1e-5)


def test_in_the_trainer_with_or_without_its_processing_class(tmp_path: Path) -> None:
    from integrations.test_transformers import trainer

    model, found = writer(), []
    for given in (None, tokenizer()):
        callback = ForgettingCallback({"old": KEPT}, tokenizer=given)
        training = trainer(model, tmp_path, callbacks=[callback], max_steps=1, learning_rate=0.0)
        if given is None:
            with pytest.raises(TypeError, match="these are texts, and there is no tokenizer"):
                training.train()
            training.callback_handler.processing_class = tokenizer()
        training.train()
        assert callback.meter is not None
        found.append(callback.meter.start)
    assert found[0].scores == found[1].scores


def test_in_lightning(tmp_path: Path) -> None:
    pl = pytest.importorskip("lightning.pytorch")
    from risegrad.integrations import lightning

    class Writing(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = writer()

        def forward(self, **batch: Any) -> Any:
            return self.model(**batch)

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            return self.model(**batch).loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    module, words = Writing(), tokenizer()
    keeping = lightning.KeepCallback(KEPT, examples=4, tokenizer=words)
    one, two = (lightning.ForgettingCallback({name: KEPT}, tokenizer=words) for name in "ab")
    row = torch.arange(8) + 6
    loader = torch.utils.data.DataLoader([{"input_ids": row, "labels": row}] * 4, batch_size=2)
    options = {
        "max_epochs": 1, "accelerator": "cpu", "logger": False, "default_root_dir": tmp_path,
        "enable_progress_bar": False, "enable_model_summary": False,
    }  # fmt: skip
    trainer = pl.Trainer(callbacks=[keeping, one, two], **options)
    before = loss_of(module.model, prepared(KEPT, module, TextForm(words)))
    trainer.fit(module, loader)
    assert one.meter is not None
    assert one.meter.start.scores["a"].loss == pytest.approx(before, rel=1e-5)
    assert keeping.keeper is not None
    assert keeping.keeper.kept is not None
    assert keeping.keeper.kept.seen == 4
    assert {path.name for path in tmp_path.glob("record*")} == {"record.json", "record-2.json"}
    again = pl.Trainer(callbacks=[lightning.KeepCallback(KEPT, examples=4)], **options)
    with pytest.raises(TypeError, match="these are texts, and there is no tokenizer"):
        again.fit(module, loader)
