"""Bad input: the argument, what is allowed and what came; and the optimizer stays as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from core.attach.subjects import Subject, assert_same, hooks, sgd, start
from risegrad.core.attachment import attach
from risegrad.core.blocks import Blocks
from risegrad.core.shapers import SHAPERS, CovarianceNoise, IsotropicNoise, Rise

NAMES = ("weight", "bias", "temperature")
ALLOWED = r"one of tensor, module, group, whole, a chunk size >= 1, a mapping .* or a Blocks object"

SHAPER_ERRORS: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "q zero": (lambda: Rise(q=0), ValueError, r"q must be an integer >= 1, got 0"),
    "q negative": (lambda: Rise(q=-3), ValueError, r"q must be an integer >= 1, got -3"),
    "q fraction": (lambda: Rise(q=4.0), TypeError, r"q must be an integer >= 1, got 4.0 \(float\)"),
    "q nan": (lambda: Rise(q=float("nan")), TypeError, r"q must be .*got nan \(float\)"),
    "q bool": (lambda: Rise(q=True), TypeError, r"q must be .*got True \(bool\)"),
    "q text": (lambda: Rise(q="4"), TypeError, r"q must be .*got '4' \(str\)"),
    "q none": (lambda: Rise(q=None), TypeError, r"q must be .*got None"),
    "q tensor": (lambda: Rise(q=torch.tensor(4)), TypeError, r"q must be .*tensor\(4\)"),
    "q numpy bool": (lambda: Rise(q=np.True_), TypeError, r"q must be .*got np.True_"),
    "q in a list": (lambda: Rise(q=[1, 0]), ValueError, r"q\[1\] must be .* >= 1, got 0"),
    "q float in a list": (lambda: Rise(q=[1, 2.5]), TypeError, r"q\[1\] must be .*2.5 \(float\)"),
    "q in a mapping": (lambda: Rise(q={"a": 0}), ValueError, r"q\['a'\] must be .* >= 1, got 0"),
    "chunk zero": (lambda: Rise(blocks=0), ValueError, r"chunk size.* >= 1, got 0"),
    "chunk negative": (lambda: Rise(blocks=-16), ValueError, r"chunk size.* >= 1, got -16"),
    "chunk bool": (lambda: Rise(blocks=True), TypeError, rf"blocks must be {ALLOWED}; got True"),
    "chunk fraction": (lambda: Rise(blocks=2.0), TypeError, rf"blocks must be {ALLOWED}; got 2.0"),
    "block name": (lambda: Rise(blocks="layer"), ValueError, rf"must be {ALLOWED}; got 'layer'"),
    "blocks none": (lambda: Rise(blocks=None), TypeError, rf"must be {ALLOWED}; got None"),
    "empty block": (lambda: Blocks({"a": []}), ValueError, "block 'a' is empty"),
    "two blocks": (
        lambda: Blocks({"a": ["x", "y"], "b": ["y"]}),
        ValueError,
        "parameter 'y' is in two blocks, 'a' and 'b'",
    ),
    "twice in a block": (lambda: Blocks({"a": ["x", "x"]}), ValueError, "'x' is in two blocks"),
    "chunks of blocks": (lambda: Blocks({"a": ["x"]}, chunk=0), ValueError, "chunk size .*got 0"),
    "text as names": (lambda: Blocks({"a": "xyz"}), TypeError, "must list .*got the text 'xyz'"),
    "seed": (lambda: Rise(seed=1.5), TypeError, "seed must be an integer, got 1.5"),
    "seed none": (lambda: Rise(seed=None), TypeError, "seed must be an integer, got None"),
    "exempt text": (lambda: Rise(exempt="head.*"), TypeError, "list of patterns.*'head.*'"),
    "sampler": (
        lambda: Rise(sampler="fast"),
        ValueError,
        "sampler must be one of one-draw, directions; got 'fast'",
    ),
    "mean": (
        lambda: CovarianceNoise(mean="zero"),
        ValueError,
        "mean must be one of exact, scaled; got 'zero'",
    ),
    "mean of isotropic": (lambda: IsotropicNoise(mean=""), ValueError, "mean must be .*got ''"),
}


@pytest.mark.parametrize("case", SHAPER_ERRORS)
def test_shapers_are_checked_when_made(case: str) -> None:
    make, error, message = SHAPER_ERRORS[case]
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("kind", SHAPERS)
def test_every_shaper_checks(kind: type[Any]) -> None:
    with pytest.raises(ValueError, match="q must be an integer >= 1, got 0"):
        kind(q=0)
    with pytest.raises(ValueError, match=r"blocks must be .*got 'all'"):
        kind(blocks="all")


def empty() -> nn.Parameter:
    return nn.Parameter(torch.zeros(0, 3))


ATTACH_ERRORS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "q too short": (
        {"shaper": Rise(q=[1, 2])},
        ValueError,
        "q must have one entry per block: 3 blocks, 2 entries",
    ),
    "q too long": (
        {"shaper": Rise(q=[1, 2, 3, 4])},
        ValueError,
        "q must have one entry per block: 3 blocks, 4 entries",
    ),
    "q missing and unknown": (
        {"shaper": Rise(q={"weight": 1, "bias": 2, "wait": 3})},
        ValueError,
        r"one entry per block; missing \['temperature'\], unknown \['wait'\]",
    ),
    "uncovered": (
        {"shaper": Rise(blocks={"matrices": "w*"})},
        ValueError,
        "no block covers bias, temperature; add a block for them, or name them in exempt",
    ),
    "uncovered by Blocks": (
        {"shaper": Rise(blocks=Blocks.by_tensor(["weight", "bias"]))},
        ValueError,
        "no block covers temperature",
    ),
    "pattern without parameters": (
        {"shaper": Rise(blocks={"all": "*", "heads": ("head.*", "cls.*")})},
        ValueError,
        r"block 'heads': no parameter matches head.\*, cls.\*",
    ),
    "patterns overlap": (
        {"shaper": Rise(blocks={"all": "*", "biases": "b*"})},
        ValueError,
        "parameter 'bias' is in two blocks, 'all' and 'biases'",
    ),
    "unknown parameter in Blocks": (
        {"shaper": Rise(blocks=Blocks.by_tensor([*NAMES, "head"]))},
        ValueError,
        "blocks name parameters that the optimizer does not have .*: head; it has weight, bias",
    ),
    "exempt parameter in Blocks": (
        {"shaper": Rise(blocks=Blocks.by_tensor(NAMES), exempt=["bias"])},
        ValueError,
        "or that are exempt.*: bias",
    ),
    "exempt matches nothing": (
        {"shaper": Rise(exempt=["bias", "head.*"])},
        ValueError,
        r"exempt: no parameter matches 'head.\*'; the parameters are weight, bias, temperature",
    ),
    "everything exempt": (
        {"shaper": Rise(exempt=["*"])},
        ValueError,
        "nothing to shape: exempt names every parameter",
    ),
    "place": ({"on": "foo"}, ValueError, "on must be one of gradient, update; got 'foo'"),
    "place none": ({"on": None}, ValueError, "on must be one of gradient, update; got None"),
    "shaper class": ({"shaper": Rise}, TypeError, "must be a Shaper .*got <class"),
    "shaper text": ({"shaper": "rise"}, TypeError, "must be a Shaper .*got 'rise'"),
    "optimizer": (
        {"optimizer": nn.Linear(2, 2)},
        TypeError,
        "optimizer must be a torch.optim.Optimizer, got Linear",
    ),
    "no params": (
        {"params": None},
        TypeError,
        r"params is needed: pass model.named_parameters\(\)",
    ),
    "plain tensors": (
        {"params": lambda params: iter(params.values())},
        TypeError,
        r"params must be \(name, parameter\) pairs .*got Parameter",
    ),
    "a module": (
        {"params": lambda params: nn.Linear(2, 2)},
        TypeError,
        r"params must be \(name, parameter\) pairs .*got Linear",
    ),
    "names only": ({"params": lambda params: list(params)}, TypeError, "pairs .*got str"),
    "pairs the wrong way": (
        {"params": lambda params: [(param, name) for name, param in params.items()]},
        TypeError,
        r"pairs .*got a pair of \(Parameter, str\)",
    ),
    "no tensors in a mapping": (
        {"params": lambda params: dict.fromkeys(params, 3)},
        TypeError,
        r"pairs .*got a pair of \(str, int\)",
    ),
    "numbers as names": (
        {"params": lambda params: enumerate(params.values())},
        TypeError,
        r"pairs .*got a pair of \(int, Parameter\)",
    ),
    "another model": (
        {"params": lambda params: nn.Linear(2, 2).named_parameters()},
        ValueError,
        r"must name every parameter of the optimizer; it also has .*\(5, 4\) in group 0",
    ),
    "detached copies": (
        {"params": lambda params: {n: p.detach() for n, p in params.items()}},
        ValueError,
        "must name every parameter of the optimizer",
    ),
    "one parameter missing": (
        {"params": lambda params: {n: p for n, p in params.items() if n != "bias"}},
        ValueError,
        r"it also has tensors of shape \(7,\) in group 0",
    ),
    "one name for two": (
        {"params": lambda params: [("x", param) for param in params.values()]},
        ValueError,
        "names two different parameters 'x'",
    ),
    "nothing named": ({"params": ()}, ValueError, "must name every parameter"),
}


@pytest.mark.parametrize("case", ATTACH_ERRORS)
def test_attach_refuses_and_leaves_the_optimizer_alone(case: str) -> None:
    changes, error, message = ATTACH_ERRORS[case]
    run, untouched = sgd(), sgd()
    clean, keys = hooks(run.optimizer), set(run.optimizer.param_groups[0])
    arguments: dict[str, Any] = {
        "optimizer": run.optimizer,
        "shaper": Rise(),
        "params": run.params,
        "on": "gradient",
    } | changes
    if callable(arguments["params"]):
        arguments["params"] = arguments["params"](run.params)
    with pytest.raises(error, match=message):
        attach(**arguments)
    assert hooks(run.optimizer) == clean
    assert set(run.optimizer.param_groups[0]) == keys
    for each in (run, untouched):
        each.advance(2)
    assert_same(run.values(), untouched.values())
    run.attach(Rise())  # and nothing is in the way of doing it right


@pytest.mark.parametrize(
    ("param", "error", "message"),
    [
        (empty(), ValueError, "parameter 'odd' has no elements"),
        (
            nn.Parameter(torch.zeros(3, dtype=torch.int64), requires_grad=False),
            TypeError,
            "parameter 'odd' is torch.int64; shaping needs real numbers",
        ),
        (
            nn.Parameter(torch.zeros(3, dtype=torch.complex64)),
            TypeError,
            "parameter 'odd' is torch.complex64; shaping needs real numbers",
        ),
    ],
    ids=["empty", "integer", "complex"],
)
def test_parameters_that_cannot_be_shaped(
    param: nn.Parameter, error: type[Exception], message: str
) -> None:
    """An error that names them, and exempting them is the way out."""
    good = nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.SGD([good, param], lr=0.1)
    names = {"good": good, "odd": param}
    with pytest.raises(error, match=message):
        attach(optimizer, Rise(), names)
    handle = attach(optimizer, Rise(exempt=["odd"]), names)
    assert handle.layout.names == ("good",)


def test_uncovered_names_are_cut_short() -> None:
    params = {f"layer.{number}": nn.Parameter(torch.zeros(1)) for number in range(500)}
    optimizer = torch.optim.SGD(list(params.values()), lr=0.1)
    with pytest.raises(ValueError, match=r"no block covers layer.1, .*\(499 in all\)") as caught:
        attach(optimizer, Rise(blocks={"first": "layer.0"}), params)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("name", ["SGD", "AdamW", "Adadelta"])
@pytest.mark.parametrize("where", ["defaults", "group"])
def test_differentiable_optimizers_are_refused(name: str, where: str) -> None:
    if where == "defaults":
        run = start(Subject(name), differentiable=True)
    else:
        run = start(Subject(name))
        extra = nn.Parameter(torch.zeros(2))
        run.optimizer.add_param_group({"params": [extra], "differentiable": True})
        run.params["extra"] = extra
    with pytest.raises(ValueError, match="differentiable optimizer cannot be shaped"):
        run.attach(Rise())
    assert not run.optimizer._optimizer_step_pre_hooks


def test_names_in_the_optimizer_do_not_excuse_other_params() -> None:
    """Whoever passes ``params`` means them; the optimizer's own names stand in only for None."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1)
    with pytest.raises(ValueError, match="must name every parameter of the optimizer"):
        attach(optimizer, Rise(), nn.Linear(3, 2).named_parameters())
    assert attach(optimizer, Rise()).layout.names == ("weight", "bias")


def test_two_models_with_the_same_names() -> None:
    """``chain(a.named_parameters(), b.named_parameters())``: one must not hide the other."""
    first, second = nn.Linear(3, 2), nn.Linear(2, 3)
    both = [*first.named_parameters(), *second.named_parameters()]
    optimizer = torch.optim.SGD([param for _, param in both], lr=0.1)
    with pytest.raises(ValueError, match="names two different parameters 'weight'"):
        attach(optimizer, Rise(), both)
    # Harmless where the optimizer holds only one of them, and then it is the right one.
    optimizer = torch.optim.SGD(first.parameters(), lr=0.1)
    attach(optimizer, Rise(), both)
    first.weight.grad = torch.ones(2, 3)
    second.weight.grad = torch.ones(3, 2)
    optimizer.step()
    assert not torch.equal(first.weight.grad, torch.ones(2, 3))
    assert torch.equal(second.weight.grad, torch.ones(3, 2))


def test_models_with_an_attribute_called_module() -> None:
    """Stripping ``module`` would give two parameters one name: then nothing is stripped."""

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(2))
            self.module = nn.Module()
            self.module.scale = nn.Parameter(torch.ones(3))

    model = Odd()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = attach(optimizer, Rise(), model.named_parameters())
    assert handle.layout.names == ("scale", "module.scale")
