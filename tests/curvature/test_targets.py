"""Where labels stand in all kinds of models, in every dtype and in every wrapping."""

from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.distributed import HashStore, destroy_process_group, init_process_group
from torch.nn.functional import cross_entropy, pad
from torch.nn.parallel import DistributedDataParallel
from transformers import (
    BartConfig,
    BartForCausalLM,
    BertConfig,
    BertForMaskedLM,
    BertForTokenClassification,
    LlamaConfig,
    LlamaForCausalLM,
)

from memory.subjects import VOCABULARY, generator, gpt2, t5
from risegrad.core.undisturbed import uncompiled
from risegrad.curvature.targets import Reader, choose_predict

CE = nn.CrossEntropyLoss()
SMALL = {"vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 24, "num_labels": 5,
         "num_hidden_layers": 1, "num_attention_heads": 2}  # fmt: skip


def predictions(model, batch):
    return Reader(model, batch).rows(model, batch)


def llama():
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SMALL, pad_token_id=None))


def bart():
    sizes = {f"{part}_{name}": 1 if name == "layers" else 2 if "heads" in name else 12
             for part in ("encoder", "decoder")
             for name in ("layers", "attention_heads", "ffn_dim")}  # fmt: skip
    torch.manual_seed(0)
    return BartForCausalLM(BartConfig(vocab_size=VOCABULARY, d_model=8, **sizes))


def bert(kind):
    torch.manual_seed(0)
    return kind(BertConfig(**SMALL))


def tokens(seed=1, classes=VOCABULARY):
    ids = torch.randint(1, VOCABULARY, (3, 7), generator=generator(seed))
    labels = ids % classes
    labels[0, 2:4] = -100
    return {"input_ids": ids, "labels": labels}


@pytest.fixture(scope="module")
def alone():
    """A process group of one."""
    init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    destroy_process_group()


def with_lora(model):
    return get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "q"]))


MODELS = {
    "llama": (llama, 1),
    "gpt2": (gpt2, 1),
    "llama with lora": (lambda: with_lora(llama()), 1),
    "compiled llama with lora": (lambda: torch.compile(with_lora(llama()), backend="eager"), 1),
    "llama in ddp": (lambda: DistributedDataParallel(llama()), 1),
    "bart's decoder": (bart, 0),
    "t5": (t5, 0),
    "t5 with lora in ddp": (lambda: DistributedDataParallel(with_lora(t5())), 0),
    "masked": (lambda: bert(BertForMaskedLM), 0),
    "tokens": (lambda: bert(BertForTokenClassification), 0),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.usefixtures("alone")
def test_labels_stand_where_the_models_own_loss_has_them(name):
    make, shift = MODELS[name]
    model, batch = make().eval(), tokens(classes=5 if name == "tokens" else VOCABULARY)
    with torch.no_grad(), uncompiled():
        found, target = choose_predict(model, batch, CE)(model, batch)
        own, alone = model(**batch), predictions(model, batch)
    aligned = batch["labels"] if not shift else batch["labels"][:, 1:]
    assert torch.equal(target, aligned[aligned != -100])
    expected = own.logits[:, : aligned.shape[1]][aligned != -100]
    assert torch.equal(found, expected)
    assert torch.equal(alone, expected)
    assert float(cross_entropy(found, target)) == pytest.approx(float(own.loss), rel=1e-5)


def test_a_model_that_predicts_nothing_yet_shows_it_as_well():
    """All losses are alike: only what the model does with its labels tells them apart."""
    for make, shift in (llama, 1), (bart, 0):
        model, batch = make().eval(), tokens()
        nn.init.zeros_(model.lm_head.weight)
        target = choose_predict(model, batch, CE)(model, batch)[1]
        aligned = batch["labels"][:, shift:]
        assert torch.equal(target, aligned[aligned != -100])


@pytest.fixture(scope="module")
def trained():
    """A llama that counts upwards, and is sure of it."""
    model = llama()
    ids = (torch.arange(8) + torch.arange(VOCABULARY)[:, None]) % VOCABULARY
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(60):
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
    return model.eval(), {"input_ids": ids, "labels": ids}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_decides_nothing_wrongly_and_refuses_nothing(trained, dtype):
    model, known = trained
    half = llama().eval()
    half.load_state_dict(model.state_dict())
    half.to(dtype)
    with torch.no_grad():
        assert float(half(**known).loss) < 0.1
        for seed in range(60):
            ids = torch.randint(VOCABULARY, (2, 8), generator=generator(seed))
            batch = {"input_ids": ids, "labels": ids}
            predict = choose_predict(half, batch, CE)
            assert torch.equal(predict(half, batch)[1], ids[:, 1:].flatten())
            found, target = predict(half, known)
            assert float(cross_entropy(found.float(), target)) < 0.1


class Silent(nn.Module):
    """A model that computes its loss without torch's cross-entropy, as fused kernels do."""

    def __init__(self, shift, dtype=torch.float32, extra=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.shift, self.extra = nn.Embedding(VOCABULARY, VOCABULARY), shift, extra
        self.dtype = dtype

    def forward(self, input_ids, labels):
        logits = self.table(input_ids).to(self.dtype)
        chances = logits.log_softmax(-1)
        target = pad(labels, (0, 1), value=-100)[:, 1:] if self.shift else labels
        counts = target != -100
        loss = -chances[counts].gather(-1, target[counts][:, None]).mean() + self.extra
        return SimpleNamespace(loss=loss, logits=logits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shift", [0, 1])
def test_a_model_that_does_not_show_its_labels_is_judged_by_its_loss(shift, dtype):
    for seed in range(20):
        model, batch = Silent(shift, dtype), tokens(seed)
        target = choose_predict(model, batch, CE)(model, batch)[1]
        aligned = batch["labels"][:, shift:]
        assert torch.equal(target, aligned[aligned != -100])


def test_what_cannot_be_told_is_refused():
    alike = Silent(1, torch.bfloat16)
    nn.init.zeros_(alike.table.weight)
    for model in alike, Silent(1, extra=0.1):
        with pytest.raises(ValueError, match=r"own loss is .*, CrossEntropyLoss of its .* pass pr"):
            choose_predict(model, tokens(), CE)(model, tokens())


class Balanced(nn.Module):
    """A model whose loss has a second term, as that of experts has."""

    def __init__(self):
        super().__init__()
        self.inner = llama()

    def forward(self, input_ids, labels):
        out = self.inner(input_ids=input_ids, labels=labels)
        return SimpleNamespace(loss=out.loss + 1, logits=out.logits)


def test_a_second_term_of_the_loss_is_no_part_of_the_predictions():
    model, batch = Balanced(), tokens()
    with torch.no_grad():
        found, target = choose_predict(model, batch, CE)(model, batch)
        own = float(model(**batch).loss) - 1
    assert float(cross_entropy(found, target)) == pytest.approx(own, rel=1e-5)
    smooth = nn.CrossEntropyLoss(label_smoothing=0.4)
    with pytest.raises(ValueError, match=r"own loss is .*, CrossEntropyLoss of its logits gives"):
        choose_predict(model, batch, smooth)(model, batch)


@pytest.mark.usefixtures("alone")
def test_in_ddp_too_the_decoder_has_a_mask_of_its_own():
    ids = tokens()["input_ids"]
    mask, own = torch.ones_like(ids), torch.ones_like(ids)
    mask[:, 2:], own[1, 4:] = 0, 0
    batch = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": ids}
    model = t5()
    for wrapped in model, DistributedDataParallel(model):
        assert len(predictions(wrapped, batch)) == 21
        assert len(predictions(wrapped, batch | {"decoder_attention_mask": own})) == 18
        encoded = Reader(wrapped, batch).positions(torch.zeros(3, 7, 8), batch, model.encoder)
        assert len(encoded) == 6


# --- pairs ---


def test_classes_stand_last_or_second_and_ignored_ones_do_not_count():
    drawn = generator(2)
    x, target = torch.randn(4, 5, 6, generator=drawn), torch.randint(5, (4, 6), generator=drawn)
    target[0, :3] = -100
    expected = torch.stack([x[i, :, j] for i in range(4) for j in range(6) if target[i, j] >= 0])
    for model, given in (nn.Identity(), x), (nn.Identity(), x.movedim(1, -1).contiguous()):
        rows, classes = choose_predict(model, (given, target), CE)(model, (given, target))
        assert torch.equal(rows, expected)
        assert torch.equal(classes, target[target >= 0])
        assert torch.equal(predictions(model, (given, target)), expected)


def test_a_square_is_read_as_the_loss_reads_it_or_not_at_all():
    drawn = generator(2)
    x, target = torch.randn(4, 5, 5, generator=drawn), torch.randint(5, (4, 5), generator=drawn)
    model = nn.Identity()
    rows, classes = choose_predict(model, (x, target), CE)(model, (x, target))
    assert float(cross_entropy(rows, classes)) == pytest.approx(float(cross_entropy(x, target)))
    with pytest.raises(ValueError, match=r"which dimension .* \(4, 5, 5\) with a target of shape"):
        predictions(model, (x, target))
