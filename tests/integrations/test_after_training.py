"""What training with keep leaves is a plain adapter: peft reads it where risegrad is not there."""

import subprocess
import sys

import pytest
import torch

peft = pytest.importorskip("peft")

from integrations.test_keep import adapted, trainer  # noqa: E402
from keeping.chat import llama  # noqa: E402
from risegrad.integrations.keep import KeepCallback  # noqa: E402

LOAD = """
import sys
sys.modules["risegrad"] = None  # importing it is an error
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM
base, adapter, out = sys.argv[1:]
model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapter)
tokens = torch.tensor([[1, 4, 5, 7]])
with torch.no_grad():
    adapted = model(tokens).logits
    merged = model.merge_and_unload()(tokens).logits
torch.save({"adapted": adapted, "merged": merged}, out)
"""


def test_an_adapter_is_loaded_and_merged_without_risegrad(tmp_path):
    llama().save_pretrained(tmp_path / "base")
    training = trainer(adapted(), tmp_path / "out", KeepCallback(examples=10))
    training.train()
    training.save_model()
    model, tokens = training.model.eval(), torch.tensor([[1, 4, 5, 7]])
    with torch.no_grad():
        expected = model(tokens).logits
        with model.disable_adapter():
            assert not torch.allclose(model(tokens).logits, expected)  # it learned something
    given = [str(tmp_path / name) for name in ("base", "out", "logits.pt")]
    done = subprocess.run([sys.executable, "-c", LOAD, *given], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    loaded = torch.load(given[2], weights_only=True)
    torch.testing.assert_close(loaded["adapted"], expected)
    torch.testing.assert_close(loaded["merged"], expected, rtol=1e-4, atol=1e-5)
