"""The plain norms are the fused ones, and their second derivatives are right."""

import pytest
import torch
from torch import nn
from torch.func import grad, jacrev, jvp
from torch.nn import functional

from references import assert_close
from risegrad.curvature.objective import PlainNorms

ZERO, TWO = torch.zeros(6, dtype=torch.float64), torch.full((6,), 2.0, dtype=torch.float64)
CASES = {
    "layer": lambda q: functional.layer_norm(q[:4], (6,), q[4], q[5]),
    "layer, two dimensions": lambda q: functional.layer_norm(q[:4].view(2, 2, 6), (2, 6)),
    "group": lambda q: functional.group_norm(q[:4], 3, q[4], q[5]),
    "group, images": lambda q: functional.group_norm(q[:4].view(2, 2, 2, 3), 2, q[4, :2]),
    "rms": lambda q: functional.rms_norm(q[:4], (6,), q[4]),
    "rms, eps": lambda q: functional.rms_norm(q[:4], (6,), eps=0.1),
    "batch": lambda q: functional.batch_norm(q[:4], None, None, q[4], q[5], training=True),
    "batch, running": lambda q: functional.batch_norm(q[:4], ZERO[:6], TWO[:6], q[4], q[5]),
    "instance": lambda q: functional.instance_norm(q[:4].view(2, 3, 4), weight=q[4, :3]),
    "instance, running": lambda q: functional.instance_norm(
        q[:4].view(2, 3, 4), ZERO[:3], TWO[:3], use_input_stats=False
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_second_derivatives(name):
    torch.manual_seed(0)
    q, v = torch.randn(2, 6, 6, dtype=torch.float64)
    function = CASES[name]
    fused = function(q)
    with PlainNorms():
        assert_close(function(q), fused)
        # Forward over jacrev, as curvlinops differentiates.
        _, found = jvp(jacrev(lambda p: (function(p) ** 3).sum()), (q,), (v,))
    slope = grad(lambda p: (function(p) ** 3).sum())
    expected = (slope(q + 1e-5 * v) - slope(q - 1e-5 * v)) / 2e-5
    assert (found - expected).norm() < 1e-7 * expected.norm()


def test_modules_go_through_the_plain_norms():
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(6), nn.RMSNorm(6), nn.GroupNorm(2, 6)).double()
    x = torch.randn(3, 6, dtype=torch.float64)
    with PlainNorms(), torch.profiler.profile() as profile:
        plain = model(x)
    assert not any("native_layer_norm" in event.key for event in profile.key_averages())
    assert_close(plain, model(x))
