"""A tokenizer of a few words with a chat template, made here so that nothing is downloaded."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIAL = ["<pad>", "<eos>", "<unk>", "<user>", "<assistant>", "<end>"]
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
PLAIN = (
    "{% for m in messages %}<{{ m['role'] }}> {{ m['content'] }} <end> {% endfor %}"
    "{% if add_generation_prompt %}<assistant> {% endif %}"
)
MARKED = (
    "{% for m in messages %}<{{ m['role'] }}> {% if m['role'] == 'assistant' %}{% generation %}"
    "{{ m['content'] }} <end>{% endgeneration %}{% else %}{{ m['content'] }} <end>{% endif %} "
    "{% endfor %}{% if add_generation_prompt %}<assistant> {% endif %}"
)


def tokenizer(template: str | None = PLAIN) -> Any:
    words = {word: number for number, word in enumerate(SPECIAL + WORDS)}
    plain = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>",
        additional_special_tokens=SPECIAL[3:],
    )  # fmt: skip
    made.chat_template = template
    return made


def writer() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=24, hidden_size=8, intermediate_size=12,
        num_hidden_layers=1, num_attention_heads=2, pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def said(question: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


TEXTS = ["one two three", "four five", "six seven eight nine ten one two", "three <eos>", "nine"]
QUESTIONS = ["one two", "three", "four five six", "seven", "eight nine"]
ANSWERS = ["three", "four five", "seven", "eight nine ten one", "ten"]
