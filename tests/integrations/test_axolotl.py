"""axolotl's plugin, under a stand-in with axolotl's public interface of plugins.

axolotl itself needs packages that are for GPUs only. What it does with a plugin (its
``integrations/base.py`` and ``integrations/config.py``): imports the class by the name in the YAML
file, makes one without arguments, adds the fields of ``get_input_args()`` to its own settings by
inheritance, and gives the callbacks of ``add_callbacks_post_trainer`` to the trainer that it made.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pydantic = pytest.importorskip("pydantic")
pytest.importorskip("datasets")
peft = pytest.importorskip("peft")
from integrations.test_keep import CHATS, adapted, trainer  # noqa: E402
from risegrad.integrations.keep import KeepCallback  # noqa: E402


class BasePlugin:
    """What axolotl calls of a plugin."""

    def register(self, cfg: Any) -> None: ...

    def get_input_args(self) -> str | None: ...

    def add_callbacks_pre_trainer(self, cfg: Any, model: Any) -> list[Any]:
        return []

    def add_callbacks_post_trainer(self, cfg: Any, trainer: Any) -> list[Any]:
        return []


class Settings(dict[str, Any]):
    """axolotl's settings: attributes, None for what is not there."""

    def __getattr__(self, name: str) -> Any:
        return self.get(name)


class InputConfig(pydantic.BaseModel):
    """axolotl's own fields, without which it accepts no others."""

    plugins: list[str]
    learning_rate: float


@pytest.fixture
def axolotl(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("axolotl", "axolotl.integrations", "axolotl.integrations.base"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["axolotl.integrations.base"].BasePlugin = BasePlugin  # type: ignore[attr-defined]
    monkeypatch.delitem(sys.modules, "risegrad.integrations.axolotl", raising=False)
    yield
    sys.modules.pop("risegrad.integrations.axolotl", None)


def named(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def prepared(given: dict[str, Any]) -> tuple[list[Any], Settings]:
    """What axolotl makes of a YAML file: its plugins, and the settings as they are allowed."""
    plugins = [named(path)() for path in given["plugins"]]
    wanted = [plugin.get_input_args() for plugin in plugins]
    kinds = [named(path) for path in wanted if path is not None]
    allowed: Any = type("Config", (InputConfig, *kinds), {})
    settings = Settings(allowed(**given).model_dump(exclude_none=True))
    for plugin in plugins:
        plugin.register(settings)
    return plugins, settings


def trained(folder: Path, **more: Any) -> KeepCallback:
    given = {"plugins": ["risegrad.integrations.axolotl.KeepPlugin"], "learning_rate": 1e-2, **more}
    plugins, settings = prepared(given)
    (found,) = plugins
    placeholder = KeepCallback()
    training = trainer(adapted(), folder, placeholder, learning_rate=settings.learning_rate)
    training.remove_callback(placeholder)
    (callback,) = found.add_callbacks_post_trainer(settings, training)
    training.add_callback(callback)
    training.train()
    assert isinstance(callback, KeepCallback)
    return callback


@pytest.mark.usefixtures("axolotl")
def test_two_lines_keep_what_the_model_writes_itself(tmp_path: Path) -> None:
    callback = trained(tmp_path, risegrad_keep={"examples": 8})
    assert callback.keeper is not None
    assert callback.keeper.kept is not None
    assert (callback.keeper.steps, callback.keeper.kept.seen) == (4, 8)
    assert callback.keeper.report()["seconds_per_dream"] > 0


@pytest.mark.usefixtures("axolotl")
def test_settings_and_a_file_of_what_must_be_kept(tmp_path: Path) -> None:
    path = tmp_path / "old.jsonl"
    lines = [json.dumps({"messages": chat}) for chat in CHATS]
    path.write_text("\n".join(lines), encoding="utf-8")
    keep = {"old": str(path), "examples": 10, "budget": 0.05}
    callback = trained(tmp_path / "out", risegrad_keep=keep)
    assert callback.keeper is not None
    assert callback.keeper.settings.budget == 0.05
    assert callback.keeper.report()["seconds_per_dream"] is None


@pytest.mark.usefixtures("axolotl")
def test_without_settings_all_is_as_in_keep() -> None:
    (plugin,), settings = prepared(
        {"plugins": ["risegrad.integrations.axolotl.KeepPlugin"], "learning_rate": 1e-2}
    )
    (callback,) = plugin.add_callbacks_post_trainer(settings, None)
    assert (callback.old, callback.how) == (None, {})


def test_says_what_to_install() -> None:
    code = "import sys; sys.modules['axolotl'] = None; import risegrad.integrations.axolotl"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "ImportError: risegrad.integrations.axolotl needs axolotl: pip install" in done.stderr
