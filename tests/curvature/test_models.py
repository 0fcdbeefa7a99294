"""Networks as people have them: LoRA on T5, a causal model, a vision transformer, an adapter."""

import pytest
import timm
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, T5Config, T5ForConditionalGeneration

from curvature.networks import asymmetry
from references import assert_close
from risegrad.core.shapers import Rise
from risegrad.curvature import Measurement, ProductBudget, diagnose
from risegrad.curvature.objective import Objective
from risegrad.curvature.products import KINDS, NetworkOperator
from risegrad.curvature.space import make_space, trained_parameters

VOCABULARY = 20


def t5(lora: bool = True) -> nn.Module:
    torch.manual_seed(0)
    config = T5Config(vocab_size=VOCABULARY, d_model=8, d_ff=12, d_kv=4, num_layers=1, num_heads=2,
                      feed_forward_proj="gated-gelu", decoder_start_token_id=0)  # fmt: skip
    model = T5ForConditionalGeneration(config)
    if lora:
        model = get_peft_model(model, LoraConfig(r=2, target_modules=["q", "v"], lora_dropout=0.2))
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                nn.init.normal_(parameter, std=0.1)
    return model.double()


def texts(count=2, seed=1):
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        tokens = torch.randint(1, VOCABULARY, (3, 7), generator=generator)
        mask = torch.ones_like(tokens)
        mask[0, 5:] = 0
        labels = torch.randint(1, VOCABULARY, (3, 4), generator=generator)
        labels[0, 2:] = -100
        found.append({"input_ids": tokens, "attention_mask": mask, "labels": labels})
    return found


def images(count=2, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(4, 3, 16, 16, generator=generator, dtype=torch.float64),
             torch.randint(3, (4,), generator=generator)) for _ in range(count)]  # fmt: skip


def vit() -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model(
        "vit_tiny_patch16_224", img_size=16, patch_size=8, embed_dim=12, depth=1, num_heads=3,
        num_classes=3, drop_rate=0.2,
    ).double()  # fmt: skip


class Adapted(nn.Module):
    """A frozen vision transformer with a bottleneck beside its last features."""

    def __init__(self):
        super().__init__()
        self.body = vit().requires_grad_(False)
        self.down, self.up = nn.Linear(12, 2).double(), nn.Linear(2, 12).double()

    def forward(self, x):
        features = self.body.forward_features(x)
        return self.body.forward_head(features + self.up(self.down(features).relu()))


def subject(model, data, kind="hessian"):
    parameters = trained_parameters(model)
    where = make_space(parameters, Rise())
    objective = Objective(model, data)
    return NetworkOperator(objective, where, parameters, kind, columns=2), objective, parameters


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("make", "data"), [(t5, texts), (vit, images), (Adapted, images)])
def test_products_are_symmetric(make, data, kind):
    operator, _, _ = subject(make().train(), data(), kind)
    # T5 takes its norms and softmaxes in float32 even in a float64 model.
    assert asymmetry(operator) < (1e-7 if make is t5 else 1e-12)


@pytest.mark.parametrize(("make", "data"), [(t5, texts), (vit, images), (Adapted, images)])
def test_hessian_products_are_differences_of_gradients(make, data):
    operator, objective, parameters = subject(make(), data())
    where = operator.space
    v = torch.randn(where.d, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    sides = []
    # Float32 inside T5 asks for a wider difference.
    width, tolerance = (1e-3, 1e-3) if make is t5 else (1e-5, 1e-5)
    for sign in (1, -2, 1):
        with torch.no_grad():
            for name, move in zip(where.names, where.tensors(v), strict=True):
                parameters[name].add_(sign * width * move)
        sides.append(objective.gradient(where, parameters))
    expected = (sides[0] - sides[1]) / (2 * width)
    error = (operator @ v - expected).norm() / expected.norm()
    assert error < tolerance


def test_the_loss_is_the_models_own():
    for model in (t5(), t5(lora=False)):
        data = texts(1)
        with torch.no_grad():
            own = model.eval()(**data[0]).loss.item()
        assert Objective(model, data).value() == pytest.approx(own, rel=1e-12)


def test_a_causal_model_is_read_one_place_on():
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=VOCABULARY, n_positions=8, n_embd=8, n_layer=1, n_head=2)
    model = GPT2LMHeadModel(config).double().eval()
    data = [dict.fromkeys(("input_ids", "labels"), batch["input_ids"]) for batch in texts(1)]
    with torch.no_grad():
        own = model(**data[0]).loss.item()
    operator, objective, _ = subject(model, data, "ggn")
    assert objective.value() == pytest.approx(own, rel=1e-6)
    assert asymmetry(operator) < 1e-10


def test_a_loss_that_is_not_the_models_own_is_refused():
    smooth = nn.CrossEntropyLoss(label_smoothing=0.4)
    with pytest.raises(ValueError, match=r"the model's own loss is .*, CrossEntropyLoss of its"):
        Objective(t5(), texts(), smooth)


def test_ignored_labels_do_not_count():
    """Neither in the loss nor in a Fisher: padding the labels changes nothing."""
    model, (batch,) = t5(), texts(1)
    padding = torch.full((3, 2), -100)
    padded = batch | {"labels": torch.cat([batch["labels"], padding], dim=1)}
    v = torch.ones(subject(model, [batch])[0].space.d, dtype=torch.float64)
    for kind in ("ggn", "empirical-fisher"):
        plain, wide = (subject(model, [b], kind)[0] @ v for b in (batch, padded))
        assert (plain - wide).abs().max() < 1e-10 * plain.abs().max()


def test_another_form_through_predict():
    model = vit()
    pairs = images()
    listed = [[x, x, y] for x, y in pairs]
    found = Objective(model, listed, predict=lambda m, b: (m(b[0]), b[2]))
    assert_close(torch.tensor(found.value()), torch.tensor(Objective(model, pairs).value()))


def test_a_diagnosis_of_lora_t5():
    model = t5()
    found = diagnose(
        model, texts(2), texts(1, seed=5), rise=Rise(q=4), step=0.01,
        measurement=Measurement(budget=ProductBudget(probes=16)),
    )  # fmt: skip
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    assert [block.name for block in found.blocks] == names
    assert found.totals.fo.value > 0
    assert found.totals.rise.value > 0
    own = [rule.products for rule in found.rules]  # what rules cost beyond what all share
    assert max(own) <= 4
    assert found.products - sum(own) == len(names) + found.probes + 1


def test_an_untrained_lora_has_blocks_without_gradient():
    model = get_peft_model(t5(lora=False), LoraConfig(r=2, target_modules=["q"])).double()
    found = diagnose(
        model,
        texts(1),
        texts(1, seed=5),
        measurement=Measurement(budget=ProductBudget(probes=8)),
    )
    still = {block.name for block in found.blocks if block.lambda_dir is None}
    assert still == {block.name for block in found.blocks if "lora_A" in block.name}
