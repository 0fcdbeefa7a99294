"""Which positions of a batch count, and which dimension holds the classes."""

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertModel, T5Config, T5EncoderModel

import risegrad
from memory.subjects import VOCABULARY, generator, gpt2, network, t5, texts, vectors
from memory.test_remember import assert_same
from risegrad.curvature.objective import Objective
from risegrad.curvature.targets import choose_predict


def remember(model, *batches, **options):
    return risegrad.remember(model, list(batches), **({"examples": None} | options))


def counted(model, *batches, **options):
    return remember(model, *batches, **options).source["predictions"]


def padded(length=6, real=2):
    tokens = torch.randint(1, VOCABULARY, (4, length), generator=generator())
    mask = torch.ones_like(tokens)
    mask[:, real:] = 0
    return {"input_ids": tokens, "attention_mask": mask}


# --- padding ---


@pytest.mark.parametrize("of", ["features", "encoder"])
def test_padding_does_not_count_in_pairs_and_lists_of_one(of):
    config = BertConfig(vocab_size=VOCABULARY, hidden_size=8, num_hidden_layers=1,
                        num_attention_heads=2, intermediate_size=12)  # fmt: skip
    torch.manual_seed(0)
    model, batch = BertModel(config, add_pooling_layer=False).double(), padded()
    expected = remember(model, batch, of=of)
    assert expected.source["predictions"] == 8
    for form in ((batch, torch.zeros(4).long()), (batch,)):
        assert_same(remember(model, form, of=of), expected)


def test_a_list_of_one_mapping_is_the_mapping():
    batch = {"input_ids": texts()[0]["input_ids"], "labels": texts()[0]["input_ids"]}
    for of in ("predictions", "features"):
        assert_same(remember(gpt2(), (batch,), of=of), remember(gpt2(), batch, of=of))
        assert counted(gpt2(), (batch,), of=of) == 18  # the last position predicts nothing


@pytest.mark.parametrize("of", ["predictions", "features", "decoder.final_layer_norm"])
def test_a_decoder_has_a_mask_of_its_own(of):
    model, answer = t5(), padded(6, 6)["input_ids"]
    for mask, count in ((None, 24), (padded(6, 4)["attention_mask"], 16)):
        batch = padded() | {"decoder_input_ids": answer}
        if mask is not None:
            batch |= {"decoder_attention_mask": mask}
        assert counted(model, batch, of=of) == count
    assert counted(model, batch, of="encoder") == 8


def test_an_encoder_that_was_taken_out_has_the_encoders_mask():
    torch.manual_seed(0)
    config = T5Config(vocab_size=VOCABULARY, d_model=8, d_ff=12, d_kv=4, num_layers=1, num_heads=2)
    assert counted(T5EncoderModel(config).double(), padded(), of="features") == 8


# --- labels that do not count ---


@pytest.mark.parametrize("of", ["predictions", "features"])
def test_a_first_batch_without_labels_does_not_decide_where_labels_stand(of):
    model = gpt2()
    silent, telling = ({"input_ids": b["input_ids"], "labels": b["input_ids"].clone()}
                       for b in texts())  # fmt: skip
    silent["labels"][:] = -100
    found = remember(model, silent, telling, of=of)
    assert (found.source["examples"], found.source["predictions"]) == (6, 18)
    assert_same(found, remember(model, telling, silent, of=of))
    with pytest.raises(ValueError, match="no position counts in these batches: every label is -10"):
        remember(model, silent, of=of)


def test_a_batch_of_which_nothing_counts_gives_nothing_and_decides_nothing():
    tokens = texts()[0]["input_ids"]
    silent, telling = ({"input_ids": tokens, "labels": labels}
                       for labels in (torch.full((3, 7), -100), tokens))  # fmt: skip
    model = gpt2()
    predict = choose_predict(model, silent, nn.CrossEntropyLoss())
    assert [len(part) for part in predict(model, silent)] == [0, 0]
    assert torch.equal(predict(model, telling)[1], tokens[:, 1:].flatten())
    with pytest.raises(ValueError, match="batches must each have a label other than -100"):
        Objective(model, [telling, silent])


# --- classes ---


IMAGES = torch.randn(4, 3, 6, 6, generator=generator(), dtype=torch.float64)


def segmenting():
    torch.manual_seed(0)
    return nn.Conv2d(3, 5, 1).double()


AXES = [
    (IMAGES, r"got shape \(4, 5, 6, 6\) with no target: give a target of shape \(4, 6, 6\) or"),
    ((IMAGES, torch.zeros(4, 1, 6, 6).long()), r"with a target of shape \(4, 1, 6, 6\): give"),
    ((IMAGES, torch.zeros(4).long()), r"with a target of shape \(4,\): give"),
]


@pytest.mark.parametrize(("batch", "message"), AXES)
def test_classes_of_images_are_not_guessed(batch, message):
    with pytest.raises(
        ValueError, match="a target must tell which dimension of a pred.*" + message
    ):
        remember(segmenting(), batch)
    assert counted(segmenting(), batch, of=lambda m, b: m(IMAGES)) == 4
    first = batch[0] if isinstance(batch, tuple) else batch
    rows = remember(segmenting(), batch, predict=lambda m, _: m(first).movedim(1, -1).flatten(0, 2))
    assert rows.source["predictions"] == 4 * 36


X = vectors((16,))[0][0]
OTHER = [torch.randn(16, 3), torch.ones(16, 3), torch.ones(16, 3).long(), torch.randn(16),
         torch.randn(16, 1)]  # fmt: skip


@pytest.mark.parametrize("target", OTHER)
def test_numbers_and_several_labels_are_no_classes(target):
    with pytest.raises(ValueError, match=r"one class among several: a target must have .* to keep"):
        remember(network(), (X, target))
    assert counted(network(), (X, target), of=lambda m, b: m(b[0])) == 16
    assert counted(network(), (X, target), of="features") == 16


def test_probabilities_of_classes_are_fine():
    expected = remember(network(), X)
    soft = torch.randn(16, 3, generator=generator()).softmax(-1)
    assert_same(remember(network(), (X, soft)), expected)
    hard = nn.functional.one_hot(torch.arange(16) % 3, 3)
    assert_same(remember(network(), (X, hard)), expected)
    images = torch.randn(4, 5, 6, 6, generator=generator()).softmax(1)
    found = remember(segmenting(), (IMAGES, images))
    assert_same(found, remember(segmenting(), (IMAGES, images.argmax(1))))
