"""Weights that a run keeps: PEFT loads them, and they do what the host did."""

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForSeq2SeqLM

from continual.language.tiny_text import config
from riselab.continual.devices import Devices
from riselab.continual.host import silent
from riselab.continual.runs import make_host, perform, read_config


@pytest.mark.parametrize("name", ["seq-lora", "inc-lora"])
def test_peft_loads_the_adapter_of_a_run(data, weights, tmp_path, name):
    host = {"name": name, "zero_shot": False}
    plain = config(data, weights, host=host, loop={"keep_weights": True, "batch": 4})
    perform(read_config(plain), tmp_path, silent)
    kept = tmp_path / "weights"
    base = AutoModelForSeq2SeqLM.from_pretrained(weights)
    loaded = PeftModel.from_pretrained(base, kept).eval()

    ours = make_host(read_config(plain), Devices("float32", "cpu"))
    ours.load_state_dict(torch.load(kept / "state.pt"))
    words = torch.arange(3, 11).reshape(2, 4)
    answers = torch.arange(3, 7).reshape(2, 2)
    with torch.no_grad():
        expected = ours.kit.model.net(input_ids=words, labels=answers).logits
        found = loaded(input_ids=words, labels=answers).logits
        plain_base = AutoModelForSeq2SeqLM.from_pretrained(weights)(
            input_ids=words, labels=answers
        ).logits
    assert (expected - plain_base).abs().max() > 1e-4, "something was learned"
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_without_the_setting_nothing_is_kept(data, weights, tmp_path):
    perform(read_config(config(data, weights, host={"zero_shot": False})), tmp_path, silent)
    assert not (tmp_path / "weights").exists()
