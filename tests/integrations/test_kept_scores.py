"""A task's score against counting by hand: classes second, labels that do not count, dtypes."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

from integrations.old_and_new import OLD, batches, knowing
from risegrad.integrations.forgetting_meter import ForgettingMeter
from risegrad.integrations.kept_scores import KeptTask, Scoring


def by_hand(predictions, targets):
    """Loss and percent, one prediction after the other; classes are last."""
    losses, hits = [], []
    for rows, classes in zip(predictions, targets, strict=True):
        flat = rows.reshape(-1, rows.shape[-1]).double()
        for row, label in zip(flat, classes.flatten(), strict=True):
            if label != -100:
                losses.append(float(cross_entropy(row, label)))
                hits.append(float(row.argmax() == label))
    return sum(losses) / len(losses), 100 * sum(hits) / len(hits)


def scored(model, pairs, **scoring):
    found = KeptTask("old", pairs, Scoring(**scoring)).score(model)
    return found.loss, found.percent


@pytest.mark.parametrize("shape", [(), (6,), (5, 4), (5,)])
def test_classes_second_and_ignored_labels(shape):
    """As torch's own loss takes them: (N, C), (N, C, L), (N, C, H, W), and a square."""
    drawn = torch.Generator().manual_seed(0)
    pairs = []
    for size in (3, 2):
        target = torch.randint(5, (size, *shape), generator=drawn)
        sure = 3 * nn.functional.one_hot(target, 5).movedim(-1, 1)
        logits = torch.randn(size, 5, *shape, generator=drawn) + sure
        target[0] = -100
        target.view(-1)[-1] = (target.view(-1)[-1] + 1) % 5
        pairs.append((logits, target))
    expected = by_hand([x.movedim(1, -1) for x, _ in pairs], [y for _, y in pairs])
    model = Same()
    assert scored(model, pairs) == pytest.approx(expected)
    read = {"predict": lambda m, b: (m(b[0]), b[1])}
    assert scored(model, pairs, **read) == pytest.approx(expected)


class Same(nn.Module):
    """The identity, with a parameter that says where the model is."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return x * self.weight


def test_a_batch_of_which_nothing_counts_counts_for_nothing():
    """Neither first nor later, in pairs and in labels."""
    model, pairs = knowing(), batches(OLD, True)
    silent = (pairs[0][0], torch.full_like(pairs[0][1], -100))
    expected = scored(model, pairs)
    for more in ([silent, *pairs], [*pairs, silent]):
        assert scored(model, more) == expected
        meter = ForgettingMeter(model, {"old": more})
        assert meter.start.scores["old"].loss == expected[0]
    with pytest.raises(ValueError, match="'old' must have a label that counts, got -100 for every"):
        scored(model, [silent])


def test_a_language_model_in_half_precision():
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=20, hidden_size=16, intermediate_size=24, num_hidden_layers=1,
                    num_attention_heads=2, pad_token_id=None)
    ).bfloat16()  # fmt: skip
    ids = torch.randint(20, (3, 9), generator=torch.Generator().manual_seed(1))
    labels = ids.clone()
    labels[:, :4] = -100
    silent = {"input_ids": ids, "labels": torch.full_like(ids, -100)}
    with torch.no_grad():
        logits = model(input_ids=ids).logits.float()
    expected = by_hand([logits[:, :-1]], [labels[:, 1:]])
    found = scored(model, [silent, {"input_ids": ids, "labels": labels}])
    assert found == pytest.approx(expected, rel=1e-5)


def test_accuracy_needs_classes():
    pairs = [(torch.randn(4, 3), torch.eye(3)[[0, 1, 2, 0]].long())]
    with pytest.raises(ValueError, match="metric 'accuracy' needs classes as targets; pass a func"):
        scored(Same(), pairs, loss=lambda p, y: (p - y).square().mean())
