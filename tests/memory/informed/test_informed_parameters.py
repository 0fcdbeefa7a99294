"""Which parameters are filtered, by what, and what is refused."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

import risegrad
import risegrad.memory as room
from core.attach.subjects import Subject, fixed, hooks
from memory.informed.subject_matter import memory, start
from memory.subjects import dense, t5, texts, with_lora
from references import assert_close
from risegrad.memory.informed import Informed


class Odd(nn.Module):
    """A layer, and a parameter outside of any."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.shift = nn.Parameter(torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x + self.shift)


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(fixed((8, 4), seed), torch.arange(8) % 3) for seed in range(2)]


def stepped(model: nn.Module, shaper: Any = None, **options: Any) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = None
    if shaper is not None:
        handle = risegrad.attach(optimizer, shaper, model.named_parameters(), **options)
    for x, y in batches():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        break
    return handle


@pytest.mark.parametrize("q", [None, 4])
@pytest.mark.parametrize("on", ["gradient", "update"])
def test_what_is_not_covered_is_trained_plainly_and_named(q: int | None, on: Any) -> None:
    torch.manual_seed(0)
    model, plain = Odd(), Odd()
    plain.load_state_dict(model.state_dict())
    kept = risegrad.remember(model, batches(), examples=16)
    handle = stepped(model, Informed(kept, q=q), on=on)
    stepped(plain)
    assert torch.equal(model.shift, plain.shift)
    assert not torch.isclose(model.layer.weight, plain.layer.weight).all()
    assert "not covered, trained plainly: shift" in str(handle)
    assert handle.layout.names == ("layer.weight", "layer.bias")


def test_layers_that_the_model_does_not_have_are_named() -> None:
    class Longer(Odd):
        def __init__(self) -> None:
            super().__init__()
            self.more = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.more(super().forward(x))

    longer = Longer()
    kept = risegrad.remember(longer, batches(), examples=16)
    assert "in the memory but not among these parameters: more" in str(
        stepped(Odd(), Informed(kept))
    )
    assert "remembered, and not" not in str(stepped(longer, Informed(kept)))
    longer.more.requires_grad_(False)  # there, although it does not train
    assert "remembered, and not" not in str(stepped(longer, Informed(kept)))


def test_strict_refuses_what_is_not_covered() -> None:
    model = Odd()
    kept = risegrad.remember(model, batches(), examples=16)
    with pytest.raises(ValueError, match="strict: the memory does not cover shift"):
        stepped(model, Informed(kept, strict=True))
    stepped(model, Informed(kept, strict=True, exempt=["shift"]))


def test_what_is_frozen_needs_no_cover_until_it_is_thawed() -> None:
    """An optimizer of all parameters of a model with a LoRA holds many that never move."""
    model = Odd()
    kept = risegrad.remember(model, batches(), examples=16)
    model.shift.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    shaper = Informed(kept, strict=True)
    handle = risegrad.attach(optimizer, shaper, model.named_parameters())
    assert "not covered" not in str(handle)
    nn.functional.cross_entropy(model(batches()[0][0]), batches()[0][1]).backward()
    optimizer.step()
    model.shift.requires_grad_(True)
    before = model.layer.weight.detach().clone()
    with pytest.raises(ValueError, match="strict: the memory does not cover shift"):
        optimizer.step()
    assert torch.equal(model.layer.weight, before)


@pytest.mark.parametrize("on", ["gradient", "update"])
def test_lora_is_filtered_by_the_values_before_the_step(on: Any) -> None:
    """While a displacement is shaped, the parameters hold it: their values are taken before."""
    model = with_lora(t5(), ["q"])
    kept = risegrad.remember(model, texts(), examples=6)
    name = next(n for n, p in model.named_parameters() if "lora_A" in n and p.requires_grad)
    bound = kept.bind(model)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    sides = bound.of(name)
    left, right = (dense(side).double() for side in (sides.left, sides.right))
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
    risegrad.attach(optimizer, Informed(kept, 0.1, match="norm"), model.named_parameters(), on=on)
    generator = torch.Generator().manual_seed(3)
    for p in model.parameters():
        if p.requires_grad:
            p.grad = torch.randn(p.shape, generator=generator, dtype=p.dtype)
    g = dict(model.named_parameters())[name].grad.clone()
    optimizer.step()
    filters = [
        torch.linalg.inv(f / f.diagonal().mean() + 0.1 * torch.eye(len(f)).double())
        for f in (left, right)
    ]
    wanted = filters[0] @ g @ filters[1]
    wanted = -0.5 * wanted * g.norm() / wanted.norm()
    moved = dict(model.named_parameters())[name].detach() - before[name]
    assert (moved - wanted).abs().max() < 1e-4 * wanted.abs().max()


def test_a_fresh_lora_is_shaped_by_its_inputs_alone() -> None:
    model = with_lora(t5(), ["q"], filled=False)
    kept = risegrad.remember(model, texts(), examples=6)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
    handle = risegrad.attach(optimizer, Informed(kept), model.named_parameters(), on="update")
    before = str(handle)
    assert "one side only, as the other is zero now" in before
    assert "lora_A.default.weight" in before.split("one side only")[1]
    for _ in range(2):
        optimizer.zero_grad()
        for batch in texts(1):
            model(**batch).loss.backward()
        optimizer.step()
    assert all(p.isfinite().all() for p in model.parameters())
    assert "one side only" not in str(handle)


@pytest.mark.parametrize(
    ("name", "on", "warned"),
    [
        ("AdamW", "gradient", True),
        ("RMSprop", "gradient", True),
        ("AdamW", "update", False),
        ("SGD", "gradient", False),
        ("SGD", "update", False),
    ],
)
def test_the_wrong_place_warns_once_with_the_reason(name: str, on: Any, warned: bool) -> None:
    run = start(Subject(name))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        run.attach(Informed(memory()), on)
        run.advance(2)
    found = [str(w.message) for w in seen if "divides each gradient" in str(w.message)]
    assert len(found) == warned
    assert all(name in text and 'on="update"' in text for text in found)


BAD = {
    "damping must be a finite number > 0, got 0": {"damping": 0},
    "damping must be .*got -1": {"damping": -1.0},
    "damping must be .*got nan": {"damping": float("nan")},
    "damping must be .*got inf": {"damping": float("inf")},
    "match must be one of progress, norm; got 'size'": {"match": "size"},
    "q must be .*got 0": {"q": 0},
    r"q must be .*got \[1, 2\]": {"q": [1, 2]},
    "blocks must be 'tensor' for Informed, got 64": {"blocks": 64},
    "exempt must be a list": {"exempt": "head"},
    "memory must be a risegrad.Memory, got dict": {"memory": {}},
}


@pytest.mark.parametrize("message", BAD)
def test_bad_settings(message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        Informed(**{"memory": memory()} | BAD[message])


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ({"z": (5, 4)}, "covers no trained parameter.*knows the layers z.*trains a.weight"),
        ({"a": (4, 4)}, r"of another model: parameter 'a.weight' must have shape \(4, 4\)"),
    ],
)
def test_a_memory_of_another_model_is_refused(layers: Any, message: str) -> None:
    run = start(Subject("SGD"))
    clean, before = hooks(run.optimizer), run.values()
    with pytest.raises(ValueError, match=message):
        run.attach(Informed(memory(layers=layers)))
    assert hooks(run.optimizer) == clean
    assert "risegrad" not in run.optimizer.param_groups[0]
    assert all(torch.equal(run.params[name], value) for name, value in before.items())


def test_parameters_that_are_thawed_later_are_filtered() -> None:
    """Covered is what the memory knows, not what was trained at the time of attaching."""
    run = start(Subject("SGD"))
    run.params["b.weight"].requires_grad_(False)
    handle = run.attach(Informed(memory()))
    assert "b.weight" in handle.layout.names
    run.params["b.weight"].requires_grad_(True)
    raw = run.set_gradients()
    run.optimizer.step()
    assert not torch.isclose(run.params["b.weight"].grad, raw["b.weight"]).all()


def test_a_group_that_is_added_later_is_filtered() -> None:
    run = start(Subject("SGD"))
    handle = run.attach(Informed(memory(layers={"a": (5, 4), "b": (3, 6), "c": (2, 2)})))
    late = nn.Parameter(torch.ones(2, 2))
    run.optimizer.add_param_group({"params": [late]})
    handle.cover({"c.weight": late})
    late.grad = fixed((2, 2), 1)
    run.optimizer.step()
    assert "c.weight" in handle.layout.names
    assert not torch.isclose(late.grad, fixed((2, 2), 1)).all()


def test_low_rank_memories_serve_as_well() -> None:
    run = start(Subject("SGD"))
    run.attach(Informed(memory(rank=2), q=2))
    run.advance(2)
    assert all(value.isfinite().all() for value in run.values().values())


def test_bad_numbers_pass_through() -> None:
    """A NaN is the loop's business: it spreads in its layer as in plain training, no error."""
    model = with_lora(t5(), ["q"])
    kept = risegrad.remember(model, texts(), examples=6)
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    optimizer = torch.optim.SGD(named.values(), lr=0.1)
    risegrad.attach(optimizer, Informed(kept), model.named_parameters())
    for _ in range(2):
        for p in named.values():
            p.grad = torch.ones_like(p)
        first = next(iter(named.values()))
        first.grad[0, 0] = torch.nan
        optimizer.step()
    finite = [bool(p.isfinite().all()) for p in named.values()]
    assert not finite[0]
    assert all(finite[2:])


@pytest.mark.parametrize("q", [None, 3])
@pytest.mark.parametrize("size", [1e-33, 1e-24, 1e-20, 1e18, 1e19, 1e30])
def test_tiny_and_huge_steps_are_filtered_as_others_are(size: float, q: int | None) -> None:
    """Their squares are beyond float32, their norms are not."""
    steps = []
    for scale in (1.0, size):
        run = start(Subject("SGD"))
        run.attach(Informed(memory(), 0.01, q=q))
        for name, raw in run.set_gradients().items():
            run.params[name].grad = raw * scale
        run.optimizer.step()
        steps.append({n: p.grad.double() / scale for n, p in run.params.items()})
    plain, scaled = steps
    for name, step in plain.items():
        assert_close(scaled[name], step, torch.float32)


def test_every_public_name_of_the_room_is_there() -> None:
    for name in room.__all__:
        assert getattr(room, name).__name__ == name
