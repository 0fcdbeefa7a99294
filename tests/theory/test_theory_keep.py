"""One step of keep on a quadratic with a slope, against dense algebra and brute force."""

from contextlib import suppress

import pytest
import torch

from risegrad import Informed, attach, remember
from risegrad.theory import (
    best_keep_step,
    best_pull_strength,
    best_step,
    efficiency_gain,
    forgetting,
    keep_steps,
    old_loss_change,
    progress_factor,
    quadratic_damage,
    ridge_metric,
    ridge_step,
)
from theory_reference import PSD, close, curvature, eye, gradient, normal

D = 7


def problem(kind="psd", seed=0):
    """Curvature, the new task's gradient, and the slope after some drift from the optimum."""
    H = curvature(kind, D, seed)
    return H, gradient(D, seed), H @ normal(D, seed=seed + 40) * 0.3


@pytest.mark.parametrize("kind", PSD)
def test_the_change_is_that_of_the_real_loss(kind):
    H, g, _ = problem(kind)
    drift, move = 0.3 * normal(D, seed=40), 0.1 * normal(D, seed=41)
    found = old_loss_change(H, g, H @ drift, move)
    close(found.change, forgetting(lambda at: at @ H @ at / 2, drift, move))
    close(found.damage, quadratic_damage(H, move))
    close(found.progress, -(g @ move))


@pytest.mark.parametrize("kind", PSD)
def test_the_four_steps_are_the_literal_ones(kind):
    H, g, h = problem(kind)
    P, eta, s = torch.linalg.inv(H + 0.2 * eye(D)), 0.05, 1.5
    G = g + s * h
    literal = {"plain": g, "pulled": G}
    for name, full in (("shaped", g), ("both", G)):
        x = P @ full
        literal[name] = x * (full @ full) / (full @ x)  # norm matching cancels in the progress
    for name, x in literal.items():
        step = getattr(keep_steps(H, P, g, h, s, eta), name)
        close(step.displacement, -eta * x)
        close(step.change, h @ (-eta * x) + eta**2 * (x @ H @ x) / 2)
    found = keep_steps(H, P, g, h, s, eta)
    close(found.shaped.progress, found.plain.progress)
    close(G @ found.both.displacement, G @ found.pulled.displacement)


def test_matched_to_the_progress_of_the_plain_step():
    g, step = gradient(D), normal(D, seed=3).abs() * gradient(D)
    for seed in range(20):
        filtered = ridge_step(curvature("psd", D, seed), g, 0.3)
        c = progress_factor(g, g, filtered * g.norm() / filtered.norm(), longest=1e9)
        assert c >= 1, "Cauchy-Schwarz: of equal norm nothing makes more progress than g"
        close(g @ (c * filtered * g.norm() / filtered.norm()), g @ g)
    assert progress_factor(g, step, 1e-3 * step) == 8
    assert progress_factor(g, step, 2 * step) == 1
    for bad, message in ((-g, "g'step = -"), (0 * g, "g'step = 0")):
        with pytest.raises(ValueError, match=f"step must make progress, got {message}"):
            progress_factor(g, bad, g)
    with pytest.raises(ValueError, match="filtered must make progress"):
        progress_factor(g, g, -g)


@pytest.mark.parametrize("kind", PSD)
def test_at_plain_trainings_rate_the_shaped_step_never_does_more_damage(kind):
    for seed in range(50):
        H, g, _ = problem(kind, seed)
        for rho in (1e-3, 0.1, 10.0):
            found = keep_steps(H, ridge_metric(H, rho), g, 0 * g, strength=0.0)
            assert found.shaped.damage <= found.plain.damage * (1 + 1e-9)
            assert found.shaped.progress <= found.plain.progress * (1 + 1e-9)  # less if c > 8


def test_the_pull_never_raises_the_old_loss_to_first_order():
    for seed in range(50):
        H, g, h = problem("rotated", seed)
        P = curvature("psd", D, seed + 90)  # any metric, also a wrong one
        with_pull = keep_steps(H, P, g, h, strength=0.7, eta=0.1)
        close(with_pull.pulled.first_order - with_pull.plain.first_order, -0.1 * 0.7 * h @ h, 1e-8)
        step = with_pull.both.displacement
        length = (step @ step) / ((P @ (g + 0.7 * h)) @ step)  # minus eta c over the norm's factor
        assert (length * h @ P @ h) * 0.7 <= 0


@pytest.mark.parametrize("metric", ["plain", "right", "wrong"])
def test_the_best_strength_of_a_pull_by_brute_force(metric):
    seen = 0
    for seed in range(30):
        H, g, h = problem("psd", seed)
        P = {"plain": eye(D), "right": ridge_metric(H, 0.1), "wrong": curvature("psd", D, 77)}
        P, progress = P[metric], 0.05 * float(g @ g)

        def change(s, H=H, g=g, h=h, P=P, progress=progress):
            x = P @ (g + s * h)
            x = x * progress / (g @ x)
            return float(-h @ x + x @ H @ x / 2)

        best = None
        with suppress(ValueError):  # where the pull by itself makes more progress than that
            best = best_pull_strength(H, P, g, h, progress).item()
        if best is None:
            continue
        seen += 1
        near = [change(best * (1 + k * 1e-3)) for k in range(-20, 21)]
        assert min(range(41), key=near.__getitem__) == 20
        grid = torch.linspace(0, 10 * abs(best) + 10, 2001, dtype=torch.float64)
        steps = [change(float(s)) for s in grid if g @ P @ (g + s * h) > 0]
        assert change(best) <= min(steps) + 1e-12
    assert seen > 10


@pytest.mark.parametrize("kind", PSD)
def test_the_best_step_is_pulled_and_shaped(kind):
    H, g, h = problem(kind)
    rho, progress = 0.2, 0.8 * float(g @ g)
    best = best_keep_step(H, g, h, rho, progress)
    # Dense: the system of Lagrange's conditions, solved as it stands.
    system = torch.zeros(D + 1, D + 1, dtype=torch.float64)
    system[:D, :D], system[:D, D], system[D, :D] = H + rho * eye(D), g, g
    solved = torch.linalg.solve(system, torch.cat([-h, -progress * torch.ones(1).double()]))
    close(best.displacement, solved[:D], rtol=1e-8)
    close(best.strength, 1 / solved[D], rtol=1e-8)
    # It is the direction that keep takes at that strength: pulled first, then shaped.
    s = best.strength.item()
    both = keep_steps(H, torch.linalg.inv(H + rho * eye(D)), g, h, s).both.displacement
    close(both / both.norm(), best.displacement / best.displacement.norm(), rtol=1e-7)

    def price(move):
        return old_loss_change(H, g, h, move).change + rho / 2 * move.square().sum(-1)

    across = normal(500, D, seed=5)
    across -= torch.outer(across @ g, g) / (g @ g)
    assert (price(best.displacement + 0.1 * across) > price(best.displacement)).all()
    for alone in keep_steps(H, ridge_metric(H, rho), g, h, 1.0).__dict__.values():
        same = alone.displacement * progress / alone.progress
        assert price(same) >= price(best.displacement)


def test_without_damping_the_best_strength_is_the_best_of_the_metric():
    H, g, h = problem("psd")
    best = best_keep_step(H, g, h, 1e-9, 0.8 * float(g @ g))
    found = best_pull_strength(H, ridge_metric(H, 1e-9), g, h, 0.8 * float(g @ g))
    close(best.strength, found, rtol=1e-5)
    flat = best_keep_step(H, g, 0 * h, 1e-9, 1.0).displacement
    close(flat / flat.norm(), -best_step(H, g) / best_step(H, g).norm(), rtol=1e-5)


def test_the_shorter_the_step_the_stronger_the_pull():
    H, g, h = problem("psd")
    found = [best_keep_step(H, g, h, 0.2, p * float(g @ g)).strength for p in (4.0, 2.0, 1.0)]
    assert found[0] < found[1] < found[2]


def test_batches_and_single_precision():
    H = torch.stack([curvature("psd", D, seed) for seed in range(3)])
    g, h = normal(3, D, seed=5), 0.1 * normal(3, D, seed=6)
    P = torch.linalg.inv(H + eye(D))
    together = keep_steps(H, P, g, h, 0.5)
    for i in range(3):
        alone = keep_steps(H[i], P[i], g[i], h[i], 0.5)
        close(together.both.change[i], alone.both.change)
        close(
            best_keep_step(H, g, h, 1.0, 9.0).strength[i],
            best_keep_step(H[i], g[i], h[i], 1.0, 9.0).strength,
        )
        close(
            best_pull_strength(H, P, g, h, 9.0)[i], best_pull_strength(H[i], P[i], g[i], h[i], 9.0)
        )
    found = keep_steps(H[0].float(), eye(D).float(), g[0].float(), h[0].float(), 0.5)
    assert found.both.change.dtype == torch.float64


def test_an_attached_shaper_takes_this_step():
    """The product on one layer: its filter as a dense metric, then ``keep_steps`` with a pull."""
    generator = torch.Generator().manual_seed(0)
    layer = torch.nn.Linear(4, 3, bias=False).double()
    x = torch.randn(32, 4, generator=generator).double() * torch.tensor([3.0, 1, 0.3, 0.1])
    memory = remember(layer, [(x, torch.randint(3, (32,), generator=generator))], examples=None)
    sides = memory.sides(layer)["weight"]
    basis = torch.eye(12, dtype=torch.float64).reshape(12, 3, 4)
    P = torch.stack([sides.filtered(one, 0.1).double().flatten() for one in basis])
    close(P, P.mT, rtol=1e-6)
    P, g, h = (P + P.mT) / 2, normal(12, seed=1), 0.5 * normal(12, seed=2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.05)
    handle = attach(optimizer, Informed(memory, 0.1), layer.named_parameters(), on="update")
    before = layer.weight.detach().clone()
    layer.weight.grad = (g + 2 * h).reshape(3, 4)  # the pull of strength 2 is in the gradient
    optimizer.step()
    step = keep_steps(eye(12), P, g, h, strength=2.0, eta=0.05).both.displacement
    close((layer.weight.detach() - before).flatten(), step, rtol=1e-5)
    assert handle.factor > 1.1


# Where there is no guarantee: each condition that fails has a case that loses.


def test_without_a_guarantee_under_momentum():
    """The step is not along the gradient: filtered, it can go uphill, and then no factor exists."""
    H, step = torch.diag(torch.tensor([0.0, 1.0])).double(), torch.tensor([1.0, 1.0]).double()
    g = torch.tensor([-1.0, 2.0]).double()
    with pytest.raises(ValueError, match="filtered must make progress"):
        progress_factor(g, step, ridge_step(H, step, 0.1))
    # Or it goes downhill and does more damage at the same progress.
    g = torch.tensor([-0.2, 1.0]).double()
    filtered = ridge_step(H, step, 0.5)
    matched = progress_factor(g, step, filtered, longest=1e9) * filtered
    close(g @ matched, g @ step)
    assert quadratic_damage(H, matched) > 1.5 * quadratic_damage(H, step)


def test_without_a_guarantee_for_the_memory_of_another_point():
    """What was remembered is not what must be kept now: drifted memories, estimated factors."""
    H, g = torch.diag(torch.tensor([1.0, 9.0])), torch.tensor([1.0, 1.0])
    drifted = torch.diag(torch.tensor([9.0, 1.0]))
    found = keep_steps(H, ridge_metric(drifted, 0.1), g, 0 * g, 0.0)
    close(found.shaped.progress, found.plain.progress)
    assert found.shaped.damage > 1.4 * found.plain.damage
    assert efficiency_gain(H, g, found.shaped.displacement) < 0.7


def test_without_a_guarantee_where_there_is_a_slope():
    """Shaping turns towards flat directions, and the slope may be one: the pull is what sees it."""
    H, g = torch.diag(torch.tensor([0.1, 1.0])), torch.tensor([0.3, 1.0])
    h = torch.tensor([-0.5, 0.0])
    found = keep_steps(H, ridge_metric(H, 0.1), g, h, strength=1.0, eta=0.1)
    assert found.shaped.damage < found.plain.damage
    assert found.shaped.change > 2 * found.plain.change > 0
    assert found.both.change < 0 < found.plain.change


BAD = [
    (lambda H, g: keep_steps(H, eye(D), 0 * g, g, 1.0), "g must be nonzero"),
    (lambda H, g: keep_steps(H, eye(D), g, -g, 1.0), r"g \+ strength h must be nonzero"),
    (lambda H, g: keep_steps(H, -eye(D), g, g, 1.0), "P must be positive semidefinite"),
    (lambda H, g: keep_steps(H, eye(D), g, g, -1.0), "strength must be a finite number >= 0"),
    (lambda H, g: keep_steps(-H, eye(D), g, g, 1.0), "H must be positive semidefinite"),
    (lambda H, g: best_pull_strength(H, eye(D), g, 2 * g, 1.0), "got a pull along the step"),
    (lambda H, g: best_keep_step(H, g, g, 1.0, 0.0), "progress must be a finite number > 0"),
    (lambda H, g: best_keep_step(H, g, 9 * g, 1.0, 1e-3), "more than the pull alone makes"),
    (lambda H, g: progress_factor(g, g, g, 0.5), "longest must be a finite number >= 1"),
    (lambda H, g: old_loss_change(H, g[1:], g, g), "H and g must have the same d"),
]


def test_bad_input():
    for call, message in BAD:
        with pytest.raises(ValueError, match=message):
            call(curvature("psd", D), gradient(D))
