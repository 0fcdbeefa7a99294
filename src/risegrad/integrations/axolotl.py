"""``risegrad.keep`` in axolotl, by two lines of its YAML file.

```yaml
plugins:
  - risegrad.integrations.axolotl.KeepPlugin
```

A mapping ``risegrad_keep:`` has arguments of ``risegrad.keep``, such as ``budget: 0.05``; there,
``old`` is the path of a JSON or JSONL file of texts or messages.
"""

from __future__ import annotations

from typing import Any

from risegrad.integrations.keep import KeepCallback

try:
    from axolotl.integrations.base import BasePlugin
    from datasets import load_dataset
    from pydantic import BaseModel
except ImportError as error:
    raise ImportError("risegrad.integrations.axolotl needs axolotl: pip install axolotl") from error


class KeepArgs(BaseModel):
    """What axolotl adds to the settings that it knows."""

    risegrad_keep: dict[str, Any] | None = None
    """Arguments of ``risegrad.keep``."""


class KeepPlugin(BasePlugin):  # type: ignore[misc]
    """Gives axolotl's trainer a ``KeepCallback``."""

    def get_input_args(self) -> str:
        """Where axolotl finds the settings."""
        return f"{__name__}.{KeepArgs.__name__}"

    def add_callbacks_post_trainer(self, cfg: Any, trainer: Any) -> list[KeepCallback]:
        """The callback, for the trainer that axolotl has made."""
        how = dict(cfg.risegrad_keep or {})
        old = how.pop("old", None)
        if isinstance(old, str):
            old = load_dataset("json", data_files=old, split="train")
        return [KeepCallback(old, **how)]
