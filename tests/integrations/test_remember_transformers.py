"""The Trainer with a memory: made when training begins, kept over a resume, left for the next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

import risegrad
from integrations.by_hand import assert_same, by_hand, distance, parameters
from integrations.test_transformers import (
    ACCUMULATE,
    CLIP,
    NEAR,
    STEPS,
    loss,
    tiny,
    tokens,
    trainer,
)
from risegrad.memory.informed import Informed

peft = pytest.importorskip("peft")
from risegrad.integrations.transformers import FILE, RememberCallback  # noqa: E402


def old_batches() -> list[dict[str, Any]]:
    rows = tokens().flip(1)
    return [{"input_ids": part, "labels": part} for part in rows.split(4)]


class OldExamples(Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return len(tokens())

    def __getitem__(self, number: int) -> dict[str, Any]:
        row = tokens().flip(1)[number]
        return {"input_ids": row, "labels": row}


def adapted() -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return peft.get_peft_model(
            tiny(), peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"])
        )


def test_as_by_hand(tmp_path: Path) -> None:
    model, callback = tiny(), RememberCallback(old_batches(), damping=0.1, examples=16)
    trainer(model, tmp_path, callbacks=[callback]).train()
    assert callback.handle is not None
    assert (callback.handle.steps, callback.handle.on) == (STEPS, "update")
    twin = tiny()
    memory = risegrad.remember(twin, old_batches(), examples=16)
    assert callback.memory == memory
    optimizer = trainer(twin, tmp_path).create_optimizer()
    shaper = Informed(memory, 0.1)
    wanted = by_hand(twin, optimizer, loss, STEPS, ACCUMULATE, CLIP, shaper, "update")
    assert distance(parameters(model), wanted) < NEAR


@pytest.mark.parametrize("q", [None, 4])
def test_resumes_bit_for_bit_with_the_first_memory(tmp_path: Path, q: int | None) -> None:
    def train(resume: str | None = None, **changes: Any) -> Any:
        model, callback = tiny(), RememberCallback(old_batches(), q=q, examples=16)
        training = trainer(model, tmp_path, callbacks=[callback], **changes)
        training.train(resume_from_checkpoint=resume)
        return parameters(model), callback

    whole, first = train(save_strategy="steps", save_steps=2)
    resumed, second = train(str(tmp_path / "checkpoint-2"))
    assert first.memory == second.memory
    assert second.handle.steps == STEPS
    assert_same(whole, resumed)
    assert FILE not in {path.name for path in (tmp_path / "checkpoint-2").iterdir()}
    other = RememberCallback(memory=first.memory * 2.0, q=q)
    with pytest.raises(ValueError, match="memory: saved"):
        trainer(tiny(), tmp_path, callbacks=[other]).train(
            resume_from_checkpoint=str(tmp_path / "checkpoint-2")
        )


def test_a_resume_without_the_first_memory_is_refused(tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    callback = RememberCallback(old_batches(), examples=16)
    trainer(tiny(), there, callbacks=[callback], save_strategy="steps", save_steps=2).train()
    again = RememberCallback(old_batches(), examples=16)
    with pytest.raises(ValueError, match="goes on from step 2, and the memory it began with"):
        trainer(tiny(), here, callbacks=[again]).train(
            resume_from_checkpoint=str(there / "checkpoint-2")
        )
    ready = RememberCallback(memory=callback.memory)
    trainer(tiny(), here, callbacks=[ready]).train(
        resume_from_checkpoint=str(there / "checkpoint-2")
    )
    assert ready.handle is not None
    assert ready.handle.steps == STEPS


SAVES = {"save_strategy": "steps", "save_steps": 2}


def test_the_file_of_an_earlier_run_is_not_taken(tmp_path: Path) -> None:
    """A plain run into the same folder, and then one that is resumed with a memory."""
    first = RememberCallback(old_batches(), examples=16)
    trainer(tiny(), tmp_path, callbacks=[first]).train()
    trainer(tiny(), tmp_path, **SAVES).train()
    other = RememberCallback(old_batches()[:2], examples=8)
    with pytest.warns(UserWarning, match="goes on from step 2 of a run that no memory shaped"):
        trainer(tiny(), tmp_path, callbacks=[other], **SAVES).train(
            resume_from_checkpoint=str(tmp_path / "checkpoint-2")
        )
    assert other.memory is not None
    assert other.memory.source["examples"] == 8
    assert other.handle is not None
    assert other.handle.steps == STEPS - 2
    assert risegrad.Memory.load(tmp_path / FILE) == other.memory
    again = RememberCallback(old_batches(), examples=16)  # from now on the run has a memory
    trainer(tiny(), tmp_path, callbacks=[again], max_steps=STEPS + 2).train(
        resume_from_checkpoint=str(tmp_path / f"checkpoint-{STEPS}")
    )
    assert again.memory == other.memory


def test_a_callback_that_is_used_again_leaves_its_memory_in_every_folder(tmp_path: Path) -> None:
    callback = RememberCallback(old_batches(), then=old_batches(), examples=16)
    for folder in ("one", "two"):
        trainer(tiny(), tmp_path / folder, callbacks=[callback], **SAVES).train()
    assert risegrad.Memory.load(tmp_path / "one" / FILE)["lm_head"].examples == 16
    assert risegrad.Memory.load(tmp_path / "two" / FILE)["lm_head"].examples == 32
    for resumed in (RememberCallback(old_batches(), examples=16), callback):
        trainer(tiny(), tmp_path / "two", callbacks=[resumed]).train(
            resume_from_checkpoint=str(tmp_path / "two" / "checkpoint-2")
        )
        assert resumed.handle is not None
        assert resumed.handle.shaper.memory["lm_head"].examples == 32  # type: ignore[attr-defined]
        assert resumed.handle.steps == STEPS


def test_training_anew_goes_on_with_what_was_added(tmp_path: Path) -> None:
    callback = RememberCallback(old_batches(), then=old_batches(), examples=16)
    training = trainer(tiny(), tmp_path, callbacks=[callback], **SAVES)
    for number in (1, 2):
        training.train()
        handle, kept = callback.handle, callback.memory
        assert handle is not None
        assert kept is not None
        assert handle.shaper.memory["lm_head"].examples == 16 * number  # type: ignore[attr-defined]
        assert kept["lm_head"].examples == 16 * (number + 1)
    training.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert callback.handle is not None  # the state of the second run, with the memory it had
    assert callback.handle.shaper.memory["lm_head"].examples == 32  # type: ignore[attr-defined]
    assert callback.handle.steps == 2 * STEPS
    assert callback.memory is not None
    assert callback.memory["lm_head"].examples == 48


def test_training_anew_with_nothing_added_goes_on(tmp_path: Path) -> None:
    callback = RememberCallback(old_batches(), examples=16)
    training = trainer(tiny(), tmp_path, callbacks=[callback])
    training.train()
    memory = callback.memory
    training.train()
    assert callback.memory is memory
    assert callback.handle is not None
    assert callback.handle.steps == 2 * STEPS


def test_variants_that_names_do_not_tell_are_left_alone(tmp_path: Path) -> None:
    """A layer with aLoRA, beside a head that is trained as a whole."""
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM",
                             alora_invocation_tokens=[3], modules_to_save=["lm_head"])  # fmt: skip
    model = peft.get_peft_model(tiny(), config)
    callback = RememberCallback(old_batches(), examples=16)
    trainer(model, tmp_path, callbacks=[callback], max_grad_norm=0.0).train()
    assert callback.handle is not None
    assert callback.handle.layout.names
    assert all("lm_head" in name for name in callback.handle.layout.names)


def test_an_adapter_a_dataset_and_the_next_task(tmp_path: Path) -> None:
    """A fresh LoRA; the dataset goes through the Trainer's collator; a normal adapter is left."""
    model = adapted()
    callback = RememberCallback(OldExamples(), then=old_batches(), examples=16)
    start = parameters(model)
    trainer(model, tmp_path, callbacks=[callback], max_grad_norm=0.0).train()
    moved = {n for n, p in parameters(model).items() if not torch.equal(p, start[n])}
    assert callback.handle is not None
    assert moved == set(callback.handle.layout.names)
    assert all("lora_" in name for name in moved)
    layers = {name.split(".lora_")[0].removeprefix("base_model.model.") for name in moved}
    assert callback.memory is not None
    assert set(callback.memory) == layers
    assert all(layer.examples == 32 for layer in callback.memory.values())
    model.save_pretrained(tmp_path / "adapter")
    files = {path.name for path in (tmp_path / "adapter").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors"} <= files
    back = peft.PeftModel.from_pretrained(tiny(), tmp_path / "adapter")
    ids = tokens()[:2]
    assert torch.equal(back(input_ids=ids).logits, model.eval()(input_ids=ids).logits)


@pytest.mark.parametrize("plain", [True, False], ids=["numbers", "tensors"])
def test_a_list_of_examples_is_a_dataset(tmp_path: Path, plain: bool) -> None:
    rows = [dict(OldExamples()[number]) for number in range(len(OldExamples()))]
    if plain:
        rows = [{key: value.tolist() for key, value in row.items()} for row in rows]
    found = []
    for keep in (rows, OldExamples()):
        callback = RememberCallback(keep, examples=16)
        trainer(adapted(), tmp_path, callbacks=[callback], max_grad_norm=0.0).train()
        found.append(callback.memory)
    listed, dataset = found
    assert listed is not None
    assert dataset is not None
    for name, layer in listed.items():
        torch.testing.assert_close(layer.inputs.trace, dataset[name].inputs.trace)


def test_a_hub_dataset_loses_foreign_columns(tmp_path: Path) -> None:
    """As the one that is trained on: the Trainer takes such columns off before its collator."""
    datasets = pytest.importorskip("datasets")
    rows = tokens().flip(1).tolist()
    spans = [[0] * (1 + number % 2) for number in range(len(rows))]  # no tensor is made of these
    held = datasets.Dataset.from_dict({"input_ids": rows, "labels": rows, "spans": spans})
    callback = RememberCallback(held, then=held, examples=16)
    training = trainer(adapted(), tmp_path, callbacks=[callback], max_grad_norm=0.0)
    training.train_dataset = held
    training.train()
    assert callback.memory is not None
    assert all(layer.examples == 32 for layer in callback.memory.values())


@pytest.mark.parametrize("columns", ["known", "unknown"])
def test_a_stream_of_examples_is_taken_as_it_comes(tmp_path: Path, columns: str) -> None:
    datasets = pytest.importorskip("datasets")
    rows = tokens().flip(1).tolist()
    held = datasets.Dataset.from_dict({"input_ids": rows, "labels": rows}).to_iterable_dataset()
    if columns == "unknown":
        held = datasets.IterableDataset.from_generator(
            lambda: ({"input_ids": row, "labels": row, "text": "foreign"} for row in rows)
        )
        assert held.column_names is None
    callback = RememberCallback(held, examples=12)
    trainer(adapted(), tmp_path, callbacks=[callback], max_grad_norm=0.0).train()
    assert callback.memory is not None
    by_hand = risegrad.remember(adapted(), old_batches(), examples=12)
    for name, layer in callback.memory.items():
        torch.testing.assert_close(layer.inputs.trace, by_hand[name].inputs.trace)


@pytest.mark.parametrize("both", [True, False])
def test_examples_or_a_memory(both: bool) -> None:
    given = {"keep": old_batches(), "memory": object()} if both else {}
    with pytest.raises(ValueError, match=r"give keep .* or memory"):
        RememberCallback(**given)
