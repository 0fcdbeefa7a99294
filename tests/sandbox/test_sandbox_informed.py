"""From blind to informed: the change of coordinates, one step, and the frontier."""

import pytest
import torch
from torch import Tensor

from risegrad.common.seeds import generator_for
from risegrad.theory import (
    best_gain,
    efficiency_gain,
    metric_damage,
    metric_progress,
    progress_factor,
    ridge_metric,
    ridge_step,
)
from risegrad.theory.calibration import kappa
from riselab.sandbox.informed import (
    InformedCurve,
    InformedMeasurement,
    Told,
    in_metric,
    least_forgetting,
    matched_path,
    measure_informed,
    one_step_damage,
    rules_told,
    top_pairs,
)
from riselab.sandbox.quadratics import Spectrum
from riselab.sandbox.trajectories import COMMON_RATE, Subject, Tasks, follow, make_tasks

HARMONIC = Spectrum.parse("powerlaw:1")


@pytest.fixture(scope="module")
def tasks() -> Tasks:
    return make_tasks(HARMONIC, 12, generator_for(0, "tasks"))


@pytest.fixture(scope="module")
def measured(tasks: Tasks) -> InformedMeasurement:
    return measure_informed(tasks, q=4, steps=40, seed=0)


def named(measured: InformedMeasurement) -> dict[str, InformedCurve]:
    return {curve.name: curve for curve in measured.curves}


def rates(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def start(tasks: Tasks) -> Tensor:
    return tasks.gradient(torch.zeros_like(tasks.shift))


def test_other_coordinates_have_the_same_losses(tasks: Tasks) -> None:
    P = ridge_metric(tasks.H, 0.1)
    seen = in_metric(tasks, P)
    assert seen.start_loss == pytest.approx(tasks.start_loss, rel=1e-12)
    assert seen.full_forgetting == pytest.approx(tasks.full_forgetting, rel=1e-12)
    blind = in_metric(tasks, torch.eye(12, dtype=torch.float64))
    torch.testing.assert_close(blind.A, tasks.A)


def test_descent_in_the_metric_is_the_literal_informed_step(tasks: Tasks) -> None:
    rate, steps, theta = 0.2, 15, torch.zeros(12, dtype=torch.float64)
    path = follow(
        in_metric(tasks, ridge_metric(tasks.H, 0.3)), Subject("fo"), 1, steps, rates(rate)
    )
    damped = tasks.H + 0.3 * torch.eye(12, dtype=torch.float64)
    for step in range(steps + 1):
        left = theta - tasks.shift
        assert path.forgetting[step, 0].item() == pytest.approx(
            float(theta @ tasks.H @ theta) / 2, abs=1e-12
        )
        assert path.loss[step, 0].item() == pytest.approx(float(left @ tasks.A @ left) / 2)
        theta = theta - rate * torch.linalg.solve(damped, tasks.gradient(theta))


def test_rise_in_the_metric_agrees_with_literal_simulation(tasks: Tasks) -> None:
    rate, steps, runs, q, d = 0.1, 6, 20_000, 2, 12
    P = ridge_metric(tasks.H, 0.3)
    path = follow(in_metric(tasks, P), Subject("rise"), q, steps, rates(rate))
    root = torch.linalg.cholesky(P)  # any root of P gives the same law
    theta, draws = torch.zeros(runs, d, dtype=torch.float64), generator_for(0, "informed")
    for _ in range(steps):
        z = torch.randn(runs, q, d, generator=draws, dtype=torch.float64)
        seen = tasks.gradient(theta) @ root
        shaped = torch.einsum("nqi,nqj,nj->ni", z, z, seen) / q / kappa(d, q) ** 0.5
        theta = theta - rate * shaped @ root.T
    left = theta - tasks.shift
    for values, exact in (
        (((theta @ tasks.H) * theta).sum(-1) / 2, path.forgetting[-1, 0]),
        (((left @ tasks.A) * left).sum(-1) / 2, path.loss[-1, 0]),
    ):
        assert (values.mean() - exact).abs() < 5 * values.std() / runs**0.5


def test_top_pairs_keep_the_top_and_the_trace(tasks: Tasks) -> None:
    known = top_pairs(tasks.H, 3)
    values, true = torch.linalg.eigvalsh(known), torch.linalg.eigvalsh(tasks.H)
    torch.testing.assert_close(values[-3:], true[-3:])
    torch.testing.assert_close(values[:-3], true[:-3].mean().expand(9))
    assert known.trace().item() == pytest.approx(tasks.H.trace().item())


def test_the_wrong_curvature_has_the_spectrum_and_other_directions(tasks: Tasks) -> None:
    wrong = next(told for told in rules_told(tasks, 0) if told.name == "informed, wrong").curvature
    assert wrong is not None
    torch.testing.assert_close(torch.linalg.eigvalsh(wrong), torch.linalg.eigvalsh(tasks.H))
    assert (wrong - tasks.H).norm() > 0.5 * tasks.H.norm()


def test_one_step_is_the_theory_of_the_gain(tasks: Tasks) -> None:
    H, g, q = tasks.H, start(tasks), 3
    exact = one_step_damage(tasks, Told("informed", "fo", H), q, 0.2)
    assert exact == pytest.approx(1 / efficiency_gain(H, g, ridge_step(H, g, 0.2)).item())
    assert one_step_damage(tasks, Told("fo", "fo"), q, 0.2) == 1
    P = ridge_metric(H, 0.2)
    random = one_step_damage(tasks, Told("informed rise", "rise", H), q, 0.2)
    same_progress = float(g @ g) / metric_progress(P, g, q).item()
    ratio = same_progress**2 * metric_damage(H, P, g, q) / (g @ H @ g / 2)
    assert random == pytest.approx(ratio.item())


def test_knowing_more_gains_more_in_one_step(tasks: Tasks, measured: InformedMeasurement) -> None:
    curves = named(measured)
    exact, partial = curves["informed"], curves["informed, top 3"]
    assert all(0 < e < 1 for e in exact.damage)  # the filter theorem
    assert exact.damage[0] < min(partial.damage) < 1
    assert exact.damage == sorted(exact.damage)  # more damping, less gained
    assert exact.damage[0] == pytest.approx(1 / best_gain(tasks.H, start(tasks)).item(), rel=1e-2)
    assert len(set(curves["rise"].damage)) == 1
    noisy = curves["informed rise"].damage
    assert all(n > e for n, e in zip(noisy, exact.damage, strict=True))


def test_on_the_frontier_only_what_knows_the_curvature_leaves_the_line(
    measured: InformedMeasurement,
) -> None:
    at = {curve.name: curve.at_progress for curve in measured.curves}
    fo, rise, exact, partial = (at[n] for n in ("fo", "rise", "informed", "informed, top 3"))
    assert fo is not None
    assert rise is not None
    assert exact is not None
    assert partial is not None
    assert exact < partial < fo < rise
    assert exact < 0.7 * fo


def test_nothing_forgets_less_than_the_least(tasks: Tasks, measured: InformedMeasurement) -> None:
    least = [part.tolist() for part in least_forgetting(tasks)]
    assert least == [*measured.least]
    assert all(part == sorted(part) for part in least)
    edge = list(zip(*least[::-1], strict=True))

    def bound(progress: float) -> float:
        below = [forgetting for reached, forgetting in edge if reached <= progress]
        return below[-1] if below else 0.0

    reached = [pair for c in measured.curves for pair in zip(c.progress, c.forgetting, strict=True)]
    # Any point at all, also one that no rule visits: near the edge and anywhere.
    noise = torch.randn(2000, 12, generator=generator_for(0, "points"), dtype=torch.float64)
    theta = torch.linalg.solve(tasks.A + tasks.H, tasks.A @ tasks.shift) + noise * 0.05
    left = theta - tasks.shift
    forgetting = ((theta @ tasks.H) * theta).sum(-1) / 2 / tasks.full_forgetting
    progress = 1 - ((left @ tasks.A) * left).sum(-1) / 2 / tasks.start_loss
    reached += list(zip(progress.tolist(), forgetting.tolist(), strict=True))
    assert all(lost >= bound(gained) - 1e-12 for gained, lost in reached)


def test_a_matched_step_makes_the_progress_of_a_plain_one(tasks: Tasks) -> None:
    """Against the theory's checked factor, step by step; and what the table says of it."""
    P, rate, theta = ridge_metric(tasks.H, 0.3), COMMON_RATE / tasks.top, torch.zeros(12).double()
    path = matched_path(tasks, P, 9, rates(rate))
    for step in range(10):
        assert path.forgetting[step, 0].item() == pytest.approx(
            float(theta @ tasks.H @ theta) / 2, abs=1e-12
        )
        g = tasks.gradient(theta)
        x = P @ g * g.norm() / (P @ g).norm()
        theta = theta - rate * progress_factor(g, g, x) * x
    first = [values[1, 0] for values in (path.forgetting, path.loss)]
    plain = follow(tasks, Subject("fo"), 1, 1, rates(rate))
    assert first[0] < plain.forgetting[1, 0], "the filter theorem, at plain training's own rate"


def test_a_spectrum_with_zeros_is_fine() -> None:
    values = Spectrum("zeros", lambda d: (torch.arange(d) < d // 2).double() + 1e-300)
    singular = make_tasks(values, 8, generator_for(0, "singular"))
    found = measure_informed(singular, q=2, steps=4, seed=0)
    assert all(value > 0 for curve in found.curves for value in curve.damage)
    assert all(0 <= value <= 1 + 1e-9 for value in found.least[1])
