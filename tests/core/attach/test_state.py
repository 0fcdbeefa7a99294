"""Settings and step ride in the optimizer's state and come back; another state changes nothing."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint.state_dict import _init_optim_state

from core.attach.subjects import (
    SHAPER_CASES,
    Run,
    Subject,
    assert_same,
    entries_left,
    every_pair_every_rule,
    sgd,
    start,
    synced,
)
from risegrad.core.attachment import On, attach
from risegrad.core.blocks import Blocks
from risegrad.core.shapers import CovarianceNoise, Rise, ScaledFO, Shaper


def through_a_file(state: Mapping[str, Any]) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def saved_and_continued(run: Run) -> tuple[Run, dict[str, Any]]:
    """A run's state after two steps, and a fresh run at the same parameters."""
    run.advance(2)
    state = through_a_file(run.optimizer.state_dict())
    fresh = start(run.subject)
    synced(fresh, run)
    fresh.step = run.step
    return fresh, state


def everything(run: Run) -> Any:
    """All that a failed load or attachment must leave alone."""
    state = {
        number: {key: str(value) for key, value in entry.items()}
        for number, entry in run.optimizer.state_dict()["state"].items()
    }
    groups = [
        {key: value for key, value in group.items() if key != "params"}
        for group in run.optimizer.param_groups
    ]
    steps = None if run.handle is None else run.handle.steps
    return copy.deepcopy((state, groups, steps))


@every_pair_every_rule
@pytest.mark.parametrize("order", ["attach-load", "load-attach"])
def test_resumes_bit_exactly(subject: Subject, on: On, kind: str, order: str) -> None:
    run = start(subject)
    shaper = SHAPER_CASES[kind](q=2, seed=9)
    run.attach(shaper, on)
    resumed, state = saved_and_continued(run)
    if order == "attach-load":
        resumed.attach(shaper, on)
        resumed.optimizer.load_state_dict(state)
    else:
        resumed.optimizer.load_state_dict(state)
        resumed.attach(shaper, on)
    assert resumed.handle is not None
    assert resumed.handle.steps == 2
    for each in (run, resumed):
        each.advance(2)
    assert_same(run.values(), resumed.values())


@pytest.mark.parametrize("kind", ["Rise", "IsotropicNoise", "CovarianceNoise", "Rise-directions"])
def test_another_step_draws_other_numbers(kind: str) -> None:
    """Without this, resuming bit-exactly would say nothing."""
    first, later = sgd(SHAPER_CASES[kind]()), sgd(SHAPER_CASES[kind]())
    assert later.handle is not None
    later.handle.steps = 2
    for run in (first, later):
        run.advance()
    assert not torch.equal(first.params["weight"], later.params["weight"])


@pytest.mark.parametrize(
    "shaper",
    [
        Rise(q=np.int64(3)),
        Rise(q=[np.int32(1), 2, 3]),
        Rise(q=(1, 2, 3), exempt=()),
        Rise(q={"weight": 1, "bias": 2, "temperature": 3}),
        Rise(blocks={"all": ("w*", "b*", "t*")}),
        Rise(blocks=Blocks.chunks(("weight", "bias", "temperature"), 4)),
        Rise(blocks=3, seed=-(2**80)),
        Rise(exempt=("bias",), sampler="directions"),
        CovarianceNoise(mean="exact", blocks="group"),
    ],
    ids=str,
)
def test_any_settings_survive_a_file(shaper: Shaper) -> None:
    run = sgd(shaper)
    resumed, state = saved_and_continued(run)
    resumed.attach(shaper)
    resumed.optimizer.load_state_dict(state)
    for each in (run, resumed):
        each.advance(2)
    assert_same(run.values(), resumed.values())


def test_the_state_is_plain_data() -> None:
    """Nothing but what json knows too, so that any way of saving keeps it."""

    def plain(value: object) -> bool:
        if isinstance(value, dict):
            return all(isinstance(k, str) and plain(v) for k, v in value.items())
        if isinstance(value, list):
            return all(plain(v) for v in value)
        return type(value) in (str, int, float, bool, type(None))

    handle = sgd(Rise(q=(np.int64(1),), blocks={"all": ("*t*", "b*")}, exempt=())).handle
    assert handle is not None
    assert plain(handle.state_dict())


def test_saving_does_not_touch_the_live_groups() -> None:
    run = sgd(Rise())
    keys = set(run.optimizer.param_groups[0])
    run.optimizer.state_dict()
    assert set(run.optimizer.param_groups[0]) == keys


def test_loading_leaves_no_entry_in_the_groups() -> None:
    run = sgd(Rise())
    fresh, state = saved_and_continued(run)
    fresh.optimizer.load_state_dict(state)
    assert "risegrad" in fresh.optimizer.param_groups[0]
    handle = fresh.attach(Rise())
    assert not entries_left(fresh)
    fresh.optimizer.load_state_dict(state)
    assert not entries_left(fresh)
    handle.detach()
    assert "risegrad" not in fresh.optimizer.param_groups[0]


def test_a_state_can_be_loaded_twice_and_is_not_changed() -> None:
    run = sgd(Rise())
    run.advance(2)
    state = run.optimizer.state_dict()
    kept = copy.deepcopy(state)
    run.advance(3)
    for _ in range(2):
        run.optimizer.load_state_dict(state)
        assert run.handle is not None
        assert run.handle.steps == 2
    assert state["param_groups"] == kept["param_groups"]


OTHER: dict[str, tuple[Shaper, On, str]] = {
    "seed": (Rise(q=2, seed=1), "gradient", r"seed: saved 0, here 1"),
    "q": (Rise(q=3), "gradient", r"q: saved 2, here 3"),
    "q and seed": (Rise(q=3, seed=8), "gradient", r"q: saved 2, here 3; seed: saved 0, here 8"),
    "blocks": (Rise(q=2, blocks="whole"), "gradient", r"blocks: saved 'tensor', here 'whole'"),
    "exempt": (Rise(q=2, exempt=["bias"]), "gradient", r"exempt: saved \[\], here \['bias'\]"),
    "sampler": (
        Rise(q=2, sampler="directions"),
        "gradient",
        r"sampler: saved 'one-draw', here 'directions'",
    ),
    "rule": (ScaledFO(q=2), "gradient", r"rule: saved 'Rise', here 'ScaledFO'"),
    "on": (Rise(q=2), "update", r"on: saved 'gradient', here 'update'"),
}


@pytest.mark.parametrize("difference", OTHER)
@pytest.mark.parametrize("order", ["attach-load", "load-attach", "handle"])
def test_other_settings_are_an_error_that_changes_nothing(difference: str, order: str) -> None:
    run = sgd(Rise(q=2))
    fresh, state = saved_and_continued(run)
    shaper, on, message = OTHER[difference]
    if order == "load-attach":
        fresh.optimizer.load_state_dict(state)
        untouched = everything(fresh)
        with pytest.raises(ValueError, match=f"other settings: .*{message}"):
            fresh.attach(shaper, on)
        assert everything(fresh) == untouched
        fresh.attach(Rise(q=2))  # the right one still works
        assert fresh.handle is not None
        assert fresh.handle.steps == 2
        return
    handle = fresh.attach(shaper, on)
    fresh.advance()
    untouched = everything(fresh)
    assert run.handle is not None
    load: Any = fresh.optimizer.load_state_dict
    if order == "handle":
        load, state = handle.load_state_dict, run.handle.state_dict()
    with pytest.raises(ValueError, match=f"other settings: .*{message}"):
        load(state)
    assert everything(fresh) == untouched
    assert handle.steps == 1


def test_only_what_differs_is_named() -> None:
    run = sgd(Rise(q=2))
    assert run.handle is not None
    state = run.handle.state_dict()
    other = sgd(Rise(q=2, seed=4)).handle
    assert other is not None
    with pytest.raises(ValueError, match="settings: seed: saved 0, here 4 \\("):
        other.load_state_dict(state)


def test_other_parameters_are_other_settings() -> None:
    """Same sizes, other names: the draws would go to other parameters."""
    run = sgd(Rise())
    state = run.optimizer.state_dict()
    fresh = sgd()
    renamed = {f"new.{name}": param for name, param in fresh.params.items()}
    attach(fresh.optimizer, Rise(), renamed)
    with pytest.raises(ValueError, match="layout: saved"):
        fresh.optimizer.load_state_dict(state)


def test_a_plain_state_is_refused_and_the_way_out_works() -> None:
    plain = sgd()
    plain.advance(2)
    state = copy.deepcopy(plain.optimizer.state_dict())
    run = sgd(Rise())
    run.advance()
    untouched = everything(run)
    with pytest.raises(ValueError, match=r"saved without a risegrad attachment.*attach again"):
        run.optimizer.load_state_dict(state)
    assert everything(run) == untouched
    assert run.handle is not None
    run.handle.detach()
    run.optimizer.load_state_dict(state)
    assert run.attach(Rise()).steps == run.step  # what was drawn before is not drawn again


def test_starting_anew_from_a_state_with_other_settings() -> None:
    """The way out that the message describes."""
    fresh, state = saved_and_continued(sgd(Rise(q=2)))
    fresh.optimizer.load_state_dict(state)
    with pytest.raises(ValueError, match="to start over from it, delete 'risegrad'"):
        fresh.attach(Rise(q=5))
    del fresh.optimizer.param_groups[0]["risegrad"]
    assert fresh.attach(Rise(q=5)).steps == 0


def damaged(change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    run = sgd(Rise())
    run.advance(2)
    state = copy.deepcopy(run.optimizer.state_dict())
    change(state)
    return state


def entry(state: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = state["param_groups"][0]["risegrad"]["0"]
    return found


DAMAGE: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no step": (lambda s: entry(s).pop("step"), "expected version, step and settings"),
    "no settings": (lambda s: entry(s).pop("settings"), "expected version, step and settings"),
    "step is text": (
        lambda s: entry(s).update(step="2"),
        "step must be an integer >= 0, got '2'",
    ),
    "step is true": (lambda s: entry(s).update(step=True), "integer >= 0, got True"),
    "step below zero": (lambda s: entry(s).update(step=-1), "integer >= 0, got -1"),
    "step of too many bits": (
        lambda s: entry(s).update(step=2**70),
        rf"step must be below 2\*\*63, got {2**70}",
    ),
    "step is a fraction": (lambda s: entry(s).update(step=1.5), "integer >= 0, got 1.5"),
    "settings is a list": (
        lambda s: entry(s).update(settings=[]),
        r"settings must be a mapping, got \[\]",
    ),
    "later version": (lambda s: entry(s).update(version=99), "version 99; this risegrad reads 1"),
    "entry is a number": (
        lambda s: s["param_groups"][0].update(risegrad={"0": 3}),
        "expected version, step and settings, got 3",
    ),
    "entries are a number": (
        lambda s: s["param_groups"][0].update(risegrad=3),
        "expected a mapping of entries, got 3",
    ),
    "no entries": (
        lambda s: s["param_groups"][0].update(risegrad={}),
        "expected a mapping of entries, got {}",
    ),
    "setting lost": (
        lambda s: entry(s)["settings"].pop("seed"),
        "seed: saved None, here 0",
    ),
    "setting unknown": (
        lambda s: entry(s)["settings"].update(colour="red"),
        "colour: saved 'red', here None",
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("order", ["attach-load", "load-attach"])
def test_a_damaged_state_is_an_error_that_changes_nothing(kind: str, order: str) -> None:
    change, message = DAMAGE[kind]
    state = damaged(change)
    run = sgd()
    if order == "load-attach":
        run.optimizer.load_state_dict(state)
        untouched = everything(run)
        with pytest.raises(ValueError, match=message):
            run.attach(Rise())
    else:
        run.attach(Rise())
        run.advance()
        untouched = everything(run)
        with pytest.raises(ValueError, match=message):
            run.optimizer.load_state_dict(state)
    assert everything(run) == untouched


@pytest.mark.parametrize(
    "state",
    [{}, {"model": 1, "epoch": 2}, {"param_groups": None, "state": {}}, {"param_groups": [3]}],
    ids=str,
)
def test_a_foreign_state_is_an_error_that_changes_nothing(state: dict[str, Any]) -> None:
    run = sgd(Rise())
    run.advance()
    untouched = everything(run)
    with pytest.raises(ValueError, match=r"damaged optimizer state: .*param_groups, got"):
        run.optimizer.load_state_dict(state)
    assert everything(run) == untouched


@pytest.mark.parametrize("state", [None, 3, {}, {"step": 1}], ids=str)
def test_a_handle_refuses_what_is_not_its_state(state: Any) -> None:
    run = sgd(Rise())
    assert run.handle is not None
    with pytest.raises(ValueError, match="expected version, step and settings, got"):
        run.handle.load_state_dict(state)
    assert run.handle.steps == 0


def test_a_load_that_torch_refuses_does_not_move_the_step() -> None:
    """Our part of the state is good, the optimizer's is not."""
    run = sgd(Rise())
    run.advance(2)
    state = copy.deepcopy(run.optimizer.state_dict())
    state["param_groups"][0]["params"] = [0]
    run.advance()
    untouched = everything(run)
    with pytest.raises(ValueError, match="doesn't match the size"):
        run.optimizer.load_state_dict(state)
    assert everything(run) == untouched
    run.optimizer.step()
    assert run.handle is not None
    assert run.handle.steps == 4


# --- copies ---


@pytest.mark.parametrize("on", ["gradient", "update"])
@pytest.mark.parametrize("name", ["SGD", "AdamW", "Adafactor", "Muon"])
@pytest.mark.parametrize("way", ["deepcopy", "pickle", "torch.save"])
def test_copies_are_plain_and_can_go_on(name: str, on: On, way: str) -> None:
    """torch leaves hooks out of copies: attach again, load the handle's state, and go on."""
    run = start(Subject(name))
    shaper = Rise(seed=2)
    handle = run.attach(shaper, on)
    run.advance(2)
    params, optimizer = copied((run.params, run.optimizer), way)
    plain_params, plain_optimizer = copied((run.params, run.optimizer), way)
    copy_run = Run(run.subject, params, optimizer, step=2)
    plain_run = Run(run.subject, plain_params, plain_optimizer, step=2)
    assert optimizer.param_groups[0]["params"][0] is next(iter(params.values()))
    assert not optimizer._optimizer_step_pre_hooks
    copy_run.attach(shaper, on).load_state_dict(handle.state_dict())
    for each in (run, copy_run, plain_run):
        each.advance(2)
    assert_same(run.values(), copy_run.values())
    assert handle.steps == 4
    assert copy_run.handle is not None
    assert copy_run.handle.steps == 4
    assert not torch.equal(plain_run.params["weight"], run.params["weight"])


def copied(value: Any, way: str) -> Any:
    if way == "deepcopy":
        return copy.deepcopy(value)
    if way == "pickle":
        return pickle.loads(pickle.dumps(value))
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def test_a_copy_of_a_detached_optimizer_is_the_plain_one() -> None:
    run = sgd(Rise())
    run.advance()
    assert run.handle is not None
    run.handle.detach()
    params, optimizer = copy.deepcopy((run.params, run.optimizer))
    twin = Run(run.subject, params, optimizer, step=1)
    for each in (run, twin):
        each.advance(2)
    assert_same(run.values(), twin.values())


@pytest.mark.parametrize("way", ["deepcopy", "pickle", "torch.save"])
def test_a_copied_handle_is_a_detached_one(way: str) -> None:
    """A model that keeps its handle is copied (averaging of weights does so)."""
    run = sgd(Rise())
    run.advance()
    params, optimizer, handle = copied((run.params, run.optimizer, run.handle), way)
    twin = Run(run.subject, params, optimizer, handle, step=1)
    twin.advance()
    assert handle.steps == 1
    assert run.handle is not None
    assert handle.state_dict() == run.handle.state_dict()
    handle.detach()
    run.advance()  # the original goes on
    assert run.handle.steps == 2
    twin.attach(Rise()).load_state_dict(handle.state_dict())


@pytest.mark.parametrize("again", [Rise(), Rise(q=7), CovarianceNoise()])
def test_what_is_attached_again_does_not_repeat_its_noise(again: Shaper) -> None:
    run = sgd(Rise())
    run.advance(2)
    assert run.handle is not None
    run.handle.detach()
    run.advance()
    whole = sgd(again)
    assert whole.handle is not None
    whole.handle.steps = 2
    handle = run.attach(again)
    assert handle.steps == 2
    run.step = whole.step = 0
    run.set_gradients()
    whole.set_gradients()
    run.optimizer.step()
    whole.optimizer.step()
    assert_same(run.gradients(), whole.gradients())
    handle.detach()
    run.handle.detach()
    assert run.attach(Rise(seed=1)).steps == 0  # other noise has its own count


@pytest.mark.parametrize("on", ["gradient", "update"])
def test_warm_up_steps_at_rate_zero_count(on: On) -> None:
    run = sgd(Rise(), on, lr=0.0)
    assert run.handle is not None
    for steps in (1, 2):
        run.set_gradients()
        run.optimizer.step(closure=None)
        assert run.handle.steps == steps


@pytest.mark.parametrize("on", ["gradient", "update"])
def test_the_step_by_which_a_checkpoint_makes_a_state_does_not_count(on: On) -> None:
    run = sgd(Rise(), on)
    _init_optim_state(run.optimizer)
    assert run.handle is not None
    assert run.handle.steps == 0


def test_a_state_from_before_there_were_streams() -> None:
    run = sgd(Rise())
    run.advance(2)
    state = copy.deepcopy(run.optimizer.state_dict())
    del entry(state)["settings"]["stream"]
    fresh = sgd(Rise())
    fresh.optimizer.load_state_dict(state)
    assert fresh.handle is not None
    assert fresh.handle.steps == 2
    with pytest.raises(ValueError, match="stream: saved 0, here 1"):
        sgd(Rise(stream=1)).optimizer.load_state_dict(state)
