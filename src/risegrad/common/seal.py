"""The seal of records: a hash of the parts that nobody may change after writing."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

SCHEMA = 2
"""The version of the records' format."""
SEALED = ("id", "seed", "identity", "config", "result")
"""What the seal is made of, with ``run.inputs``. Rows may be renamed; times are nobody's claim."""


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """The record with its seal."""
    return {**content, "seal": seal(content)}


def seal(content: Mapping[str, Any]) -> str:
    """The hash itself."""
    run = content.get("run")
    inputs = run.get("inputs") if isinstance(run, Mapping) else None
    return digest({key: content.get(key) for key in SEALED} | {"inputs": inputs or {}})


def digest(plain: Any) -> str:
    """SHA-256 of the canonical JSON: the same for the same content in whatever order."""
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
