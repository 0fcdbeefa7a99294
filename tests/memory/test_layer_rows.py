"""Which layers are the maps they are taken for, and which rows of them count."""

import pytest
import torch
from timm.layers import BatchNormAct2d, Conv2dSame, StdConv2d
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.models.bart.modeling_bart import BartScaledWordEmbedding

import risegrad
from memory.subjects import dense, generator
from memory.test_remember import assert_same
from references import assert_close


def remember(model, *batches, **options):
    return risegrad.remember(model, list(batches), **({"examples": None} | options))


def drawn(*shape, seed=1):
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def outputs(model, batch):
    return model(batch)


# --- classes with a forward of their own ---


class Scaled(nn.Linear):
    def forward(self, x):
        return nn.functional.linear(x, 5 * self.weight, self.bias)


class Falcon(nn.Linear):
    """As transformers' FalconLinear: the plain map, written out."""

    def forward(self, x):
        made = x @ self.weight.T
        return made if self.bias is None else made + self.bias


class PackedLinear(nn.Linear):
    """As bitsandbytes': the weight is bytes in another shape."""

    def __init__(self):
        super().__init__(4, 4)
        self.bits = self.weight.detach().double()
        self.weight = nn.Parameter(torch.zeros(8, 1, dtype=torch.uint8), requires_grad=False)

    def forward(self, x):
        return nn.functional.linear(x, self.bits, self.bias)


class OwnWeight(nn.Parameter):
    """A parameter of a class of its own, as quantizers make them."""


IMAGES = (4, 2, 8, 8)
TOKENS = torch.arange(12).view(4, 3) % 7
ODD = [
    (Scaled(4, 4), drawn(8, 4)),
    (Conv2dSame(2, 3, 3, stride=2), drawn(*IMAGES)),
    (StdConv2d(2, 3, 3, padding=1), drawn(*IMAGES)),
    (BartScaledWordEmbedding(7, 4, 0, embed_scale=3.0), TOKENS),
    (BatchNormAct2d(2), drawn(*IMAGES)),
]


@pytest.mark.parametrize(("layer", "x"), ODD, ids=lambda part: type(part).__name__)
def test_other_maps_are_not_remembered(layer, x):
    torch.manual_seed(0)
    width = layer.double()(x).flatten(1).shape[1]
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(width, 3)).double()
    found = remember(model, x)
    assert list(found) == ["2"]
    said = f"{type(layer).__name__} computes something other than"
    assert said in found.uncovered["0.weight"]
    with pytest.raises(ValueError, match=rf"strict: 0 \({said}"):
        remember(model, x, strict=True)
    with pytest.raises(ValueError, match=rf"nothing of the model is covered: 0 \({said}"):
        remember(model, x, layers=["0"])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_forward_that_is_the_plain_map_is_remembered(dtype, bias):
    torch.manual_seed(0)
    model = nn.Sequential(Falcon(64, 32, bias), nn.Tanh(), nn.Linear(32, 3)).to(dtype)
    x = drawn(16, 64).to(dtype)
    found = remember(model, x)
    assert list(found) == ["0", "2"]
    if dtype == torch.float64:
        assert_close(dense(found["0"].inputs), x.T @ x / 16)
    with torch.autocast("cpu", torch.bfloat16):
        assert list(remember(model, x)) == ["0", "2"]


def test_packed_weights_are_taken_as_they_are():
    torch.manual_seed(0)
    model = nn.Sequential(PackedLinear(), nn.Tanh(), nn.Linear(4, 3)).double().requires_grad_(False)
    assert list(remember(model, drawn(8, 4))) == ["0", "2"]
    own = nn.Sequential(Scaled(4, 3)).double()
    own[0].weight = OwnWeight(own[0].weight.detach())
    assert list(remember(own, drawn(8, 4))) == ["0"]


def test_a_padding_that_was_set_later_counts():
    """As dilated networks do with a trained one."""
    torch.manual_seed(0)
    late, early = nn.Conv2d(2, 3, 3).double(), nn.Conv2d(2, 3, 3, padding=(2, 1), dilation=2)
    late.padding, late.dilation = (2, 1), (2, 2)
    early.load_state_dict(late.state_dict())
    score = lambda m, b: m(b).flatten(1)  # noqa: E731
    one, other = (remember(nn.Sequential(c.double()), drawn(*IMAGES), of=score)
                  for c in (late, early))  # fmt: skip
    assert_same(one, other)


@pytest.mark.parametrize("shape", [(4, 5, 5), (4, 5, 7), (5, 5)])
def test_instance_norms_have_their_channels_before_the_length(shape):
    torch.manual_seed(0)
    norm = nn.InstanceNorm1d(5, affine=True).double()
    nn.init.normal_(norm.weight)
    x = drawn(*shape)
    found = remember(nn.Sequential(norm), x, of=lambda m, b: m(b).sum().view(1, 1))["0"]
    normed = nn.functional.instance_norm(x if x.ndim == 3 else x[None])
    assert_close(found.parts["weight"].values, normed.square().sum((0, 2)))
    rows = normed.numel() / 5
    assert_close(found.parts["bias"].values, torch.full((5,), rows, dtype=torch.float64))


def test_layer_norms_over_a_length_like_the_batch():
    torch.manual_seed(0)
    x = drawn(5, 5, 5)
    found = remember(
        nn.Sequential(nn.LayerNorm(5).double()), x, of=lambda m, b: m(b).sum((1, 2))[:, None]
    )
    normed = nn.functional.layer_norm(x, (5,))
    assert_close(found["0"].parts["weight"].values, normed.square().sum((0, 1)) / 5)


# --- rows ---


def sure_network():
    """Trained until it is nearly certain of most examples, and in doubt of a few."""
    torch.manual_seed(0)
    x = drawn(64, 8)
    x[:56] += 4 * torch.eye(8, dtype=torch.float64)[torch.arange(56) % 4]
    y = torch.arange(64) % 4
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).double()
    optimizer = torch.optim.Adam(model.parameters(), 3e-2)
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        model[2].weight.mul_(3)
    return model, x


def assert_same_for_all_batches(model, x, **options):
    whole = remember(model, *x.split(64), **options)
    for size in (1, 8):
        assert_same(remember(model, *x.split(size), **options), whole, 1e-7)
    return whole


def test_a_sure_model_is_remembered_alike_however_it_is_batched():
    model, x = sure_network()
    surest = 1 - model(x).softmax(-1).amax(1)
    assert surest.min() < 1e-5 * surest.max()
    whole = assert_same_for_all_batches(model, x)
    assert_close(dense(whole["0"].inputs), x.T @ x / 64)


class Causal(nn.Module):
    """One head of attention, a table and a reading of every position."""

    def __init__(self, sureness):
        super().__init__()
        torch.manual_seed(0)
        self.sureness = sureness
        self.table, self.out = nn.Embedding(9, 8), nn.Linear(8, 9)
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))
        self.double()

    def forward(self, tokens):
        x = self.table(tokens)
        heads = (part(x)[:, None] for part in (self.q, self.k, self.v))
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        return self.out((x + mixed[:, 0]) * self.sureness)


@pytest.mark.parametrize("sureness", [4, 40])
@pytest.mark.parametrize("of", ["predictions", outputs])
def test_a_causal_model_is_remembered_alike_however_it_is_batched(of, sureness):
    model = Causal(sureness)
    tokens = torch.rand(64, 9, generator=generator()).argsort(1)[:, :5]  # no token twice
    whole = assert_same_for_all_batches(model, tokens, of=of)
    if sureness == 4:  # a first query has nothing to choose from: its gradient is rounding
        seen = model.table(tokens[:, 1:]).detach().flatten(0, 1)
        assert_close(dense(whole["q"].inputs), seen.T @ seen / len(seen))


def test_experts_without_tokens_count_for_nothing():
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.experts = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
            self.head = nn.Linear(4, 3)

        def forward(self, x):
            out = torch.zeros_like(x)
            for number, expert in enumerate(self.experts):
                (mine,) = torch.where((x[:, 0] > 0) == (number == 1))
                mine = mine[:0] if number == 2 else mine
                out = out.index_add(0, mine, expert(x[mine]))
            return self.head(out)

    model, x = Experts().double(), drawn(16, 4)
    x = x[x[:, 0].argsort()]  # so that some batches have tokens of one expert alone
    found = remember(model, *x.split(4))
    assert list(found) == ["experts.0", "experts.1", "head"]
    assert found.uncovered["experts.2.weight"] == "not called on these batches"
    mine = x[x[:, 0] > 0]
    assert_close(dense(found["experts.1"].inputs), mine.T @ mine / len(mine))


# --- sums ---


def test_autocast_does_not_round_the_sums():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 3), nn.LayerNorm(3))
    x = drawn(64, 40).float()
    x = x.bfloat16().float()  # so that the model sees the same inputs under autocast
    for rank in (None, 2):  # in full and by a sketch
        plain = remember(model, x, rank=rank)["0"].inputs
        with torch.autocast("cpu", torch.bfloat16):
            cast = remember(model, x, rank=rank)["0"].inputs
        assert cast.like.dtype == torch.float32
        assert (dense(cast) - dense(plain)).norm() < 1e-5 * dense(plain).norm()


@pytest.mark.parametrize("rank", [1029, 1030, 1031, 1536])
def test_ranks_as_large_as_a_wide_layer_keep_all_of_it(rank):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(1030, 3)), drawn(8, 1030).float()
    found = remember(model, x, rank=rank)["0"].inputs
    assert found.rank == (rank if rank < 1030 else None)
    # Eigenvectors have half precision, a full factor has the model's own.
    assert_close(found.dense(), x.T @ x / 8, torch.float16 if rank < 1030 else None)


# --- without gradients ---


class Without(nn.Module):
    """Its first layer runs without gradients, by itself or in a checkpoint of the old kind."""

    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.then, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.kind = kind

    def forward(self, x):
        if self.kind == "no_grad":
            with torch.no_grad():
                x = self.first(x)
        elif self.kind == "both":
            with torch.no_grad():
                self.first(x)
            x = self.first(x)
        else:
            x = checkpoint(self.first, x, use_reentrant=self.kind == "reentrant")
        return self.head(self.then(x).tanh())


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("of", ["predictions", "features"])
@pytest.mark.parametrize("kind", ["no_grad", "reentrant"])
def test_layers_without_gradients_are_refused(kind, of):
    message = "no gradient reaches the output of layer first: it runs without gradients"
    model = Without(kind).double()
    with pytest.raises(ValueError, match=message):
        remember(model, drawn(8, 4), of=of)
    assert "then" in remember(model, drawn(8, 4), of=of, exempt=["first"])


@pytest.mark.parametrize("kind", ["both", "checkpoint"])
def test_layers_with_and_without_gradients_are_remembered(kind):
    found = remember(Without(kind).double(), drawn(8, 4), of="features")
    assert list(found) == ["first", "then"]
    assert set(found.uncovered.values()) == {"the features do not depend on it"}
