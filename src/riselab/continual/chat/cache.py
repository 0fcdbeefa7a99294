"""What takes long and depends on a few things only is made once, and found again by their content.

A file of tensors and plain data in the user's cache; where there is no cache, it is made again.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn, uint8

from risegrad.common.files import replacing
from risegrad.common.seal import digest
from riselab.common.folders import cache_folder

Made = tuple[dict[str, Tensor], dict[str, Any]]


def cached(key: dict[str, Any], make: Callable[[], Made]) -> Made:
    """What ``make`` gives, or gave before for the same ``key``."""
    folder = cache_folder("chat")
    if folder is None:
        return make()
    path = folder / f"{digest(key)[:40]}.safetensors"
    try:
        with safe_open(path, "pt") as file:
            plain: dict[str, Any] = json.loads(file.metadata()["plain"])
            return {name: file.get_tensor(name) for name in file.keys()}, plain  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):
        pass  # not there yet, or damaged: it is made (again)
    tensors, plain = make()
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(path) as beside:
        whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
        save_file(whole, beside, {"plain": json.dumps(plain)})
    return tensors, plain


def content_of(model: nn.Module) -> str:
    """A hash of all weights, by their names."""
    found = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        found.update(name.encode())
        found.update(tensor.detach().cpu().contiguous().reshape(-1).view(uint8).numpy().tobytes())
    return found.hexdigest()


def own_sources() -> str:
    """A hash of the package's code: what was trained by other code is trained again."""
    found = hashlib.sha256()
    for package in dict.fromkeys(("risegrad", __name__.partition(".")[0])):
        root = Path(str(importlib.import_module(package).__file__)).parent
        for path in sorted(root.rglob("*.py")):
            found.update(path.read_bytes())
    return found.hexdigest()
