"""The Hugging Face Trainer: the one line, and the callback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, SequentialSampler

from integrations.by_hand import Recorder, assert_same, by_hand, distance, extras, parameters
from risegrad.core.attachment import attach
from risegrad.core.shapers import Rise, ScaledFO

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments  # noqa: E402

from risegrad.integrations.transformers import RiseCallback  # noqa: E402

MICRO, ACCUMULATE, STEPS, CLIP, RATE = 2, 2, 4, 0.05, 0.01
SHAPER = Rise(q=4, seed=3)
# A shift of a float32 rounding error: the noise itself moves parameters by hundreds of it.
NEAR = 2e-6


def tiny() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=23,
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return LlamaForCausalLM(config)


def tokens() -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 23, (STEPS * ACCUMULATE * MICRO, 6), generator=generator)


class OldExamples(Dataset[dict[str, Any]]):
    """What a model is to keep: the same texts, backwards."""

    def __len__(self) -> int:
        return len(tokens())

    def __getitem__(self, number: int) -> dict[str, Any]:
        row = tokens().flip(1)[number]
        return {"input_ids": row, "labels": row}


def loss(model: nn.Module, number: int) -> Tensor:
    ids = tokens()[number * MICRO : (number + 1) * MICRO]
    result: Tensor = model(input_ids=ids, labels=ids).loss
    return result


class InOrder(Trainer):
    """Examples in the order of the dataset, so that a loop by hand can follow."""

    def _get_train_sampler(self, *_: Any, **__: Any) -> SequentialSampler:
        return SequentialSampler(self.train_dataset)


def trainer(model: nn.Module, folder: Path, **changes: Any) -> Trainer:
    settings: dict[str, Any] = {
        "per_device_train_batch_size": MICRO,
        "gradient_accumulation_steps": ACCUMULATE,
        "max_grad_norm": CLIP,
        "max_steps": STEPS,
        "learning_rate": RATE,
        "weight_decay": 0.1,
        "lr_scheduler_type": "constant",
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }
    special = {"optimizers", "callbacks", "eval_dataset"} & set(changes)
    arguments = TrainingArguments(
        str(folder), **settings | {k: v for k, v in changes.items() if k not in special}
    )
    data = [{"input_ids": row, "labels": row} for row in tokens()]
    return InOrder(model, arguments, train_dataset=data, **{k: changes[k] for k in special})


def own_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=RATE)


def expected(model: nn.Module, optimizer: torch.optim.Optimizer, on: Any) -> dict[str, Tensor]:
    return by_hand(model, optimizer, loss, STEPS, ACCUMULATE, CLIP, SHAPER, on)


@pytest.mark.parametrize("on", ["gradient", "update"])
def test_the_one_line(tmp_path: Path, on: Any) -> None:
    model = tiny()
    optimizer = own_optimizer(model)
    handle = attach(optimizer, SHAPER, model.named_parameters(), on)
    trainer(model, tmp_path, optimizers=(optimizer, None)).train()
    assert handle.steps == STEPS
    twin, unshaped = tiny(), tiny()
    assert distance(parameters(model), expected(twin, own_optimizer(twin), on)) < NEAR
    without = by_hand(unshaped, own_optimizer(unshaped), loss, STEPS, ACCUMULATE, CLIP)
    assert distance(parameters(model), without) > 100 * NEAR


@pytest.mark.parametrize("on", ["gradient", "update"])
def test_the_callback_on_the_default_optimizer(tmp_path: Path, on: Any) -> None:
    model, callback = tiny(), RiseCallback(SHAPER, on=on)
    training = trainer(model, tmp_path, callbacks=[callback])
    training.train()
    assert callback.handle is not None
    assert callback.handle.steps == STEPS
    assert len(training.optimizer.param_groups) == 2, "decayed and not decayed parameters"
    assert set(callback.handle.layout.names) == {name for name, _ in model.named_parameters()}
    twin = tiny()
    optimizer = trainer(twin, tmp_path).create_optimizer()
    assert distance(parameters(model), expected(twin, optimizer, on)) < NEAR


def test_clips_then_shapes_then_steps(tmp_path: Path) -> None:
    # ScaledFO with blocks="whole" multiplies the norm by one known factor, so that the two sides
    # of the shaper tell the order: what comes in has the clipped norm, what goes out less.
    model = tiny()
    optimizer = own_optimizer(model)
    before = Recorder(optimizer)
    handle = attach(optimizer, ScaledFO(q=4, blocks="whole"), model.named_parameters())
    after = Recorder(optimizer)
    trainer(model, tmp_path, optimizers=(optimizer, None)).train()
    assert before.norms == pytest.approx([CLIP] * STEPS, rel=1e-4)
    factor = handle.layout.rows[0].mean_factor
    assert factor < 0.1
    assert after.norms == pytest.approx([CLIP * factor] * STEPS, rel=1e-4)


@pytest.mark.parametrize("how", ["one line", "callback"])
def test_resumes_bit_for_bit(tmp_path: Path, how: str) -> None:
    def train(folder: Path, **changes: Any) -> tuple[dict[str, Tensor], int]:
        model, resume = tiny(), changes.pop("resume", None)
        if how == "callback":
            callback = RiseCallback(SHAPER)
            training = trainer(model, folder, callbacks=[callback], **changes)
            training.train(resume_from_checkpoint=resume)
            handle = callback.handle
        else:
            optimizer = own_optimizer(model)
            handle = attach(optimizer, SHAPER, model.named_parameters())
            training = trainer(model, folder, optimizers=(optimizer, None), **changes)
            training.train(resume_from_checkpoint=resume)
        assert handle is not None
        return parameters(model), handle.steps

    whole, steps = train(tmp_path / "whole", save_strategy="steps", save_steps=2)
    resumed, again = train(tmp_path / "rest", resume=str(tmp_path / "whole" / "checkpoint-2"))
    assert steps == again == STEPS
    assert_same(whole, resumed)


def test_a_checkpoint_of_other_settings_is_refused(tmp_path: Path) -> None:
    trainer(
        tiny(), tmp_path, callbacks=[RiseCallback(SHAPER)], save_strategy="steps", save_steps=2
    ).train()
    other = trainer(tiny(), tmp_path, callbacks=[RiseCallback(Rise(q=5, seed=3))])
    with pytest.raises(ValueError, match="q: saved 4, here 5"):
        other.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


def test_shaping_may_start_from_a_checkpoint_without_it(tmp_path: Path) -> None:
    trainer(tiny(), tmp_path, save_strategy="steps", save_steps=2).train()
    callback = RiseCallback(SHAPER)
    training = trainer(tiny(), tmp_path, callbacks=[callback])
    training.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert callback.handle is not None
    assert callback.handle.steps == STEPS - 2


def test_training_again_goes_on(tmp_path: Path) -> None:
    callback = RiseCallback(SHAPER)
    training = trainer(tiny(), tmp_path, callbacks=[callback])
    training.train()
    training.train()
    assert callback.handle is not None
    assert callback.handle.steps == 2 * STEPS


def test_adapters_of_peft(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(
        tiny(), peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    )
    start, callback = parameters(model), RiseCallback(SHAPER)
    trainer(model, tmp_path, callbacks=[callback], max_grad_norm=0.0).train()
    handle = callback.handle
    assert handle is not None
    assert handle.steps == STEPS
    assert len(handle.layout.names) == 4
    assert all("lora_" in name for name in handle.layout.names)
    moved = {
        name for name, tensor in parameters(model).items() if not torch.equal(tensor, start[name])
    }
    assert moved == set(handle.layout.names)


def test_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['transformers'] = None; import risegrad.integrations.transformers"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "ImportError: risegrad.integrations.transformers needs" in done.stderr
    assert 'pip install "risegrad[language]"' in done.stderr
    assert "language" in extras()
