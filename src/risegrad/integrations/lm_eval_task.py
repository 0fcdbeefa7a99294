"""Tasks of EleutherAI's lm-eval as something to keep, on the model that is being trained."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from torch import nn

from risegrad.common.checks import check_positive_int
from risegrad.common.imports import need
from risegrad.integrations.kept_scores import KeptScore, undisturbed

SHARES = ("acc_norm", "acc", "exact_match")
"""The first of these that a task has is its score."""
SEED = 1234
"""Of few-shot examples and sampled answers, so that all measurements see the same ones."""


class LmEvalTask:
    """``keep={"arc": LmEvalTask("arc_easy", tokenizer, limit=100)}``: an ``Evaluator``.

    ``name``: a task or group that ``lm-eval ls tasks`` lists; ``metric``: one of its own, such as
    "acc" or "exact_match,strict-match", None: the first of acc_norm, acc, exact_match;
    ``folder``: one with tasks of your own (YAML), in place of lm-eval's. The other arguments are
    those of ``lm_eval.simple_evaluate``; ``limit`` is for each task of a group.

    The data are read when you make it, so what is missing shows before training. There is no loss
    in nats: a budget does not hold it. If training diverges, nothing is right any more.
    """

    def __init__(
        self,
        name: str,
        tokenizer: Any,
        *,
        metric: str | None = None,
        limit: int | None = None,
        num_fewshot: int | None = None,
        batch_size: int = 8,
        apply_chat_template: bool = False,
        folder: str | Path | None = None,
    ) -> None:
        self.name, self.metric = name, metric
        self.limit = None if limit is None else check_positive_int("limit", limit)
        self.batch_size = check_positive_int("batch_size", batch_size)
        self.apply_chat_template = apply_chat_template
        self.examples = 0
        self._tokenizer = copy.deepcopy(tokenizer)  # lm-eval may give it a token for padding
        self._loaded = _loaded(name, folder)
        for task in self._loaded["tasks"].values():
            if num_fewshot is not None:
                task.set_config(key="num_fewshot", value=num_fewshot)

    def score(self, model: nn.Module) -> KeptScore:
        """Percent now; the model, its modes and the random states are left as they are."""
        if not all(bool(p.isfinite().all()) for p in model.parameters() if p.requires_grad):
            return KeptScore(None, 0.0)  # lm-eval would choose the first option everywhere
        # Not simple_evaluate: it reads the data again each time, and of several processes on one
        # machine only the first would get a result.
        evaluate = need("lm_eval", "ifeval").evaluate
        with undisturbed(model) as generators, _as_it_is(_writer(model)) as writer:
            generators.seed(SEED)
            for task in self._loaded["tasks"].values():
                task.set_fewshot_seed(SEED)
            found = evaluate(
                lm=_language_model(writer, self._tokenizer, self.batch_size),
                task_dict=self._loaded,
                limit=self.limit,
                bootstrap_iters=0,
                log_samples=False,
                apply_chat_template=self.apply_chat_template,
                fewshot_as_multiturn=self.apply_chat_template,
            )
        self.examples = sum(number["effective"] for number in found["n-samples"].values())
        return KeptScore(None, 100 * self._share(found))

    def _share(self, found: Mapping[str, Any]) -> float:
        known = {
            key: value
            for key, value in found["results"][self.name].items()
            if "," in key and "_stderr," not in key
        }
        wanted = SHARES if self.metric is None else (self.metric,)
        keys = [key for name in wanted for key in known if name in (key, key.partition(",")[0])]
        if not keys:
            raise ValueError(
                f"metric must be one of {', '.join(known)} for lm-eval's {self.name!r}, "
                f"got {self.metric!r}"
            )
        value = float(known[keys[0]])
        better = found["higher_is_better"].get(self.name, {}).get(keys[0].partition(",")[0])
        if better is False or not 0 <= value <= 1:
            raise ValueError(
                f"metric must be a share in [0, 1], and more of it better; {keys[0]!r} of "
                f"lm-eval's {self.name!r} is {value:g}"
            )
        return value


def _loaded(name: str, folder: str | Path | None) -> dict[str, Any]:
    tasks = need("lm_eval.tasks", "ifeval", "tasks of lm-eval")
    manager = tasks.TaskManager(include_path=folder, include_defaults=folder is None)
    if name not in manager.all_tasks:
        near = ", ".join(get_close_matches(str(name), manager.all_tasks, 5)) or "no name like it"
        where = "lm-eval" if folder is None else folder
        raise ValueError(f"name must be a task of {where} ({near}), got {name!r}")
    loaded: dict[str, Any] = manager.load([name])
    if name not in loaded["tasks"] | loaded["groups"]:
        raise ValueError(
            f"lm-eval's {name!r} stands for several tasks without a mean: give each an LmEvalTask "
            f"of its own, {', '.join(loaded['tasks'])}"
        )
    return loaded


def _writer(model: nn.Module) -> nn.Module:
    """The model of transformers or peft, also within a LightningModule or DDP."""
    for module in model.modules():
        if callable(getattr(module, "generate", None)) and hasattr(module, "config"):
            return module
    raise TypeError(
        f"lm-eval needs a model of transformers that writes text, got {type(model).__name__}"
    )


@contextmanager
def _as_it_is(model: nn.Module) -> Iterator[nn.Module]:
    """lm-eval ties weights anew, which would undo what a training has untied."""
    vars(model)["tie_weights"] = lambda: None
    try:
        yield model
    finally:
        del vars(model)["tie_weights"]


def _language_model(model: nn.Module, tokenizer: Any, batch_size: int) -> Any:
    """As lm-eval takes it, without its warnings that the model is none of the hub's."""
    backend = need("lm_eval.models.huggingface", "ifeval")
    log = logging.getLogger(backend.__name__)
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        return backend.HFLM(pretrained=model, tokenizer=tokenizer, batch_size=batch_size)
    finally:
        log.setLevel(level)
