"""Every optimizer of torch, both places: what holds for other shapers holds for Informed."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch

from core.attach.subjects import (
    CLOSURE,
    REFUSED,
    Subject,
    assert_same,
    every_pair,
    every_place,
    every_subject,
    fixed,
    hooks,
    synced,
)
from core.attach.test_scaler import scaled_loop
from memory.informed.subject_matter import Matching, memory, start, turned
from references import assert_close
from risegrad.core.attachment import On
from risegrad.memory.informed import Informed

pytestmark = pytest.mark.filterwarnings("ignore:.*divides each gradient by its own size")
DECOUPLED = ("AdamW", "Adafactor", "Muon")
"""Whose weight decay is none of the gradient's: it is neither filtered nor lengthened."""
every_q = pytest.mark.parametrize("q", [None, 3])


@every_subject
def test_steps_with_the_filtered_gradient(subject: Subject) -> None:
    run, plain = start(subject), start(subject)
    shaper = Informed(memory(), 0.1)
    if subject.name in REFUSED:
        with pytest.raises(ValueError, match=f'{REFUSED[subject.name]}.*on="update"'):
            run.attach(shaper)
        return
    handle, matching = run.attach(shaper), Matching(shaper)
    for _ in range(2):
        raw = run.set_gradients()
        run.optimizer.step()
        run.step += 1
        expected = matching.turned(raw, raw)
        assert handle.factor == pytest.approx(matching.factor, rel=1e-5)
        for name, wanted in expected.items():
            assert (run.params[name].grad - wanted).abs().max() < 1e-5 * wanted.abs().max()
            assert (raw[name] - wanted).abs().max() > 0.1 * wanted.abs().max()
        for name, param in plain.params.items():
            param.grad = run.gradients()[name]
        plain.optimizer.step()
        assert_same(run.values(), plain.values())


@every_subject
def test_filters_the_update(subject: Subject) -> None:
    run, plain = start(subject), start(subject)
    shaper = Informed(memory(), 0.1)
    handle, matching = run.attach(shaper, "update"), Matching(shaper)
    group = run.optimizer.param_groups[0]
    decay = group["lr"] * group["weight_decay"] if subject.name in DECOUPLED else 0.0
    for step in range(3):
        synced(plain, run)
        before = run.values()
        run.advance()
        plain.advance()
        shrunk = {name: value * (1 - decay) for name, value in before.items()}
        moved = {name: value - shrunk[name] for name, value in plain.values().items()}
        expected = matching.turned(moved, run.gradients(), sign=-1)
        assert handle.factor == pytest.approx(matching.factor, rel=1e-4)
        for name, turned_step in expected.items():
            wanted = turned_step + (shrunk[name].double() - before[name].double())
            room = 2 * before[name].abs().max() * torch.finfo(torch.float32).eps
            room += 2e-5 * max(wanted.abs().max(), moved[name].abs().max())
            actual = run.params[name].double() - before[name].double()
            assert (actual - wanted).abs().max() <= room
        if subject.name not in CLOSURE:
            assert_same(run.gradients(), plain.gradients())
        assert handle.steps == step + 1


@every_pair
@every_q
def test_resumes_bit_exactly(subject: Subject, on: On, q: int | None) -> None:
    run, fresh = start(subject), start(subject)
    run.attach(Informed(memory(), q=q), on)
    run.advance(2)
    file = io.BytesIO()
    torch.save(run.optimizer.state_dict(), file)
    assert file.tell() < 30_000  # the hash of the memory, not the memory
    file.seek(0)
    synced(fresh, run)
    fresh.step = run.step
    fresh.attach(Informed(memory(), q=q), on)
    fresh.optimizer.load_state_dict(torch.load(file, weights_only=True))
    for each in (run, fresh):
        each.advance(2)
    assert_same(run.values(), fresh.values())


@every_q
def test_another_memory_is_refused_and_changes_nothing(q: int | None) -> None:
    run, other = start(Subject("AdamW")), start(Subject("AdamW"))
    run.attach(Informed(memory(), q=q), "update")
    run.advance()
    handle = other.attach(Informed(memory(seed=1), q=q), "update")
    state = copy.deepcopy(run.optimizer.state_dict())
    with pytest.raises(
        ValueError, match=f"memory: saved '{memory().hash}', here '{memory(1).hash}'"
    ):
        other.optimizer.load_state_dict(state)
    assert handle.steps == 0
    assert not other.optimizer.state


@every_pair
@every_q
def test_detaching_restores_the_plain_optimizer(subject: Subject, on: On, q: int | None) -> None:
    run, never = start(subject), start(subject)
    clean = hooks(run.optimizer)
    handle = run.attach(Informed(memory(), q=q), on)
    run.advance()
    handle.detach()
    assert hooks(run.optimizer) == clean
    synced(never, run)
    never.optimizer.load_state_dict(copy.deepcopy(run.optimizer.state_dict()))
    never.step = run.step
    for each in (run, never):
        each.advance()
    assert_same(run.values(), never.values())


@every_place
@every_q
@pytest.mark.parametrize("variant", ["default", "fused"])
def test_a_loss_scale_changes_nothing(variant: str, on: On, q: int | None) -> None:
    run, bare = (start(Subject("SGD", variant)) for _ in range(2))
    for each in (run, bare):
        each.attach(Informed(memory(), q=q), on)
    seen = scaled_loop(run, torch.amp.GradScaler("cpu", init_scale=1024.0), (0, 1, 2), overflow=1)
    scaled_loop(bare, torch.amp.GradScaler("cpu", enabled=False), (0, 2))
    assert [count for count, _ in seen] == [1, 1, 2]
    for key, value in run.values().items():
        assert_close(value, bare.params[key])


@every_place
@every_q
def test_a_closure_gives_the_same(on: On, q: int | None) -> None:
    runs = [start(Subject("SGD")) for _ in range(2)]
    for run in runs:
        run.attach(Informed(memory(), q=q), on)
    for _ in range(2):
        runs[0].optimizer.step(runs[0].closure)
        runs[1].closure()
        runs[1].optimizer.step()
    assert_same(runs[0].values(), runs[1].values())


@every_place
@every_q
def test_a_compiled_step(on: On, q: int | None) -> None:
    torch._dynamo.reset()
    run, eager = start(Subject("AdamW")), start(Subject("AdamW"))
    for each in (run, eager):
        each.attach(Informed(memory(), q=q), on)
    step = torch.compile(run.optimizer.step, backend="eager")
    for _ in range(2):
        run.set_gradients()
        step()
        run.step += 1
        eager.advance()
    torch._dynamo.reset()
    for key, value in run.values().items():
        assert_close(value, eager.params[key])


@every_place
@every_q
def test_accumulated_gradients_and_a_schedule(on: On, q: int | None) -> None:
    """Two half batches are one whole one; a schedule scales the filtered step."""
    runs = [start(Subject("SGD"), momentum=0.0, weight_decay=0.0) for _ in range(2)]
    plans = [torch.optim.lr_scheduler.StepLR(run.optimizer, 1, 0.5) for run in runs]
    for run, plan, parts in zip(runs, plans, (1, 2), strict=True):
        run.attach(Informed(memory(), q=q), on)
        for number in range(2):
            run.optimizer.zero_grad()
            for _ in range(parts):
                terms = [(p * fixed(p.shape, number)).sum() for p in run.params.values()]
                (sum(terms) / parts).backward()
            run.optimizer.step()
            plan.step()
    for key, value in runs[0].values().items():
        assert_close(value, runs[1].params[key])


@every_place
@every_q
def test_without_a_gradient_nothing_moves(on: On, q: int | None) -> None:
    run = start(Subject("SGD"))
    run.attach(Informed(memory(), match="norm", q=q), on)
    before, raw = run.values(), run.set_gradients()
    run.params["a.bias"].grad = None
    run.optimizer.step()
    assert torch.equal(run.params["a.bias"], before["a.bias"])
    if q is None and on == "gradient":  # the norm to be matched is that of what takes part
        del raw["a.bias"]
        for name, wanted in turned(run.handle.shaper, raw).items():  # type: ignore[union-attr]
            assert_close(run.params[name].grad, wanted, torch.float32)


@every_q
def test_left_out_rows_stay_and_count_for_nothing(q: int | None) -> None:
    run = start(Subject("SGD"))
    handle = run.attach(Informed(memory(), 0.1, match="norm", q=q))
    handle.leave_out({"a.weight": 2, "a.bias": 2})
    raw = run.set_gradients()
    run.optimizer.step()
    after = run.gradients()
    for name in ("a.weight", "a.bias"):
        assert torch.equal(after[name][:2], raw[name][:2])
        assert not torch.isclose(after[name][2:], raw[name][2:]).any()
    if q is None:
        before, now = (
            torch.cat([g["a.weight"][2:].reshape(-1), g["a.bias"][2:]]) for g in (raw, after)
        )
        assert float(now.norm() / before.norm()) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@every_q
def test_half_precision_is_filtered_in_float32(dtype: torch.dtype, q: int | None) -> None:
    """The result is the wide one, rounded once."""
    run, wide = start(Subject("SGD"), dtype), start(Subject("SGD"))
    for each in (run, wide):
        each.attach(Informed(memory(), match="norm", q=q))
    for name, g in run.set_gradients().items():
        wide.params[name].grad = g.float()
    for each in (run, wide):
        each.optimizer.step()
    for name, param in run.params.items():
        assert torch.equal(param.grad, wide.params[name].grad.to(dtype))


@every_q
@pytest.mark.parametrize("scale", [0.0, 1e-18])
def test_tiny_steps_stay_finite(q: int | None, scale: float) -> None:
    run = start(Subject("SGD"))
    run.attach(Informed(memory(), q=q))
    for g in run.set_gradients():
        run.params[g].grad.mul_(scale)
    run.optimizer.step()
    for param in run.params.values():
        assert param.grad.isfinite().all()
        assert bool(param.grad.any()) == (scale > 0)


def test_the_global_random_state_is_left_alone() -> None:
    run, state = start(Subject("SGD")), torch.get_rng_state()
    run.attach(Informed(memory(), q=2))
    run.advance()
    assert torch.equal(state, torch.get_rng_state())


@every_q
def test_a_model_that_keeps_its_handle_can_be_copied_and_pickled(q: int | None) -> None:
    run = start(Subject("SGD"))
    handle = run.attach(Informed(memory(), q=q))
    run.advance()
    for other in (copy.deepcopy(handle), pickle.loads(pickle.dumps(handle))):
        assert str(other) == str(handle)
        assert other.steps == 1
