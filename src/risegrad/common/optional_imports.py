"""Optional dependencies: imported where they are used, with the way to get them if they are not."""

import importlib
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
