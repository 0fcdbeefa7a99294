"""Update rules: where a group's gradient comes from and how it is shaped.

``fo`` is the exact gradient, ``zo`` a two-point estimate of it, and the others shape the exact one.
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, ClassVar, Literal

from torch.nn import Parameter
from torch.optim import Optimizer

from risegrad.common.checks import check_choice
from risegrad.core.attachment import Attachment, attach
from risegrad.core.blocks import listing, matches
from risegrad.core.shapers import CovarianceNoise, IsotropicNoise, Rise, ScaledFO, Shaper
from risegrad.memory.memory import DAMPING
from riselab import plugins
from riselab.common.settings import (
    Checked,
    Count,
    NonNegative,
    OneOf,
    Positive,
    PositiveInt,
    read,
    wrong,
)

SHAPED = ("q", "blocks", "chunk", "on", "exempt", "only")
"""What every shaper that draws needs to know."""


@dataclass(frozen=True)
class RuleKind:
    """What a rule is. Settings, their documentation, lists and runs follow from it."""

    summary: str
    uses: tuple[str, ...] = ()
    """The settings of ``Rule`` that it looks at."""
    shaper: Callable[..., Shaper] | None = None
    """Makes its shaper of ``q``, ``blocks``, ``seed``, and ``mean`` if it uses that."""
    needs: Literal["", "memory", "examples"] = ""
    """What the run keeps of earlier sessions for it: a memory, or examples too."""
    exact: bool = True
    """Whether it needs the gradient by backpropagation."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Where it differs from the defaults of ``Rule``."""


RULES: dict[str, RuleKind] = {
    "fo": RuleKind("the exact gradient"),
    "zo": RuleKind(
        "SPSA: two evaluations per query, no gradient",
        ("q", "epsilon", "variant", "norm_matched"),
        exact=False,
    ),
    "rise": RuleKind("the exact gradient, shaped blockwise by RISE", SHAPED, Rise),
    "scaled-fo": RuleKind(
        "control: RISE's mean without noise (a smaller step, block by block)", SHAPED, ScaledFO
    ),
    "isotropic-noise": RuleKind(
        "control: the exact gradient plus isotropic noise of RISE's total variance",
        (*SHAPED, "mean"),
        IsotropicNoise,
    ),
    "covariance-noise": RuleKind(
        "control: Gaussian noise with RISE's mean and covariance",
        (*SHAPED, "mean"),
        CovarianceNoise,
    ),
    "informed": RuleKind(
        "the exact gradient, filtered by a memory of earlier sessions",
        ("damping", "match", "exempt", "only"),
        needs="memory",
    ),
    "informed-rise": RuleKind(
        "as informed, with noise in the metric of the memory",
        ("damping", "q", "exempt", "only"),
        needs="memory",
    ),
    "keep": RuleKind(
        "risegrad.keep: informed at plain training's rate, and a pull by kept examples",
        ("damping", "pull", "budget"),
        needs="examples",
        # The other default is that of records from before steps matched progress.
        defaults={"damping": DAMPING},
    ),
}
"""Every rule of the package. One of these entries is all that a new rule needs here."""


@dataclass(frozen=True)
class Rule(Checked):
    """One update rule with its settings; ``unused`` lists settings that only other rules use.

    A plugin's rule is a subclass: it has ``name`` and ``summary``, its settings as fields, lists
    the built-in settings that it uses in ``uses``, and overrides ``shaper``.
    """

    summary: ClassVar[str] = ""
    uses: ClassVar[tuple[str, ...]] = ()
    """Which built-in settings a subclass uses, besides ``on``, ``exempt`` and ``only``."""
    name: Annotated[str, OneOf(("", *RULES))] = ""
    """See ``RULES``; empty means the host's default: ``fo`` for most, ``zo`` for ZO-FC."""
    q: PositiveInt = 4
    """Directions per block of RISE and the controls; queries of ``zo``."""
    blocks: Literal["tensor", "module", "whole"] = "tensor"
    """The blocks: each tensor, all tensors of a module, or the whole group."""
    chunk: Count = 0
    """Cut each tensor into blocks of this many elements; 0: ``blocks`` decides."""
    on: Literal["gradient", "update"] = "gradient"
    """Shape the gradient before the optimizer (the paper), or the optimizer's displacement."""
    mean: Literal["", "exact", "scaled"] = ""
    """Mean of the noise controls; empty means the control's default."""
    epsilon: Positive = 1e-3
    """Distance of the evaluations of ``zo``."""
    variant: Literal["two-sided", "one-sided", "sign"] = "two-sided"
    """How ``zo`` estimates: from both sides, from one, or by the sign of the difference only."""
    damping: Positive = 0.3
    """For the informed rules and ``keep``: 0.01 protects strongly, 1 weakly, and far above 1 is
    plain training. A file with ``keep`` and no damping uses that of ``risegrad.keep``, 0.1."""
    match: Literal["norm", "progress"] = "norm"
    """For ``informed``: a step matches the plain one in norm, layer by layer (as in records without
    this setting), or in progress."""
    norm_matched: bool = False
    """Whether ``zo`` is scaled to the norm of the gradient."""
    pull: PositiveInt = 1
    """For ``keep``: kept examples pull every so many steps."""
    budget: NonNegative = 0.0
    """For ``keep``: nats per prediction that may be lost; 0: as little as possible."""
    exempt: tuple[str, ...] = ()
    """Shell-style patterns of parameters that get the exact gradient: ``"adapter.0.*"``. A full
    name has the group (``adapter``, ``head``, ``lora``, ``network``), then the parameter."""
    only: tuple[str, ...] = ()
    """Patterns of the parameters to shape, all others being exempt; empty means all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.chunk and self.blocks != "tensor":
            raise ValueError(
                f"blocks must be 'tensor' with chunk = {self.chunk}, which cuts tensors; "
                f"got {self.blocks!r}"
            )

    @property
    def kind(self) -> RuleKind:
        """What it is: the entry of ``RULES``, or what a plugin's class says of itself."""
        if type(self) is Rule:
            return RULES.get(self.name, RuleKind(""))
        ours = {field.name for field in fields(Rule)}
        own = [field.name for field in fields(self) if field.name not in ours]
        return RuleKind(self.summary, (*own, "on", "exempt", "only", *self.uses))

    def unused(self, name: str) -> dict[str, str]:
        """Settings that are not the default and that the rule ``name`` does not use, and why."""
        kind = RULES.get(name, self.kind)
        return {
            field.name: _not_used(field.name, getattr(self, field.name), name)
            for field in fields(self)
            if field.name not in ("name", *kind.uses) and getattr(self, field.name) != field.default
        }

    @property
    def exact(self) -> bool:
        """Whether it needs the gradient by backpropagation."""
        return self.kind.exact

    @property
    def passes(self) -> tuple[int, int]:
        """Forward and backward passes of an example in one step."""
        return (1, 1) if self.exact else (2 * self.q, 0)

    @property
    def shaped(self) -> bool:
        """Whether something stands between the gradient and the optimizer's parameters."""
        return bool(self.kind.shaper or self.kind.needs) or type(self) is not Rule

    def shaper(self, seed: int) -> Shaper | None:
        """The shaper in front of the optimizer; None for ``fo`` and ``zo``, and for rules that need
        what the run keeps."""
        make = self.kind.shaper
        if make is None:
            return None
        mean = {"mean": self.mean} if self.mean and "mean" in self.kind.uses else {}
        return make(q=self.q, blocks=self.chunk or self.blocks, seed=seed, **mean)

    def shapes(self, name: str) -> bool:
        """Whether a parameter, by its full name, is within the rule's scope."""
        return matches(name, self.only or ("*",)) and not matches(name, self.exempt)

    def attach(
        self, optimizer: Optimizer, group: str, parameters: Mapping[str, Parameter], seed: int
    ) -> Attachment | None:
        """Shape what the group's optimizer gets; None where nothing of the group is shaped."""
        shaper = self.shaper(seed)
        left = [name for name in parameters if not self.shapes(f"{group}.{name}")]
        if shaper is None or len(left) == len(parameters):
            return None
        shaper = replace(shaper, exempt=tuple(glob.escape(name) for name in left))
        named = list(parameters.items())
        # An experiment says what it wants, and its records show what that left of the mean.
        return attach(optimizer, shaper, params=named, on=self.on, advise=False)


def _not_used(setting: str, value: object, name: str) -> str:
    users = [rule for rule, kind in RULES.items() if setting in kind.uses]
    return f"is not used by rule {name!r} but by {', '.join(users)}; got {value!r}"


def check_scope(rules: Iterable[tuple[Rule, Iterable[str]]]) -> None:
    """Every pattern must name something among all parameters (full names) that rules shape."""
    shaped = [(rule, tuple(names)) for rule, names in rules if rule.shaped]
    names = [name for _, own in shaped for name in own]
    for setting in ("exempt", "only"):
        for pattern in {p: None for rule, _ in shaped for p in getattr(rule, setting)}:
            if not any(matches(name, (pattern,)) for name in names):
                raise ValueError(
                    f"rule.{setting}: no parameter matches {pattern!r}; "
                    f"the parameters are {listing(names)}"
                )
    if shaped and not any(rule.shapes(name) for rule, own in shaped for name in own):
        raise ValueError("rule.exempt and rule.only leave no parameter to shape")


HeadRule = Literal["same", "fo"]
"""A head beside adapters follows their rule, or always ``fo``."""


def head_rule_of(rule: Rule, choice: HeadRule) -> Rule:
    """The rule of a head beside adapters that follow ``rule``."""
    return rule if choice == "same" else Rule("fo")


plugins.RULES.bring(
    dict.fromkeys(RULES, Rule), {name: kind.summary for name, kind in RULES.items()}
)


def check_own_rule(kind: Any) -> None:
    """A plugin's rule must shape: one that cannot would fail, or train plainly, in every run."""
    if not (isinstance(kind, type) and issubclass(kind, Rule)):
        raise ValueError(f"a rule must be a subclass of Rule, got {kind!r}")
    name = kind.name
    try:
        shaper = kind().shaper(0)
    except TypeError as error:  # an abstract method of its shaper is not there
        raise ValueError(f"rule {name!r}: its shaper cannot be made: {error}") from error
    if not isinstance(shaper, Shaper) and kind.attach is Rule.attach:
        raise ValueError(f"rule {name!r}: its method shaper must return a Shaper, got {shaper!r}")


plugins.RULES.check = check_own_rule


def read_rule(table: Any) -> Rule:
    """The settings of a rule from a plain table; its name says which class they are of."""
    if not isinstance(table, Mapping):
        raise wrong("rule", "a table", table)
    name = str(table.get("name", ""))
    check_choice("rule.name", name, ("", *plugins.RULES))
    kind: type[Rule] = plugins.RULES[name] if name else Rule
    defaults = RULES[name].defaults if name in RULES else {}
    return read(kind, {**defaults, **table}, "rule")
