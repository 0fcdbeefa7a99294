"""Models that do not fit: what is said before anything trains."""

import json
import shutil

import pytest
import torch
from tokenizers import Tokenizer, models, processors
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    PreTrainedTokenizerFast,
    T5ForConditionalGeneration,
)

from continual.language.tiny_text import config, save_model, write_task
from riselab.continual.devices import Devices
from riselab.continual.language.batches import Limit, prompt_limit
from riselab.continual.language.models import LanguageModelSettings, load_model, wrap
from riselab.continual.runs import make_host, read_config


def copied(weights, folder):
    return shutil.copytree(weights, folder)


def load(folder):
    return load_model(LanguageModelSettings(weights=str(folder), rank=2))


@pytest.mark.parametrize("size", [8, 2000])
def test_damaged_weights(weights, tmp_path, size):
    folder = copied(weights, tmp_path / "model")
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(RuntimeError, match=r"model .* could not be loaded \(.*header"):
        load(folder)


def test_weights_saved_in_half_precision_are_float32_here(weights, tmp_path):
    folder = copied(weights, tmp_path / "model")
    T5ForConditionalGeneration.from_pretrained(weights).to(torch.bfloat16).save_pretrained(folder)
    assert {p.dtype for p in load(folder).module.parameters()} == {torch.float32}


def test_weights_of_another_size(weights, tmp_path):
    folder = copied(weights, tmp_path / "model")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"d_model": 32}))
    with pytest.raises(RuntimeError, match=r"model .* could not be loaded"):
        load(folder)


def test_a_folder_without_a_tokenizer(weights, tmp_path):
    folder = copied(weights, tmp_path / "model")
    for path in folder.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(ValueError, match=r"tokenizer of .* must know words, got none"):
        load(folder)


@pytest.mark.parametrize(("kind", "token"), [("gpt2", "eos_token"), ("bert", "pad_token")])
def test_a_tokenizer_without_an_end(tokenizer, tmp_path, kind, token):
    folder = save_model(tmp_path / "model", kind, tokenizer)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in settings.items() if k[:3] not in ("eos", "pad")}))
    with pytest.raises(ValueError, match=rf"tokenizer of .* must have the {token}, got none"):
        load(folder)


def test_a_decoder_that_takes_no_positions(tokenizer):
    net = BloomForCausalLM(
        BloomConfig(vocab_size=len(tokenizer), hidden_size=16, n_layer=1, n_head=2)
    )
    with pytest.raises(ValueError, match=r"needs position_ids, which bloom does not take"):
        wrap(net, tokenizer, LanguageModelSettings(rank=2), "decoder")


def test_labels_must_fit(data, weights):
    settings = read_config(config(data, weights, model={"target_length": 3}))
    with pytest.raises(ValueError, match=r"'Science or Technology' has 4 tokens, got 3"):
        make_host(settings, Devices())


@pytest.mark.parametrize(("kind", "rest"), [("gpt2", 124), ("bert", 512)])
def test_prompts_must_fit(tokenizer, tmp_path, kind, rest):
    folder = write_task(tmp_path / "tasks", "SST-2")
    long = [{"sentence": "red " * 600, "label": "Good"}]
    (folder / "train.json").write_text(json.dumps(long))
    weights = save_model(tmp_path / "model", kind, tokenizer)
    sections = {"stream": {"tasks": ["SST-2"]}, "model": {"source_length": 600}}
    host = make_host(read_config(config(tmp_path / "tasks", weights, **sections)), Devices())
    with pytest.raises(ValueError, match=rf"set model\.source_length to {rest} or less"):
        host.begin(0)
    sections["model"] = {"source_length": rest}
    host = make_host(read_config(config(tmp_path / "tasks", weights, **sections)), Devices())
    session = host.begin(0)
    assert torch.isfinite(session.loss(session.items.fetch([(0, 0)], 0), False))


def test_an_unknown_letter_is_no_end():
    few = Tokenizer(models.WordLevel({"<u>": 0, "</s>": 1}, unk_token="<u>"))
    few.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    made = PreTrainedTokenizerFast(tokenizer_object=few, eos_token="</s>", unk_token="<u>")
    assert prompt_limit(made, 10, "end") == Limit(10, tail=1)
