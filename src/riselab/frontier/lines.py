"""From a run to the lines that train alike: plain PyTorch, or a row where only the lab can do it.

Everything is read from the record, so that ``--set`` reaches these lines as it reached the run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from textwrap import indent, wrap
from typing import Any

from risegrad.common.settings import flat
from risegrad.memory.remembering import SMALL
from riselab.continual.rules import INFORMED, SHAPERS
from riselab.pages.page import CodeBlock
from riselab.records.fields import Record

OPTIMIZERS = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}
LEFT_OUT: dict[str, Any] = {
    "rule.exempt": [], "rule.only": [], "memory.of": "predictions", "memory.source": "past",
    "memory.change": "", "loop.precision": "float32", "host.head_rule": "same",
}  # fmt: skip
"""Settings that these lines do not follow, as they usually are; where they differ, it is said."""
STEP = "    "
TITLE = "To use it"


def code_of(run: Record, targets: Sequence[str], share: str = "") -> CodeBlock:
    """The lines for a run's method and settings; ``targets``: what LoRA is put on, if it is used;
    ``share``: how much of the way from the start is kept, if not all."""
    rule = run.config["rule"]["name"]
    if run.config["additions"] or rule not in ("fo", *SHAPERS, *INFORMED):
        return CodeBlock(TITLE, tuple(_row(run)), "toml")
    return CodeBlock(TITLE, tuple(_program(run, targets, share)), "python")


def _program(run: Record, targets: Sequence[str], share: str) -> Iterator[str]:
    config, informed = run.config, run.config["rule"]["name"] in INFORMED
    keep = [task.train for task in run.result.tasks if task.known]
    new = [task.train for task in run.result.tasks if not task.known]
    yield from _imports(config, targets)
    yield from _given(run, len(keep) if informed else 0, len(new))
    if targets:
        yield from _lora(config["model"], targets)
    if config["domain"] == "vision":
        yield "model = torch.nn.Sequential(network, head)"
    if share:
        yield "start = {name: p.detach().clone() for name, p in model.named_parameters()}"
    if informed:
        yield from _memories(run, keep)
    once = (*_optimizer(config), *_training(config))
    if len(new) == 1:
        yield from once
    else:
        yield "for new_batches in new_sets:"
        later = f"memory = memory + {_remember(run, 'new_batches', min(new))}"
        yield from (indent(line, STEP) for line in (*once, *([later] if informed else [])))
    if share:
        yield "with torch.no_grad():  # go back a part of the way"
        yield f"{STEP}for name, p in model.named_parameters():"
        yield f"{STEP}{STEP}p.copy_(torch.lerp(start[name], p, {share}))"


def _imports(config: Mapping[str, Any], targets: Sequence[str]) -> Iterator[str]:
    yield "import torch"
    if targets:
        yield "from peft import LoraConfig, get_peft_model"
    if config["rule"]["name"] != "fo":
        yield "import risegrad"
    yield ""


LOSSES = {
    "seq-lora": "model(**batch).loss",
    "label-encoder": "the cross-entropy over {scale:g} times the cosines of text and labels' names",
    "fine-tune": "the cross-entropy of model(images)",
}
"""What the hosts descend, in words."""


def _given(run: Record, keep: int, new: int) -> Iterator[str]:
    """What the lines take as there, as comments; ``keep`` and ``new`` are numbers of sets."""
    config = run.config
    images, host = config["domain"] == "vision", config["host"]
    model = "network (images to features), head (features to scores)" if images else "model"
    sets = [(name, count) for name, count in (("keep", keep), ("new", new)) if count]
    data = (f"{n}_batches" if count == 1 else f"{n}_sets (of batches)" for n, count in sets)
    words = [model, *data, "loss(model, batch)"]
    sizes = {"own": "", "vision": " of {} images", "language": " of {} texts"}[config["domain"]]
    text = f"Yours: {', '.join(words)}. Batches{sizes.format(config['loop']['batch'])} come in a "
    text += "new order in every epoch."
    if host["name"] in LOSSES:
        text += f" The loss was {LOSSES[host['name']].format(**host)}."
    if config["domain"] == "language" and "head" in run.result.trainable:
        text += " A head on the encoder was trained beside it (with LoRA: modules_to_save)."
    if left := [*_left_out(config)]:
        text += f" The run also had {', '.join(left)}, which these lines leave out."
    yield from (f"# {line}" for line in wrap(text, 86))


def _left_out(config: Mapping[str, Any]) -> Iterator[str]:
    had = ((place, value) for place, value in flat(config).items() if place in LEFT_OUT)
    yield from (f"{place}={value}" for place, value in had if value != LEFT_OUT[place])
    if config["domain"] == "vision":
        pairs = ((name, value, config["head"][name]) for name, value in config["adapter"].items())
        yield from (f"head.{n}={head}" for n, value, head in pairs if n != "clip" and value != head)


def _lora(model: Mapping[str, Any], targets: Sequence[str]) -> Iterator[str]:
    sizes = f"r={model['rank']}, lora_alpha={model['alpha']:g}, lora_dropout={model['dropout']}"
    yield f"lora = LoraConfig({sizes}, target_modules={json.dumps(list(targets))})"
    yield "model = get_peft_model(model, lora)"


def _memories(run: Record, sizes: Sequence[int]) -> Iterator[str]:
    """Of every set that is kept; each was remembered by itself."""
    if len(sizes) == 1:
        yield f"memory = {_remember(run, 'keep_batches', sizes[0])}"
        return
    for number, size in enumerate(sizes):
        added = "memory + " if number else ""
        yield f"memory = {added}{_remember(run, f'keep_sets[{number}]', size)}"


def _remember(run: Record, batches: str, size: int) -> str:
    taken, kept = min(run.config["memory"]["examples"], size), _kept(run)
    if run.config["domain"] == "own":  # a run counts batches there, and takes all that they hold
        return f"risegrad.remember(model, {batches}[:{taken}], examples=None{kept})"
    return f"risegrad.remember(model, {batches}, examples={taken}{kept})"


def _kept(run: Record) -> str:
    """As many eigenpairs as the run's memory had: its rank, or all where few are usual."""
    if rank := run.config["memory"]["rank"]:
        return f", rank={rank}"
    most = max(run.result.memory_bytes, default=0)
    return f", budget={-(-most // 2**20)} * 2**20" if most > SMALL else ""


def _optimizer(config: Mapping[str, Any]) -> Iterator[str]:
    budget = config["adapter"]
    momentum = f"momentum={budget['momentum']}, " if budget["optimizer"] == "sgd" else ""
    settings = f"lr={budget['lr']}, {momentum}weight_decay={budget['weight_decay']}"
    kind = OPTIMIZERS[budget["optimizer"]]
    yield f"optimizer = torch.optim.{kind}(model.parameters(), {settings})"
    if budget["schedule"] == "cosine":
        schedule = "torch.optim.lr_scheduler.CosineAnnealingLR"
        yield f"schedule = {schedule}(optimizer, T_max={budget['epochs']})"
    rule = config["rule"]
    if rule["name"] != "fo":
        on = _place(config)
        yield f"shaper = {_shaper(rule)}"
        told = f', on="{on}"' if on != "gradient" else ""
        yield f"risegrad.attach(optimizer, shaper, params=model.named_parameters(){told})"


def _place(config: Mapping[str, Any]) -> str:
    """Adaptive optimizers undo what an informed rule does to a gradient."""
    if config["rule"]["name"] not in INFORMED:
        return str(config["rule"]["on"])
    return "gradient" if config["adapter"]["optimizer"] == "sgd" else "update"


def _shaper(rule: Mapping[str, Any]) -> str:
    name = rule["name"]
    if name in INFORMED:
        drawn = f", q={rule['q']}, seed=0" if name == "informed-rise" else ""
        match = json.dumps(rule.get("match", "norm"))  # records may be older than this setting
        return f"risegrad.Informed(memory, damping={rule['damping']}, match={match}{drawn})"
    blocks = rule["chunk"] or json.dumps(rule["blocks"])
    mean = f", mean={json.dumps(rule['mean'])}" if rule["mean"] else ""
    drawn = "" if name == "scaled-fo" else ", seed=0"
    return f"risegrad.{_name(SHAPERS[name])}(q={rule['q']}, blocks={blocks}{drawn}{mean})"


def _name(made_by: Any) -> str:
    return str(made_by.__name__)


def _training(config: Mapping[str, Any]) -> Iterator[str]:
    budget = config["adapter"]
    yield "model.train()"
    yield f"for epoch in range({budget['epochs']}):"
    inner = ("optimizer.zero_grad()", "loss(model, batch).backward()", *_clipped(config))
    yield f"{STEP}for batch in new_batches:"
    yield from (f"{STEP}{STEP}{line}" for line in (*inner, "optimizer.step()"))
    if budget["schedule"] == "cosine":
        yield f"{STEP}schedule.step()"


def _clipped(config: Mapping[str, Any]) -> Iterator[str]:
    """The lab clips network and head each by itself."""
    parts = {"model": "adapter"}
    if config["domain"] == "vision":
        parts = {"network": "adapter", "head": "head"}
    for part, budget in parts.items():
        if clip := config[budget]["clip"]:
            yield f"torch.nn.utils.clip_grad_norm_({part}.parameters(), {clip})"


def _row(run: Record) -> Iterator[str]:
    """A row of an experiment file that is the run, with the sections of the search around it."""
    text = (
        f"Only the lab has {run.row.method or run.row.label}: no lines of plain PyTorch do the "
        "same. This row of an experiment file does, with `rise run FILE`. The sections stream, "
        "model, host and loop say what is learned, and by which model."
    )
    yield from (f"# {line}" for line in wrap(text, 86))
    config = run.config
    rule = {"name": config["rule"]["name"]} | dict(run.identity.settings.get("rule", {}))
    yield from ("[[rows]]", f"label = {_toml(run.row.label)}", f"rule = {_toml(rule)}")
    for name in ("adapter", "head"):
        yield from ("", f"[rows.{name}]", *_lines(config[name]))
    for addition in config["additions"]:
        yield from ("", "[[rows.additions]]", *_lines(addition))


def _lines(table: Mapping[str, Any]) -> Iterable[str]:
    return (f"{name} = {_toml(value)}" for name, value in table.items())


def _toml(value: Any) -> str:
    """Numbers, words and lists are written as in JSON."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(_lines(value))} }}"
    return json.dumps(value)
