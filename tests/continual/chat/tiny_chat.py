"""A tiny chat model in a folder, with a task of its own and a few things that it may know."""

import gzip
import json

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TEMPLATE = (
    "{% for m in messages %}<s>{{ m['role'] }} {{ m['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant {% endif %}"
)
SPECIAL = ["<pad>", "<s>", "</s>"]
WORDS = ["system", "user", "assistant", *"abcdefghijklmnopqrstuvwxyzACT:.", " ", "\n"]


def tokenizer():
    """One token for each letter and role."""
    vocabulary = {word: number for number, word in enumerate([*SPECIAL, *WORDS])}
    plain = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    roles = Regex("system|user|assistant|.|\n")
    plain.pre_tokenizer = pre_tokenizers.Split(roles, behavior="isolated")
    plain.decoder = decoders.Fuse()
    made = PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )
    made.chat_template = TEMPLATE
    return made


def llama(seed=0):
    config = LlamaConfig(
        vocab_size=len(SPECIAL) + len(WORDS), hidden_size=16, intermediate_size=24,
        num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, pad_token_id=0,
        bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).eval()


def write_lines(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def write_folders(root):
    """``model``, ``data`` with the tasks ``letters`` and ``sounds``, and ``abilities``."""
    llama().save_pretrained(root / "model")
    tokenizer().save_pretrained(root / "model")
    rows = [{"prompt": f"say {a}", "answer": "yes" if a < "n" else "no"} for a in "abcdefnopqrs"]
    labelled = [{"sentence": f"hear {a}", "label": "x" if a < "n" else "z"} for a in "abcnop"]
    for split in ("train", "test"):
        write_lines(root / "data" / "letters" / f"{split}.jsonl.gz", rows)
        (root / "data" / "sounds").mkdir(exist_ok=True)
        (root / "data" / "sounds" / f"{split}.json").write_text(json.dumps(labelled))
    write_abilities(root / "abilities")


def write_abilities(folder):
    write_lines(folder / "instructions.jsonl.gz", [{"prompt": f"tell {a}"} for a in "abcdefgh"])
    write_lines(folder / "wiki.jsonl.gz", [{"text": "a cat sat on a mat"}, {"text": "dogs bark"}])
    choice = {"task": "t", "prompt": "what is it", "options": ["a cat", "no"], "answer": 0}
    write_lines(folder / "choice.jsonl.gz", [choice])
    facts = [{"prompt": f"T c of {a} is", "answers": [a * 2]} for a in "abcde"]
    write_lines(folder / "facts.jsonl.gz", facts)


def config(root, **changes):
    plain = {
        "domain": "chat",
        "stream": {"name": "tiny", "tasks": ["letters"], "data": str(root / "data")},
        "model": {"weights": str(root / "model"), "rank": 2},
        "rule": {},
        "adapter": {"steps": 3, "lr": 1e-2},
        "abilities": {"folder": str(root / "abilities"), "tokens": 6, "prompts": 3, "new": 2},
        "loop": {"batch": 4, "device": "cpu"},
        "seed": 0,
    }
    return {name: {**value, **changes.get(name, {})} if isinstance(value, dict) else value
            for name, value in plain.items()}  # fmt: skip
