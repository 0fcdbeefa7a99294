"""Every refusal names the argument, what is allowed and what came."""

import re

import pytest
import torch

from risegrad import theory
from theory_reference import curvature, eye, gradient

H, G = curvature("psd", 4), gradient(4)
INDEFINITE = curvature("indefinite", 4)
SKEW = H + torch.triu(torch.ones(4, 4), 1)
NAN = H * float("nan")
ZERO = torch.zeros(4)
SINGULAR = torch.diag(torch.tensor([1.0, 0, 0, 0]))
FLAT = torch.tensor([0.0, 1.0, 0, 0])
W = torch.ones(4, 2)

# fmt: off
VALUE_ERRORS = [
    (lambda: theory.damage_gap(SKEW, G, 2), "H must be symmetric, got max |H - H^T| = 1"),
    (lambda: theory.expected_curvature(SKEW, 2), "H must be symmetric"),
    (lambda: theory.blockwise_gap(SKEW, G, [4], 2), "H must be symmetric"),
    (lambda: theory.exposed_damage(H, SKEW), "M must be symmetric"),
    (lambda: theory.damage_gap(NAN, G, 2), "H must be finite"),
    (lambda: theory.damage_gap(H[:3], G, 2), "H must have shape (..., d, d), got (3, 4)"),
    (lambda: theory.damage_gap(H, G[:3], 2),
     "H and g must have the same d, got shapes (4, 4) and (3,)"),
    (lambda: theory.quadratic_damage(H, G[:3]), "H and displacement must have the same d"),
    (lambda: theory.exposed_damage(H, eye(3)), "H and M must have the same d"),
    (lambda: theory.third_moment(H, G, G[:3], 2), "H and r must have the same d"),
    (lambda: theory.raw_mean(torch.ones(())), "g must have shape (..., d) with d >= 1, got ()"),
    (lambda: theory.directional_curvature(H, ZERO), "g must be nonzero, got a zero vector"),
    (lambda: theory.relative_reduction(H, ZERO, 2), "g must be nonzero"),
    (lambda: theory.blind_minimax_risk(ZERO, 1.0), "g must be nonzero"),
    (lambda: theory.aligned_exposure(ZERO, 0.5), "g must be nonzero"),
    (lambda: theory.relative_reduction(-eye(4), G, 2),
     "g must meet positive curvature g'Hg/|g|^2 in H, got -1"),
    (lambda: theory.damage_gap(H, G, 0), "q must be an integer >= 1, got 0"),
    (lambda: theory.blockwise_gap(H, G, [2, 2], [1, 0]), "q[1] must be an integer >= 1, got 0"),
    (lambda: theory.blockwise_gap(H, G, [2, 2], [1, 2, 3]),
     "q must be an integer or one per block (2), got 3"),
    (lambda: theory.gap_from_scalars(G, G, G, d=4, q=torch.tensor([1, 0])),
     "q must hold integers >= 1, got [1, 0]"),
    (lambda: theory.damage_gap(H, G, 2, eta=0.0), "eta must be a finite number > 0, got 0.0"),
    (lambda: theory.damage_gap(H, G, 2, eta=float("inf")), "eta must be a finite number > 0"),
    (lambda: theory.psi(4, 2, 0.0), "delta must be a number in (0, 1), got 0.0"),
    (lambda: theory.psi(4, 2, 1.0), "delta must be a number in (0, 1), got 1.0"),
    (lambda: theory.blockwise_deviation_bound(H, G, [2, 2], 1, [0.1]),
     "delta must be a number or one per block (2), got 1"),
    (lambda: theory.blockwise_gap(H, G, [2, 1], 2),
     "sizes must add up to d = 4, got (2, 1) with sum 3"),
    (lambda: theory.blockwise_gap(H, G, [4, 0], 2), "sizes[1] must be an integer >= 1, got 0"),
    (lambda: theory.deviation_bound(INDEFINITE, G, 2, 0.1),
     "H must be positive semidefinite, got least eigenvalue -"),
    (lambda: theory.smoothing_damage_bound(INDEFINITE, G, 2, 1.0, 0.1),
     "H must be positive semidefinite"),
    (lambda: theory.compare_steps(INDEFINITE, G, 2), "H must be positive semidefinite"),
    (lambda: theory.bound_certificate(INDEFINITE, G, 2, 0.1), "H must be positive semidefinite"),
    (lambda: theory.worst_case_risk(INDEFINITE, 1.0), "M must be positive semidefinite"),
    (lambda: theory.coupling_scores(H, [2, 2], [eye(2), -eye(2)]),
     "covariances[1] must be positive semidefinite"),
    (lambda: theory.coupling_scores(H, [2, 2], [eye(2), eye(1)]),
     "covariances must have the block sizes (2, 2), got (2, 1)"),
    (lambda: theory.full_information_reference(SINGULAR),
     "H must be positive definite, got least eigenvalue 0"),
    (lambda: theory.flat_signal_scores(SINGULAR, G, [2, 2]),
     "H_bb + rho I must be positive definite"),
    (lambda: theory.block_coupling(SINGULAR, [2, 2]), "H_blk must be positive definite"),
    (lambda: theory.inverse_sandwich(1.5 * torch.ones(2, 2) - 0.5 * eye(2), [1, 1]),
     "H must have block coupling eps_blk < 1, got 1.5"),
    (lambda: theory.isotropic_residual_damage(H, [2, 2], [1.0]),
     "alphas must hold one number per block (2), got 1"),
    (lambda: theory.isotropic_residual_damage(H, [2, 2], [1.0, -1.0]),
     "alphas[1] must be a finite number >= 0, got -1.0"),
    (lambda: theory.norm_matched_damage(H, 2 * theory.fo_exposure(G), G),
     "M must be norm matched: trace |g|^2"),
    (lambda: theory.aligned_exposure(G, 1.5), "alpha must be in [0, 1], got 1.5"),
    (lambda: theory.blind_minimax_risk(G, 0.0),
     "mean_curvature must be a finite number > 0, got 0.0"),
    (lambda: theory.two_point_estimate(lambda x: x.sum(-1), ZERO, torch.ones(2, 4), mu=0.0),
     "mu must be a finite number > 0, got 0.0"),
    (lambda: theory.realized_gap(H, G, torch.ones(2, 3)),
     "directions must have shape (..., q, d) with q >= 1 and d = 4, got (2, 3)"),
    (lambda: theory.raw_shape(torch.ones(0, 3)),
     "directions must have shape (..., q, d) with q >= 1 and d, got (0, 3)"),
    (lambda: theory.cantelli_certificate(torch.tensor(1.0), torch.tensor(-1.0)),
     "variance must be >= 0, got -1"),
    (lambda: theory.shape_moments(torch.ones(3, 1, 1)),
     "shapes must be (n, d, d) with d >= 2, got (3, 1, 1)"),
    (lambda: theory.estimate_isotropic_moments(lambda n: eye(3).expand(n, 3, 3), samples=1),
     "samples must be >= 2 to give a standard error, got 1"),
    (lambda: theory.efficiency(INDEFINITE, G, G), "H must be positive semidefinite"),
    (lambda: theory.efficiency(H, G, G[:3]), "H and x must have the same d, got shapes (4, 4)"),
    (lambda: theory.efficiency(SINGULAR, G, FLAT), "x must meet positive curvature x'Hx, got 0"),
    (lambda: theory.efficiency(H, G, ZERO), "x must meet positive curvature x'Hx, got 0"),
    (lambda: theory.efficiency_gain(H, ZERO, G), "g must be nonzero"),
    (lambda: theory.efficiency_gain(SINGULAR, FLAT, G),
     "g must meet positive curvature g'Hg, got 0"),
    (lambda: theory.efficiency_gain(H, G, G, against=ZERO),
     "against must meet positive curvature against'Hagainst, got 0"),
    (lambda: theory.best_step(SINGULAR, FLAT), "g must be in the range of H, got a part 1 of |g|"),
    (lambda: theory.best_gain(H, ZERO), "g must be nonzero"),
    (lambda: theory.kantorovich_bound(0 * H), "H must be nonzero, got a zero matrix"),
    (lambda: theory.ridge(0.0), "rho must be a finite number > 0, got 0.0"),
    (lambda: theory.ridge_step(H, G, -1.0), "rho must be a finite number > 0, got -1.0"),
    (lambda: theory.effective_dimension(INDEFINITE, 1.0), "H must be positive semidefinite"),
    (lambda: theory.filtered_step(SINGULAR, G, lambda values: 1 / values),
     "f(eigenvalues) must be finite, got NaN or infinite entries"),
    (lambda: theory.filtered_step(H, G, lambda values: values.sum()),
     "f must return the shape (4,) it is given, got ()"),
    (lambda: theory.filter_certificate(H, ZERO, theory.ridge(1.0)), "g must be nonzero"),
    (lambda: theory.metric_mean(INDEFINITE, G, 2), "P must be positive semidefinite"),
    (lambda: theory.metric_mean(H, G[:3], 2), "P and g must have the same d"),
    (lambda: theory.metric_damage(INDEFINITE, H, G, 2), "H must be positive semidefinite"),
    (lambda: theory.metric_progress(H, G, 0), "q must be an integer >= 1, got 0"),
    (lambda: theory.metric_efficiency(0 * H, H, G, 2), "P must meet positive curvature in H"),
    (lambda: theory.metric_step(H, G, torch.ones(2, 3)),
     "directions must have shape (..., q, d) with q >= 1 and d = 4, got (2, 3)"),
    (lambda: theory.kronecker_step(H, eye(2), W.mT, 0.3),
     "U must have shape (..., 4, 2), got (2, 4)"),
    (lambda: theory.kronecker_damage(H, eye(3), W), "dW must have shape (..., 4, 3), got (4, 2)"),
    (lambda: theory.kronecker_step(H, eye(2), W, 0.0), "rho must be a finite number > 0, got 0.0"),
    (lambda: theory.kronecker_step(H, 0 * eye(2), W, 0.3),
     "S must have a positive mean eigenvalue, got 0"),
    (lambda: theory.kronecker_damage(INDEFINITE, eye(2), W), "D must be positive semidefinite"),
    (lambda: theory.lora_factors(H, eye(3), torch.ones(2, 4), W),
     "A and B must have shapes (..., r, 3) and (..., 4, r), got (2, 4) and (4, 2)"),
    (lambda: theory.lora_factors(H, eye(3), torch.ones(1, 3), W),
     "A and B must have shapes (..., r, 3) and (..., 4, r), got (1, 3) and (4, 2)"),
    (lambda: theory.lora_factors(H, eye(3), torch.ones(2, 3), W, scaling=0.0),
     "scaling must be a finite number > 0, got 0.0"),
]

TYPE_ERRORS = [
    (lambda: theory.damage_gap(H.tolist(), G, 2), "H must be a real floating-point tensor, got li"),
    (lambda: theory.damage_gap(H, G.long(), 2), "g must be a real floating-point tensor, got tor"),
    (lambda: theory.damage_gap(H, G, 2.5), "q must be an integer >= 1, got 2.5 (float)"),
    (lambda: theory.damage_gap(H, G, True), "q must be an integer >= 1, got True (bool)"),
    (lambda: theory.gap_from_scalars(G, G, G, d=4, q=torch.tensor([1.5])),
     "q must hold integers >= 1, got [1.5]"),
    (lambda: theory.damage_gap(H, G, 2, eta="1"), "eta must be a finite number > 0, got '1' (str)"),
    (lambda: theory.psi(4, 2, "0.1"), "delta must be a number in (0, 1), got '0.1'"),
    (lambda: theory.bound_certificate(H, G, 2, 0.1, smoothing=theory.SmoothingRisk(1.0, 0.1)),
     "delta_mu must be a number in (0, 1), got None"),
    (lambda: theory.ridge_step(H, G, "1"), "rho must be a finite number > 0, got '1' (str)"),
    (lambda: theory.filtered_step(H, G, lambda values: values.tolist()),
     "f(eigenvalues) must be a real floating-point tensor, got list"),
]
# fmt: on


def test_bad_values():
    for call, message in VALUE_ERRORS:
        with pytest.raises(ValueError, match=re.escape(message)):
            call()


def test_bad_types():
    for call, message in TYPE_ERRORS:
        with pytest.raises(TypeError, match=re.escape(message)):
            call()


def test_indefinite_curvature_is_fine_where_only_symmetry_is_needed():
    assert theory.damage_moments(INDEFINITE, G, 2).variance > 0
    assert theory.blockwise_moments(INDEFINITE, G, [2, 2], 2).variance > 0
    assert theory.expected_curvature(INDEFINITE, 2).shape == (4, 4)


def test_single_precision_comes_out_double():
    found = theory.damage_gap(H.float(), G.float(), 2)
    assert found.dtype == torch.float64
    assert theory.blockwise_moments(H.float(), G.float(), [2, 2], 2).variance.dtype == torch.float64


def test_curvature_in_single_precision_may_be_as_asymmetric_as_its_rounding():
    basis = torch.linalg.qr(torch.randn(40, 40, generator=torch.Generator().manual_seed(0))).Q
    turned = (basis * torch.linspace(0, 1, 40)) @ basis.mT @ torch.eye(40)
    turned[0, 1] += 3e-7
    assert not torch.equal(turned, turned.mT)
    assert theory.damage_moments(turned, torch.ones(40), 2).variance > 0
    assert theory.compare_steps(turned, torch.ones(40), 2).matched_progress.damage_ratio < 1
    with pytest.raises(ValueError, match="H must be symmetric"):
        theory.damage_moments(turned.double(), torch.ones(40), 2)


def test_arguments_are_left_as_they_were():
    before = H.clone(), G.clone()
    theory.blockwise_moments(H, G, [2, 2], 2)
    theory.blockwise_curvature(H, [2, 2], 2)
    theory.raw_mean(G).mul_(0)
    assert torch.equal(H, before[0])
    assert torch.equal(G, before[1])
