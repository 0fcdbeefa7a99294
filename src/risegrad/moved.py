"""Old names of modules that plugins and scripts import: they go on working, with a warning.

The laboratory was part of ``risegrad`` once. What its guides showed to be imported from there is
found where it is now; everything else has moved with a clear error of Python's own.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MOVED = {
    "risegrad.plugins": "riselab.plugins",
    "risegrad.continual": "riselab.continual",
    "risegrad.continual.host": "riselab.continual.host",
    "risegrad.continual.session": "riselab.continual.host",
    "risegrad.continual.update_rules": "riselab.continual.rules",
    "risegrad.continual.own_problem": "riselab.continual.custom",
    "risegrad.continual.additions": "riselab.continual.additions",
    "risegrad.continual.additions.addition": "riselab.continual.additions.addition",
    "risegrad.continual.language": "riselab.continual.language",
    "risegrad.continual.language.hosts": "riselab.continual.language.hosts",
    "risegrad.continual.language.hosts.lora_hosts": "riselab.continual.language.hosts.lora",
    "risegrad.continual.vision": "riselab.continual.vision",
    "risegrad.continual.vision.image_batches": "riselab.continual.vision.kit",
    "risegrad.continual.vision.hosts": "riselab.continual.vision.hosts",
    "risegrad.continual.vision.hosts.vision_host": "riselab.continual.vision.hosts.base",
    "risegrad.continual.vision.streams": "riselab.continual.vision.streams",
    "risegrad.continual.vision.streams.images": "riselab.continual.vision.streams.images",
    "risegrad.common.declared_fields": "riselab.common.settings",
    "risegrad.common.settings": "riselab.common.settings",
    "risegrad.core.whole_steps": "risegrad.core.shards",
    "risegrad.memory.retraction": "risegrad.memory.penalty",
    "risegrad.lab.frontier": "riselab.frontier",
    "risegrad.lab.frontier.frontier_settings": "riselab.frontier.problem",
    "risegrad.lab.records": "riselab.records",
    "risegrad.lab.records.record": "riselab.records.record",
    "risegrad.lab.running": "riselab.running",
    "risegrad.lab.running.run_trackers": "riselab.running.trackers",
}


class _Moved:
    """Finder and loader; their base classes would take longer to import than all of this."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        loader: Any = self
        return ModuleSpec(name, loader) if name in MOVED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        warnings.warn(f"{spec.name} is {MOVED[spec.name]} now", DeprecationWarning, stacklevel=2)
        module = importlib.import_module(MOVED[spec.name])
        self._own = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._own  # the import system has put the old name's here


def find_moved_modules() -> None:
    """Let imports find the old names; asking twice is as good as once."""
    if not any(isinstance(finder, _Moved) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Moved())
