"""What the hosts are called, apart from them: listing them must not load any model library."""

from __future__ import annotations

SUMMARIES: dict[str, str] = {
    "seq-lora": "text: one LoRA, trained on one task after another",
    "inc-lora": "text: a new LoRA per task beside the frozen earlier ones",
    "o-lora": "text: as inc-lora, the new A kept orthogonal to the earlier ones",
    "label-encoder": "text: one LoRA on an encoder; answers by nearness to the labels' names",
}
