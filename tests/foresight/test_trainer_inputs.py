"""``diagnose`` takes a transformers Trainer: the numbers of its model and of its batches."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, models

from risegrad import Rise
from risegrad.curvature import Measurement, ProductBudget, diagnose

HOW = Measurement(budget=ProductBudget(probes=8), dampings=(0.3,), seed=3)
SIZES = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 20}


def network(lora: bool) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = transformers.BertConfig(**SIZES, intermediate_size=16, num_labels=3)
        made: Any = transformers.BertForSequenceClassification(config)
        if not lora:
            return made
        how = LoraConfig(r=2, target_modules=["query", "value"], task_type="SEQ_CLS")
        return get_peft_model(made, how)


def examples(count: int, seed: int) -> list[dict[str, Any]]:
    """Texts of one length, so that batches can be made without a tokenizer."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(20, (count, 5), generator=generator)
    labels = torch.randint(3, (count,), generator=generator)
    return [{"input_ids": w, "labels": y} for w, y in zip(words, labels, strict=True)]


def trainer(folder: Path, lora: bool = False, **changes: Any) -> transformers.Trainer:
    given: dict[str, Any] = {"train_dataset": examples(8, 1), "eval_dataset": examples(8, 2)}
    arguments = {name: changes.pop(name) for name in ("label_smoothing_factor",) if name in changes}
    args = transformers.TrainingArguments(
        str(folder), per_device_train_batch_size=4, per_device_eval_batch_size=4, use_cpu=True,
        report_to=[], **arguments,
    )  # fmt: skip
    return transformers.Trainer(network(lora), args, **given | changes)


def batches(data: list[dict[str, Any]]) -> list[Any]:
    return [
        {name: torch.stack([one[name] for one in data[at : at + 4]]) for name in data[0]}
        for at in range(0, len(data), 4)
    ]


@pytest.mark.parametrize("lora", [False, True])
def test_a_trainer_is_its_model_and_its_batches(tmp_path: Path, lora: bool) -> None:
    made = trainer(tmp_path, lora)
    kept, new = examples(8, 5), examples(8, 6)
    rise = Rise(exempt=("*classifier*",))
    found = diagnose(made, kept, new, rise=rise, measurement=HOW)
    adam = replace(HOW, optimizer="adam")
    expected = diagnose(made.model, batches(kept), batches(new), rise=rise, measurement=adam)
    assert found.to_dict() == expected.to_dict()
    assert any("lora" in block.name for block in found.blocks) == lora


def supervised(folder: Path, **arguments: Any) -> Any:
    """TRL's trainer of a small causal model with LoRA."""
    trl = pytest.importorskip("trl")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        sizes = SIZES | {"intermediate_size": 16}
        made: Any = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))
    words = {"<pad>": 0, "<eos>": 1} | {f"w{n}": n for n in range(2, 20)}
    plain = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="<pad>", eos_token="<eos>", unk_token="<pad>"
    )
    args = trl.SFTConfig(
        str(folder), per_device_train_batch_size=4, per_device_eval_batch_size=4, use_cpu=True,
        report_to=[], bf16=False, **arguments,
    )  # fmt: skip
    lora = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    return trl.SFTTrainer(
        made, args, train_dataset=rows_of(1), eval_dataset=rows_of(2), peft_config=lora,
        processing_class=tokenizer,
    )  # fmt: skip


def rows_of(seed: int) -> Any:
    words = torch.randint(2, 20, (8, 6), generator=torch.Generator().manual_seed(seed))
    return Dataset.from_dict({"input_ids": words.tolist()})


def test_trls_trainer_is_its_model_and_its_batches(tmp_path: Path) -> None:
    made = supervised(tmp_path)
    for parameter in made.model.parameters():  # LoRA's B too, so that A has a gradient
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(1))
    found = diagnose(made, None, measurement=HOW)
    made.model.eval()
    data = [torch.tensor(rows_of(seed)["input_ids"]) for seed in (2, 1)]
    losses = [
        made.model(input_ids=words, labels=words).loss.item() for words in data
    ]  # all rows are of one length, so one batch has the mean over tokens
    assert [found.historical_loss, found.incoming_loss] == pytest.approx(losses, rel=1e-5)
    assert all("lora" in block.name for block in found.blocks)
    # Without the flags that gradient checkpointing needs, the same numbers.
    made.model.disable_input_require_grads()
    words = [[{"input_ids": w, "labels": w} for w in part.split(4)] for part in data]
    rule = Measurement(**vars(HOW) | {"optimizer": "adam"})
    bare = diagnose(made.model, *words, measurement=rule)
    assert found.totals.fo.value == pytest.approx(bare.totals.fo.value, rel=1e-3)
    assert found.totals.fo.value > 0


def test_trls_other_losses_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="uses its model's own loss, got loss_type='dft'"):
        diagnose(supervised(tmp_path, loss_type="dft"), None, measurement=HOW)


def test_its_own_data_sets_by_default(tmp_path: Path) -> None:
    made = trainer(tmp_path)
    found = diagnose(made, None, measurement=HOW)
    made.model.eval()
    losses = [
        sum(made.model(**batch).loss.item() for batch in batches(data)) / 2
        for data in (made.eval_dataset, made.train_dataset)
    ]
    assert [found.historical_loss, found.incoming_loss] == pytest.approx(losses, rel=1e-5)


def test_nothing_is_changed(tmp_path: Path) -> None:
    made = trainer(tmp_path)
    made.model.train()
    before = {name: value.clone() for name, value in made.model.state_dict().items()}
    random = torch.get_rng_state()
    first = diagnose(made, None, measurement=HOW)
    assert torch.equal(torch.get_rng_state(), random)
    assert made.model.training
    assert all(torch.equal(before[name], v) for name, v in made.model.state_dict().items())
    torch.rand(3)
    again = diagnose(made, None, measurement=HOW)
    assert first.to_dict() == again.to_dict(), "whatever was drawn in between"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"eval_dataset": None}, "historical must be a data set .* no eval_dataset"),
        ({"train_dataset": None}, "incoming must be a data set .* no train_dataset"),
        ({"label_smoothing_factor": 0.1}, "own loss, got label_smoothing_factor=0.1"),
        ({"compute_loss_func": max}, "own loss, got compute_loss_func"),
    ],
)
def test_what_a_trainer_lacks_is_named(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        diagnose(trainer(tmp_path, **changes), None, measurement=HOW)
