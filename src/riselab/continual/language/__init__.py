"""Language models that learn one task after another, and what their hosts are called."""

from __future__ import annotations

# Here, because listing them must not load any model library.
SUMMARIES: dict[str, str] = {
    "seq-lora": "text: one LoRA, or all weights, trained on one task after another",
    "inc-lora": "text: a new LoRA per task beside the frozen earlier ones",
    "o-lora": "text: as inc-lora, the new A kept orthogonal to the earlier ones",
    "o-label-encoder": "text: as label-encoder, with o-lora's new LoRA for every task",
    "label-encoder": "text: an encoder, LoRA or all weights; answers by nearness to labels' names",
}
