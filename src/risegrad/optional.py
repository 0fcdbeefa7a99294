"""Optional dependencies: imported where they are used, with the way to get them if they are not."""

import importlib
from typing import Any


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
        what = f"{module} is needed{f' for {purpose}' if purpose else ''}"
        raise ImportError(f'{what}: pip install "risegrad[{extra}]" ({error})') from error
