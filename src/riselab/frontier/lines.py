"""From a run to the few lines that train alike: place, shaper, rate, damping and clip.

Everything is read from the record, so that ``--set`` reaches these lines as it reached the run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from risegrad.memory.remembering import SMALL
from riselab.continual.rules import RULES
from riselab.pages.page import CodeBlock
from riselab.records.fields import Record

OPTIMIZERS = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}
TITLE = "To use it"
OLD = {"dreams": "", "prompts": "old=kept_chats, "}


def code_of(run: Record, share: str = "") -> CodeBlock:
    """The lines for a run; ``share``: how much of the way from the start is taken, if not all."""
    lines = _chat if run.config["domain"] == "chat" else _plain
    return CodeBlock(TITLE, (*lines(run), *_back(share)), "python")


def _plain(run: Record) -> Iterator[str]:
    """What stands around a loop of one's own."""
    budget, rule, memory = (run.config[part] for part in ("adapter", "rule", "memory"))
    old = f"keep_batches, examples={memory['examples']}"
    momentum = f", momentum={budget['momentum']}" if budget["optimizer"] == "sgd" else ""
    settings = f"lr={budget['lr']}{momentum}, weight_decay={budget['weight_decay']}"
    kind = OPTIMIZERS[budget["optimizer"]]
    yield f"optimizer = torch.optim.{kind}(model.parameters(), {settings})"
    if rule["name"] == "keep":
        yield f"keeper = risegrad.keep(model, optimizer, {old}, {_keeps(rule)})"
    elif (what := RULES.get(rule["name"])) and (what.shaper or what.needs):
        informed = what.needs == "memory"
        if informed:
            rank = f", rank={memory['rank']}" if memory["rank"] else ""
            if not rank and max(run.result.memory_bytes, default=0) > SMALL:
                rank = ", budget=2**40"  # all eigenpairs: by itself it keeps those of small models
            yield f"memory = risegrad.remember(model, {old}{rank})"
        yield f"shaper = risegrad.{_shaper(rule)}"
        on = ("update" if budget["optimizer"] != "sgd" else "gradient") if informed else rule["on"]
        yield f'risegrad.attach(optimizer, shaper, params=model.named_parameters(), on="{on}")'
    elif rule["name"] != "fo" or run.config["additions"]:
        had = {"rule": {"name": rule["name"]}, "additions": run.config["additions"]}
        yield f"# Only the lab has the rest of it: {json.dumps(had)}"
    if budget["schedule"] == "cosine" and budget["epochs"] > 1:
        falls = f"torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, {budget['epochs']})"
        yield f"schedule = {falls}  # schedule.step() after each epoch"
    if budget["clip"]:
        clip = f"torch.nn.utils.clip_grad_norm_(model.parameters(), {budget['clip']})"
        yield f"{clip}  # before optimizer.step()"


def _shaper(rule: Mapping[str, Any]) -> str:
    kind = RULES[rule["name"]]
    if kind.needs:
        drawn = f", q={rule['q']}, seed=0" if "q" in kind.uses else ""
        match = json.dumps(rule.get("match", "norm"))  # records may be older than this setting
        return f"Informed(memory, damping={rule['damping']}, match={match}{drawn})"
    blocks = rule["chunk"] or json.dumps(rule["blocks"])
    mean = f", mean={json.dumps(rule['mean'])}" if rule["mean"] else ""
    drawn = "" if rule["name"] == "scaled-fo" else ", seed=0"
    made_by: Any = kind.shaper
    return f"{made_by.__name__}(q={rule['q']}, blocks={blocks}{drawn}{mean})"


def _keeps(rule: Mapping[str, Any]) -> str:
    budget = f", budget={rule['budget']}" if rule["budget"] else ""
    return f"damping={rule['damping']}, pull={rule['pull']}{budget}"


def _chat(run: Record) -> Iterator[str]:
    """For TRL's trainer; what has no callback is said in words."""
    budget, rule, loop = (run.config[part] for part in ("adapter", "rule", "loop"))
    old = f"{OLD[rule['old']]}examples={rule['examples']}"
    callbacks, words = "", ""
    if rule["name"] in ("keep", "distill", "informed"):
        changes = {"keep": _keeps(rule), "distill": f"damping=None, pull={rule['pull']}",
                   "informed": f"damping={rule['damping']}, pull=0"}  # fmt: skip
        callbacks = f", callbacks=[KeepCallback({old}, {changes[rule['name']]})]"
    elif rule["name"] != "plain":
        old_loss = {"kl": f"add {rule['weight']:g} * keeper.loss() / keeper.strength of "
                    f"risegrad.keep(..., damping=None, {old}) to the loss"}  # fmt: skip
        words = old_loss.get(rule["name"], f"only the lab has {json.dumps(dict(rule))}")
    yield (
        f"arguments = SFTConfig(learning_rate={budget['lr']}, max_steps={budget['steps']}, "
        f"per_device_train_batch_size={loop['batch']}, max_grad_norm={budget['clip']}, "
        f'warmup_steps={round(budget["warmup"] * budget["steps"])}, lr_scheduler_type="linear")'
    )
    yield f"trainer = SFTTrainer(model, arguments, train_dataset=new_chats{callbacks})"
    yield f"# {words}" if words else "trainer.train()"


def _back(share: str) -> Iterator[str]:
    if share:
        yield "import risegrad.memory"
        yield "start = {name: p.detach().clone() for name, p in model.named_parameters()}  # before"
        yield f"risegrad.memory.interpolate(model, start, {share})  # after training"
