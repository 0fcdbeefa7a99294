"""The trajectory: exact recursions against enumeration, brute force, and each other."""

from functools import partial

import pytest
import torch
from torch import Tensor

from risegrad.common.seeds import generator_for
from risegrad.theory import damage_moments, expected_damage
from risegrad.theory.calibration import kappa, mean_factor
from risegrad.theory.conditions import quadratic
from riselab.sandbox.quadratics import Spectrum
from riselab.sandbox.trajectories import (
    RULES,
    Path,
    RuleName,
    Subject,
    Tasks,
    draw,
    efficient_part,
    follow,
    forgetting_at_progress,
    make_tasks,
    measure_equal_progress,
    subjects,
    sweep_rates,
    walk,
)

BOUND = 5  # standard errors
HARMONIC = Spectrum.parse("powerlaw:1")


@pytest.fixture(scope="module")
def tasks() -> Tasks:
    return make_tasks(HARMONIC, 6, generator_for(0, "tasks"))


def rates(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def covariance(path: Path) -> Tensor:
    return path.second_moment[0] - torch.outer(path.mean[0], path.mean[0])


def test_tasks_share_curvature_so_that_the_gradient_meets_more_than_average() -> None:
    found = make_tasks(HARMONIC, 64, generator_for(0, "tasks"))
    g = found.gradient(torch.zeros(64, dtype=torch.float64))
    assert g @ found.H @ g / (g @ g) > 1.5
    assert found.H.trace().item() == pytest.approx(64)
    assert found.A.trace().item() == pytest.approx(64)


@pytest.mark.parametrize("block", [None, 3])
@pytest.mark.parametrize("rule", RULES)
def test_recursions_agree_with_simulation(tasks: Tasks, rule: RuleName, block: int | None) -> None:
    rate, steps, runs = 0.15, 12, 20_000
    subject, draws = Subject(rule, block), generator_for(0, f"{rule}{block}")
    path = follow(tasks, subject, 2, steps, rates(rate))
    losses = walk(tasks, lambda g: draw(subject, g, 2, draws), rates(rate).expand(runs), steps)
    for exact, simulated in zip((path.forgetting[:, 0], path.loss[:, 0]), losses, strict=True):
        errors = simulated.std(1) / runs**0.5
        # FO is not random: there the two must agree to rounding.
        assert ((simulated.mean(1) - exact).abs() <= BOUND * errors + 1e-13).all()


@pytest.mark.parametrize("rule", ["rise", "covariance-noise", "raw-zo"])
def test_the_displacement_has_the_exact_mean_and_covariance(tasks: Tasks, rule: RuleName) -> None:
    rate, steps, runs = 0.15, 4, 40_000
    path = follow(tasks, Subject(rule, 2), 3, steps, rates(rate))
    theta, draws = torch.zeros(runs, 6, dtype=torch.float64), generator_for(0, rule)
    for _ in range(steps):
        theta = theta - rate * draw(Subject(rule, 2), tasks.gradient(theta), 3, draws)
    assert ((theta.mean(0) - path.mean[0]) / (theta.std(0) / runs**0.5)).abs().max() < BOUND
    centered = theta - path.mean[0]
    products = centered[:, :, None] * centered[:, None, :]
    error = (products.mean(0) - covariance(path)) / (products.std(0) / runs**0.5)
    assert error.abs().max() < BOUND


def shape_products(d: int, q: int, size: int) -> Tensor:
    """``E[P_ij P_kl]`` entry by entry, from the pairings of four normal numbers.

    Within a block ``E[Z_ij Z_kl] = d_ij d_kl + (d_ik d_jl + d_il d_jk) / q``; blocks are
    independent, and ``P`` is zero between them.
    """
    found = torch.zeros(d, d, d, d, dtype=torch.float64)
    scale = 1 / kappa(size, q)
    for i in range(d):
        for j in range(d):
            for k in range(d):
                for m in range(d):
                    if i // size != j // size or k // size != m // size:
                        continue
                    value = float(i == j) * float(k == m)
                    if i // size == k // size:
                        value += (float(i == k and j == m) + float(i == m and j == k)) / q
                    found[i, j, k, m] = scale * value
    return found


@pytest.mark.parametrize(("d", "size"), [(3, 3), (4, 2)])
@pytest.mark.parametrize("q", [1, 3])
def test_rise_agrees_with_the_dense_enumeration_of_its_moments(d: int, size: int, q: int) -> None:
    """``S <- E[(I - eta P A) S (I - eta P A)']`` with every product of entries of P enumerated."""
    tasks = make_tasks(HARMONIC, d, generator_for(d, "dense"))
    rate, steps = 0.2, 7
    products = shape_products(d, q, size)
    a = kappa(size, q) ** -0.5
    S = torch.outer(tasks.shift, tasks.shift)
    m = -tasks.shift
    for _ in range(steps):
        second = torch.einsum("ijkl,jl->ik", products, tasks.A @ S @ tasks.A)
        S = S - rate * a * (tasks.A @ S + S @ tasks.A) + rate**2 * second
        m = m - rate * a * tasks.A @ m
    path = follow(tasks, Subject("rise", size), q, steps, rates(rate))
    assert path.loss[-1, 0].item() == pytest.approx((tasks.A * S).sum().item() / 2, rel=1e-12)
    torch.testing.assert_close(path.mean[0], m + tasks.shift, rtol=1e-12, atol=1e-14)
    cross = torch.outer(m, tasks.shift)
    displaced = S + cross + cross.T + torch.outer(tasks.shift, tasks.shift)
    torch.testing.assert_close(path.second_moment[0], displaced, rtol=1e-12, atol=1e-13)
    forgetting = (tasks.H * displaced).sum().item() / 2
    assert path.forgetting[-1, 0].item() == pytest.approx(forgetting, rel=1e-11)


@pytest.mark.parametrize("d", [6, 64])
def test_fo_is_a_matrix_power_and_has_no_spread(d: int) -> None:
    tasks = make_tasks(HARMONIC, d, generator_for(0, "tasks"))
    rate, steps = 0.9 / tasks.top, 400
    path = follow(tasks, Subject("fo"), 1, steps, rates(rate))
    shrink = torch.linalg.matrix_power(torch.eye(d, dtype=torch.float64) - rate * tasks.A, steps)
    displacement = tasks.shift - shrink @ tasks.shift
    torch.testing.assert_close(path.mean[0], displacement, rtol=1e-10, atol=1e-12)
    # Hundreds of steps: an antisymmetric rounding error left to grow would show here.
    assert covariance(path).abs().max() < 1e-12
    assert path.forgetting[-1, 0].item() == pytest.approx(
        (displacement @ tasks.H @ displacement).item() / 2, rel=1e-9
    )


def test_one_step_is_the_local_theory(tasks: Tasks) -> None:
    rate, g = 0.3, tasks.gradient(torch.zeros(6, dtype=torch.float64))
    rise = follow(tasks, Subject("rise"), 2, 1, rates(rate))
    mean, _ = damage_moments(tasks.H, g, 2, eta=rate)
    assert rise.forgetting[1, 0].item() == pytest.approx(mean.item(), rel=1e-12)
    assert mean.item() == pytest.approx(expected_damage(tasks.H, g, 2, eta=rate).item(), rel=1e-12)


def test_rules_that_are_the_same_at_another_learning_rate(tasks: Tasks) -> None:
    """Scaled FO is FO at ``a eta``; raw ZO is RISE at ``eta / a``: no new frontier."""
    a, steps = mean_factor(3, 2), 9
    pairs: list[tuple[RuleName, RuleName, float]]
    pairs = [("scaled-fo", "fo", a), ("raw-zo", "rise", 1 / a)]
    for one, other, factor in pairs:
        left = follow(tasks, Subject(one, 3), 2, steps, rates(0.1, 0.2))
        right = follow(tasks, Subject(other, 3), 2, steps, factor * rates(0.1, 0.2))
        torch.testing.assert_close(left.second_moment, right.second_moment)
        torch.testing.assert_close(left.forgetting, right.forgetting)


def test_covariance_noise_has_the_means_of_rise_and_another_law(tasks: Tasks) -> None:
    left, right = (
        follow(tasks, Subject(rule, 3), 1, 9, rates(0.2)) for rule in ("rise", "covariance-noise")
    )
    assert torch.equal(left.second_moment, right.second_moment)
    g = tasks.gradient(torch.zeros(20_000, 6, dtype=torch.float64))
    first = [
        quadratic(tasks.H, draw(Subject(rule), g, 1, generator_for(0, rule)))
        for rule in ("rise", "covariance-noise")
    ]
    # Same mean; a product of normal numbers has heavier tails than a normal one.
    assert first[0].std() > 1.2 * first[1].std()


def test_the_covariance_is_positive_and_progress_lags_its_mean(tasks: Tasks) -> None:
    path = follow(tasks, Subject("rise"), 1, 20, rates(0.1))
    assert torch.linalg.eigvalsh(covariance(path))[0] > 0
    at_mean = path.mean[0] - tasks.shift
    assert path.loss[-1, 0] > at_mean @ tasks.A @ at_mean / 2


def test_the_efficient_part_ends_at_the_most_progress_and_skips_divergence(tasks: Tasks) -> None:
    sweep = follow(tasks, Subject("rise"), 1, 60, sweep_rates(tasks))
    kept, forgetting, progress = efficient_part(tasks, sweep)
    assert 0 < len(kept) < len(sweep.rates)
    assert (progress.diff() > 0).all()
    assert torch.isfinite(forgetting).all()
    assert progress.max() <= 1


def test_forgetting_at_equal_progress_is_where_the_target_is_met(tasks: Tasks) -> None:
    target, steps = 0.5, 16
    found = forgetting_at_progress(tasks, partial(follow, tasks, Subject("fo"), 1, steps), target)
    assert found is not None
    low, high = 0.0, 1.0  # bisection, for a progress that rises with the learning rate
    for _ in range(60):
        middle = (low + high) / 2
        forgetting, progress = follow(tasks, Subject("fo"), 1, steps, rates(middle)).relative(tasks)
        low, high = (middle, high) if progress[-1, 0] < target else (low, middle)
    assert found == pytest.approx(forgetting[-1, 0].item(), rel=1e-4)


def test_a_target_that_no_rate_reaches_gives_nothing(tasks: Tasks) -> None:
    one_step = partial(follow, tasks, Subject("rise"), 1, 1)
    assert forgetting_at_progress(tasks, one_step, 0.99) is None


def test_at_equal_progress_rise_pays_for_its_noise_and_less_with_more_steps(tasks: Tasks) -> None:
    rows = {row.subject: dict(row.excess) for row in measure_equal_progress(tasks, 4, 3)}
    assert set(rows) == {Subject("rise"), Subject("rise", 3)}
    for excess in rows.values():
        earlier, last = excess[128], excess[256]
        assert 0 < last < earlier
        assert earlier / last == pytest.approx(2, rel=0.1)  # twice the steps, half the price
    assert rows[Subject("rise", 3)][256] < rows[Subject("rise")][256]


def test_blocks_are_a_subject_only_where_there_are_several() -> None:
    assert Subject("rise", 16) in subjects(64, 16)
    assert len(subjects(64, 64)) == len(subjects(64, 48)) == len(RULES)
