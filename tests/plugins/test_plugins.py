"""Plugins: by file, by module and installed; in workers, in several processes and on Ray."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import risegrad
from riselab.cli import main

from .plugin_guide import PYTHON, write_guide

FILES = [word for name in PYTHON for word in ("--plugin", name)]
SOURCE = Path(risegrad.__file__).parents[1]

PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "stripes-plugin"
version = "1.2.3"
[project.entry-points."risegrad.plugins"]
stripes = "stripes_plugin"
[tool.setuptools]
packages = ["stripes_plugin"]
"""


def rise(folder: Path, *words: object, path: tuple[Path, ...] = ()) -> tuple[int, str]:
    places = os.pathsep.join(map(str, (*path, SOURCE)))
    done = subprocess.run(
        [sys.executable, "-m", "riselab.cli", *map(str, words)],
        cwd=folder, env=os.environ | {"PYTHONPATH": places, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def records(out: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(out.rglob("record.json"))]


@pytest.fixture
def guide(tmp_path: Path) -> Path:
    write_guide(tmp_path)
    return tmp_path


@pytest.fixture
def installed(tmp_path: Path, guide: Path) -> Path:
    """The guide's modules as a real package, installed by pip into a folder of its own."""
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "stripes_plugin").mkdir(parents=True)
    (source / "pyproject.toml").write_text(PROJECT)
    for name in PYTHON:
        (guide / name).rename(source / "stripes_plugin" / name)
    lines = [
        f"from stripes_plugin import {Path(name).stem} as {Path(name).stem}" for name in PYTHON
    ]
    (source / "stripes_plugin" / "__init__.py").write_text("\n".join(lines))
    options = ["--no-deps", "--no-build-isolation", "--no-index", "-q", "--target", str(target)]
    command = [sys.executable, "-m", "pip", "install", *options, str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target


def test_the_guide_runs_as_it_stands(guide: Path) -> None:
    code, text = rise(guide, "run", "mine.toml", *FILES, "--seeds", 0, "--out", "out")
    assert code == 0, text
    assert "2 of 2 runs done" in text
    found = records(guide / "out")
    assert {one["row"]["label"] for one in found} == {"FO", "cut at 2.0"}
    for one in found:
        assert set(one["run"]["plugins"]) == {"my_host", "my_rule", "my_stream"}
        assert all(v.startswith("sha256:") for v in one["run"]["plugins"].values())
        new = one["result"]["metrics"]["plasticity"]
        assert new > 50, "it learned more than which two classes are the new ones"
    rules = {one["row"]["label"]: one["config"]["rule"] for one in found}
    assert rules["cut at 2.0"]["times"] == 2.0
    results = {one["row"]["label"]: one["result"]["losses"] for one in found}
    assert results["FO"] != results["cut at 2.0"], "the rule did something"
    code, text = rise(guide, "report", "out", *FILES, "--out", "page.html")
    assert (code, "cut at 2.0" in text) == (0, True), text


@pytest.mark.slow
def test_an_installed_package_is_there_without_a_word(installed: Path, tmp_path: Path) -> None:
    code, text = rise(tmp_path, "list", path=(installed,))
    assert code == 0, text
    for name in ("probe", "cut", "stripes"):
        assert any(
            line.split()[:1] == [name] and line.endswith("[stripes-plugin 1.2.3]")
            for line in text.splitlines()
        ), text
    code, text = rise(tmp_path, "show", "mine.toml", path=(installed,))
    assert (code, "4 new" in text) == (0, True), text
    words = ("run", "mine.toml", "--seeds", "0", "--out", "out", "--processes", "2")
    code, text = rise(tmp_path, *words, path=(installed,))
    assert code == 0, text
    assert [one["run"]["plugins"] for one in records(tmp_path / "out")] == [
        {"stripes-plugin": "1.2.3"}
    ] * 2


@pytest.mark.slow
def test_plugins_on_ray(installed: Path, guide: Path) -> None:
    pytest.importorskip("ray")
    words = ("run", "mine.toml", "--seeds", "0", "--engine", "ray", "--workers", "1")
    code, text = rise(guide, *words, "--out", "ray", path=(installed,))
    assert code == 0, text
    code, text = rise(guide, *words, "--engine", "local", "--out", "local", path=(installed,))
    assert code == 0, text
    ours, theirs = (records(guide / out) for out in ("ray", "local"))
    assert [one["result"] for one in ours] == [one["result"] for one in theirs]
    assert ours[0]["run"]["plugins"] == {"stripes-plugin": "1.2.3"}


@pytest.mark.slow
def test_files_on_ray(guide: Path) -> None:
    pytest.importorskip("ray")
    words = ("run", "mine.toml", "--seeds", "0", "--engine", "ray", "--workers", "1")
    code, text = rise(guide, *words, *FILES, "--out", "ray")
    assert code == 0, text
    assert set(records(guide / "ray")[0]["run"]["plugins"]) == {"my_host", "my_rule", "my_stream"}


BESIDE = """
name = "beside"
domain = "vision"
seeds = [0]
stream = { name = "turned-digits", turns = [0, 45], train_per_class = 10, test_per_class = 5 }
model = { name = "mlp", pretrained = false }
host = { name = "fine-tune" }
head = { epochs = 1 }
adapter = { epochs = 1 }
[[rows]]
label = "{rule.name}"
[rows.vary]
"rule.name" = ["fo", "informed", "informed-rise", "cut"]
"""

HOST = """
from risegrad import plugins
from riselab.continual.vision.hosts.prototypes import SimpleCIL

@plugins.host
class Mine(SimpleCIL):
    name = "{name}"
    summary = "a copy"
"""


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (
            {"one.py": HOST.format(name="ease")},
            ["plugin one sha256:", "host 'ease' comes from two places, risegrad and one sha256:"],
        ),
        (
            {"one.py": HOST.format(name="mine"), "two.py": HOST.format(name="mine")},
            ["host 'mine' comes from two places, one sha256:", "and two sha256:", "another name"],
        ),
        (
            {"one.py": HOST.format(name="")},
            ["a host needs a name and a summary, got no name"],
        ),
        (
            {"one.py": "import no_such_module"},
            ["plugin one sha256:", "cannot be loaded: No module named 'no_such_module'"],
        ),
        (
            {"below/json.py": ""},
            [
                "plugin 'below/json.py' has the name of another module, 'json' in ",
                "rename the file",
            ],
        ),
    ],
)
def test_what_is_wrong_with_a_plugin_is_said(
    files: dict[str, str], words: list[str], tmp_path: Path
) -> None:
    options = []
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        options += ["--plugin", name]
    code, text = rise(tmp_path, "list", "hosts", *options)
    assert code == 2, text
    for word in words:
        assert word in text
    assert "Traceback" not in text


@pytest.mark.parametrize("command", ["list", "show", "run", "report", "diagnose", "local"])
def test_a_plugin_that_is_not_there(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No command passes over --plugin."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    what = {"list": "hosts", "report": "."}.get(command, "digits")
    for name in ("nowhere.py", "no.such.module"):
        assert main([command, what, "--plugin", name]) == 2
        expected = f"plugin must be a module or a .py file, there is no {name!r}"
        assert expected in capsys.readouterr().err


def test_a_plugin_that_changed_meanwhile_fails_the_run(guide: Path) -> None:
    """A worker that would do something else than was planned says so."""
    code = f"""
import sys; sys.path[:0] = [{str(guide)!r}]
from risegrad import plugins
plugins.load(["my_rule"])
wanted = plugins.ordered()
wanted[0]["version"] = "sha256:000000000000"
try:
    plugins.load_again(wanted)
except RuntimeError as error:
    print(error)
try:
    plugins.load_again([{{"name": "gone", "version": "2", "module": "gone", "folder": ""}}])
except RuntimeError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=guide, capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
    )  # fmt: skip
    changed, gone = done.stdout.splitlines()
    assert "plugin my_rule is sha256:" in changed
    assert "was sha256:000000000000 where the run was planned" in changed
    assert gone == "plugin gone 2 is not installed here, where the run happens"


def test_rules_with_a_memory_are_listed_beside_a_plugins_rule(guide: Path) -> None:
    code, text = rise(guide, "list", "rules", "--plugin", "my_rule.py")
    assert code == 0, text
    assert {"informed", "informed-rise", "cut"} <= set(text.split())


@pytest.mark.slow
def test_rules_with_a_memory_run_beside_a_plugins_rule(guide: Path) -> None:
    (guide / "beside.toml").write_text(BESIDE)
    words = ("run", "beside.toml", "--plugin", "my_rule.py", "--out", "out", "--workers", "1")
    code, text = rise(guide, *words)
    assert code == 0, text
    losses = {one["row"]["label"]: one["result"]["losses"] for one in records(guide / "out")}
    assert set(losses) == {"fo", "informed", "informed-rise", "cut"}
    second = {label: [one["loss"] for one in found][-1] for label, found in losses.items()}
    assert len(set(second.values())) == 4, "each rule does its own"


def test_what_is_registered_in_main_cannot_reach_workers(tmp_path: Path) -> None:
    code = HOST.format(name="mine") + "\nplugins.ordered()\n"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
    )  # fmt: skip
    assert "registered in __main__, which worker processes cannot import: put it" in done.stderr


OTHERS = """
from dataclasses import dataclass
from typing import ClassVar
import torch
from torch import nn
from risegrad import plugins
from riselab.continual.additions import AdditionSettings
from riselab.continual.additions.addition import Addition
from riselab.continual.vision.models import FeatureModel
from riselab.running.trackers import Tracker

class Conv(FeatureModel):
    num_features = 18
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 2, 3)
    def forward(self, images):
        return torch.relu(self.conv(images))[:, :, ::2, ::2].flatten(1)

@plugins.model("conv", summary="one convolution")
def conv(settings, image_size, seed):
    return Conv()

class Halving(Addition):
    name = "halving"
    needs_past = False
    def adjust(self, training, again):
        for parameter in training.exact_parameters.values():
            parameter.grad.mul_(0.5)

@plugins.addition
@dataclass(frozen=True)
class HalvingSettings(AdditionSettings):
    name: str = "halving"
    summary: ClassVar[str] = "half of every gradient"
    def make(self, seed):
        return Halving()

@plugins.tracker
class Noting(Tracker):
    name = "noting"
    summary = "one line of text per number"
    def log(self, values, step, task):
        with (self.run.folder / "noted.txt").open("a") as stream:
            print(self.run.title, step, *values, file=stream)
    def finish(self, metrics):
        (self.run.folder / "metrics.txt").write_text(" ".join(metrics))
"""


def test_models_additions_and_trackers_too(guide: Path) -> None:
    (guide / "others.py").write_text(OTHERS)
    plugins = [*FILES, "--plugin", "others.py"]
    code, text = rise(guide, "list", *plugins)
    assert code == 0, text
    for summary in ("one convolution", "half of every gradient", "one line of text per number"):
        assert f"{summary} [others sha256:" in text, text
    changes = ["--set", "model.name=conv", "--set", "additions=[{name='halving'}]"]
    words = ["run", "mine.toml", *plugins, *changes, "--only", "FO", "--seeds", "0"]
    code, text = rise(guide, *words, "--track", "noting", "--out", "out")
    assert code == 0, text
    (record,) = records(guide / "out")
    assert record["config"]["model"]["name"] == "conv"
    (noted,) = (guide / "out").rglob("noted.txt")
    assert "FO seed 0" in noted.read_text()
    assert "last" in noted.with_name("metrics.txt").read_text()


LACKING = """
from dataclasses import dataclass
from risegrad import plugins
from riselab.continual.rules import Rule
from risegrad.core.shapers import Shaper

class Lacking(Shaper):
    pass

@plugins.rule
@dataclass(frozen=True)
class LackingRule(Rule):
    summary = "lacks what a shaper must have"
    name: str = {name!r}
    {shaper}
"""
MAKES = "def shaper(self, seed): return Lacking(seed=seed)"


@pytest.mark.parametrize(
    ("name", "shaper", "message"),
    [
        ("lacking", MAKES, "rule 'lacking': its shaper cannot be made: "),
        ("plain", "pass", "rule 'plain': its method shaper must return a Shaper, got None"),
        ("a\x1b[2Jb", MAKES, "a rule must have a name of printable text, got 'a\\x1b[2Jb'"),
    ],
)
def test_a_rule_that_cannot_shape_is_refused_when_it_is_registered(
    tmp_path: Path, name: str, shaper: str, message: str
) -> None:
    (tmp_path / "lacking.py").write_text(LACKING.format(name=name, shaper=shaper))
    code, text = rise(tmp_path, "list", "rules", "--plugin", "lacking.py")
    assert (code, "Traceback" in text) == (2, False)
    assert message in text
    assert "coefficients" in text or name != "lacking"


@pytest.mark.parametrize(
    ("text", "reason"), [("raise SystemExit(3)", "SystemExit: 3"), ("1 / 0", "ZeroDivisionError: ")]
)
def test_a_plugin_that_breaks_or_ends_is_named(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "broken.py").write_text(text)
    code, said = rise(tmp_path, "list", "rules", "--plugin", "broken.py")
    assert (code, "Traceback" in said) == (1, False)
    assert "plugin broken sha256:" in said
    assert f"cannot be loaded: {reason}" in said
