"""Two attachments on one optimizer, one after the other, or on two optimizers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from core.attach.subjects import Run, assert_same, entries_left, sgd
from risegrad.core.attachment import Attachment, attach
from risegrad.core.shapers import IsotropicNoise, Rise, ScaledFO


def both(run: Run, order: str = "ab", seed: int = 0) -> dict[str, Attachment]:
    shapers = {"a": Rise(exempt=["bias"], seed=seed), "b": IsotropicNoise(exempt=["[!b]*"])}
    return {key: attach(run.optimizer, shapers[key], run.params) for key in order}


def test_two_disjoint_attachments() -> None:
    """Each does what it would do alone."""
    run, only_a, only_b = sgd(), sgd(), sgd()
    both(run)
    both(only_a, "a")
    both(only_b, "b")
    for each in (run, only_a, only_b):
        each.advance(2)
    assert torch.equal(run.params["weight"], only_a.params["weight"])
    assert torch.equal(run.params["temperature"], only_a.params["temperature"])
    assert torch.equal(run.params["bias"], only_b.params["bias"])


@pytest.mark.parametrize("order", ["ab", "ba"])
@pytest.mark.parametrize("first", ["attach", "load"])
def test_two_attachments_resume(order: str, first: str) -> None:
    """Each finds its own entry, in whatever order they come."""
    run = sgd()
    handles = both(run)
    run.advance(2)
    handles["b"].steps = 7
    state = run.optimizer.state_dict()
    fresh = sgd()
    if first == "load":
        fresh.optimizer.load_state_dict(state)
    new = both(fresh, order)
    if first == "attach":
        fresh.optimizer.load_state_dict(state)
    assert (new["a"].steps, new["b"].steps) == (2, 7)
    assert not entries_left(fresh)


def test_the_one_that_stays_can_be_saved_and_resumed() -> None:
    run = sgd()
    handles = both(run)
    run.advance(2)
    handles["a"].detach()
    run.advance()
    fresh = sgd()
    alone = both(fresh, "b")["b"]
    fresh.optimizer.load_state_dict(run.optimizer.state_dict())
    assert alone.steps == 3


def test_a_state_of_one_does_not_do_for_two() -> None:
    run = sgd()
    both(run, "a")
    fresh = sgd()
    handles = both(fresh)
    fresh.advance()
    with pytest.raises(ValueError, match=r"saved without a risegrad attachment .or with fewer"):
        fresh.optimizer.load_state_dict(run.optimizer.state_dict())
    assert [handle.steps for handle in handles.values()] == [1, 1]


@pytest.mark.parametrize("renamed", [False, True])
def test_overlapping_attachments_are_an_error(renamed: bool) -> None:
    """The same tensor under another name is the same tensor."""
    run, alone = sgd(Rise()), sgd(Rise())
    names = {("x." if renamed else "") + name: param for name, param in run.params.items()}
    match = f"already shaped by another attachment: {'x.' if renamed else ''}bias; detach"
    with pytest.raises(ValueError, match=match):
        attach(run.optimizer, ScaledFO(exempt=["*weight", "*temperature"]), names)
    for each in (run, alone):
        each.advance(2)
    assert_same(run.values(), alone.values())


def test_overlap_that_comes_later_is_an_error_each_time() -> None:
    """A new group that both attachments would take: neither shapes anything."""
    run = sgd()
    extra = nn.Parameter(torch.zeros(3))
    names = {**run.params, "late": extra}
    handles = [
        attach(run.optimizer, Rise(exempt=[pattern]), names) for pattern in ("bias", "[!bl]*")
    ]
    run.optimizer.add_param_group({"params": [extra]})
    raw, before = run.set_gradients(), run.values()
    for _ in range(2):
        with pytest.raises(ValueError, match="already shaped by another attachment: late"):
            run.optimizer.step()
    assert_same(run.gradients(), raw)
    assert_same(run.values(), before)
    assert [handle.steps for handle in handles] == [0, 0]


def test_attaching_again_after_detaching() -> None:
    run, fresh = sgd(Rise(seed=1)), sgd()
    assert run.handle is not None
    run.handle.detach()
    run.attach(Rise(seed=2))
    fresh.attach(Rise(seed=2))
    for each in (run, fresh):
        each.advance(2)
    assert_same(run.values(), fresh.values())


def test_a_detached_handle_still_tells_its_state() -> None:
    run = sgd(Rise())
    handle = run.handle
    assert handle is not None
    run.advance(2)
    handle.detach()
    state = handle.state_dict()
    again = run.attach(Rise())
    run.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
    assert handle.state_dict() == state
    again.detach()
    assert str(handle)


def test_two_optimizers_of_one_model_do_not_share_noise() -> None:
    """The same seed on both, as in Muon for the matrices and AdamW for the rest."""
    first, second = nn.Parameter(torch.zeros(50)), nn.Parameter(torch.zeros(50))
    seen = []
    for param in (first, second):
        param.grad = torch.ones(50)
        optimizer = torch.optim.SGD([param], lr=1.0)
        attach(optimizer, Rise(), {"first": first, "second": second})
        optimizer.step()
        seen.append(param.grad - param.grad.mean())
    correlation = (seen[0] @ seen[1]) / (seen[0].norm() * seen[1].norm())
    assert correlation.abs() < 5 / 50**0.5


def test_two_models_with_equal_names_are_told_apart_by_their_stream() -> None:
    runs = [sgd(Rise(seed=2, stream=stream)) for stream in (0, 0, 1, 2)]
    for run in runs:
        run.advance()
    first, same, *others = [run.gradients()["weight"] for run in runs]
    assert torch.equal(first, same)
    assert not torch.equal(first, others[0])
    assert not torch.equal(others[0], others[1])
    assert "seed 2, stream 1" in str(runs[2].handle)
    with pytest.raises(TypeError, match=r"stream must be an integer, got 0\.5"):
        Rise(stream=0.5)  # type: ignore[arg-type]
