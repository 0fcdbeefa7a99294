"""One training by TRL's ``SFTTrainer`` and ``KeepCallback``, measured before and after."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import datasets
import torch
from torch import Tensor
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from transformers import PrinterCallback, TrainerCallback

from risegrad.common.environment import environment
from risegrad.common.files import write_json
from risegrad.common.imports import need
from risegrad.integrations.keep import KeepCallback
from risegrad.integrations.records import CARD, FILE, sign
from riselab.common.folders import output_folder
from riselab.common.settings import as_plain, essence
from riselab.continual.chat.abilities import Drift
from riselab.continual.chat.adapters import trained_parts
from riselab.continual.chat.cache import cached, content_of
from riselab.continual.chat.model import load, trainable
from riselab.continual.chat.run import score
from riselab.continual.chat.settings import ChatBudget, ChatModelSettings
from riselab.continual.chat.tasks import ChatExample
from riselab.continual.chat.texts import Chat, ChatTexts, greedy, in_groups
from riselab.continual.devices import Devices
from riselab.continual.preflight import off_hub
from riselab.records.record import loaded_git
from riselab.tune.chats import plain, read_chats, split
from riselab.tune.settings import DREAMS, EVERYDAY, PLAIN, SHOWN, TuneSettings, model_place

trl = need("trl", "trl", "rise tune")
RECORD, PAGE, WORK, STATE = "tune.json", "tune.html", "work", "state.json"
RATES = {False: 1e-3, True: 1e-4}
"""Of LoRA, and of all weights: AdamW moves each of them by about its rate in every step."""
BATCH, LENGTH, KEPT = 16, 1024, 64
WORDS, DRIFT_BATCH = 48, 8
"""Tokens of an answer to an everyday question, and how many are compared at a time."""
SAMPLES = 5
"""Held-out examples whose answers are shown."""
PASSES, LEAST, MOST = 3, 4, 30
"""Steps: at least 4, and no more than 30 or three passes over the examples, if that is more."""
LOOK = 2
"""Steps after which the pace is known well enough to say something."""
VERSION = 1
"""Of how is measured before training."""
Say = Callable[[str], None]


def aloud(line: str) -> None:
    """At once, also where the output is a file."""
    print(line, flush=True)


@dataclass
class Tuning:
    """A training that is begun or goes on, from reading the model to the record."""

    settings: TuneSettings
    say: Say = aloud
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        settings = self.settings
        self.out = output_folder(Path(settings.out).expanduser())
        self.work = self.out / WORK
        self.learned, self.held = split(read_chats("new", settings.new))
        self.old = [] if settings.keep == DREAMS else read_chats("keep", settings.keep)
        place = model_place(settings.model)
        if "name" in place and (why := off_hub(settings.model)):
            raise ValueError(
                f"model must be a folder in the form of transformers or a name on the hub, got "
                f"{settings.model!r} ({why})"
            )
        trains: Any = "all" if settings.full else "lora"
        self.kind = ChatModelSettings(**place, trains=trains, length=LENGTH)
        self.state = _state(self.work, self._identity())

    def run(self) -> dict[str, Any]:
        """The record; of a command that is done already the one that it left."""
        if done := read_record(self.out):
            if done["identity"] != self._identity():
                raise ValueError(_other(self.out, done["identity"], self._identity()))
            self.say(f"{self.out} is done; to train again, give another --out or remove it")
            return done
        write_json(self.work / STATE, self.state)
        self.devices = Devices()
        model, tokenizer = load(self.kind, self.devices.device)
        self.texts = ChatTexts(tokenizer, LENGTH)
        tensors, before = self._before(model)
        model = trained_parts(model, self.kind, self.settings.seed)
        keeping = self._keeping(tokenizer)
        trainer, pace = self._trainer(model, tokenizer, keeping, before["seconds"])
        trainer.train(resume_from_checkpoint=_checkpoint(self.work))
        after = self._measured(model) | self._drift(model, Drift.read("drift", tensors))
        for name in (CARD, FILE):  # the callback has signed them
            if (self.work / name).is_file():
                shutil.copy(self.work / name, self.out / name)
        trainer.save_model(str(self.out))
        (self.out / "training_args.bin").unlink(missing_ok=True)  # a pickle with paths of here
        if keeping is None:
            sign(self.out, [])
        record = {
            "identity": self._identity(),
            "settings": as_plain(self.settings),
            "method": "plain" if keeping is None else "keep",
            "optimizer": {"lr": RATES[self.settings.full], "batch": trainer.args.train_batch_size},
            "steps": pace.done,
            "step_seconds": pace.pace,
            "seconds": pace.spent(),
            "examples": {"learned": len(self.learned), "held": len(self.held)},
            "before": {name: before[name] for name in ("exact", "nll")},
            "after": {name: after[name] for name in ("exact", "nll", "drift", "agreement")},
            "answers": _pairs(EVERYDAY[:SHOWN], before["everyday"], after["everyday"]),
            "samples": _pairs(map(plain, self.held), before["new"], after["new"]),
            "keep": json.loads((self.out / FILE).read_text(encoding="utf-8")).get("keep"),
            "environment": environment(),
            "git": loaded_git(),
        }
        write_json(self.out / RECORD, record)
        shutil.rmtree(self.work)
        return read_record(self.out)

    def _identity(self) -> dict[str, Any]:
        """What the result depends on, as far as the command says it."""
        found: dict[str, Any] = essence(self.settings)
        return found

    def _before(self, model: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What the model answers before training; measured once for keeping and plain training."""

        def measure() -> tuple[dict[str, Tensor], dict[str, Any]]:
            self.say(
                f"before training: {len(self.held)} of {len(self.held) + len(self.learned)} "
                f"examples are held out, and {len(EVERYDAY)} everyday questions answered"
            )
            started = time.monotonic()
            chats = greedy(model, self.texts, EVERYDAY, WORDS)
            drift = Drift.of(model, [self.texts.batch(g) for g in in_groups(chats, DRIFT_BATCH)])
            found = self._measured(model, chats[:SHOWN])
            return drift.tensors("drift"), found | {"seconds": time.monotonic() - started}

        held = [plain(example) for example in self.held]
        key = {"tune": VERSION, "model": content_of(model), "questions": EVERYDAY, "held": held}
        return cached(key, measure)

    def _measured(self, model: Any, chats: Sequence[Chat] = ()) -> dict[str, Any]:
        """Scores on held-out examples, and answers in words."""
        model.eval()
        (hits, count), nll = score(model, self.texts, tuple(self.held))
        answers = chats or greedy(model, self.texts, EVERYDAY[:SHOWN], WORDS)
        prompts = [example.prompt for example in self.held[:SAMPLES]]
        new = greedy(model, self.texts, prompts, WORDS)
        return {"exact": 100 * hits / count, "nll": nll, "everyday": self._words(answers),
                "new": self._words(new)}  # fmt: skip

    def _words(self, chats: Sequence[Chat]) -> list[str]:
        decode = self.texts.tokenizer.decode
        told = [chat.tokens[len(chat.tokens) - chat.answer :] for chat in chats]
        return [decode(tokens, skip_special_tokens=True).strip() for tokens in told]

    def _drift(self, model: Any, drift: Drift) -> dict[str, float]:
        moved, same = drift.measure(model)
        return {"drift": moved, "agreement": same}

    def _keeping(self, tokenizer: Any) -> KeepCallback | None:
        if self.settings.plain:
            return None
        old = self._rows(self.old) if self.old else None
        budget = self.settings.budget or None
        return KeepCallback(
            old, tokenizer=tokenizer, examples=KEPT, budget=budget, seed=self.settings.seed
        )

    def _rows(self, examples: Sequence[ChatExample]) -> list[dict[str, Any]]:
        """In tokens, as they are scored, and with TRL's mark of what counts."""
        chats = [self.texts.chat(example.prompt, example.answer) for example in examples]
        return [
            {"input_ids": chat.tokens, "completion_mask":
             [0] * (len(chat.tokens) - chat.answer) + [1] * min(chat.answer, len(chat.tokens))}
            for chat in chats
        ]  # fmt: skip

    def _trainer(
        self, model: Any, tokenizer: Any, keeping: KeepCallback | None, measuring: float
    ) -> tuple[Any, Pace]:
        batch = min(BATCH, len(self.learned))
        passes = PASSES * math.ceil(len(self.learned) / batch)
        pace = Pace(self.settings, self.work, self.began, measuring, self.say,
                    self.state.get("steps") or self.settings.steps or max(MOST, passes),
                    self.state.get("seconds", 0.0))  # fmt: skip
        accelerated = self.devices.device.type == "cuda"
        arguments = trl.SFTConfig(
            str(self.work), max_steps=pace.steps, per_device_train_batch_size=batch,
            max_grad_norm=1.0, bf16=accelerated and torch.cuda.is_bf16_supported(),
            gradient_checkpointing=accelerated, dataloader_pin_memory=accelerated,
            use_cpu=self.devices.device.type == "cpu", completion_only_loss=True,
            max_length=LENGTH, seed=self.settings.seed, logging_steps=1, save_strategy="steps",
            save_steps=10**9, save_total_limit=1, report_to=[], disable_tqdm=True,
        )  # fmt: skip
        optimizer = AdamW(trainable(model).values(), RATES[self.settings.full], weight_decay=0.0)
        trainer = trl.SFTTrainer(
            model, arguments, train_dataset=datasets.Dataset.from_list(self._rows(self.learned)),
            processing_class=tokenizer, callbacks=[*filter(None, [keeping]), pace],
            optimizers=(optimizer, LambdaLR(optimizer, pace.share)),
        )  # fmt: skip
        trainer.remove_callback(PrinterCallback)
        return trainer, pace


class Pace(TrainerCallback):
    """As many steps as fit into the time: from the second on, each is measured."""

    def __init__(
        self,
        settings: TuneSettings,
        work: Path,
        began: float,
        measuring: float,
        say: Say,
        steps: int,
        earlier: float,
    ) -> None:
        self.settings, self.work, self.say = settings, work, say
        self.steps, self.done, self.pace = steps, 0, 0.0
        self._began, self._earlier, self._measuring = began, earlier, measuring
        self._seconds: list[float] = []
        self._last = self._saved = time.monotonic()

    def share(self, step: int) -> float:
        """Of the highest rate: up in a tenth of the steps, then down to zero."""
        return ChatBudget(steps=self.steps, lr=1.0).lr_at(step)

    def spent(self) -> float:
        """Seconds since the beginning, those of a command that was stopped included."""
        return self._earlier + time.monotonic() - self._began

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Everything before the first step is done, what is kept included."""
        self.done = state.global_step
        self._last = self._saved = time.monotonic()
        if self.done:
            self.say(f"going on after step {self.done} of {self.steps}")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Count, choose how many more there are, and save now and then."""
        now, self.done = time.monotonic(), state.global_step
        self._seconds.append(now - self._last)
        self._last, self.pace = now, median(self._seconds[-LOOK * 4 :])
        if not self.settings.steps and len(self._seconds) >= LOOK:
            self._fit()
        control.should_training_stop = self.done >= self.steps
        control.should_save = (
            not control.should_training_stop and now - self._saved >= self.settings.save_seconds
        )

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """What a resumed command must know beside the checkpoint."""
        self._saved = time.monotonic()
        known = _state(self.work, None)
        write_json(self.work / STATE, known | {"steps": self.steps, "seconds": self.spent()})

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A line for each tenth of the way."""
        loss = (kwargs.get("logs") or {}).get("loss")
        if loss is not None and self.done % max(1, self.steps // 10) == 0:
            left = self.pace * (self.steps - self.done)
            self.say(f"step {self.done} of {self.steps}: loss {loss:.3f}, {left:.0f} s to go")

    def _fit(self) -> None:
        """Never more than before, so that the rate only falls."""
        left = 60 * self.settings.minutes - self.spent() - self._measuring
        fits = max(LEAST, self.done + math.floor(max(0.0, left) / self.pace))
        if len(self._seconds) == LOOK:
            word = "fit into" if fits <= self.steps else "are enough, and fit into"
            self.say(f"a step takes {self.pace:.2f} s: {min(self.steps, fits)} steps {word} "
                     f"{self.settings.minutes:g} minutes")  # fmt: skip
        self.steps = max(self.done, min(self.steps, fits))


def _pairs(asked: Any, before: Sequence[str], after: Sequence[str]) -> list[dict[str, Any]]:
    pairs = zip(asked, before, after, strict=False)
    return [{"question": q, "before": b, "after": a} for q, b, a in pairs]


def read_record(out: Path) -> dict[str, Any]:
    """The record in a folder; empty where there is none."""
    with suppress(OSError, ValueError):
        found: dict[str, Any] = json.loads((out / RECORD).read_text(encoding="utf-8"))
        return found
    return {}


def beside(out: Path, own: dict[str, Any]) -> dict[str, Any]:
    """The record of the other training, with or without keeping, of the same data; or none."""
    name = out.name.removesuffix(PLAIN) if own["method"] == "plain" else f"{out.name}{PLAIN}"
    other = read_record(out.with_name(name))
    alike = other and all(other["identity"][n] == own["identity"][n] for n in ("model", "new"))
    return other if alike and other["method"] != own["method"] else {}


def _state(work: Path, identity: dict[str, Any] | None) -> dict[str, Any]:
    """What an earlier command left; a folder of another one is an error."""
    found: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        found = json.loads((work / STATE).read_text(encoding="utf-8"))
    if identity is None:
        return found
    if found and found["identity"] != identity:
        raise ValueError(_other(work.parent, found["identity"], identity))
    work.mkdir(exist_ok=True)
    return found or {"identity": identity}


def _other(out: Path, was: dict[str, Any], now: dict[str, Any]) -> str:
    names = [n for n in {**was, **now} if was.get(n) != now.get(n)]
    told = ", ".join(f"{n} was {was.get(n, 'not set')!r}" for n in names)
    return f"out already has another training: choose a new folder, got {str(out)!r} ({told})"


def _checkpoint(work: Path) -> str | None:
    """The last one that is whole: its state is written last."""
    whole = [path.parent for path in work.glob("checkpoint-*/trainer_state.json")]
    return str(max(whole, key=lambda path: int(path.name.split("-")[1]))) if whole else None
