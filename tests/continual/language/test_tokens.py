"""Token arrays, their limits, and the batches made of them."""

import pytest
import torch

from riselab.continual.batches import epoch_batches
from riselab.continual.language.batches import Answered, Limit, TextItems, tokenized

TEXTS = ["one two three", "red", "four five six seven good bad"]


def test_tokens_are_those_of_the_tokenizer(tokenizer):
    found = tokenized(tokenizer, TEXTS, Limit(100))
    assert [found[i].tolist() for i in range(3)] == tokenizer(TEXTS)["input_ids"]
    assert found.lengths() == [4, 2, 7]


def test_the_end_mark_stays_where_a_text_is_cut(tokenizer):
    found = tokenized(tokenizer, TEXTS, Limit(4, tail=1))
    whole = tokenizer(TEXTS[2])["input_ids"]
    assert found[2].tolist() == [*whole[:3], tokenizer.eos_token_id]


def test_no_texts(tokenizer):
    assert len(tokenized(tokenizer, [], Limit(100))) == 0


@pytest.mark.parametrize("kind", ["seq2seq", "decoder"])
def test_batches_are_padded_to_their_longest(tokenizer, kind):
    prompts = tokenized(tokenizer, TEXTS, Limit(100))
    written = (torch.tensor([8, 9, 1]), torch.tensor([7, 1]))
    items = TextItems(kind, {2: Answered(prompts, (0, 1, 1), written, (0, 1, 1))}, pad=0)
    batch = items.fetch([(2, 0), (2, 1)], 0)
    if kind == "seq2seq":
        assert batch.source.shape == (2, 4)
        assert batch.targets.tolist() == [[8, 9, 1], [7, 1, -100]]
        assert batch.mask.tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    else:
        assert batch.source.shape == (2, 7)
        assert batch.targets.tolist() == [[-100] * 4 + [8, 9, 1], [-100, -100, 7, 1] + [-100] * 3]
    assert len(items.fetch([], 0)) == 0


def test_buckets_hold_every_example_once_and_pad_less():
    lengths = torch.randint(5, 100, (203,), generator=torch.Generator().manual_seed(0)).tolist()
    arguments = {"seed": 3, "task": 1, "epoch": 0}
    plan = epoch_batches(203, 8, **arguments, lengths=lengths)
    plain = epoch_batches(203, 8, **arguments)
    assert plan == epoch_batches(203, 8, **arguments, lengths=lengths)
    assert plan != epoch_batches(203, 8, seed=3, task=1, epoch=1, lengths=lengths)
    assert sorted(ref for batch in plan for ref in batch) == [(1, i) for i in range(203)]
    assert sorted(map(len, plan)) == [3] + [8] * 25

    def padding(batches):
        return sum(max(lengths[i] for _, i in b) * len(b) for b in batches) - sum(lengths)

    assert padding(plan) < 0.5 * padding(plain)
