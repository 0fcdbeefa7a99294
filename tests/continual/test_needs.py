"""What runs say that they lack, by source and kind of model, without reading or loading it."""

import json
import os
import subprocess
import sys

import pytest

from continual.tiny import config
from riselab.continual.runs import needs, read_config
from riselab.continual.vision import run as vision


def missing(**sections):
    return needs(read_config(config(**sections)))["missing"]


def stream(source, data, **more):
    return {"name": "mine", "source": source, "data": str(data), **more}


def test_a_run_that_lacks_nothing():
    found = needs(read_config(config()))
    assert found["missing"] == []
    assert 0 < found["bytes"] < 10**6


def test_cifar100_is_there_or_may_be_downloaded(tmp_path):
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    for name in ("train", "test"):
        (folder / name).touch()
    (told,) = missing(stream=stream("cifar100", tmp_path))
    assert told.startswith(f"CIFAR-100 is not complete in {folder} (Dataset not found or corrupted")
    assert "--set stream.download=true gets it, or unpack" in told
    assert missing(stream=stream("cifar100", tmp_path, download=True)) == []


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("npz", "no .npz at {0}/nothing: write one with numpy.savez"),
        ("folder", "no image folders in {0}/nothing: it must have train/CLASS/*"),
        ("domainnet", "DomainNet is not complete in {0}/nothing: clipart_train.txt"),
        ("hub", "the dataset '{0}/nothing' is no file or folder here and not in the local cache"),
    ],
)
def test_images_that_are_not_there(tmp_path, source, message):
    (told,) = missing(stream=stream(source, tmp_path / "nothing"))
    assert told.startswith(message.format(tmp_path))


def test_the_hub_is_asked_in_a_process_that_has_imported_nothing_else():
    """What other imports bring along is not there before the first run of a user."""
    plain = {
        "domain": "vision", "host": {"name": "learnable-classifier"},
        "model": {"pretrained": False, "name": "vit_tiny_patch16_224"},
        "stream": {"name": "mine", "source": "hub", "data": "somebody/images"},
    }  # fmt: skip
    program = (
        "from riselab.continual.runs import needs, read_config; "
        f"print(needs(read_config({plain!r}))['missing'])"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert "somebody/images' is no file or folder here" in found.stdout, found.stderr


def test_images_are_not_read(tmp_path):
    """Whether a file is whole is seen when it is read; to read all of them now would take long."""
    (tmp_path / "broken.npz").write_bytes(b"no")
    assert missing(stream=stream("npz", tmp_path / "broken.npz")) == []


def test_weights_of_vision(tmp_path):
    place = str(tmp_path / "w.safetensors")
    (told,) = missing(model={"pretrained": True, "weights": place})
    assert told == f"model.weights must be a file, got {place!r}"
    (tmp_path / "w.safetensors").touch()
    assert missing(model={"pretrained": True, "weights": place, "depth": 3}) == []
    (told,) = missing(model={"pretrained": True, "name": "vit_nonsense"})
    assert told.startswith("model.name 'vit_nonsense' is not known to timm")


def language(tmp_path, weights="", tasks=("CB",), **stream):
    stream = {"name": "mine", "tasks": list(tasks), "data": str(tmp_path / "data"), **stream}
    plain = {
        "domain": "language",
        "stream": stream,
        "host": {"name": "seq-lora"},
        "model": {"weights": str(weights)} if weights else {},
    }
    return needs(read_config(plain))


def test_texts_and_weights_of_language(tmp_path):
    data, model = tmp_path / "data", tmp_path / "model"
    texts, weights = language(tmp_path)["missing"]
    assert texts == f"data must be a folder with one folder per task, got {str(data)!r}"
    assert weights.startswith("model.name 'google-t5/t5-large' is not in the local cache")
    _, weights = language(tmp_path, model)["missing"]
    assert weights.endswith(f"must be a folder in the form of transformers, got {str(model)!r}")
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"d_model": 4, "num_layers": 1}))
    (model / "model.safetensors").touch()
    (data / "CB").mkdir(parents=True)
    examples = [{"sentence": "a", "label": "neutral"}] * 4
    (data / "CB" / "train.json").write_text(json.dumps(examples))
    found = language(tmp_path, model, held_out=0.5)
    assert found["missing"] == []
    assert found["bytes"] == 2 * 8 * 4 * 2 * 3 * 3 * 4 * 3


def test_texts_of_the_hub_are_named_once(tmp_path):
    (tmp_path / "config.json").touch()
    (tmp_path / "model.safetensors").touch()
    own = {"a": {"hub": "me/one"}, "b": {"hub": "me/one"}, "c": {"hub": "me/two"}}
    found = language(tmp_path, tmp_path, tuple(own), own=own, data="")["missing"]
    assert [told.split("'")[1] for told in found] == ["me/one", "me/two"]


def test_what_rows_share_is_looked_for_once(tmp_path, monkeypatch):
    looked = []
    monkeypatch.setattr(vision, "open_source", looked.append)
    settings = read_config(config(stream=stream("folder", tmp_path)))
    known = {}
    for _ in range(3):
        needs(settings, known)
    assert len(looked) == 1
    needs(settings)
    assert len(looked) == 2, "somebody who asks anew may have put it there"
