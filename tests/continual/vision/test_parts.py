"""Backbone, adapters and heads: sizes, formulas, files, messages."""

import math

import pytest
import timm
import torch
from safetensors.torch import save_file

from references import assert_close
from riselab.continual.vision.models import (
    Adapter,
    Head,
    ViTSettings,
    adapter_linears,
    class_means,
    cosine,
    features,
    load_backbone,
    make_adapters,
)

TINY = ViTSettings(
    name="vit_tiny_patch16_224", pretrained=False, width=16, depth=2, heads=2, patch=4
)


@pytest.fixture
def vit():
    return load_backbone(TINY, image_size=8)


def images(count=3):
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_adapters_of_a_base_vit_have_the_published_size():
    adapters = make_adapters(ViTSettings(), width=768, depth=12, generator=generator())
    assert sum(p.numel() for p in adapters.parameters()) == 1_189_632
    assert len(list(adapters.parameters())) == 48


def test_new_adapters_change_nothing(vit):
    adapters = make_adapters(TINY, 16, 2, generator()).eval()
    assert torch.equal(features(vit, images(), adapters), features(vit, images()))


def test_features_without_adapters_are_timms(vit):
    assert torch.equal(features(vit, images()), vit(images()))


def test_an_adapter_sees_the_sum_before_the_norm_and_is_added(vit):
    """By hand: h = x + attention, then h + MLP(LN h) + 0.1 up(relu(down h))."""
    adapters = make_adapters(TINY, 16, 2, generator()).eval()
    for parameter in adapters.parameters():
        torch.nn.init.normal_(parameter, generator=generator(1))
    with torch.no_grad():
        x = vit._pos_embed(vit.patch_embed(images()))
        for block, adapter in zip(vit.blocks, adapters, strict=True):
            h = x + block.attn(block.norm1(x))
            bottleneck = torch.relu(h @ adapter.down.weight.T + adapter.down.bias)
            added = 0.1 * (bottleneck @ adapter.up.weight.T + adapter.up.bias)
            x = h + block.mlp(block.norm2(h)) + added
        expected = vit.norm(x)[:, 0]  # the class token
        assert_close(features(vit, images(), adapters), expected)


def test_adapter_initialization():
    adapter = Adapter(width=100, bottleneck=50, scale=0.1, dropout=0.1, generator=generator())
    assert adapter.up.weight.eq(0).all()
    assert adapter.up.bias.eq(0).all()
    assert adapter.down.bias.eq(0).all()
    bound = 1 / math.sqrt(100)  # Kaiming uniform with a = sqrt(5)
    assert 0.98 * bound < adapter.down.weight.abs().max() <= bound


def test_adapters_come_from_their_generator_alone():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first, second = (make_adapters(TINY, 16, 2, generator(7)) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


def test_linear_layers_by_the_names_of_their_weights():
    adapters = make_adapters(TINY, 16, 2, generator())
    named = dict(adapters.named_parameters())
    for name, layer in adapter_linears(adapters).items():
        assert named[name] is layer.weight


def test_the_backbone_is_frozen(vit):
    assert not vit.training
    assert not any(p.requires_grad for p in vit.parameters())


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_weights_from_a_file_at_another_image_size(tmp_path, suffix, vit):
    path = tmp_path / f"weights{suffix}"
    state = {name: value.clone() for name, value in vit.state_dict().items()}
    save_file(state, path) if suffix == ".safetensors" else torch.save(state, path)
    settings = ViTSettings(name=TINY.name, weights=str(path), width=16, depth=2, heads=2, patch=4)
    same = load_backbone(settings, image_size=8, seed=5)
    assert torch.equal(features(same, images()), features(vit, images()))
    larger = load_backbone(settings, image_size=16)
    assert torch.equal(larger.blocks[0].mlp.fc1.weight, vit.blocks[0].mlp.fc1.weight)
    assert features(larger, torch.zeros(1, 3, 16, 16)).shape == (1, 16)


def test_weights_that_do_not_fit_are_named(tmp_path, vit):
    state = {n: v.clone() for n, v in vit.state_dict().items() if n != "norm.weight"}
    save_file(state | {"extra": torch.zeros(1)}, tmp_path / "w.safetensors")
    settings = ViTSettings(
        name=TINY.name,
        weights=str(tmp_path / "w.safetensors"),
        width=16,
        depth=2,
        heads=2,
        patch=4,
    )
    message = (
        r"w\.safetensors' must fit the model; missing \['norm\.weight'\], unexpected \['extra'\]"
    )
    with pytest.raises(ValueError, match=message):
        load_backbone(settings, image_size=8)


def test_a_missing_or_broken_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"model\.weights must be a file, got .*none\.pt"):
        load_backbone(ViTSettings(weights=str(tmp_path / "none.pt")), image_size=32)
    (tmp_path / "broken.safetensors").write_bytes(b"not weights")
    settings = ViTSettings(name=TINY.name, weights=str(tmp_path / "broken.safetensors"))
    with pytest.raises(RuntimeError, match=r"/broken\.safetensors' cannot be read"):
        load_backbone(settings, image_size=32)


def test_models_that_are_no_vit_or_unknown_are_refused():
    with pytest.raises(RuntimeError, match=r"model\.name 'vit_nonsense' could not be made by timm"):
        load_backbone(ViTSettings(name="vit_nonsense", pretrained=False), image_size=8)
    assert "swin_tiny_patch4_window7_224" in timm.list_models()
    with pytest.raises(ValueError, match="must be a timm VisionTransformer, got 'swin_tiny"):
        load_backbone(
            ViTSettings(name="swin_tiny_patch4_window7_224", pretrained=False), image_size=224
        )


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("width", -1, "width must be an integer >= 0, got -1"),
        ("adapter_width", 0, "adapter_width must be an integer >= 1, got 0"),
        ("adapter_scale", 0.0, "adapter_scale must be a finite number > 0, got 0.0"),
        ("adapter_dropout", 1.0, "adapter_dropout must be a finite number >= 0 and < 1, got 1.0"),
        ("weights", "x.pt", "pretrained must be true where weights are given, got false"),
    ],
)
def test_settings_are_checked(field, value, message):
    with pytest.raises(ValueError, match=message):
        ViTSettings(**({"name": "x", "pretrained": False} | {field: value}))


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_a_head_grows_and_keeps_its_rows(kind):
    head = Head(kind, width=8, sigma=3.0)
    head.grow(2, generator())
    with torch.no_grad():
        head.weight.add_(1)
    old = {name: p.detach().clone() for name, p in head.named_parameters()}
    head.grow(3, generator(1))
    assert head.classes == 5
    assert torch.equal(head.weight[:2], old["weight"])
    bound = math.sqrt((3 if kind == "linear" else 1) / 8)
    assert head.weight[2:].abs().max() <= bound
    if kind == "linear":
        assert head.bias.tolist() == [0] * 5
    else:
        assert head.sigma.item() == 3.0


def test_head_formulas():
    found = torch.tensor([[3.0, 4.0]])
    linear = Head("linear", 2)
    linear.load({"weight": torch.tensor([[1.0, 2.0]]), "bias": torch.tensor([5.0])})
    assert linear(found).tolist() == [[16.0]]
    angle = Head("cosine", 2)
    angle.load({"weight": torch.tensor([[0.0, 2.0], [6.0, 8.0]]), "sigma": torch.tensor(2.0)})
    assert_close(angle(found), torch.tensor([[1.6, 2.0]]))


def test_the_cosine_of_a_zero_row_is_zero():
    assert cosine(torch.ones(1, 2), torch.zeros(1, 2)).tolist() == [[0.0]]


def test_class_sums():
    found = torch.tensor([[1.0], [2.0], [4.0]])
    sums, counts = class_means(found, torch.tensor([5, 6, 5]), first=5, count=3)
    assert sums.tolist() == [[5.0], [2.0], [0.0]]
    assert counts.tolist() == [2.0, 1.0, 0.0]
