"""Layers: the Kronecker step, its dense form, LoRA's factors, and the limits of each."""

import pytest
import torch

from risegrad.theory import (
    directional_curvature,
    efficiency_gain,
    kronecker_damage,
    kronecker_step,
    lora_factors,
    quadratic_damage,
    ridge_step,
)
from theory_reference import PSD, close, curvature, eye, normal

OUT, IN, RANK = 5, 7, 2


def layer(kind="psd", seed=0):
    return curvature(kind, OUT, seed), curvature(kind, IN, seed + 1)


def scaled(factor):
    return factor / (torch.trace(factor) / len(factor))


@pytest.mark.parametrize("kind", PSD)
def test_the_damage_of_a_layer_is_that_of_the_dense_matrix(kind):
    (D, S), dW = layer(kind), normal(OUT, IN, seed=2)
    close(kronecker_damage(D, S, dW), torch.trace(D @ dW @ S @ dW.mT) / 2)
    close(kronecker_damage(D, S, dW), quadratic_damage(torch.kron(D, S), dW.flatten()))
    columns = quadratic_damage(torch.kron(S, D), dW.mT.flatten())  # column by column
    close(kronecker_damage(D, S, dW), columns)


@pytest.mark.parametrize("kind", PSD)
@pytest.mark.parametrize("rho", [0.01, 0.3, 10.0])
def test_the_step_is_the_dense_solve(kind, rho):
    (D, S), U = layer(kind), normal(OUT, IN, seed=3)
    left, right = scaled(D), scaled(S)
    dense = torch.kron(left + rho * eye(OUT), right + rho * eye(IN))
    expected = torch.linalg.solve(dense, U.flatten()).reshape(OUT, IN)
    close(kronecker_step(D, S, U, rho), expected)
    mixed = torch.kron(left, eye(IN)) + torch.kron(eye(OUT), right)
    close(dense, torch.kron(left, right) + rho * mixed + rho**2 * eye(OUT * IN))
    close(kronecker_step(100 * D, S / 7, U, rho), expected)  # free of the factors' scales


def test_much_damping_is_plain_training():
    (D, S), U = layer(), normal(OUT, IN, seed=3)
    close(1e8**2 * kronecker_step(D, S, U, 1e8), U, rtol=1e-6)


def layer_gain(D, S, U, rho):
    H, g = torch.kron(D, S), U.flatten()
    x = kronecker_step(D, S, U, rho).flatten()
    return efficiency_gain(H, g, x), directional_curvature(H, x) / directional_curvature(H, g)


def test_an_update_of_rank_one_never_loses():
    for seed in range(40):
        (D, S), rho = layer("rotated", seed), 10.0 ** -(seed % 4)
        left, right = normal(OUT, seed=100 + seed), normal(IN, seed=200 + seed)
        gain, norm_ratio = layer_gain(D, S, torch.outer(left, right), rho)
        pairs = (scaled(D), left), (scaled(S), right)
        sides = [efficiency_gain(factor, v, ridge_step(factor, v, rho)) for factor, v in pairs]
        close(gain, sides[0] * sides[1], rtol=1e-7)
        assert gain > 1
        assert norm_ratio < 1


def test_damping_each_factor_can_lose_where_the_ridge_of_the_product_cannot():
    # Two entries of the update: one where a sensitive output meets a flat input, one where both are
    # middling. The first costs less damage, and damping each factor takes more of it away.
    D = torch.diag(torch.tensor([3.0, 0.6, 0.2, 0.2], dtype=torch.float64))
    S = torch.diag(torch.tensor([0.1, 0.6, 1.3, 2.0], dtype=torch.float64))
    close(scaled(D), D)
    close(scaled(S), S)
    U = torch.zeros(4, 4, dtype=torch.float64)
    U[0, 0] = U[1, 1] = 1.0
    gain, norm_ratio = layer_gain(D, S, U, 0.3)
    assert gain < 0.99
    assert norm_ratio > 1.03
    H, g = torch.kron(D, S), U.flatten()
    assert efficiency_gain(H, g, ridge_step(H, g, 0.3)) > 1


@pytest.mark.parametrize("rho", [0.1, 0.01, 0.001])
def test_there_is_no_lower_bound_on_what_damping_each_factor_can_lose(rho):
    # A flat input makes the first entry free of damage, but its sensitive output is damped.
    D = torch.diag(torch.tensor([2 - rho, rho], dtype=torch.float64))
    S = torch.diag(torch.tensor([0.0, rho, 3 - rho], dtype=torch.float64))
    U = torch.zeros(2, 3, dtype=torch.float64)
    U[0, 0], U[1, 1] = 1.0, rho
    gain, norm_ratio = layer_gain(D, S, U, rho)
    assert gain < 10 * rho**2
    assert norm_ratio > 0.2 / rho**2


def test_on_random_updates_damping_each_factor_gains():
    # What the two counterexamples do not say: evenly spread energy is the usual case.
    for seed in range(5):
        D, S = layer("rotated", seed)
        gain, norm_ratio = layer_gain(D, S, normal(OUT, IN, seed=300 + seed), 0.3)
        assert gain > 1
        assert norm_ratio < 1


def adapter(seed=0):
    return normal(RANK, IN, seed=400 + seed), normal(OUT, RANK, seed=500 + seed)


@pytest.mark.parametrize("scaling", [1.0, 2.0, 0.25])
def test_the_factors_of_lora_are_damage_identities(scaling):
    (D, S), (A, B) = layer(), adapter()
    factors = lora_factors(D, S, A, B, scaling)
    dA, dB = normal(RANK, IN, seed=6), normal(OUT, RANK, seed=7)
    close(kronecker_damage(*factors.of_A, dA), kronecker_damage(D, S, scaling * B @ dA))
    close(kronecker_damage(*factors.of_B, dB), kronecker_damage(D, S, scaling * dB @ A))
    # The same against the literal Hessian of the layer's damage in each of LoRA's weights.
    for which, (left, right) in (("A", factors.of_A), ("B", factors.of_B)):
        start = torch.zeros_like(dA if which == "A" else dB)

        def damage(change, which=which):
            dW = B @ change if which == "A" else change @ A
            return kronecker_damage(D, S, scaling * dW)

        hessian = torch.autograd.functional.hessian(damage, start)
        close(hessian.reshape(start.numel(), -1), torch.kron(left, right))


def test_both_of_lora_together_do_more_than_the_sum():
    (D, S), (A, B) = layer(), adapter()
    factors, small = lora_factors(D, S, A, B), 1e-5
    dA, dB = small * normal(RANK, IN, seed=6), small * normal(OUT, RANK, seed=7)
    whole = kronecker_damage(D, S, (B + dB) @ (A + dA) - B @ A)
    apart = kronecker_damage(*factors.of_A, dA) + kronecker_damage(*factors.of_B, dB)
    cross = torch.trace(D @ dB @ A @ S @ dA.mT @ B.mT)
    close(whole, apart + cross, rtol=1e-3)  # dB dA is of higher order
    assert cross.abs() > 0.05 * apart
    # The two blocks can even cancel: along this line the product BA stays as it is.
    turn = normal(RANK, RANK, seed=8)
    still = kronecker_damage(D, S, B @ (turn @ A) - (B @ turn) @ A)
    close(still + 1.0, 1.0)
    assert kronecker_damage(*factors.of_A, turn @ A) > 0.1


def test_a_fresh_lora_has_nothing_to_protect_in_a():
    (D, S), (A, B) = layer(), adapter()
    factors = lora_factors(D, S, A, torch.zeros_like(B))
    assert kronecker_damage(*factors.of_A, normal(RANK, IN, seed=6)) == 0
    with pytest.raises(ValueError, match="D must have a positive mean eigenvalue, got 0"):
        kronecker_step(*factors.of_A, normal(RANK, IN, seed=6), 0.3)
    assert kronecker_damage(*factors.of_B, normal(OUT, RANK, seed=7)) > 0


def test_layers_are_batched():
    D, S = (
        torch.stack(factors) for factors in zip(*(layer(seed=s) for s in range(3)), strict=True)
    )
    U = normal(3, OUT, IN, seed=9)
    A, B = (torch.stack(parts) for parts in zip(*(adapter(s) for s in range(3)), strict=True))
    for i in range(3):
        close(kronecker_step(D, S, U, 0.2)[i], kronecker_step(D[i], S[i], U[i], 0.2))
        close(kronecker_damage(D, S, U)[i], kronecker_damage(D[i], S[i], U[i]))
        close(lora_factors(D, S, A, B).of_A[0][i], lora_factors(D[i], S[i], A[i], B[i]).of_A[0])
