"""RISE in the Hugging Face Trainer: one callback, and the Trainer makes its usual optimizer."""

import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import risegrad
from risegrad.integrations.transformers import RiseCallback

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=32,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
)
model = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
sentences = torch.randint(0, 32, (64, 8))
data = [{"input_ids": row, "labels": row} for row in sentences]

rise = RiseCallback(risegrad.Rise(keep=0.5, seed=0))
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_grad_norm=1.0,
        max_steps=5,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    Trainer(model, arguments, train_dataset=data, callbacks=[rise]).train()

print(rise.handle)
assert rise.handle is not None
assert rise.handle.steps == 5  # once per optimizer step, not once per micro-batch
