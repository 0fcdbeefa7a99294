"""``diagnose`` of transformers' models, with and without peft: their own loss, nothing changed."""

from typing import Any

import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model

from risegrad import Rise
from risegrad.curvature import Measurement, ProductBudget, diagnose

HOW = Measurement(budget=ProductBudget(probes=8), dampings=(0.3,), seed=3)
SIZES = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 20}


def network(lora: bool) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = transformers.BertConfig(**SIZES, intermediate_size=16, num_labels=3)
        made: Any = transformers.BertForSequenceClassification(config)
        if not lora:
            return made
        how = LoraConfig(r=2, target_modules=["query", "value"], task_type="SEQ_CLS")
        return get_peft_model(made, how)


def batches(seed: int, shift: int = 0) -> list[dict[str, torch.Tensor]]:
    """Two batches of texts of one length."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(20, (8, 5), generator=generator)
    labels = torch.randint(3, (8,), generator=generator) + shift
    pairs = zip(words.split(4), labels.split(4), strict=True)
    return [{"input_ids": w, "labels": y} for w, y in pairs]


@pytest.mark.parametrize("lora", [False, True])
def test_losses_are_the_models_own_and_nothing_changes(lora: bool) -> None:
    model = network(lora).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random, rise = torch.get_rng_state(), Rise(exempt=("*classifier*",))
    found = diagnose(model, batches(5), batches(6), rise=rise, measurement=HOW)
    assert torch.equal(torch.get_rng_state(), random)
    assert model.training
    assert all(torch.equal(before[name], v) for name, v in model.state_dict().items())
    assert any("lora" in block.name for block in found.blocks) == lora
    torch.rand(3)
    again = diagnose(model, batches(5), batches(6), rise=rise, measurement=HOW)
    assert found.to_dict() == again.to_dict(), "whatever was drawn in between"
    model.eval()
    losses = [sum(model(**b).loss.item() for b in batches(seed)) / 2 for seed in (5, 6)]
    assert [found.historical_loss, found.incoming_loss] == pytest.approx(losses, rel=1e-5)


def test_the_flags_of_gradient_checkpointing_change_nothing() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = transformers.LlamaConfig(**SIZES, intermediate_size=16)
        plain: Any = transformers.LlamaForCausalLM(config)
        lora = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
        model: Any = get_peft_model(plain, lora)
        for parameter in model.parameters():  # LoRA's B too, so that A has a gradient
            if parameter.requires_grad:
                torch.nn.init.normal_(parameter, std=0.1)
    old, new = ([dict.fromkeys(b, b["input_ids"]) for b in batches(seed)] for seed in (2, 1))
    bare = diagnose(model, old, new, measurement=HOW)
    model.enable_input_require_grads()
    flagged = diagnose(model, old, new, measurement=HOW)
    assert flagged.totals is not None
    assert bare.totals is not None
    assert flagged.totals.fo.value == pytest.approx(bare.totals.fo.value, rel=1e-6)
    assert flagged.totals.fo.value > 0
