"""What an installation with few packages can do: the others are hidden, nothing is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from distribution.only_some_packages import PROJECT
from tail import PATIENCE, by_default

HERE = Path(__file__).parent
ALONE = HERE / "only_some_packages.py"

# Every extra, a package that must be here to test it, and what it is promised for.
PROMISES = {
    "vision": ("timm", "riselab.continual.vision.kit riselab.continual.vision.models"),
    "language": ("peft", "riselab.continual.language.kit"
                 " risegrad.integrations.transformers"),
    "lightning": ("lightning", "risegrad.integrations.lightning"),
    "trl": ("trl", "trl risegrad.integrations.transformers"),
    "avalanche": ("avalanche", "risegrad.integrations.avalanche"),
    "curvature": ("curvlinops", "curvlinops safetensors risegrad.memory.files"),
    "lab": ("altair", "riselab.runs riselab.report.builder riselab.foresight"
            " riselab.sandbox.figures riselab.commands.list"),
    "ray": ("ray", "ray"),
    "ifeval": ("lm_eval", "lm_eval.tasks.ifeval.utils risegrad.integrations.lm_eval_task"),
    "track": ("mlflow", "mlflow wandb tensorboard riselab.running.trackers"),
}  # fmt: skip
OTHER_EXTRAS = {"all", "bench", "dev", "test"}  # sets of others, and tools

CORE = """
import risegrad, torch
import risegrad.theory, risegrad.zeroth_order, risegrad.curvature, riselab.sandbox, riselab
net = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
memory = risegrad.remember(net, [(torch.ones(2, 4), torch.tensor([0, 1]))], examples=2)
handle = risegrad.attach(optimizer, risegrad.Informed(memory), net.named_parameters())
net(torch.ones(2, 4)).sum().backward()
optimizer.step()
assert handle.steps == 1
"""


def alone(extra: str, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program with nothing but the core and what one extra brings."""
    command = [sys.executable, str(ALONE), extra, program, *arguments]
    environment = {**os.environ, "COLUMNS": "100"}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE, env=environment
    )


def test_the_core_shapes_and_remembers_without_any_extra() -> None:
    result = alone("", CORE)
    assert result.returncode == 0, result.stderr[-2000:]


@pytest.mark.parametrize("arguments", [["--help"], ["list"]], ids=" ".join)
def test_the_command_answers_without_any_extra(arguments: list[str]) -> None:
    program = "import sys; from riselab.cli import main; sys.exit(main())"
    result = alone("", program, *arguments)
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stdout.strip()
    assert not result.stderr


MOST = "lab"  # whose promise is the most modules; what breaks one extra mostly breaks it, too


@pytest.mark.parametrize("extra", by_default(MOST, slow=[e for e in PROMISES if e != MOST]))
def test_each_extra_alone_brings_what_it_promises(extra: str) -> None:
    package, modules = PROMISES[extra]
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    result = alone(extra, "\n".join(f"import {name}" for name in modules.split()))
    assert result.returncode == 0, result.stderr[-2000:]


def test_without_the_extra_the_name_says_which_one() -> None:
    result = alone("", "from risegrad import lab; lab.run")
    assert 'altair is needed for charts: pip install "risegrad[lab]"' in result.stderr


def test_what_is_hidden_cannot_be_imported() -> None:
    """Or the tests above would say nothing."""
    result = alone("", "import hypothesis")
    assert "No module named 'hypothesis'" in result.stderr


def test_every_extra_is_here() -> None:
    assert set(PROJECT["optional-dependencies"]) == {*PROMISES, *OTHER_EXTRAS}
