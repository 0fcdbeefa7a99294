"""Models with random weights, a tokenizer trained on the spot, and a few hand-made tasks."""

import copy
import gzip
import json

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

from riselab.continual.language.streams.settings import POOL

WORDS = [
    "red", "green", "blue", "one", "two", "three", "four", "five", "six", "seven", "good", "bad",
    "fine", "poor", "sun", "moon",
]  # fmt: skip


def make_tokenizer():
    """Words of the prompts and labels; every text ends with </s>, as T5's do."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()]
    )
    special = ["<pad>", "</s>", "<unk>"]
    texts = [task.prompt(" ".join(WORDS)) for task in POOL.values()]
    tokenizer.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=special))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )


def make_model(kind, tokenizer, seed=0):
    size = len(tokenizer)
    common = {"pad_token_id": 0, "eos_token_id": 1}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if kind == "t5":
            return T5ForConditionalGeneration(
                T5Config(
                    vocab_size=size, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2,
                    decoder_start_token_id=0, dropout_rate=0.1, **common,
                )
            )  # fmt: skip
        if kind == "bart":
            return BartForConditionalGeneration(
                BartConfig(
                    vocab_size=size, d_model=16, encoder_layers=1, decoder_layers=1,
                    encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=32,
                    decoder_ffn_dim=32, max_position_embeddings=128, decoder_start_token_id=1,
                    bos_token_id=1, forced_eos_token_id=None, **common,
                )
            )  # fmt: skip
        if kind == "llama":
            return LlamaForCausalLM(
                LlamaConfig(
                    vocab_size=size, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
                    num_attention_heads=2, num_key_value_heads=2, bos_token_id=None, **common,
                )
            )  # fmt: skip
        if kind == "gpt2":
            return GPT2LMHeadModel(
                GPT2Config(vocab_size=size, n_embd=16, n_layer=2, n_head=2, n_positions=128,
                           bos_token_id=None, **common)
            )  # fmt: skip
        return BertModel(
            BertConfig(vocab_size=size, hidden_size=16, num_hidden_layers=2,
                       num_attention_heads=2, intermediate_size=32, pad_token_id=0)
        )  # fmt: skip


def save_model(folder, kind="t5", tokenizer=None):
    tokenizer = tokenizer or make_tokenizer()
    make_model(kind, tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_task(root, name, train=12, test=6, labels=None, zipped=True):
    """A task whose label can be read off its words; None leaves a split away."""
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    labels = labels or POOL[name].labels
    (folder / "labels.json").write_text(json.dumps(labels))
    for split, count in (("train", train), ("test", test)):
        if count is None:
            continue
        examples = [
            {
                "sentence": f"Text: {WORDS[n % len(labels)]} {' '.join(WORDS[: n % 5])}",
                "label": labels[n % len(labels)],
            }
            for n in range(count)
        ]
        text = json.dumps(examples).encode()
        if zipped:
            (folder / f"{split}.json.gz").write_bytes(gzip.compress(text))
        else:
            (folder / f"{split}.json").write_bytes(text)
    return folder


def config(data, weights, **sections):
    """A run on three small tasks; keyword arguments are laid over its sections."""
    plain = {
        "domain": "language",
        "stream": {
            "name": "tiny",
            "tasks": ["agnews", "SST-2", "RTE"],
            "data": str(data),
        },
        "model": {
            "weights": str(weights),
            "rank": 2,
            "source_length": 64,
            "target_length": 4,
        },
        "host": {"name": "seq-lora"},
        "rule": {"name": "fo"},
        "adapter": {"lr": 0.01},
        "loop": {"batch": 4},
    }
    plain = copy.deepcopy(plain)
    for section, values in sections.items():
        if isinstance(values, dict):
            plain[section] = plain.get(section, {}) | values
        else:
            plain[section] = values
    return plain
