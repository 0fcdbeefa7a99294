"""Batches from images and texts, and models around them, end to end."""

import re

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

from continual.language.tiny_text import make_tokenizer, save_model, write_task
from risegrad.curvature import ProductBudget
from risegrad.foresight import Measurement, diagnose
from risegrad.foresight.foresight_settings import DataSettings, SettingsPart, parse
from risegrad.foresight.problem_builder import build, image_parts, text_parts

LOOK = {"size": 16, "mean": (0.5,) * 3, "std": (0.2,) * 3, "seed": 0}


def image_file(path, classes=4, each=12):
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(classes), each)
    images = rng.integers(0, 255, (classes * each, 8, 8, 3), dtype=np.uint8)
    parts = {"train_images": images, "train_labels": labels}
    np.savez(path, **parts, test_images=images, test_labels=labels)
    return str(path)


def test_images(tmp_path):
    data = DataSettings(
        kind="images", path=image_file(tmp_path / "i.npz"), batch=4,
        historical=SettingsPart(classes=(3, 1), batches=2),
        incoming=SettingsPart(classes=(0,), batches=1),
    )  # fmt: skip
    old, new, warm = image_parts(data, **LOOK)
    assert [len(part) for part in (old, new, warm)] == [2, 1, 4]
    assert old[0][0].shape == (4, 3, 16, 16)
    assert {label for _, y in [*old, *warm] for label in y.tolist()} == {0, 1}
    assert set(new[0][1].tolist()) == {2}
    again = image_parts(data, **LOOK)
    assert torch.equal(again[0][0][0], old[0][0])


def test_images_of_a_folder(tmp_path):
    for name in ("cats", "dogs"):
        (tmp_path / name).mkdir()
        for number in range(10):
            pixels = np.full((6, 9, 3), 20 * number, dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / name / f"{number}.png")
    part = SettingsPart(classes=(0,), batches=1), SettingsPart(classes=(1,), batches=1)
    old, new, _ = image_parts(DataSettings("images", str(tmp_path), 4, *part), **LOOK)
    assert old[0][0].shape == new[0][0].shape == (4, 3, 16, 16)
    assert (old[0][1].tolist(), new[0][1].tolist()) == ([0] * 4, [1] * 4)


def test_a_timm_experiment_end_to_end(tmp_path):
    model = timm.create_model("vit_tiny_patch16_224", img_size=16, patch_size=8, embed_dim=12,
                              depth=1, num_heads=3)  # fmt: skip
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    settings = parse({
        "model": {"source": "timm", "name": "vit_tiny_patch16_224", "lora": 2, "image_size": 16,
                  "path": str(tmp_path / "w.safetensors"),
                  "arguments": {"patch_size": 8, "embed_dim": 12, "depth": 1, "num_heads": 3}},
        "data": {"kind": "images", "path": image_file(tmp_path / "i.npz"), "batch": 4,
                 "historical": {"classes": [0, 1], "batches": 1},
                 "incoming": {"classes": [2], "batches": 1}},
        "warmup": {"steps": 2},
    })  # fmt: skip
    problem = build(settings)
    names = [name for name, p in problem.model.named_parameters() if p.requires_grad]
    assert any("lora_A" in name for name in names)
    assert any("head" in name for name in names)
    body = problem.model.base_model.model.blocks[0].mlp.fc1.weight
    assert torch.equal(body, model.blocks[0].mlp.fc1.weight)
    assert problem.model(problem.historical[0][0]).shape == (4, 3)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    root = tmp_path_factory.mktemp("tasks")
    for name in ("agnews", "SST-2", "RTE"):
        write_task(root, name, train=None if name == "RTE" else 12)
    return root


def texts(path, historical=("agnews",), incoming=("RTE",), **more):
    kept, new = SettingsPart(tasks=historical, batches=2), SettingsPart(tasks=incoming, batches=1)
    return DataSettings("texts", str(path), batch=3, historical=kept, incoming=new, **more)


def test_texts_are_the_prompts_of_the_language_hosts(tasks):
    tokenizer = make_tokenizer()
    old, new, warm = text_parts(texts(tasks), tokenizer, "seq2seq", seed=0)
    assert [len(part) for part in (old, new, warm)] == [2, 1, 2]
    for batch in (*old, *new, *warm):
        for row, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True):
            words = tokenizer.decode(row[mask.bool()])
            assert words.startswith("Task")
            assert words.rstrip().endswith("Answer : </s>")
        assert ((batch["labels"] == -100) | (batch["labels"] > 0)).all()
        assert (batch["labels"] == tokenizer.eos_token_id).sum() == 3
    again = text_parts(texts(tasks), tokenizer, "seq2seq", seed=0)
    assert torch.equal(again[0][0]["input_ids"], old[0]["input_ids"])


def test_long_prompts_keep_their_question(tasks):
    tokenizer = make_tokenizer()
    old, *_ = text_parts(texts(tasks, tokens=12), tokenizer, "seq2seq", seed=0)
    assert old[0]["input_ids"].shape == (3, 12)
    assert tokenizer.decode(old[0]["input_ids"][0]).endswith("Answer : </s>")


@pytest.mark.parametrize("kind", ["t5", "llama"])
def test_a_language_model_end_to_end(tasks, tmp_path, kind):
    settings = parse({
        "model": {"source": "transformers", "path": str(save_model(tmp_path, kind)), "lora": 2,
                  "targets": ["q", "v"] if kind == "t5" else ["q_proj", "v_proj"]},
        "data": {"kind": "texts", "path": str(tasks), "batch": 3,
                 "historical": {"tasks": ["agnews"], "batches": 1},
                 "incoming": {"tasks": ["SST-2"], "batches": 1}},
        "warmup": {"steps": 2, "learning_rate": 0.01},
    })  # fmt: skip
    problem = build(settings)
    measurement = Measurement(budget=ProductBudget(probes=8, adam_draws=1))
    found = diagnose(problem.model, problem.historical, problem.incoming, measurement=measurement)
    assert all("lora" in block.name for block in found.blocks)
    assert found.totals.fo.value > 0


def test_a_model_that_does_not_write_is_refused(tasks, tmp_path):
    settings = parse({
        "model": {"source": "transformers", "path": str(save_model(tmp_path, "bert"))},
        "data": {"kind": "texts", "path": str(tasks), "historical": {"tasks": ["agnews"]},
                 "incoming": {"tasks": ["SST-2"]}},
    })  # fmt: skip
    with pytest.raises(RuntimeError, match="must write answers, got an encoder"):
        build(settings)


def test_bad_data(tmp_path, tasks):
    path = image_file(tmp_path / "i.npz")
    part = SettingsPart(classes=(0,), batches=9)
    with pytest.raises(
        RuntimeError, match=r"data.historical needs 9 batches of 16, got 12 examples"
    ):
        image_parts(DataSettings("images", path, 16, part, part), **LOOK)
    with pytest.raises(RuntimeError, match=r"data.path must exist \(--data on the command line\)"):
        image_parts(DataSettings("images", "", 16, part, part), **LOOK)
    np.savez(tmp_path / "other.npz", images=np.zeros(3))
    other = DataSettings("images", str(tmp_path / "other.npz"), 16, part, part)
    with pytest.raises(ValueError, match=r"other\.npz must have the keys train_images"):
        image_parts(other, **LOOK)
    for wrong, message in (
        (texts(tasks, ("poems",)), "tasks must be one of"),
        (texts(tasks, ("yelp",)), "neither a train nor a test file for yelp"),
        (texts(tasks, ("RTE",), ("RTE",)), "tasks must be different, got RTE, RTE"),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=re.escape(message)):
            text_parts(wrong, make_tokenizer(), "seq2seq", seed=0)
