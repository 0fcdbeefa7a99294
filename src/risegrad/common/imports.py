"""Optional packages with helpful errors, and public names that are imported when used."""

import ast
import importlib
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

EXTRAS = {
    "timm": "vision", "torchvision": "vision", "PIL": "vision",
    "transformers": "language", "peft": "language", "safetensors": "language",
    "sentencepiece": "language", "tokenizers": "language", "huggingface_hub": "language",
    "datasets": "language", "accelerate": "language", "lightning": "lightning",
    "curvlinops": "curvature", "matplotlib": "lab", "pandas": "lab", "tqdm": "lab",
    "sklearn": "lab", "altair": "lab", "jinja2": "lab", "vl_convert": "lab",
    "ray": "ray", "tensorboard": "track", "wandb": "track", "mlflow": "track",
    "lm_eval": "ifeval", "langdetect": "ifeval", "nltk": "ifeval",
}  # fmt: skip
"""The extra that brings a package; of several, the one that is named where nothing else is said."""


def need(module: str, extra: str, purpose: str = "") -> Any:
    """Import a module of one of the package's extras, or say how to get it.

    >>> need("json", "lab").dumps({})
    '{}'
    >>> need("no_such_module", "lab", "a test")
    Traceback (most recent call last):
        ...
    ImportError: no_such_module is needed for a test: pip install "risegrad[lab]" (No module named \
'no_such_module')
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{lack(module, extra, purpose)} ({error})") from error


def lack(module: str, extra: str, purpose: str = "") -> str:
    """What is said about a module that is not there.

    >>> lack("timm", "vision")
    'timm is needed: pip install "risegrad[vision]"'
    """
    what = f"{module} is needed{f' for {purpose}' if purpose else ''}"
    return f'{what}: pip install "risegrad[{extra}]"'


def absent(module: str) -> bool:
    """Whether a top-level module cannot be imported, found out without importing it."""
    return find_spec(module) is None


def explained(error: ImportError) -> ImportError:
    """The error with the extra that brings what is missing, where the place of it said nothing.

    >>> print(explained(ModuleNotFoundError("No module named 'peft'", name="peft")))
    peft is needed: pip install "risegrad[language]" (No module named 'peft')
    """
    name = (error.name or "").partition(".")[0]
    if name not in EXTRAS:
        return error
    return ImportError(f"{lack(name, EXTRAS[name])} ({error})")


def lazy(package: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` of a package that is quick to import.

    Each name is imported when it is first used, from where the package's own ``if TYPE_CHECKING:``
    has it: written once, and read there by type checkers, editors and this function alike.
    """
    loader: Any = sys.modules[package].__loader__  # inspect would take as long as all the rest
    source = ast.parse(loader.get_source(package))
    homes = {
        alias.name: str(node.module)
        for block in source.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    def find(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            value = getattr(importlib.import_module(homes[name]), name)
        except ImportError as error:
            raise explained(error) from error
        setattr(sys.modules[package], name, value)  # there without this function from now on
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return find, names, sorted(homes)
