"""Learning one task of chats after the other, by AdamW and one of the rules."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW, Optimizer

from risegrad.common.seeds import generator_for, seed_for
from risegrad.core.attachment import attach
from risegrad.core.shapers import CovarianceNoise, Rise, Shaper
from risegrad.keeping.keep import keep
from risegrad.keeping.keeper import Keeper
from riselab.continual.batches import epoch_batches
from riselab.continual.chat.anchors import Hold, hold
from riselab.continual.chat.cache import Made
from riselab.continual.chat.model import by_length, put, trainable
from riselab.continual.chat.settings import ChatRun
from riselab.continual.chat.tasks import Examples
from riselab.continual.chat.texts import Chat, ChatTexts, answer_scores
from riselab.continual.checkpoints import Checkpoints
from riselab.continual.host import Report

TOGETHER = 5
"""Old chats of about one length in a batch: few, because all their scores are in memory at once."""
REPLAYED = 8
"""Old chats of one step, as many as pull."""
IN_LOSS = ("kl", "dark-replay")
LISTS: dict[str, Any] = {"train": [], "remember": [], "bytes": [], "data": []}
"""What is measured once for each task."""
KEEPERS = ("keep", "informed", "distill", *IN_LOSS)
HOLDS = ("ewc", "kron-anchor")
SHAPERS: dict[str, Callable[..., Shaper]] = {"rise": Rise, "covariance-noise": CovarianceNoise}


@dataclass
class ChatLearner:
    """A model on its way through the tasks."""

    model: Any
    texts: ChatTexts
    settings: ChatRun
    tasks: Sequence[Examples]
    old: list[Chat]
    """What stands for what it knew."""
    checkpoints: Checkpoints
    report: Report
    _held: Hold | None = field(default=None, init=False)

    def learn(self) -> Made:
        """What was trained after each task (``task/parameter``), and how it went, plain data."""
        begin = {"task": 0, "step": 0, "ends": {}, "plain": {"losses": [], "kept": None} | LISTS}
        state: dict[str, Any] = self.checkpoints.latest() or copy.deepcopy(begin)
        ends: dict[str, Tensor] = state["ends"]
        plain: dict[str, Any] = copy.deepcopy(LISTS) | state["plain"]  # older ones lack some
        keeper: Keeper | None = None
        began = {n: p.detach().clone() for n, p in trainable(self.model).items()}
        for task in range(state["task"], len(self.tasks)):
            self.report({"task": task + 1, "tasks": len(self.tasks)})
            optimizer = self._optimizer(task)
            started = time.perf_counter()
            keeper = self._kept(task, optimizer, keeper)
            self._held = self._hold(task, began, ends)
            made = time.perf_counter() - started
            if "optimizer" in state:
                put(self.model, state["parameters"])
                optimizer.load_state_dict(state["optimizer"])
            self._task(task, state["step"], optimizer, keeper, ends, plain)
            state = {"step": 0}
            ends |= {f"{task}/{n}": p.detach().clone() for n, p in trainable(self.model).items()}
            plain["train"].append(time.perf_counter() - started)
            plain["remember"].append(made)
            if keeper is not None and keeper.kept is not None:
                plain["bytes"].append(sum(keeper.report()["bytes"].values()))
                plain["kept"] = vars(keeper.drift()) | {"strength": keeper.strength}
            elif self._held is not None:
                plain["bytes"].append(self._held.bytes)
            elif self.settings.rule.name == "replay":
                plain["bytes"].append(self._text_bytes(task))
            if self.old:
                plain["data"].append(self._text_bytes(task))
        if keeper is not None:
            keeper.detach()
        return ends, plain

    def _task(
        self,
        task: int,
        first: int,
        optimizer: Optimizer,
        keeper: Keeper | None,
        ends: dict[str, Tensor],
        plain: dict[str, Any],
    ) -> None:
        budget, examples = self.settings.adapter, self.tasks[task]
        saved = time.monotonic()
        for step in range(first, budget.steps):
            for group in optimizer.param_groups:
                group["lr"] = budget.lr_at(step)
            chats = [
                self.texts.chat(examples[i].prompt, examples[i].answer)
                for i in self._chosen(task, step, len(examples))
            ]
            self.model.train()
            optimizer.zero_grad()
            loss = self._loss(chats)
            whole = loss + self._old_loss(task, step, keeper)
            if self.settings.rule.name == "kl-new":
                whole = whole + self.settings.rule.weight * self._distance_on(chats)
            whole.backward()  # type: ignore[no-untyped-call]
            value = float(loss.detach())
            if budget.clip:
                clip_grad_norm_(trainable(self.model).values(), budget.clip)
            optimizer.step()
            plain["losses"].append({"task": task, "epoch": step, "loss": value})
            news = {"batch": step + 1, "batches": budget.steps, "loss": value}
            self.report(news)
            if time.monotonic() - saved >= self.settings.loop.checkpoint_seconds:
                self._save(task, step + 1, optimizer, ends, plain)
                saved = time.monotonic()
        self.model.eval()

    def _loss(self, chats: Sequence[Chat]) -> Tensor:
        scores, labels = answer_scores(self.model, self.texts.batch(chats))
        return cross_entropy(scores.float(), labels)

    def _distance_on(self, chats: Sequence[Chat]) -> Tensor:
        """``KL(then || now)`` per token of the answers; then is now without the adapter."""
        batch = self.texts.batch(chats)
        with torch.no_grad(), self.model.disable_adapter():
            then = answer_scores(self.model, batch)[0].float().log_softmax(-1)
        now = answer_scores(self.model, batch)[0].float().log_softmax(-1)
        return kl_div(now, then, reduction="batchmean", log_target=True)

    def _old_loss(self, task: int, step: int, keeper: Keeper | None) -> Tensor | float:
        """What a rule adds to the loss."""
        rule, found = self.settings.rule, 0.0
        whole: Tensor | float = found
        if rule.name in IN_LOSS and keeper is not None:
            whole = whole + rule.weight / keeper.strength * keeper.loss()
        if self._held is not None:
            whole = whole + rule.weight * self._held.penalty(self.model)
        if rule.name in ("replay", "dark-replay"):
            pool = self._pool(task)
            purpose = (self.settings.seed, "replay", task, step * REPLAYED // len(pool))
            order = torch.randperm(len(pool), generator=generator_for(*purpose)).tolist()
            start = step * REPLAYED % len(pool)
            whole = whole + rule.weight * self._loss([pool[i] for i in order[start:][:REPLAYED]])
        return whole

    def _chosen(self, task: int, step: int, count: int) -> list[int]:
        """Which examples a step takes, a pure function so that a resumed run takes the same."""
        size = min(self.settings.loop.batch, count)
        turn, place = divmod(step, math.ceil(count / size))
        batches = epoch_batches(count, size, seed=self.settings.seed, task=task, epoch=turn)
        return [index for _, index in batches[place]]

    def _pool(self, task: int) -> list[Chat]:
        """Old chats, and as many of each task that was learned."""
        return [*self.old, *(chat for number in range(task) for chat in self._learned(number))]

    def _text_bytes(self, task: int) -> int:
        """UTF-8 of all chats that are kept in some way while this task is learned."""
        decode = self.texts.tokenizer.decode
        return sum(len(decode(chat.tokens).encode()) for chat in self._pool(task))

    def _learned(self, task: int) -> list[Chat]:
        most = self.settings.rule.examples
        return [self.texts.chat(e.prompt, e.answer) for e in self.tasks[task][:most]]

    def _optimizer(self, task: int) -> Optimizer:
        budget, named = self.settings.adapter, trainable(self.model)
        optimizer = AdamW(named.values(), budget.lr, weight_decay=budget.weight_decay)
        rule = self.settings.rule
        if rule.name in SHAPERS:
            seed = seed_for(self.settings.seed, "shape", task)
            shaper = SHAPERS[rule.name](q=rule.q, blocks=rule.chunk, seed=seed)
            attach(optimizer, shaper, params=list(named.items()), advise=False)
        return optimizer

    def _kept(self, task: int, optimizer: Optimizer, before: Keeper | None) -> Keeper | None:
        """The keeper of a rule that has one: from a folder if the run goes on, or made."""
        rule = self.settings.rule
        if rule.name not in KEEPERS:
            return None
        folder = self.checkpoints.folder / f"keeper-{task}"
        made: dict[str, Any] = {
            "examples": max(len(self.old), rule.examples),
            "budget": rule.budget or None,
            "pull": rule.pull if rule.name != "informed" else 0,
            "damping": rule.damping if rule.name in rule.shapes else None,
            "seed": self.settings.seed,
        }
        if (folder / "keeper.json").is_file():
            return keep(self.model, optimizer, resume=folder, **made)
        if before is None:
            keeper = keep(self.model, optimizer, self._batches(self.old), **made)
        else:
            keeper = before.then(self._batches(self._learned(task - 1)), optimizer)
        keeper.save(folder)
        return keeper

    def _hold(self, task: int, began: dict[str, Tensor], ends: dict[str, Tensor]) -> Hold | None:
        """The penalty of a rule that has one, made anew from where each task so far began."""
        if self.settings.rule.name not in HOLDS:
            return None
        found = hold(self.settings.rule.name, self.settings.seed)
        for number in range(task + 1):
            of = f"{number - 1}/"
            put(self.model, {n: ends[of + n] for n in began} if number else began)
            chats = self._learned(number - 1) if number else self.old
            found.look(self.model, self._batches(chats))
        return found

    def _batches(self, chats: Sequence[Chat]) -> list[dict[str, Tensor]]:
        return [self.texts.batch(group) for group in by_length(chats, TOGETHER)]

    def _save(
        self,
        task: int,
        step: int,
        optimizer: Optimizer,
        ends: dict[str, Tensor],
        plain: dict[str, Any],
    ) -> None:
        parameters = {n: p.detach().clone() for n, p in trainable(self.model).items()}
        self.checkpoints.save({
            "task": task, "step": step, "ends": ends, "plain": plain,
            "parameters": parameters, "optimizer": optimizer.state_dict(),
        })  # fmt: skip
