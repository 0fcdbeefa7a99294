"""The commands: what they print and write, and every mistake in their arguments."""

import argparse
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import timm
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from torch import nn
from transformers import T5Config, T5ForConditionalGeneration

from risegrad.core.shapers import Rise
from risegrad.foresight.block_choice import calibration_table
from risegrad.foresight.commands import calibrate_command, diagnose_command, local_command
from risegrad.foresight.foresight_settings import load, parse
from risegrad.foresight.model_shapes import Lora, lora_shapes, model_shapes
from risegrad.foresight.problem_builder import build

HERE = Path(__file__).parent
EXPERIMENTS = HERE.parents[1] / "experiments" / "local"
CONFIG = """
[model]
source = "python"
name = "small_problem:make"
[rise]
q = 3
[diagnosis]
step = 0.2
budget = {{ probes = 16, columns = 4, adam_draws = 1 }}
[validation]
steps = [1]
draws = 2
damages = [0.01, 0.1]
curvatures = ["ggn"]
{more}
"""


def run(command, *words):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.plan(parser.parse_args([str(word) for word in words]))()


@pytest.fixture
def config(tmp_path):
    (tmp_path / "small_problem.py").write_text((HERE / "small_problem.py").read_text())
    path = tmp_path / "mine.toml"
    path.write_text(CONFIG.format(more=""))
    return path


class Wellformed(HTMLParser):
    """Every tag that opens closes; nothing from elsewhere."""

    def __init__(self):
        super().__init__()
        self.open, self.seen = [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        assert tag not in {"img", "iframe"}
        for name, value in attrs:
            assert name not in {"src", "href"} or value.startswith(("#", "data:,"))
        if tag not in {"meta", "link"}:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def check_page(path, headline):
    page = Wellformed()
    text = path.read_text()
    page.feed(text)
    assert page.open == []
    assert {"table", "style", "figure"} <= {tag for tag, _ in page.seen}
    # What was found comes before the first chart.
    assert text.index(headline) < text.index("<figure")


def test_diagnose(config, tmp_path, capsys):
    assert run(diagnose_command, config, "--out", tmp_path / "out") == 0
    text = capsys.readouterr().out
    content = json.loads((tmp_path / "out" / "diagnosis.json").read_text())
    assert "Matched norm:" in text
    assert "Matched progress:" in text
    assert [block["name"] for block in content["blocks"]] == [
        "0.weight",
        "0.bias",
        "2.weight",
        "2.bias",
    ]
    assert content["step"] == 0.2
    assert content["blocks"][0]["q"] == 3
    assert set(content["totals"]["rise"]) == {"value", "error", "products"}
    check_page(tmp_path / "out" / "diagnosis.html", "at equal progress")


def test_diagnose_quietly(config, tmp_path, capsys):
    run(diagnose_command, config, "--out", tmp_path / "out", "--quiet")
    assert capsys.readouterr().out == ""


def test_local(config, tmp_path, capsys):
    assert run(local_command, config, "--out", tmp_path / "out") == 0
    text = capsys.readouterr().out
    content = json.loads((tmp_path / "out" / "local.json").read_text())
    assert "updates of 1 step" in text
    assert len(content["checkpoints"][0]["outcomes"]) == 2 * (1 + 1 + 2 + 2)
    check_page(tmp_path / "out" / "local.html", "predicts best: rank correlation")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "local.html",
        "local.json",
    ]


def test_a_log_has_a_line_for_each_stage(config, tmp_path, capsys):
    run(local_command, config, "--out", tmp_path / "out")
    stages = capsys.readouterr().err.splitlines()
    assert stages == ["model and data", "checkpoint 0: moments", "checkpoint 0"]
    run(local_command, config, "--out", tmp_path / "out", "--quiet")
    assert capsys.readouterr().err == ""


def test_the_experiments_can_be_read():
    files = sorted(EXPERIMENTS.glob("*.toml"))
    assert [path.stem for path in files] == ["t5", "vit"]
    for path in files:
        found = load(path)
        assert found.model.lora == 8
        assert "/" not in found.model.path + found.data.path
        from risegrad.curvature.estimates.product_budget import ProductBudget

        ProductBudget(**found.diagnosis.budget)
        Rise(q=found.rise.q, blocks=found.rise.blocks, exempt=found.rise.exempt)


def test_commands_import_nothing_heavy():
    code = (
        "import sys; from risegrad.foresight.commands import calibrate_command, diagnose_command;"
        "from risegrad.foresight.commands import local_command;"
        "print([m for m in ('torch', 'numpy', 'timm', 'transformers') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


BAD = [
    ({}, "model: missing"),
    ({"model": {"source": "timm", "name": "x"}, "modle": {}},
     "modle: unknown, did you mean 'model'? There are model, data"),
    ({"model": {"source": "timm", "name": "x"}, "folder": "x"}, "folder: unknown. There are model"),
    ({"model": 3}, "model: expected a table, got 3"),
    ({"model": {}}, "model.source: missing"),
    ({"model": {"source": "hub", "name": "x"}}, "model.source must be one of python, timm, trans"),
    ({"model": {"source": "timm"}}, "model.name is needed for source 'timm'"),
    ({"model": {"source": "python", "name": "x"}}, "model.name must be module:function for python"),
    ({"model": {"source": "timm", "name": "x"}}, "data.kind must be one of images, texts; got ''"),
    ({"model": {"source": "timm", "name": "x"}, "data": {"kind": "images"}},
     "data.historical.classes must name at least one for images"),
    ({"model": {"source": "timm", "name": "x"}, "data": {
        "kind": "images", "historical": {"classes": [0], "batches": 0}}},
     "data.historical.batches must be an integer >= 1, got 0"),
    ({"model": {"source": "timm", "name": 3}}, "model.name: expected a text, got 3"),
    ({"model": {"source": "timm", "name": "x", "lora": True}},
     "model.lora: expected an integer, got True"),
    ({"model": {"source": "timm", "name": "x", "lora": -1}},
     "model.lora must be an integer >= 0, got -1"),
    ({"model": {"source": "python", "name": "a:b", "rank": 8}},
     "model.rank: unknown. There are source, name"),
    *[({"model": {"source": "python", "name": "a:b", key: value}},
       f"model.{key} is not used by model.source 'python' but by timm")
      for key, value in {"lora": 0, "path": "x", "targets": ["q"], "image_size": 8}.items()],
    ({"model": {"source": "transformers", "image_size": 8}},
     "model.image_size is not used by model.source 'transformers' but by timm"),
    ({"model": {"source": "timm", "name": "x", "targets": ["qkv"]}},
     "model.targets is not used by model.lora = 0, which adapts nothing"),
    ({"model": {"source": "python", "name": "a:b"}, "data": {"batch": 16}},
     "[data] is not used by model.source 'python': a:b makes the batches"),
    ({"model": {"source": "timm", "name": "x"}, "data": {
        "kind": "images", "historical": {"tasks": ["agnews"]}}},
     "data.historical.tasks is not used by data.kind 'images'"),
    ({"model": {"source": "transformers"}, "data": {
        "kind": "texts", "incoming": {"classes": [1]}}},
     "data.incoming.classes is not used by data.kind 'texts'"),
    ({"model": {"source": "timm", "name": "x"}, "data": {"kind": "images", "tokens": 8}},
     "data.tokens is not used by data.kind 'images'"),
    ({"model": {"source": "timm", "name": "x"}, "data": {"kind": "texts"}},
     "data.kind must be images for model.source 'timm', got 'texts'"),
    ({"model": {"source": "transformers"}, "data": {"kind": "images"}},
     "data.kind must be texts for model.source 'transformers', got 'images'"),
    ({"model": {"source": "python", "name": "a:b"},
      "validation": {"damages": [0.1], "step_sizes": [0.1]}},
     "validation.damages is not used by validation.step_sizes, which stands in its place"),
    ({"model": {"source": "python", "name": "a:b"}, "validation": {"steps": 3}},
     "validation.steps: expected a list (an integer each), got 3"),
    ({"model": {"source": "python", "name": "a:b"}, "validation": {"steps": ["3"]}},
     "validation.steps[0]: expected an integer, got '3'"),
    ({"model": {"source": "python", "name": "a:b"}, "validation": {"damages": [0]}},
     "each of validation.damages must be a finite number > 0, got 0.0"),
    ({"model": {"source": "python", "name": "a:b"}, "diagnosis": {"budget": 3}},
     "diagnosis.budget: expected a table, got 3"),
    ({"model": {"source": "python", "name": "a:b"}, "rise": {"blocks": 1.5}},
     "rise.blocks: expected a text or an integer, got 1.5"),
    ({"model": {"source": "python", "name": "a:b"}, "validation": {"draws": 0}},
     "validation.draws must be an integer >= 1, got 0"),
    ({"model": {"source": "python", "name": "a:b"}, "validation": {"checkpoints": [-1]}},
     "each of validation.checkpoints must be an integer >= 0, got -1"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "message"), BAD, ids=[message[:40] for _, message in BAD])
def test_bad_settings(content, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        parse(content)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("[warmup]\nsteps = -1", "warmup.steps must be an integer >= 0, got -1"),
        ("[data]\nkind = 3", "data.kind: expected a text, got 3"),
    ],
)
def test_bad_tables_in_a_file(config, more, message):
    config.write_text(CONFIG.format(more=more))
    with pytest.raises(ValueError, match=message):
        run(diagnose_command, config)


@pytest.mark.parametrize("command", [diagnose_command, local_command])
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("probes = 16", "prods = 16", r"budget.prods: unknown, did you mean 'probes'\?"),
        ("probes = 16", "probes = 2", "probes must be an integer >= 8, got 2"),
        ("q = 3", "q = 0", "q must be an integer >= 1, got 0"),
        ('["ggn"]', '["kfac"]', "curvature must be one of hessian, ggn, empirical-fisher, fisher"),
    ],
)
def test_mistakes_are_found_before_any_work(config, command, old, new, message):
    config.write_text(config.read_text().replace(old, new))
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    with pytest.raises(ValueError, match=message):
        command.plan(parser.parse_args([str(config)]))


@pytest.mark.parametrize("command", [diagnose_command, local_command])
@pytest.mark.parametrize("option", ["--model", "--data"])
def test_paths_for_a_function_that_makes_everything_itself(config, command, option):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    words = [str(config), option, "there"]
    with pytest.raises(ValueError, match=f"{option} is not used by model.source 'python'"):
        command.plan(parser.parse_args(words))


def test_bad_files(tmp_path):
    with pytest.raises(ValueError, match="CONFIG must be a readable file, got"):
        load(tmp_path / "missing.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("[model")
    with pytest.raises(ValueError, match=r"broken\.toml is not TOML"):
        load(broken)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("small_problem:missing", "model.name 'small_problem:missing' cannot be used"),
        ("no_such_module:make", "model.name 'no_such_module:make' cannot be used"),
        ("small_problem:nothing", "must return (model, historical, incoming) or the same with a"),
    ],
)
def test_bad_python_functions(name, message):
    settings = parse({"model": {"source": "python", "name": name}}, str(HERE))
    with pytest.raises(RuntimeError, match=re.escape(message)):
        build(settings)


def test_a_folder_that_cannot_be_written(config, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RuntimeError, match="--out must be a folder that can be written, got"):
        run(diagnose_command, config, "--out", tmp_path / "file")


# calibrate


def test_calibrate_prints_the_scalars(capsys, tmp_path):
    out = tmp_path / "table.json"
    run(calibrate_command, "--model", "vit_tiny_patch16_224", "--lora", "r=8", "--json", out)
    text = capsys.readouterr().out
    assert "24 blocks, 73,728 parameters" in text
    line = next(line for line in text.splitlines() if "blocks.*.attn.qkv.lora_A" in line)
    assert line.endswith("  1,536  4  0.9968       0.0509  x 19.6")
    assert "(12 of them)" in line, "layers that are alike are one line"
    assert len(text.splitlines()) == 1 + 1 + 2 + 1
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
