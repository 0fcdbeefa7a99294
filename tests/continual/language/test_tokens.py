"""Token arrays, their limits, and the cache on disk."""

import pytest
import torch
from safetensors.torch import save_file

from risegrad.common.atomic_files import cache_folder
from risegrad.continual.batch_plan import epoch_batches
from risegrad.continual.language.prompt_tokens import Limit, tokenized
from risegrad.continual.language.text_batches import Answered, TextItems

TEXTS = ["one two three", "red", "four five six seven good bad"]


class Counting:
    """A tokenizer that counts its calls."""

    def __init__(self, tokenizer):
        self.tokenizer, self.calls = tokenizer, 0
        self.backend_tokenizer = tokenizer.backend_tokenizer

    def __call__(self, *args, **kwargs):
        self.calls += 1
        return self.tokenizer(*args, **kwargs)


def test_tokens_are_those_of_the_tokenizer(tokenizer):
    found = tokenized(tokenizer, TEXTS, Limit(100), None)
    assert [found[i].tolist() for i in range(3)] == tokenizer(TEXTS)["input_ids"]
    assert found.lengths() == [4, 2, 7]


def test_the_end_mark_stays_where_a_text_is_cut(tokenizer):
    found = tokenized(tokenizer, TEXTS, Limit(4, tail=1), None)
    whole = tokenizer(TEXTS[2])["input_ids"]
    assert found[2].tolist() == [*whole[:3], tokenizer.eos_token_id]


def test_cache_is_used_and_named_by_content(tokenizer, tmp_path):
    counting = Counting(tokenizer)
    first = tokenized(counting, TEXTS, Limit(100), tmp_path)
    again = tokenized(counting, TEXTS, Limit(100), tmp_path)
    assert counting.calls == 1
    assert torch.equal(first.ids, again.ids)
    assert torch.equal(first.offsets, again.offsets)
    tokenized(counting, [*TEXTS[:2], TEXTS[2] + "!"], Limit(100), tmp_path)
    tokenized(counting, TEXTS, Limit(5), tmp_path)
    tokenized(counting, ["one two", "three red", TEXTS[2]], Limit(100), tmp_path)
    assert counting.calls == 4
    assert {path.suffix for path in tmp_path.iterdir()} == {".safetensors"}


@pytest.mark.parametrize("damage", [b"", b"nonsense", None])
def test_a_damaged_file_is_made_anew(tokenizer, tmp_path, damage):
    first = tokenized(tokenizer, TEXTS, Limit(100), tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-4] if damage is None else damage)
    with pytest.warns(UserWarning, match="of the token cache is damaged, made anew"):
        again = tokenized(tokenizer, TEXTS, Limit(100), tmp_path)
    assert torch.equal(first.ids, again.ids)
    assert torch.equal(tokenized(tokenizer, TEXTS, Limit(100), tmp_path).ids, first.ids)


def test_offsets_that_go_back_are_damage(tokenizer, tmp_path):
    first = tokenized(tokenizer, TEXTS, Limit(100), tmp_path)
    (path,) = tmp_path.iterdir()
    save_file({"ids": first.ids, "offsets": first.offsets[[0, 2, 1, 3]]}, path)
    with pytest.warns(UserWarning, match=r"damaged, made anew \(sizes do not agree\)"):
        tokenized(tokenizer, TEXTS, Limit(100), tmp_path)


def test_no_texts_are_kept_too(tokenizer, tmp_path, recwarn):
    for _ in range(2):
        assert len(tokenized(tokenizer, [], Limit(100), tmp_path)) == 0
    assert not recwarn.list


def test_a_folder_that_cannot_be_written(tokenizer, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with pytest.warns(UserWarning, match=r"tokens are not kept in .*file"):
        found = tokenized(tokenizer, TEXTS, Limit(100), blocked)
    assert found.lengths() == [4, 2, 7]


def test_where_the_cache_lies(monkeypatch, tmp_path):
    assert cache_folder("tokens") == tmp_path / "cache" / "tokens"
    monkeypatch.setenv("RISEGRAD_CACHE", "none")
    assert cache_folder("tokens") is None
    monkeypatch.delenv("RISEGRAD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder("tokens") == tmp_path / "risegrad" / "tokens"


@pytest.mark.parametrize("kind", ["seq2seq", "decoder"])
def test_batches_are_padded_to_their_longest(tokenizer, kind):
    prompts = tokenized(tokenizer, TEXTS, Limit(100), None)
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
