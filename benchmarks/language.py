"""Learning and scoring in language: against Hugging Face's Trainer, and label by label."""

import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from torch.utils.data import SequentialSampler
from transformers import (
    DataCollatorForSeq2Seq,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainingArguments,
)

from benchmarks.timing import Ratio, at_least, measured_ratio
from riselab.continual.batches import epoch_batches
from riselab.continual.devices import Devices
from riselab.continual.host import Stream, Task, silent
from riselab.continual.language.hosts.lora import LanguageHostSettings, SeqLora
from riselab.continual.language.kit import LanguageKit
from riselab.continual.language.models import LanguageModelSettings, wrap
from riselab.continual.language.run import LanguageRun
from riselab.continual.language.scoring import label_scores
from riselab.continual.language.streams.build import TextSplit
from riselab.continual.language.streams.settings import LanguageStreamSettings
from riselab.continual.rules import Rule
from riselab.continual.training import Loop, SessionTraining

VOCABULARY = 32128
BATCH = 8
BATCHES = 4
ROUNDS = 5
STEPS = 41
"""Turns of single steps, where the difference is far below the noise of an epoch."""


def model() -> T5ForConditionalGeneration:
    """T5 of flan-T5-small's size."""
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=VOCABULARY, d_model=512, d_ff=1024, d_kv=64, num_layers=8, num_heads=6,
        feed_forward_proj="gated-gelu", pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    config.decoder_start_token_id = 0
    return T5ForConditionalGeneration(config)


def tokenizer() -> PreTrainedTokenizerFast:
    """A word is ``w`` and its number."""
    words = {"<pad>": 0, "</s>": 1, "<unk>": 2} | {f"w{n}": n for n in range(3, VOCABULARY)}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=made, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )


def texts(count: int, lengths: tuple[int, int], generator: torch.Generator) -> tuple[str, ...]:
    def words(length: int) -> str:
        ids = torch.randint(3, VOCABULARY, (length,), generator=generator).tolist()
        return " ".join(f"w{n}" for n in ids)

    sizes = torch.randint(*lengths, (count,), generator=generator).tolist()
    return tuple(words(size) for size in sizes)


def kit(rule: str, batches: int) -> LanguageKit:
    """One task of random words with four labels of two words."""
    generator = torch.Generator().manual_seed(0)
    count = BATCH * batches
    labels = texts(4, (2, 3), generator)
    places = [n % 4 for n in range(count)]
    split = TextSplit(
        texts(count, (40, 120), generator), tuple(labels[n] for n in places), tuple(places)
    )
    settings = LanguageRun(
        stream=LanguageStreamSettings("words", ("words",)),
        host=None,
        rule=Rule(rule),
        loop=Loop(batch=BATCH),
    )
    stream = Stream("words", (Task("words", labels, split, split, split),))
    made = wrap(model(), tokenizer(), LanguageModelSettings())
    return LanguageKit(settings, stream, Devices(device="cpu"), made, SeqLora)


class OneEpoch:
    """One epoch of SeqLoRA, whenever it is called."""

    def __init__(self, rule: str, batches: int = BATCHES) -> None:
        self.kit = kit(rule, batches)
        session = SeqLora(self.kit, LanguageHostSettings("seq-lora")).begin(0)
        self.training = SessionTraining(session, self.kit.loop, self.kit.devices, (), 0)

    def __call__(self) -> None:
        self.training.epoch(0, silent)


class SameOrder(Trainer):
    """Takes the examples as they stand, so that both sides see the same batches."""

    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> SequentialSampler:
        return SequentialSampler(self.train_dataset)  # type: ignore[arg-type]


class TrainerEpoch:
    """The same batches through Hugging Face's Trainer and peft."""

    def __init__(self, ours: OneEpoch, folder: str) -> None:
        session, self.tokenizer = ours.training.session, ours.kit.model.tokenizer
        lora = LoraConfig(r=8, lora_alpha=32, lora_dropout=0.1, target_modules=["q", "v"])
        self.model = get_peft_model(model(), lora)
        plan = epoch_batches(
            session.examples, BATCH, seed=0, task=0, epoch=0, lengths=session.lengths
        )
        data = ours.kit.answered(0, "train")
        self.rows = [
            {"input_ids": data.prompts[i].tolist(), "labels": data.answer(i).tolist()}
            for refs in plan
            for _, i in refs
        ]
        self.arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=BATCH,
            num_train_epochs=1,
            learning_rate=1e-3,
            lr_scheduler_type="constant",
            max_grad_norm=1.0,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        )
        self.fresh()

    def fresh(self) -> None:
        self.trainer = SameOrder(
            model=self.model,
            args=self.arguments,
            train_dataset=self.rows,
            data_collator=DataCollatorForSeq2Seq(self.tokenizer),
        )

    def __call__(self) -> None:
        self.trainer.train()


class LabelScores:
    """The likelihoods of all labels of a batch, together or one after another."""

    def __init__(self, ours: LanguageKit, count: int, examples: int = 16) -> None:
        self.model = ours.model
        generator = torch.Generator().manual_seed(1)
        self.labels = [ours.written(text) for text in texts(count, (2, 5), generator)]
        self.source = torch.randint(3, VOCABULARY, (examples, 96), generator=generator)
        self.mask = torch.ones_like(self.source)

    @torch.no_grad()
    def together(self) -> Tensor:
        encoded = self.model.net.get_encoder()(input_ids=self.source, attention_mask=self.mask)
        return label_scores(self.model, self.source, self.mask, self.labels, encoded)

    @torch.no_grad()
    def one_by_one(self) -> Tensor:
        found: Sequence[Tensor] = [self._of(label) for label in self.labels]
        return torch.stack(list(found), 1)

    def _of(self, label: Tensor) -> Tensor:
        targets = label.expand(len(self.source), -1).contiguous()
        logits = self.model.net(
            input_ids=self.source, attention_mask=self.mask, labels=targets, use_cache=False
        ).logits
        logs: Tensor = torch.log_softmax(logits, -1)
        return logs.gather(-1, targets.unsqueeze(-1)).sum((1, 2))


def run() -> Iterator[Ratio]:
    detail = f"{BATCHES} batches of {BATCH}, 40 to 119 words, T5 of flan-T5-small's size"
    first_order = OneEpoch("fo")
    with tempfile.TemporaryDirectory() as folder:
        trainer = TrainerEpoch(first_order, folder)
        value = measured_ratio(trainer, first_order, ROUNDS)
    name = "sequences per second: SeqLoRA by exact gradients over Hugging Face's Trainer"
    yield at_least(name, value, 1.0, detail)
    plain, shaped = OneEpoch("fo", 1), OneEpoch("rise", 1)
    name = "sequences per second: RISE over exact gradients, SeqLoRA"
    value = measured_ratio(plain, shaped, STEPS)
    yield at_least(name, value, 0.97, f"{STEPS} pairs of steps on a batch of {BATCH}")
    first_order.kit.model.module.eval()
    for count in (5, 14):
        scores = LabelScores(first_order.kit, count)
        torch.testing.assert_close(scores.together(), scores.one_by_one(), rtol=1e-3, atol=1e-3)
        value = measured_ratio(scores.one_by_one, scores.together, ROUNDS)
        name = f"constrained scoring of {count} labels: one by one over all together"
        yield at_least(name, value, 3.0, "16 texts of 96 words")
