"""Language models that learn one task after another, and what their hosts are called.

The names stand here because listing them must not load any model library.
"""

from __future__ import annotations

SUMMARIES: dict[str, str] = {
    "seq-lora": "text: one LoRA, or all weights, trained on one task after another",
    "inc-lora": "text: a new LoRA per task beside the frozen earlier ones",
    "o-lora": "text: as inc-lora, the new A kept orthogonal to the earlier ones",
    "label-encoder": "text: an encoder, LoRA or all weights; answers by nearness to labels' names",
}
