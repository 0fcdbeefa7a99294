"""TRL's SFTTrainer with LoRA: one callback keeps what is known, a meter shows what is forgotten.

A small model learns to count upwards, then is fine-tuned on counting downwards. The tokenizer and
the texts are made here, so nothing is downloaded.
"""

import sys
import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

try:
    from peft import LoraConfig
    from trl import SFTConfig, SFTTrainer  # type: ignore[attr-defined]
except ImportError as error:
    sys.exit(f"not installed: {error}")

from risegrad.integrations.keep import KeepCallback
from risegrad.integrations.transformers import ForgettingCallback

WORDS = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
]
torch.manual_seed(0)
torch.set_num_threads(1)

words = ["<pad>", "<eos>", "<unk>", *WORDS]
plain = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
plain.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
    tokenizer_object=plain, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
)


def counting(step: int) -> list[str]:
    return [
        " ".join(WORDS[(start + step * k) % len(WORDS)] for k in range(8)) for start in range(96)
    ]


config = LlamaConfig(
    vocab_size=len(words),
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=1,
    num_attention_heads=2,
    pad_token_id=0,
    eos_token_id=1,
)
model = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
known = torch.tensor([tokenizer(text)["input_ids"] for text in counting(1)[:12]])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for _ in range(60):
    optimizer.zero_grad()
    model(input_ids=known, labels=known).loss.backward()
    optimizer.step()

keep = KeepCallback(counting(1))
forgetting = ForgettingCallback({"up": counting(1)}, new={"down": counting(-1)}, every=20)
with tempfile.TemporaryDirectory() as folder:
    arguments = SFTConfig(
        folder,
        learning_rate=1e-2,
        num_train_epochs=10,
        per_device_train_batch_size=8,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
    )
    trainer = SFTTrainer(
        model,
        args=arguments,
        train_dataset=Dataset.from_dict({"text": counting(-1)}),
        processing_class=tokenizer,
        peft_config=LoraConfig(r=8, target_modules="all-linear"),
        callbacks=[keep, forgetting],
    )
    trainer.train()

assert forgetting.meter is not None
for reading in forgetting.meter.readings:
    print(reading)
assert forgetting.meter.last.scores["down"].percent > 60, "it must learn to count downwards"
