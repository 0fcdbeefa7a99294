"""``rise calibrate``: what it prints and writes, and every mistake in its arguments."""

import argparse
import json
import re
import subprocess
import sys

import pytest
import timm
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from torch import nn
from transformers import T5Config, T5ForConditionalGeneration

from risegrad.core.shapers import Rise
from riselab.commands import calibrate as calibrate_command
from riselab.foresight.calibration import Lora, calibration_table, lora_shapes, model_shapes


def run(command, *words):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.plan(parser.parse_args([str(word) for word in words]))()


def test_commands_import_nothing_heavy():
    code = (
        "import sys;"
        "from riselab.commands import calibrate, diagnose, local;"
        "print([m for m in ('torch', 'numpy', 'timm', 'transformers') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


def test_calibrate_prints_the_scalars(capsys, tmp_path):
    out = tmp_path / "table.json"
    run(calibrate_command, "--model", "vit_tiny_patch16_224", "--lora", "r=8", "--json", out)
    text = capsys.readouterr().out
    assert "24 blocks, 73,728 parameters" in text
    line = next(line for line in text.splitlines() if "blocks.*.attn.qkv.lora_A" in line)
    assert line.endswith("  1,536  4  0.9968       0.0509  x 19.6")
    assert "(12 of them)" in line, "layers that are alike are one line"
    blocks = text.split("\n\n")[0].splitlines()
    assert sum("lora_" in line for line in blocks) == 2
    assert "multiply plain training's rate" in text
    assert len(json.loads(out.read_text())["rows"]) == 24
    assert "0.5 would need q=1,025 in a block of 3,072" in text
    assert json.loads(out.read_text())["parameters"] == 73728


def test_lora_shapes_are_pefts():
    model = timm.create_model("vit_tiny_patch16_224", img_size=32)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    found = lora_shapes(shapes, Lora(4, ("qkv", "fc1")))
    made = get_peft_model(model, LoraConfig(r=4, target_modules=["qkv", "fc1"]))
    assert found == {n: tuple(p.shape) for n, p in made.named_parameters() if p.requires_grad}


def tiny_t5():
    config = T5Config(vocab_size=20, d_model=8, d_ff=12, d_kv=4, num_layers=1, num_heads=2,
                      decoder_start_token_id=0)  # fmt: skip
    return T5ForConditionalGeneration(config)


def test_calibrate_a_transformers_folder(tmp_path):
    model = tiny_t5()
    model.save_pretrained(tmp_path / "t5")
    shapes = model_shapes(str(tmp_path / "t5"))
    assert shapes == {name: tuple(p.shape) for name, p in model.named_parameters()}
    found = calibration_table(str(tmp_path / "t5"), Lora(2), Rise(q=2), 0.5)
    made = get_peft_model(model, LoraConfig(r=2, task_type="SEQ_2_SEQ_LM"))
    expected = [name for name, p in made.named_parameters() if p.requires_grad]
    assert [row.name for row in found.rows] == expected


def test_calibrate_files_of_weights(tmp_path):
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    state = model.state_dict()
    save_file(state, tmp_path / "w.safetensors")
    torch.save(state, tmp_path / "w.pt")
    expected = {name: tuple(t.shape) for name, t in state.items() if t.is_floating_point()}
    for name in ("w.safetensors", "w.pt"):
        assert model_shapes(str(tmp_path / name)) == expected
    table = calibration_table(str(tmp_path / "w.pt"), None, Rise(blocks=5, exempt=("1.*",)), 0.5)
    assert [(row.d, row.count) for row in table.rows] == [(5, 2), (2, 1), (3, 1)]
    (tmp_path / "w.bin").write_text("nonsense")
    with pytest.raises(ValueError, match=r"w\.bin is neither safetensors nor a torch state dict"):
        model_shapes(str(tmp_path / "w.bin"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lora", "8"], "lora must be r=RANK or r=RANK,targets=NAME+NAME, got '8'"),
        (["--lora", "r=0"], "lora must be r=RANK"),
        (["--lora", "r=4,alpha=3"], "lora must be r=RANK"),
        (["--lora", "r=4,targets=query"], "lora: no matrix is called query; there are"),
        (["--q", "0"], "q must be an integer >= 1, got 0"),
        (["--blocks", "layer"], "blocks must be one of tensor, module, group, whole"),
        (["--blocks", "group"], "blocks 'group' needs an optimizer's groups"),
        (["--exempt", "nose.*"], "exempt: no parameter matches 'nose.*'"),
        (["--mean-factor", "2"], "mean_factor must be a number in (0, 1), got 2.0"),
        (
            ["--model", "vit_huge_banana"],
            "model must be a timm name, a transformers folder or name",
        ),
        (["--model", "no/such"], "model 'no/such' is not a transformers model"),
    ],
)
def test_bad_calibrations(words, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        run(calibrate_command, "--model", "vit_tiny_patch16_224", *words)
