"""Two-point estimates: what they are, and that nothing else has changed afterwards."""

import hashlib
import json
import random
from dataclasses import fields

import numpy as np
import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from references import STANDARD_ERRORS, assert_close, standard_scores
from risegrad import zeroth_order
from risegrad.core import undisturbed
from risegrad.core.draws import TILE, Draws
from risegrad.zeroth_order import VARIANTS, SpsaSettings

HALVES = [torch.bfloat16, torch.float16]
DTYPES = [torch.float64, torch.float32, *HALVES]
SHAPES = {"layer.weight": (2, 3), "layer.bias": (4,)}
D = 10


def spsa(closure, params, **options):
    """The settings by name, without their object around them."""
    own = {field.name for field in fields(SpsaSettings)} & set(options)
    settings = SpsaSettings(**{name: options.pop(name) for name in own})
    return zeroth_order.spsa(closure, params, settings, **options)


def parameters(dtype=torch.float64, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return {
        name: nn.Parameter((scale * torch.randn(shape, generator=generator)).to(dtype))
        for name, shape in SHAPES.items()
    }


def flat(tensors):
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def gradient(params):
    return flat(p.grad for p in params.values())


def directions(params, q, seed=0, step=0):
    """The directions of a step, written out: (q, d) in the dtype in which they are drawn."""
    rows = []
    for query in range(q):
        parts = []
        for name, p in params.items():
            number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
            room = torch.empty(p.numel(), dtype=torch.promote_types(p.dtype, torch.float32))
            parts.append(Draws(seed, step).normals(room, direction=query, stream=number))
        rows.append(torch.cat(parts))
    return torch.stack(rows)


class Quadratic:
    """``theta' H theta / 2 + b' theta`` over all parameters, with its gradient."""

    def __init__(self, params):
        generator = torch.Generator().manual_seed(1)
        root = torch.randn(D, D, generator=generator, dtype=torch.float64)
        self.H = root @ root.T / D
        self.b = torch.randn(D, generator=generator, dtype=torch.float64)
        self.params = params

    def __call__(self):
        theta = torch.cat([p.reshape(-1) for p in self.params.values()]).double()
        return theta @ self.H @ theta / 2 + self.b @ theta

    @property
    def g(self):
        return self.H @ flat(self.params.values()).double() + self.b


def raw_shape(z):
    return z.T @ z / len(z)


def bits(params):
    kinds = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    return [p.detach().clone().view(kinds[p.element_size()]) for p in params.values()]


def same_bits(before, params):
    return all(torch.equal(a, b) for a, b in zip(before, bits(params), strict=True))


# --- the estimate ---


@pytest.mark.parametrize("q", [1, 4, 16])
@pytest.mark.parametrize("restore", ["copy", "arithmetic"])
def test_on_a_quadratic_the_estimate_is_the_raw_shape_without_residual(q, restore):
    params = parameters()
    quadratic = Quadratic(params)
    z, g = directions(params, q, seed=3, step=7), quadratic.g
    estimate = spsa(quadratic, params.items(), q=q, epsilon=0.5, seed=3, step=7, restore=restore)
    assert_close(gradient(params), raw_shape(z) @ g)
    assert_close(torch.tensor(estimate.projected, dtype=torch.float64), z @ g)
    assert estimate.d == D
    assert estimate.norm == pytest.approx((raw_shape(z) @ g).norm().item())
    assert len(estimate.plus) == len(estimate.minus) == q


def test_losses_are_those_at_the_two_points():
    params = parameters()
    quadratic = Quadratic(params)
    theta, z = flat(params.values()), directions(params, 2)
    estimate = spsa(quadratic, params, q=2, epsilon=0.1)
    points = torch.cat([theta + 0.1 * z, theta - 0.1 * z])
    expected = (points @ quadratic.H * points).sum(1) / 2 + points @ quadratic.b
    assert_close(torch.tensor(estimate.plus + estimate.minus, dtype=torch.float64), expected)
    assert estimate.loss == pytest.approx(expected.mean().item())


@pytest.mark.parametrize(("variant", "order"), [("two-sided", 2), ("one-sided", 1)])
def test_the_residual_shrinks_with_the_radius(variant, order):
    params = parameters()

    def smooth():
        return sum(p.sin().sum() + (2 * p).exp().sum() for p in params.values())

    theta = flat(params.values())
    limit = raw_shape(directions(params, 3)) @ (theta.cos() + 2 * (2 * theta).exp())
    residuals = []
    for epsilon in (2e-3, 1e-3):
        spsa(smooth, params, q=3, epsilon=epsilon, variant=variant)
        residuals.append((gradient(params) - limit).norm().item())
    assert residuals[0] / residuals[1] == pytest.approx(2**order, rel=0.02)


@pytest.fixture(scope="module", params=[False, True], ids=["raw", "norm-matched"])
def sample(request):
    """Many estimates of one gradient: (norm_matched, estimates (N, d), g)."""
    params, q = parameters(), 2
    quadratic = Quadratic(params)
    rows = []
    for step in range(1000):
        spsa(quadratic, params, q=q, seed=5, step=step, norm_matched=request.param)
        rows.append(gradient(params))
    return request.param, torch.stack(rows), quadratic.g


def test_mean_over_seeds(sample):
    norm_matched, estimates, g = sample
    factor = (2 / (2 + D + 1)) ** 0.5 if norm_matched else 1.0
    assert standard_scores(estimates, factor * g).max() < STANDARD_ERRORS
    assert standard_scores(estimates, 1.5 * factor * g).max() > STANDARD_ERRORS


def test_second_moment_over_seeds(sample):
    norm_matched, estimates, g = sample
    kappa = 1.0 if norm_matched else (2 + D + 1) / 2
    lengths = estimates.square().sum(1)
    assert standard_scores(lengths, kappa * g.square().sum()) < STANDARD_ERRORS
    assert standard_scores(lengths, 2 * kappa * g.square().sum()) > STANDARD_ERRORS


def test_sign_keeps_the_direction_and_drops_the_slope():
    params = parameters()
    quadratic = Quadratic(params)
    z = directions(params, 3)
    slopes = z @ quadratic.g
    estimate = spsa(quadratic, params, q=3, epsilon=0.1, variant="sign")
    assert_close(gradient(params), (slopes.sign()[:, None] * z).mean(0))
    assert_close(torch.tensor(estimate.projected, dtype=torch.float64), slopes)
    spsa(lambda: 1.0, params, variant="sign")
    assert torch.equal(gradient(params), torch.zeros(D, dtype=torch.float64))


def test_one_sided_needs_the_loss_at_theta_once():
    params = parameters()
    quadratic = Quadratic(params)
    calls, epsilon, z = [], 0.1, directions(params, 3)
    base = quadratic().item()

    def closure():
        calls.append(1)
        return quadratic()

    estimate = spsa(closure, params, q=3, epsilon=epsilon, variant="one-sided")
    assert len(calls) == 4
    assert estimate.minus == (base, base, base)
    slopes = z @ quadratic.g + epsilon / 2 * (z @ quadratic.H * z).sum(1)
    assert_close(torch.tensor(estimate.projected, dtype=torch.float64), slopes)
    assert_close(gradient(params), slopes @ z / 3)


@pytest.mark.parametrize("clip", [0.5, 1e3])
def test_clipping_bounds_the_norm_over_all_parameters(clip):
    params = parameters()
    quadratic = Quadratic(params)
    free = spsa(quadratic, params, q=2)
    unclipped = gradient(params)
    clipped = spsa(quadratic, params, q=2, clip=clip)
    assert 0.5 < free.norm == clipped.norm < 1e3
    assert_close(gradient(params), unclipped * min(1.0, clip / free.norm))


def test_clipping_comes_after_norm_matching():
    params = parameters()
    estimate = spsa(Quadratic(params), params, q=2, norm_matched=True)
    within = 1.01 * estimate.norm
    spsa(Quadratic(params), params, q=2, norm_matched=True, clip=within)
    assert gradient(params).norm().item() == pytest.approx(estimate.norm)
    assert spsa(Quadratic(params), params, q=2).norm > within


@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision_sums_in_float32_and_rounds_once(dtype):
    params = {"p": nn.Parameter(torch.linspace(-1, 1, 1000).to(dtype))}
    estimate = spsa(lambda: params["p"].float().sin().sum(), params, q=16, epsilon=0.1)
    slopes = torch.tensor(estimate.projected, dtype=torch.float64)
    expected = (slopes @ directions(params, 16).double() / 16).to(dtype)
    assert gradient(params).dtype == dtype
    # One rounding of the float64 sum is the answer in nearly every element: away from ties.
    assert (gradient(params) != expected).sum() <= 5
    assert_close(gradient(params), expected)


def test_any_optimizer_can_step():
    for kind in (torch.optim.SGD, torch.optim.AdamW):
        params = parameters()
        quadratic = Quadratic(params)
        optimizer = kind(params.values(), lr=0.05)
        before = quadratic().item()
        for step in range(30):
            spsa(quadratic, params, q=4, step=step)
            optimizer.step()
        assert quadratic().item() < before - 0.2


def test_gradients_are_replaced_not_added():
    params = parameters()
    spsa(Quadratic(params), params)
    once = gradient(params)
    spsa(Quadratic(params), params)
    assert torch.equal(gradient(params), once)


# --- which parameters, which directions ---


def test_directions_depend_on_seed_step_and_name_only():
    params = parameters()
    quadratic = Quadratic(params)

    def slopes(pairs, **kwargs):
        spsa(quadratic, pairs, variant="sign", **kwargs)  # the sign keeps the direction as it is
        return {name: params[name].grad.abs() for name, _ in pairs}

    both, reverse = list(params.items()), list(params.items())[::-1]
    first = slopes(both)
    torch.manual_seed(999)
    assert all(torch.equal(first[n], g) for n, g in slopes(reverse).items())
    assert all(torch.equal(first[n], g) for n, g in slopes(both[:1]).items())
    wrapped = [(f"module._orig_mod.{name}", p) for name, p in both]
    spsa(quadratic, wrapped, variant="sign")
    assert all(torch.equal(first[n], p.grad.abs()) for n, p in both)
    for other in (slopes(both, seed=1), slopes(both, step=1)):
        assert not any(torch.equal(first[n], g) for n, g in other.items())


def test_a_model_may_have_an_attribute_called_module():
    params = {"a": nn.Parameter(torch.ones(3)), "module.a": nn.Parameter(torch.ones(3))}
    spsa(lambda: 1.0 + sum(p.sum() for p in params.values()), params)
    assert not torch.equal(params["a"].grad, params["module.a"].grad)


def test_frozen_parameters_are_left_alone_and_tied_ones_count_once():
    params = parameters()
    params["layer.bias"].requires_grad_(False)
    seen = []

    def closure():
        seen.append(params["layer.bias"].detach().clone())
        return params["layer.weight"].sum()

    weight = params["layer.weight"]
    estimate = spsa(closure, [*params.items(), ("again", weight)])
    assert estimate.d == weight.numel()
    assert params["layer.bias"].grad is None
    assert torch.equal(seen[0], params["layer.bias"])
    z = directions({"layer.weight": weight}, 1)
    assert estimate.projected[0] == pytest.approx(z.sum().item())


def test_memory_format_does_not_matter():
    shape = (2, 3, 4, 4)
    plain = nn.Parameter(torch.arange(96.0).view(shape))
    strided = nn.Parameter(plain.detach().clone(memory_format=torch.channels_last))
    for p in (plain, strided):
        spsa(lambda p=p: p.double().square().sum(), [("p", p)])
    assert strided.stride() != plain.stride()
    assert torch.equal(plain.grad, strided.grad)
    assert torch.equal(plain, strided)


# --- left as found: parameters ---


def awkward(dtype):
    """Parameters with values that arithmetic would not give back."""
    params = parameters(dtype)
    finfo = torch.finfo(dtype)
    with torch.no_grad():
        params["layer.bias"].copy_(
            torch.tensor([-0.0, finfo.max, finfo.smallest_normal / 2, float("nan")])
        )
    return params


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_parameters_come_back_bit_by_bit(dtype, variant):
    params = awkward(dtype)
    before, moved = bits(params), []

    def closure():
        moved.append(not same_bits(before, params))
        return params["layer.weight"].double().square().sum()

    spsa(closure, params, q=3, epsilon=0.1, variant=variant)
    assert same_bits(before, params)
    assert sum(moved) == (3 if variant == "one-sided" else 6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("failing", [1, 2, 3, 4])
def test_a_failing_closure_leaves_parameters_and_gradients_as_they_were(dtype, failing):
    params = awkward(dtype)
    before, calls = bits(params), []
    params["layer.weight"].grad = kept = torch.ones_like(params["layer.weight"])

    def closure():
        calls.append(1)
        if len(calls) == failing:
            raise RuntimeError("out of memory")
        return 1.0

    with pytest.raises(RuntimeError, match="out of memory"):
        spsa(closure, params, q=2)
    assert same_bits(before, params)
    assert params["layer.weight"].grad is kept
    assert torch.equal(kept, torch.ones_like(kept))
    assert params["layer.bias"].grad is None


def drift_bound(params, q, epsilon, start):
    """1.5 machine epsilons of ``|theta| + epsilon |z|`` per query, element by element."""
    reach = sum(start.abs() + epsilon * z.abs() for z in directions(params, q).double())
    return 1.5 * torch.finfo(next(iter(params.values())).dtype).eps * reach


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("failing", [None, 1, 4])
def test_arithmetic_restore_drifts_within_its_bound(dtype, failing):
    params = parameters(dtype)
    start, calls = flat(params.values()).double(), []

    def closure():
        calls.append(1)
        if len(calls) == failing:
            raise RuntimeError("stop")
        return params["layer.weight"].double().square().sum()

    try:
        spsa(closure, params, q=3, epsilon=0.1, restore="arithmetic")
    except RuntimeError:
        assert failing is not None
    drift = (flat(params.values()).double() - start).abs()
    # A later addition starts from a place that has drifted already: hence the last percent.
    assert (drift <= 1.01 * drift_bound(params, 3, 0.1, start)).all()
    assert drift.max() > 0 or failing == 1  # out and back along one small step may be exact


@pytest.mark.parametrize(
    ("dtype", "low", "high"), [(torch.float32, 3e-7, 1.2e-6), (torch.bfloat16, 0.02, 0.08)]
)
def test_drift_after_a_hundred_steps_is_what_the_docs_say(dtype, low, high):
    generator = torch.Generator().manual_seed(0)
    start = (0.02 * torch.randn(1000, generator=generator)).to(dtype)
    p = nn.Parameter(start.clone())
    for step in range(100):
        spsa(lambda: 0.0, [("p", p)], step=step, restore="arithmetic")
    drift = (p.detach().double() - start.double()).norm() / start.double().norm()
    assert low < drift.item() < high


def peak_during_evaluations(params, restore, path):
    """The most bytes alive at once before any gradient is written, by torch's own record."""
    calls = []

    def closure():
        calls.append(1)
        if len(calls) == 4:
            raise RuntimeError("stop")
        return 1.0

    with (
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded,
        pytest.raises(RuntimeError, match="stop"),
    ):
        spsa(closure, params, q=2, restore=restore)
    recorded.export_chrome_trace(str(path))
    events = [e for e in json.loads(path.read_text())["traceEvents"] if e["name"] == "[memory]"]
    changes = [e["args"]["Bytes"] for e in sorted(events, key=lambda e: e["ts"])]
    return max(np.cumsum(changes))


def test_arithmetic_restore_holds_the_noise_of_one_tensor_and_no_copy(tmp_path):
    size = 50_000
    params = {f"p{i}": nn.Parameter(torch.zeros(size)) for i in range(6)}
    one, little = 4 * size, 0.2 * 4 * size + 4 * TILE  # the draws keep the tile they ended in
    assert peak_during_evaluations(params, "arithmetic", tmp_path / "a.json") < one + little
    peak = peak_during_evaluations(params, "copy", tmp_path / "b.json")
    assert 7 * one <= peak < 7 * one + little


# --- left as found: random states, modes, buffers ---


def random_states():
    return torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()


@pytest.mark.parametrize("fails", [False, True])
def test_global_random_states_are_left_as_found(fails):
    params, before = parameters(), random_states()

    def closure():
        torch.rand(5), np.random.rand(5), random.random()
        torch.manual_seed(0)
        if fails:
            raise RuntimeError("stop")
        return 1.0

    if fails:
        with pytest.raises(RuntimeError, match="stop"):
            spsa(closure, params, q=2)
    else:
        spsa(closure, params, q=2)
    assert random_states() == before


def test_devices_with_generators_of_their_own_are_seeded_and_put_back(monkeypatch):
    log = []
    device = undisturbed.Device(
        read=lambda: "found", write=lambda state: log.append(state), seed=lambda s: log.append(s)
    )
    monkeypatch.setattr(undisturbed, "accelerators", lambda: [device])
    spsa(lambda: log.append("loss") or 1.0, parameters())
    assert log == [log[0], "loss", "found", log[0], "loss", "found"]
    assert isinstance(log[0], int)


def test_all_evaluations_of_a_step_see_the_same_random_numbers_and_the_next_step_others():
    params = parameters()
    seen = []

    def closure():
        seen.append((torch.rand(3).tolist(), np.random.rand(), random.random()))
        return 1.0

    spsa(closure, params, q=3, step=0)
    spsa(closure, params, q=3, step=1)
    spsa(closure, params, q=3, step=0, seed=1)
    steps = [seen[:6], seen[6:12], seen[12:]]
    assert all(numbers == step[0] for step in steps for numbers in step)
    for kind in range(3):
        assert len({str(step[0][kind]) for step in steps}) == 3


class Noisy(nn.Module):
    """Dropout and batch norm, and a buffer on which the output depends."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layers = nn.Sequential(
                nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 1)
            )
        self.register_buffer("counter", torch.zeros(()))
        self.register_buffer("cache", None)

    def forward(self, x):
        self.counter = self.counter + 1  # a new tensor, unlike batch norm's in-place updates
        self.cache = x
        return self.layers(x) + self.counter


INPUTS = torch.linspace(-1, 1, 32).view(8, 4)


def test_common_random_numbers_make_dropout_nearly_harmless():
    model = Noisy().train()

    def common():
        return model(INPUTS).square().mean()

    def slope_variance(closure):
        slopes = [
            spsa(closure, model.named_parameters(), step=step, model=model).projected[0]
            for step in range(60)
        ]
        return np.var(slopes)

    calls = iter(range(10_000))

    def independent():
        torch.manual_seed(next(calls))
        return common()

    assert slope_variance(independent) > 1000 * slope_variance(common)


def test_modes_and_buffers_are_left_as_found():
    model = Noisy().train()
    model.layers[2].eval()  # a mixture, as with a frozen part
    model.layers[1].running_mean.fill_(0.3)
    modes = [module.training for module in model.modules()]
    buffers = {name: (b, b.clone()) for name, b in model.named_buffers()}
    losses, counters = [], []

    def closure():
        loss = model(INPUTS).square().mean()
        counters.append(model.counter.item())
        model.eval()
        losses.append(model(INPUTS).square().mean())
        return loss

    spsa(closure, model.named_parameters(), q=2, model=model)
    assert [module.training for module in model.modules()] == modes
    assert dict(model.named_buffers()).keys() == buffers.keys()
    for name, buffer in model.named_buffers():
        assert buffer is buffers[name][0]
        assert torch.equal(buffer, buffers[name][1])
    assert model.cache is None
    assert counters == [1.0] * 4  # every evaluation starts from what was found
    assert int(model.layers[1].num_batches_tracked) == 0


def test_modes_and_buffers_survive_a_failing_closure():
    model = Noisy().train()
    before = {name: b.clone() for name, b in model.named_buffers()}

    def closure():
        model.eval()
        model.train()(INPUTS)
        model.eval()
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        spsa(closure, model.named_parameters(), model=model)
    assert all(module.training for module in model.modules())
    assert all(torch.equal(b, before[name]) for name, b in model.named_buffers())


def test_no_graph_is_built():
    params = parameters()
    enabled = []

    def closure():
        enabled.append(torch.is_grad_enabled())
        return Quadratic(params)()

    spsa(closure, params)
    assert not any(enabled)
    assert torch.is_grad_enabled()


# --- losses that are not finite ---


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("where", [0, 2])
def test_one_bad_loss_makes_every_gradient_non_finite(variant, clip, bad, where):
    params = parameters(torch.float32)
    before, calls = bits(params), []

    def closure():
        calls.append(1)
        return bad if len(calls) - 1 == where else 1.0

    estimate = spsa(closure, params, q=3, variant=variant, clip=clip)
    assert not estimate.finite
    assert not gradient(params).isfinite().any()
    assert same_bits(before, params)


def test_slopes_beyond_the_range_of_the_dtype_become_infinite():
    params = parameters(torch.float32)
    losses = iter([1e38, -1e38])
    estimate = spsa(lambda: next(losses), params)
    assert estimate.projected[0] == pytest.approx(1e41)
    assert not estimate.finite
    assert gradient(params).isinf().all()


def test_a_norm_that_overflows_does_not_clip_to_silence():
    params = parameters(torch.float32)
    losses = iter([1e22, -1e22])
    estimate = spsa(lambda: next(losses), params, clip=1.0)
    assert estimate.norm == float("inf")
    assert not estimate.finite
    assert gradient(params).isnan().all()


# --- bad input ---

BAD_ARGUMENTS = [
    ({"q": 0}, ValueError, "q must be an integer >= 1, got 0"),
    ({"q": 1.5}, TypeError, "q must be an integer >= 1, got 1.5"),
    ({"epsilon": 0}, ValueError, "epsilon must be a finite number > 0, got 0"),
    ({"epsilon": float("nan")}, ValueError, "epsilon must be a finite number > 0, got nan"),
    ({"epsilon": "1e-3"}, TypeError, "epsilon must be a finite number > 0, got '1e-3'"),
    ({"clip": -1.0}, ValueError, "clip must be a finite number > 0, got -1.0"),
    ({"clip": 0}, ValueError, "clip must be a finite number > 0, got 0"),
    ({"seed": 0.5}, TypeError, "seed must be an integer, got 0.5"),
    ({"step": None}, TypeError, "step must be an integer, got None"),
    (
        {"variant": "three"},
        ValueError,
        "variant must be one of two-sided, one-sided, sign; got 'three'",
    ),
    ({"restore": "hope"}, ValueError, "restore must be one of copy, arithmetic; got 'hope'"),
    ({"norm_matched": 1}, TypeError, "norm_matched must be True or False, got 1"),
    (
        {"norm_matched": True, "variant": "sign"},
        ValueError,
        "norm_matched must be False with variant 'sign'",
    ),
    ({"model": 3}, TypeError, "model must be a torch.nn.Module or None, got int"),
]


@pytest.mark.parametrize(("arguments", "kind", "message"), BAD_ARGUMENTS)
def test_bad_arguments_are_named_before_anything_happens(arguments, kind, message):
    params, calls = parameters(), []
    with pytest.raises(kind, match=message):
        spsa(lambda: calls.append(1) or 1.0, params, **arguments)
    assert not calls
    assert all(p.grad is None for p in params.values())


@pytest.mark.parametrize(
    ("result", "kind", "message"),
    [
        (torch.ones(3), ValueError, r"closure must return a scalar loss.*shape \(3,\)"),
        (torch.ones((), dtype=torch.int64), TypeError, "floating-point loss, got torch.int64"),
        (None, TypeError, "closure must return a scalar tensor or a number, got NoneType"),
        (True, TypeError, "closure must return a scalar tensor or a number, got bool"),
        ("low", TypeError, "closure must return a scalar tensor or a number, got str"),
    ],
)
def test_a_closure_must_return_one_number(result, kind, message):
    params = parameters()
    before = bits(params)
    with pytest.raises(kind, match=message):
        spsa(lambda: result, params)
    assert same_bits(before, params)


@pytest.mark.parametrize("result", [2, 2.0, np.float32(2), torch.tensor([[2.0]])])
def test_what_counts_as_one_number(result):
    assert spsa(lambda: result, parameters()).plus == (2.0,)


def test_settings_are_an_object():
    with pytest.raises(TypeError, match="settings must be SpsaSettings or None, got 4"):
        zeroth_order.spsa(lambda: 1.0, parameters(), 4)


def test_closure_must_be_callable():
    with pytest.raises(TypeError, match="closure must be callable, got Tensor"):
        spsa(torch.ones(()), parameters())


class Sharded(nn.Parameter):
    placements = ("Shard(0)",)


def frozen():
    return nn.Parameter(torch.ones(2), requires_grad=False)


@pytest.mark.parametrize(
    ("params", "kind", "message"),
    [
        ([], ValueError, "params must have a parameter that requires a gradient, got none"),
        ([("a", frozen())], ValueError, "got only frozen or empty ones: a"),
        (7, TypeError, r"params must be \(name, parameter\) pairs.*got int"),
        ([torch.ones(2)], TypeError, r"params must be \(name, parameter\) pairs.*got Tensor"),
        ([(0, torch.ones(2))], TypeError, r"params must be \(name, parameter\) pairs.*got tuple"),
        (
            [("a", nn.Parameter(torch.ones(2))), ("a", nn.Parameter(torch.ones(2)))],
            ValueError,
            "params must name every parameter differently, got 'a' twice",
        ),
        (
            [("a", torch.ones(2, dtype=torch.complex64, requires_grad=True))],
            TypeError,
            "'a' must be a dense real floating-point tensor, got torch.complex64",
        ),
        ([("a", Sharded(torch.ones(2)))], NotImplementedError, "'a' is sharded over processes"),
    ],
)
def test_bad_parameters_are_named(params, kind, message):
    with pytest.raises(kind, match=message):
        spsa(lambda: 1.0, params)
