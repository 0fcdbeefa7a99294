"""A step over many tensors and blocks equals the rule applied to each block on its own."""

import pytest
import torch

from references import STANDARD_ERRORS, assert_close, standard_scores
from risegrad import Blocks, CovarianceNoise, IsotropicNoise, Rise, ScaledFO
from risegrad.core.blocks import WORKSPACE, make_layout, resolve_blocks
from risegrad.core.draws import Draws
from risegrad.core.shaped_step import shape_tensors
from risegrad.core.shapers import SHAPERS, resolve_q

SHAPES = {"a.weight": (30, 7), "a.bias": (30,), "b.weight": (70_000,), "c": (1,), "d": (5, 2, 3)}
GROUPS = {"a.weight": 0, "a.bias": 1, "b.weight": 0, "c": 1, "d": 1}
CHOICES = [
    "tensor",
    "module",
    "group",
    "whole",
    16,
    7,
    100_000,
    {"first": "a.*", "rest": ["b.*", "c", "d"]},
    Blocks({"x": ["d", "a.bias"], "y": ["a.weight", "c"], "z": ["b.weight"]}),
]


def gradients(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        for name, shape in SHAPES.items()
    }


def layout_of(shaper):
    blocks = resolve_blocks(shaper.blocks, GROUPS)
    sizes = {name: torch.Size(shape).numel() for name, shape in SHAPES.items()}
    return blocks, make_layout(blocks, resolve_q(shaper.q, tuple(blocks.members)), sizes)


def reference(shaper, tensors, step):
    """Block by block in float64, from the formulas, with the same random numbers."""
    blocks, layout = layout_of(shaper)
    draws = Draws(shaper.seed, step)
    chi2 = draws.chi_squares(layout.q.numpy())
    extra = draws.scalar_normals(len(layout.q))
    result = {name: tensor.double().reshape(-1) for name, tensor in tensors.items()}
    noise, position = {}, 0
    for name in layout.names:
        tensor = tensors[name]
        noise[name] = draws.normals(tensor.new_empty(tensor.numel()), position).double()
        position += tensor.numel()
    block = 0
    for members in blocks.members.values():
        g = torch.cat([result[name] for name in members])
        n = torch.cat([noise[name] for name in members])
        pieces = []
        for part, normal in zip(
            g.split(blocks.chunk or len(g)), n.split(blocks.chunk or len(g)), strict=True
        ):
            q = int(layout.q[block])
            pieces.append(formula(shaper, part, normal, q, chi2[block], extra[block]))
            block += 1
        sizes = [len(result[name]) for name in members]
        for name, part in zip(members, torch.cat(pieces).split(sizes), strict=True):
            result[name] = part
    return {name: part.view(SHAPES[name]) for name, part in result.items()}


def formula(shaper, g, n, q, chi2, extra):
    d, norm = len(g), g.norm()
    a = (q / (q + d + 1)) ** 0.5
    if isinstance(shaper, Rise):
        u = g / norm
        return a * norm / q * (chi2 * u + chi2.sqrt() * (n - (u @ n) * u))
    if isinstance(shaper, ScaledFO):
        return a * g
    if isinstance(shaper, IsotropicNoise):
        total = norm**2 * (d + 1) / (q + d + 1)
        return g + (total / d).sqrt() * n
    if isinstance(shaper, CovarianceNoise):
        return a * g + (norm * n + extra * g) / (q + d + 1) ** 0.5
    raise AssertionError(f"no formula for {shaper}")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", SHAPERS)
@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_equals_the_formula_in_each_block(kind, choice, dtype):
    shaper = kind(q=3, blocks=choice, seed=11)
    tensors = gradients(dtype)
    expected = reference(shaper, tensors, step=5)
    _, layout = layout_of(shaper)
    shape_tensors(shaper, layout, [tensors[name] for name in layout.names], step=5)
    for name, tensor in tensors.items():
        assert_close(tensor, expected[name], dtype)


def test_each_block_may_have_its_own_q():
    by_name = Rise(q={"a": 1, "b": 64, "(root)": 4}, blocks="module")
    in_order = Rise(q=[1, 64, 4], blocks="module")
    expected = reference(by_name, gradients(), step=0)
    for shaper in (by_name, in_order):
        _, layout = layout_of(shaper)
        assert layout.q.tolist() == [1, 64, 4]
        tensors = gradients()
        shape_tensors(shaper, layout, [tensors[name] for name in layout.names], step=0)
        for name in SHAPES:
            assert_close(tensors[name], expected[name])


def test_missing_gradients_do_not_change_the_draws_of_others():
    shaper = Rise(blocks="tensor")
    _, layout = layout_of(shaper)
    full, sparse = gradients(), gradients()
    shape_tensors(shaper, layout, [full[name] for name in layout.names], step=1)
    some = [None if name == "a.weight" else sparse[name] for name in layout.names]
    shape_tensors(shaper, layout, some, step=1)
    assert torch.equal(full["b.weight"], sparse["b.weight"])
    assert torch.equal(sparse["a.weight"], gradients()["a.weight"])


def test_a_block_of_which_only_a_part_has_gradients_is_calibrated_for_that_part():
    shaper = ScaledFO(q=4, blocks="module")
    _, layout = layout_of(shaper)
    tensors = gradients()
    some = [None if name == "a.bias" else tensors[name] for name in layout.names]
    shape_tensors(shaper, layout, some, step=0)
    d = tensors["a.weight"].numel()
    assert_close(tensors["a.weight"], (4 / (4 + d + 1)) ** 0.5 * gradients()["a.weight"])


def test_nonfinite_stays_in_its_block_and_is_never_hidden():
    for kind in SHAPERS:
        shaper = kind(blocks="tensor")
        _, layout = layout_of(shaper)
        tensors = gradients()
        tensors["a.weight"][3, 4] = float("inf")
        tensors["d"][0, 0, 0] = float("nan")
        shape_tensors(shaper, layout, [tensors[name] for name in layout.names], step=0)
        assert not tensors["a.weight"].isfinite().all()
        assert not tensors["d"].isfinite().all()
        assert tensors["b.weight"].isfinite().all()


def test_memory_layout_does_not_matter():
    shaper = Rise(q=2)
    layout = make_layout(Blocks.by_tensor(["w"]), (2,), {"w": 240})
    plain = torch.randn(4, 5, 3, 4, generator=torch.Generator().manual_seed(1))
    strided = plain.to(memory_format=torch.channels_last)
    assert not strided.is_contiguous()
    shape_tensors(shaper, layout, [plain], step=0)
    shape_tensors(shaper, layout, [strided], step=0)
    assert_close(strided, plain)


def draws_of(shaper, g, count):
    """Many steps of one small block through the whole machinery."""
    layout = make_layout(Blocks.by_tensor(["g"]), (shaper.q,), {"g": len(g)})
    sample = g.repeat(count, 1)
    for step in range(count):
        shape_tensors(shaper, layout, [sample[step]], step)
    return sample


@pytest.mark.parametrize(
    ("shaper", "mean", "second"),
    [
        (Rise(q=3), 0.6, "rise"),
        (Rise(q=3, sampler="directions"), 0.6, "rise"),
        (CovarianceNoise(q=3), 0.6, "rise"),
        (CovarianceNoise(q=3, mean="exact"), 1.0, "covariance"),
        (IsotropicNoise(q=3), 1.0, "isotropic"),
        (IsotropicNoise(q=3, mean="scaled"), 0.6, "isotropic"),
    ],
    ids=str,
)
def test_moments_over_steps(shaper, mean, second):
    """d = 4 and q = 3: the mean factor is sqrt(3/8); covariances as in the paper's Appendix D.1."""
    g = torch.tensor([1.0, -2.0, 0.5, 0.0], dtype=torch.float64)
    norm, eye = g.square().sum(), torch.eye(4, dtype=torch.float64)
    factor = 1.0 if mean == 1.0 else (3 / 8) ** 0.5
    covariance = (torch.outer(g, g) + norm * eye) / 8
    if second == "isotropic":
        covariance = covariance.trace() / 4 * eye
    sample = draws_of(shaper, g, 3000)
    assert standard_scores(sample, factor * g).max() < STANDARD_ERRORS
    expected = factor**2 * torch.outer(g, g) + covariance
    products = torch.einsum("ni,nj->nij", sample, sample)
    assert standard_scores(products, expected).max() < STANDARD_ERRORS


def test_steps_are_independent_draws():
    sample = draws_of(Rise(q=1), torch.ones(3, dtype=torch.float64), 3000)
    products = (sample[1:] - sample.mean(0)) * (sample[:-1] - sample.mean(0))
    assert standard_scores(products, torch.zeros(3, dtype=torch.float64)).max() < STANDARD_ERRORS


def peak_bytes(work):
    with torch.profiler.profile(profile_memory=True) as profile:
        work()
    current = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            current += event.nbytes()
            peak = max(peak, current)
    return peak, current


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("choice", ["tensor", 16])
def test_extra_memory_is_one_copy_of_the_largest_block(dtype, choice):
    sizes = {"large": 3_000_000, "small": 1_000_000, "other": 1_000_000}
    shaper = Rise(blocks=choice)
    blocks = resolve_blocks(choice, dict.fromkeys(sizes, 0))
    layout = make_layout(blocks, resolve_q(4, tuple(blocks.members)), sizes)
    tensors = [torch.ones(size, dtype=dtype) for size in sizes.values()]
    shape_tensors(shaper, layout, tensors, step=0)
    peak, kept = peak_bytes(lambda: shape_tensors(shaper, layout, tensors, step=1))
    # A few per block, what goes to the device in one message among them, and the bookkeeping.
    numbers = 8 * 8 * len(layout.d) + 10_000
    largest = tensors[0].nbytes if choice == "tensor" else 0
    # A batch of small blocks, with the float32 it is drawn and combined in.
    workspace = 0 if choice == "tensor" else WORKSPACE * (tensors[0].element_size() + 8)
    tile = 5 * 4 * (1 << 14)
    assert peak <= max(largest, workspace) + tile + numbers
    assert kept == 0


def test_strided_gradients_are_copied_one_batch_at_a_time():
    sizes = {str(number): 400_000 for number in range(6)}
    layout = make_layout(Blocks.by_tensor(sizes), [4] * 6, sizes)
    tensors = [torch.ones(500, 800).t() for _ in sizes]
    assert not tensors[0].is_contiguous()
    shape_tensors(Rise(), layout, tensors, step=0)
    peak, kept = peak_bytes(lambda: shape_tensors(Rise(), layout, tensors, step=1))
    assert peak < 2.5 * tensors[0].nbytes  # its noise and its copy
    assert kept == 0
