"""A tiny chat model and its tokenizer, made on the spot."""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TEMPLATE = (
    "{% for m in messages %}<s>{{ m['role'] }} {{ m['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant {% endif %}"
)
SPECIAL = ["<pad>", "<s>", "</s>"]
WORDS = ["system", "user", "assistant", *"abcdefghijklmnopqrstuvwxyz", " "]


def tokenizer(chat: bool = True) -> Any:
    """One token for each letter and role."""
    vocabulary = {word: number for number, word in enumerate([*SPECIAL, *WORDS])}
    plain = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    roles = Regex("system|user|assistant|.")
    plain.pre_tokenizer = pre_tokenizers.Split(roles, behavior="isolated")
    plain.decoder = decoders.Fuse()
    made = PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )
    made.chat_template = TEMPLATE if chat else None
    return made


def llama(seed: int = 0) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=len(SPECIAL) + len(WORDS),
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        attention_dropout=0.1,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)
