"""Everything that a run of a chat model depends on."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Annotated, ClassVar, Literal

from riselab.common.inputs import Hub, Local, Reading
from riselab.common.settings import (
    APART,
    Checked,
    Count,
    Limits,
    NonNegative,
    OneOf,
    Positive,
    PositiveInt,
    Share,
)
from riselab.continual.chat.abilities import FILES, AbilitySettings
from riselab.continual.rules import RuleKind


@dataclass(frozen=True)
class ChatStreamSettings(Checked):
    """Which questions and answers are learned, one task after the other."""

    name: str
    """In records."""
    tasks: tuple[str, ...]
    """Folders in ``data``, in the order of the stream, each with ``train`` and ``test``: lines of
    JSON (``.jsonl``) with ``prompt`` and ``answer`` or with ``messages``, or a list (``.json``) of
    ``sentence`` and ``label``; plain or ``.gz``. Several folders joined by ``+`` are one task."""
    data: str = ""
    """The folder with the tasks."""
    question: str = "{text}"
    """The question about a sentence with a label; ``{labels}`` lists all labels of the task."""
    classes: Count = 0
    """Use only so many labels of a task, the first ones; 0: all."""
    train_size: Count = 0
    """Examples to learn from; 0: all."""
    validation: Annotated[float, Limits(above=0, below=1)] = 0.1
    """The share of the training examples set aside for choices, the same in every run."""
    test_size: Count = 0
    """Examples to score on, of test data and of those set aside; 0: all."""


@dataclass(frozen=True)
class ChatModelSettings(Checked):
    """Which causal model, and what of it trains."""

    name: str = "HuggingFaceTB/SmolLM2-135M-Instruct"
    """A name on the hub, of a model with a chat template."""
    weights: str = ""
    """A local folder in the form of transformers, to use instead of the hub."""
    trains: Literal["lora", "all", "osf", "corda", "oplora", "lora-null"] = "lora"
    """A LoRA on all linear layers; all weights; peft's OSF, which trains the small half of each
    weight's singular values; peft's CorDA, a LoRA that begins where old chats use a weight least
    (``knowledge-preserving``); OPLoRA, which projects a LoRA away from each weight's strongest
    singular vectors on both sides; LoRA-Null, which begins in the null space of old chats' inputs.
    """
    rank: PositiveInt = 8
    """Of LoRA and what is made like one."""
    protect: PositiveInt = 128
    """Singular vectors of each weight that OPLoRA leaves alone."""
    alpha: Positive = 16.0
    """Of LoRA, whose output is multiplied by alpha / rank."""
    dropout: Share = 0.0
    """Of LoRA's input."""
    length: Count = 256
    """Cut longer chats to their last so many tokens; 0: never."""


@dataclass(frozen=True)
class ChatBudget(Checked):
    """How each task is learned: by AdamW, with a warm-up and a decay to zero."""

    steps: PositiveInt = 24
    """Of each task."""
    lr: Positive = 1e-3
    """The highest."""
    warmup: Share = 0.1
    """The part of the steps in which the rate rises."""
    weight_decay: NonNegative = 0.0
    """As AdamW understands it."""
    clip: NonNegative = 1.0
    """Bound on the norm of the gradient; 0: none."""

    def lr_at(self, step: int) -> float:
        """The rate of a step, counted from 0.

        >>> [ChatBudget(steps=4, lr=1.0, warmup=0.5).lr_at(step) for step in range(4)]
        [0.5, 1.0, 1.0, 0.5]
        """
        rising = max(1, round(self.warmup * self.steps))
        left = (self.steps - step) / max(1, self.steps - rising)
        return self.lr * min(1.0, (step + 1) / rising, left)


@dataclass(frozen=True)
class ChatLoop(Checked):
    """Batches, the device, and what is scored."""

    batch: PositiveInt = 16
    """Chats of a step."""
    device: str = "auto"
    """``auto``, or a name that torch knows."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """``bfloat16`` computes under autocast."""
    score_on: Literal["test", "validation"] = "test"
    """Test data and the abilities; or the examples set aside, and the drift on chats that the model
    wrote and no rule has, so that no choice sees what is reported."""
    checkpoint_seconds: NonNegative = field(default=60.0, metadata=APART)
    """Shortest time between two checkpoints."""


_OLD = ("old", "examples", "tokens")
_SHAPED = ("q", "chunk")
RULES: dict[str, RuleKind] = {
    "plain": RuleKind("the new task alone"),
    "keep": RuleKind(
        "risegrad.keep: steps shaped by a memory of old chats, and pulled by them",
        (*_OLD, "damping", "pull", "budget"),
    ),
    "informed": RuleKind("the shape alone", (*_OLD, "damping")),
    "distill": RuleKind("the pull alone, in the optimizer's hook", (*_OLD, "pull", "budget")),
    "kl": RuleKind("KL(then || now) on old chats as a part of the loss", (*_OLD, "weight")),
    "kl-new": RuleKind(
        "KL(then || now) on the new answers as a part of the loss, as in ASFT", ("weight",)
    ),
    "replay": RuleKind(
        "old chats as data: the loss of their answers is a part of the loss", (*_OLD, "weight")
    ),
    "dark-replay": RuleKind(
        "kl and replay: DER++, with KL for the distance of scores", (*_OLD, "weight")
    ),
    "ewc": RuleKind(
        "EWC: a penalty on moves, weighed by squared gradients of old chats", (*_OLD, "weight")
    ),
    "kron-anchor": RuleKind("the same with Kronecker factors of each layer", (*_OLD, "weight")),
    "rise": RuleKind(
        "the gradient, shaped blockwise by RISE as in the paper, before the optimizer", _SHAPED
    ),
    "covariance-noise": RuleKind(
        "control: Gaussian noise with RISE's mean and covariance", _SHAPED
    ),
}
"""What each rule is, and the settings that it looks at."""


@dataclass(frozen=True)
class ChatRule(Checked):
    """The method that should prevent forgetting."""

    name: Annotated[str, OneOf(tuple(RULES))] = "plain"
    """``plain``: nothing; ``keep``: shape and pull; ``informed``: shape; ``distill``: pull; ``kl``,
    ``replay``, ``dark-replay``: old chats in the loss; ``kl-new``: the new answers; ``ewc``,
    ``kron-anchor``: a penalty; ``rise`` and its control ``covariance-noise`` (its control without
    noise, a scaled gradient, is plain training by AdamW)."""
    old: Literal["dreams", "prompts"] = "dreams"
    """The old chats: the model writes them itself, or answers real instructions (every second one
    of the abilities' file; the others measure the drift)."""
    examples: Annotated[int, Limits(at_least=2)] = 60
    """Number of old chats."""
    tokens: PositiveInt = 64
    """Most tokens of a dreamed question and of every second answer; the other answers may have
    three times as many. For answers to real prompts: the most tokens of each."""
    damping: Positive = 0.1
    """Of the shape."""
    pull: PositiveInt = 1
    """It pulls every so many steps."""
    budget: NonNegative = 0.0
    """Nats per token that may be lost; 0: no budget."""
    weight: Positive = 1.0
    """Of each part that is added to the loss."""
    q: PositiveInt = 4
    """Directions per block, of RISE and its control."""
    chunk: PositiveInt = 64
    """Elements of a block, of RISE and its control."""
    share: Annotated[float, Limits(above=0, at_most=1)] = 1.0
    """With any rule: the share of the learned change that is applied (WiSE-FT)."""
    shapes: ClassVar[tuple[str, ...]] = ("keep", "informed")
    pulls: ClassVar[tuple[str, ...]] = ("keep", "distill")

    def unused(self) -> dict[str, str]:
        """Settings that differ from their default and that only other rules use."""
        used = {"name", "share", *RULES[self.name].uses}
        return {
            f"rule.{f.name}": f"is not used by rule {self.name!r}; got {getattr(self, f.name)!r}"
            for f in fields(self)
            if f.name not in used and getattr(self, f.name) != f.default
        }


@dataclass(frozen=True)
class ChatRun:
    """Everything that a run of a chat model depends on."""

    stream: ChatStreamSettings
    model: ChatModelSettings = field(default_factory=ChatModelSettings)
    rule: ChatRule = field(default_factory=ChatRule)
    adapter: ChatBudget = field(default_factory=ChatBudget)
    """Of LoRA, or of all weights."""
    abilities: AbilitySettings = field(default_factory=AbilitySettings)
    loop: ChatLoop = field(default_factory=ChatLoop)
    seed: int = 0
    """Of initialization, order, dreams and draws; the choice of examples has its own."""
    domain: Literal["chat"] = "chat"

    def reads(self) -> dict[str, Reading]:
        """Model, texts and abilities, by the settings that name them."""
        model, folders = self.model, [f for task in self.stream.tasks for f in task.split("+")]
        found: dict[str, Reading] = {"stream.data": Local(self.stream.data, tuple(folders))}
        if model.weights:
            found["model.weights"] = Local(model.weights)
        else:
            found["model.name"] = Hub(model.name, "model")
        if self.abilities.folder:
            found["abilities.folder"] = Local(self.abilities.folder, FILES)
        return found
