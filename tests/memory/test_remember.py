"""What is gathered, against loops and exact Fisher matrices."""

import copy
import threading
import time

import pytest
import torch
from peft import LoraConfig
from torch import nn
from torch.utils.checkpoint import checkpoint

import risegrad
from memory.subjects import (
    bert,
    dense,
    generator,
    gpt2,
    network,
    single_output_moments,
    t5,
    texts,
    vectors,
    with_lora,
)
from references import STANDARD_ERRORS, assert_close
from risegrad.memory import remembering as remembering_shown
from risegrad.memory.layers import all_layers, named_parameters, role_of
from risegrad.memory.moments import GatheredMoments, RandomColumns, sides_of
from risegrad.memory.remembering import SMALL
from riselab.continual.language.lora import add_lora
from riselab.continual.vision.models import Adapter

ATTENTION = "encoder.block.0.layer.0.SelfAttention."


def remember(model, batches, **options):
    return risegrad.remember(model, batches, **({"examples": None} | options))


def assert_same(one, other, tolerance=1e-9):
    assert list(one) == list(other)
    for name in one:
        for part in one[name].parts:
            a, b = dense(one[name].parts[part]), dense(other[name].parts[part])
            assert (a - b).abs().max() <= tolerance * b.abs().max(), (name, part)


def test_factors_are_the_means_over_a_loop():
    model = network(outputs=1)
    memory = remember(model, vectors(), of="features")
    inputs = torch.cat([x for x, _ in vectors()])
    # The features are the head's input: the whole output is asked for by a function.
    whole = remember(model, vectors(), of=lambda m, batch: m(batch[0]))
    for index in ("0", "2"):
        s, d = single_output_moments(model, model[int(index)], inputs)
        assert_close(dense(whole[index].inputs), s)
        assert_close(dense(whole[index].outputs), d)
    assert list(memory) == ["0"]
    assert memory.uncovered == dict.fromkeys(
        ["2.weight", "2.bias"], "the features do not depend on it"
    )
    assert whole.source["examples"] == whole["0"].examples == 10


def test_one_input_gives_the_exact_fisher():
    """For a single layer and one input the Fisher *is* a Kronecker product."""
    torch.manual_seed(0)
    model = nn.Linear(3, 4).double()
    x = torch.randn(1, 3, generator=generator(), dtype=torch.float64)
    count = 20_000
    memory = remember(model, [x.expand(count, 3)])
    kept = memory[""]
    p = model(x)[0].softmax(-1).detach()
    assert_close(dense(kept.inputs), torch.outer(x[0], x[0]))
    exact = p.diag() - torch.outer(p, p)
    error = (p.max() / count) ** 0.5
    assert (dense(kept.outputs) - exact).abs().max() < STANDARD_ERRORS * error
    jacobian = torch.kron(torch.eye(4, dtype=torch.float64), x)  # of the logits by W, row by row
    fisher = jacobian.T @ exact @ jacobian
    kron = torch.kron(dense(kept.outputs), dense(kept.inputs))
    assert (kron - fisher).abs().max() < STANDARD_ERRORS * error * float(x.square().max())


def test_features_give_the_gauss_newton_matrix():
    torch.manual_seed(0)
    model = nn.Linear(3, 4).double()
    x = torch.randn(1, 3, generator=generator(), dtype=torch.float64)
    kept = remember(model, [x.expand(10_000, 3)], of=lambda m, b: m(b))[""]
    assert (dense(kept.outputs) - torch.eye(4)).abs().max() < STANDARD_ERRORS / 100


def test_the_predicted_damage_is_the_divergence():
    """``tr(D dW S dW')/2`` against the true KL of a small change, in nats per prediction."""
    torch.manual_seed(0)
    model = nn.Linear(3, 4).double()
    x = torch.randn(1, 3, generator=generator(), dtype=torch.float64).expand(20_000, 3)
    memory = remember(model, [x])
    before, then = memory.anchor(model), model(x[:1]).detach().log_softmax(-1)
    with torch.no_grad():
        model.weight += 0.01 * torch.randn(4, 3, generator=generator(4), dtype=torch.float64)
    now = model(x[:1]).detach().log_softmax(-1)
    divergence = float((then.exp() * (then - now)).sum())
    assert memory.damage(before, model)[""] == pytest.approx(divergence, rel=0.05)


def test_tokens_and_layers_called_twice_are_rows():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.same = nn.Linear(4, 4).double()

        def forward(self, x):
            return self.same(self.same(x).tanh()).sum((1, 2), keepdim=True)[:, 0]

    torch.manual_seed(0)
    model = Twice()
    x = torch.randn(5, 3, 4, generator=generator(), dtype=torch.float64)
    kept = remember(model, [x], of=lambda m, b: m(b))["same"]
    s = d = 0
    for example in x:
        first = model.same(example)
        middle = first.tanh()
        second = model.same(middle)
        grads = torch.autograd.grad(second.sum(), (first, second))
        s = s + example.T @ example + middle.T @ middle
        d = d + grads[0].T @ grads[0] + grads[1].T @ grads[1]
    assert_close(dense(kept.inputs), (s / 30).detach())
    assert_close(dense(kept.outputs), (d / 5).detach())


@pytest.mark.parametrize(
    "options",
    [{}, {"stride": 2, "padding": 1}, {"padding": "same"},
     {"padding": 1, "padding_mode": "circular"}, {"dilation": 2}],
)  # fmt: skip
def test_convolutions_are_linear_maps_of_patches(options):
    torch.manual_seed(0)
    conv = nn.Conv2d(2, 3, 3, **options).double()
    x = torch.randn(4, 2, 6, 6, generator=generator(), dtype=torch.float64)
    kept = remember(nn.Sequential(conv), [x], of=lambda m, b: m(b).square().sum((1, 2, 3))[:, None])
    patches = []
    for index in range(18):  # a filter that picks one input of the patch shows which that is
        one = torch.zeros(18, dtype=torch.float64)
        one[index] = 1
        picked = copy.deepcopy(conv)
        picked.weight.data, picked.bias.data = one.view(1, 2, 3, 3), torch.zeros(1).double()
        patches.append(picked(x).detach().flatten())
    rows = torch.stack(patches, 1)
    gradient = 2 * conv(x).detach().movedim(1, -1).flatten(0, -2)
    assert_close(dense(kept["0"].inputs), rows.T @ rows / len(rows))
    assert_close(dense(kept["0"].outputs), gradient.T @ gradient / 4)


def test_norms_and_embeddings_by_their_diagonals():
    class Small(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.norm = nn.Embedding(6, 4).double(), nn.LayerNorm(4).double()

        def forward(self, tokens):
            return (self.norm(self.table(tokens)) ** 3).sum((1, 2))[:, None]

    torch.manual_seed(0)
    model = Small()
    nn.init.normal_(model.norm.weight)
    tokens = torch.randint(5, (7, 3), generator=generator())
    memory = remember(model, [tokens], of=lambda m, b: m(b))
    states = model.table(tokens)
    normed = nn.functional.layer_norm(states, (4,))
    out = normed * model.norm.weight + model.norm.bias
    to_states, to_out = torch.autograd.grad((out**3).sum(), (states, out))
    assert_close(
        memory["norm"].parts["weight"].values, (to_out * normed).square().sum((0, 1)).detach() / 7
    )
    assert_close(memory["norm"].parts["bias"].values, to_out.square().sum((0, 1)) / 7)
    counts = torch.bincount(tokens.flatten(), minlength=6).double()
    assert_close(memory["table"].inputs.values, counts / 21)
    rows = to_states.flatten(0, 1)
    assert_close(dense(memory["table"].outputs), rows.T @ rows / 7)


def test_a_norm_that_scales_by_one_plus_its_weight():
    class ShiftedNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.full((4,), 0.5).double())

        def forward(self, x):
            return x / x.norm(dim=-1, keepdim=True) * (1 + self.weight)

    x = torch.randn(5, 4, generator=generator(), dtype=torch.float64)
    memory = remember(nn.Sequential(ShiftedNorm()), [x], of=lambda m, b: m(b).sum(1, keepdim=True))
    expected = (x / x.norm(dim=-1, keepdim=True)).square().mean(0)
    assert_close(memory["0"].parts["weight"].values, expected)


def test_batch_norm_uses_its_running_statistics():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3)).double().train()
    x = torch.randn(4, 2, 5, 5, generator=generator(), dtype=torch.float64)
    memory = remember(model, [x], of=lambda m, b: m(b).sum((1, 2, 3))[:, None])
    normed = model[0](x).detach() / (1 + model[1].eps) ** 0.5
    assert_close(memory["1"].parts["weight"].values, normed.square().sum((0, 2, 3)) / 4)
    assert int(model[1].num_batches_tracked) == 0


def test_padding_and_ignored_labels_do_not_count():
    model = t5()
    padded = []
    for batch in texts():
        wide = {k: nn.functional.pad(v, (0, 2), value=0) for k, v in batch.items()}
        wide["labels"] = nn.functional.pad(batch["labels"], (0, 3), value=-100)
        padded.append(wide)
    # T5 takes its softmaxes in float32 even in a float64 model.
    assert_same(remember(model, texts()), remember(model, padded), 1e-5)
    seen = remember(model, texts()).source
    assert (seen["examples"], seen["predictions"]) == (6, 20)


def test_a_module_counts_where_its_predictions_do():
    """What the head is given, by name or as "features": the same tokens count."""
    model = gpt2()
    rows = [b["input_ids"].masked_fill(b["attention_mask"] == 0, -100) for b in texts()]
    asked = [{"input_ids": b["input_ids"], "labels": r} for b, r in zip(texts(), rows, strict=True)]
    for batch in asked:
        batch["labels"][:, :3] = -100  # a question, of which nothing is predicted
    named = remember(model, asked, of="transformer.ln_f")
    assert_same(named, remember(model, asked, of="features"))


def test_an_encoder_counts_its_own_tokens():
    """Also where the answers happen to be as long as the inputs."""
    model = t5()
    wide = [b | {"labels": nn.functional.pad(b["labels"], (0, 3), value=-100)} for b in texts()]
    expected = remember(model, texts(), of="encoder")
    assert expected.source["predictions"] == 38
    assert_same(remember(model, wide, of="encoder"), expected)


def test_labels_are_not_needed():
    """Only where they stand counts, not what they are."""
    model = bert()
    plain = [{k: v for k, v in b.items() if k != "labels"} for b in texts()]
    labelled = [b | {"labels": torch.zeros(3).long()} for b in plain]
    assert_same(remember(model, plain), remember(model, labelled))
    tokens = [{"input_ids": b["input_ids"]} for b in texts()]
    assert remember(gpt2(), tokens).source["predictions"] == 42
    masked = [{k: b[k] for k in ("input_ids", "attention_mask")} for b in texts()]
    assert remember(gpt2(), masked).source["predictions"] == 38


def test_all_forms_of_batches_agree():
    model, pairs = network(), vectors()
    expected = remember(model, pairs)
    assert_same(remember(model, [x for x, _ in pairs]), expected)
    assert_same(remember(model, [[x, y] for x, y in pairs]), expected)
    assert_same(remember(model, [[x] for x, _ in pairs]), expected)
    named = [{"x": x} for x, _ in pairs]
    assert_same(remember(model, named, predict=lambda m, b: m(b["x"])), expected)
    ignoring = [(x, torch.full_like(y, -100)) for x, y in pairs[:1]] + pairs[1:]
    assert remember(model, ignoring).source["predictions"] == 4


def test_classes_of_images_are_where_the_loss_looks_for_them():
    """``(examples, classes, height, width)``, as ``cross_entropy`` takes it."""
    torch.manual_seed(0)
    model = nn.Conv2d(2, 3, 1).double()
    x = torch.randn(4, 2, 5, 6, generator=generator(), dtype=torch.float64)
    y = torch.zeros(4, 5, 6).long()
    y[0] = -100
    found = remember(model, [(x, y)])
    assert found.source["predictions"] == 3 * 5 * 6
    last = remember(model, [(x, y)], predict=lambda m, b: (m(b[0]).movedim(1, -1), b[1]))
    assert_same(found, last)


def test_examples_are_counted_and_the_last_batch_is_cut():
    seen = []
    found = risegrad.remember(
        network(), vectors((6, 4)), examples=8, progress=lambda *at: seen.append(at)
    )
    assert found.source["examples"] == 8
    assert seen == [(6, 8), (8, 8)]
    (x, y), (x2, y2) = vectors((6, 4))
    assert_same(found, remember(network(), [(x, y), (x2[:2], y2[:2])]))


@pytest.mark.parametrize("options", [{}, {"examples": 11}])
def test_fewer_examples_than_asked_for_are_used(options):
    found = risegrad.remember(network(), vectors(), **options)
    assert found == remember(network(), vectors())


def test_what_cannot_be_remembered_is_said_after_the_first_batch():
    class Still(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.head = nn.Linear(4, 4).double(), nn.Linear(4, 3).double()

        def forward(self, x):
            with torch.no_grad():
                x = self.inner(x)
            return self.head(x)

    seen = []
    with pytest.raises(ValueError, match="layer inner: it runs without gradients"):
        remember(Still(), vectors(), progress=lambda *at: seen.append(at))
    assert not seen


def test_threads_take_turns():
    model, expected = network(), remember(network(), vectors())
    inside, found, errors = [], [], []

    def predict(m, batch):
        inside.append(threading.get_ident())
        time.sleep(0.05)  # long enough for another thread to come in
        if len({*inside}) > 1:
            errors.append("two threads at once")
        made = m(batch[0]), batch[1]
        inside.pop()
        return made

    def work():
        found.append(remember(model, vectors(), predict=predict))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert [memory == expected for memory in found] == [True] * 3


def test_progress_is_shown_where_it_takes_long(monkeypatch, capsys):
    def slow(m, batch):
        time.sleep(0.05)
        return m(batch[0]), batch[1]

    remember(network(), vectors(), predict=slow)
    assert capsys.readouterr().err == ""  # short, and no terminal
    monkeypatch.setattr(remembering_shown, "LATE", 0.01)
    remember(network(), vectors(), predict=slow, progress=False)
    assert capsys.readouterr().err == ""
    remember(network(), vectors(), predict=slow, examples=10)
    assert "remember" in (shown := capsys.readouterr().err)
    assert "10/10" in shown


class Words:
    """As much of a tokenizer as texts need."""

    eos_token, eos_token_id, pad_token_id, model_max_length = "<eos>", 0, 0, 8

    def __call__(self, text, **_):
        return {"input_ids": [len(word) for word in text.split()]}


def test_texts_with_a_tokenizer():
    found = risegrad.remember(gpt2(), ["one two three", "four fives"] * 4, tokenizer=Words())
    assert found.source["examples"] == 8
    assert found.source["predictions"] == 4 * (2 + 1)
    with pytest.raises(TypeError, match="there is no tokenizer: pass tokenizer="):
        risegrad.remember(gpt2(), ["one two three"])


def test_the_seed_decides_the_draws():
    model = network()
    assert remember(model, vectors()) == remember(model, vectors())
    assert remember(model, vectors()) != remember(model, vectors(), seed=1)


def test_one_memory_for_plain_adapted_frozen_and_merged():
    plain = remember(t5(), texts(), layers=["*.q", "*.v"])
    assert ATTENTION + "q" in plain
    fresh = with_lora(t5(), ["q", "v"], filled=False)
    assert_same(remember(fresh, texts()), plain)
    frozen = t5().requires_grad_(False)
    assert_same(remember(frozen, texts(), layers=["*.q", "*.v"]), plain)
    trained = with_lora(t5(), ["q", "v"])
    found = remember(trained, texts())
    assert (dense(found[ATTENTION + "q"].outputs) - dense(plain[ATTENTION + "q"].outputs)).any()
    merged = trained.merge_and_unload()
    assert_same(remember(merged, texts(), layers=["*.q", "*.v"]), found, 1e-5)


def scores(model, batch):
    return model(batch["input_ids"], batch["attention_mask"]).logits


def test_a_frozen_model_is_remembered_whole():
    frozen = remember(network().requires_grad_(False), vectors())
    assert_same(frozen, remember(network(), vectors()))
    with_norms = remember(bert().requires_grad_(False), texts(), predict=scores)
    assert_same(with_norms, remember(bert(), texts(), predict=scores))
    assert {layer.kind for layer in with_norms.values()} == {"linear", "embedding", "norm"}


def test_trained_heads_that_peft_saves_have_their_own_name():
    plain = bert()
    adapted = with_lora(bert(), ["query"], modules_to_save=["classifier"])
    batches = [{k: b[k] for k in ("input_ids", "attention_mask")} for b in texts()]
    found = remember(adapted, batches)
    assert set(found) == {"bert.encoder.layer.0.attention.self.query", "classifier"}
    assert set(found) <= set(all_layers(plain))
    found.check_fits(plain)


def test_of_several_adapters_the_one_in_use_is_remembered():
    adapted = with_lora(bert(), ["query"], modules_to_save=["classifier"])
    batches = [{k: b[k] for k in ("input_ids", "attention_mask")} for b in texts()]
    expected = remember(adapted, batches)
    adapted.add_adapter("new", LoraConfig(r=3, target_modules=["query"],
                                          modules_to_save=["classifier"]))  # fmt: skip
    adapted.double()
    assert_same(remember(adapted, batches), expected)
    adapted.set_adapter("new")
    optimizer = torch.optim.SGD(adapted.parameters(), lr=0.1)
    shaper = risegrad.Informed(expected, strict=True)
    handle = risegrad.attach(optimizer, shaper, adapted.named_parameters())
    assert "not covered" not in str(handle)


def test_features_are_what_the_head_is_given():
    model, batches = bert(), [{"input_ids": b["input_ids"]} for b in texts()]
    by_name = remember(model, batches, of="bert.pooler")
    assert_same(remember(model, batches, of="features"), by_name)
    assert "classifier" not in by_name
    labelled = [dict.fromkeys(("input_ids", "labels"), b["input_ids"]) for b in texts()]
    causal = remember(gpt2(), labelled, of="features")
    assert causal.source["predictions"] == 36  # the last position predicts nothing


def test_bfloat16_gives_float32_factors():
    memory = remember(network().bfloat16(), [(x.bfloat16(), y) for x, y in vectors()])
    for layer in memory.values():
        assert {side.like.dtype for side in layer.parts.values()} == {torch.float32}


def test_changes_in_place_do_not_disturb():
    torch.manual_seed(0)
    layers = [nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)]
    model = nn.Sequential(*layers).double()
    plain = nn.Sequential(layers[0], nn.ReLU(), layers[2])
    assert_same(remember(model, vectors()), remember(plain, vectors()))

    class Late(nn.Module):
        def __init__(self):
            super().__init__()
            self.map = nn.Linear(4, 4).double()

        def forward(self, x):
            x = x * 2
            out = self.map(x)
            x.zero_()
            return out

    with pytest.raises(RuntimeError, match="input of layer 'map' was changed in place after"):
        remember(Late().requires_grad_(False), vectors(), layers=["map"])


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.inner, self.reentrant = network(), reentrant

    def forward(self, x):
        x = self.inner[0](x)
        return checkpoint(lambda v: self.inner[2](v.tanh()), x, use_reentrant=self.reentrant)


def test_checkpointing_works_or_is_refused():
    found = remember(Checkpointed(False), vectors())
    expected = remember(network(), vectors())
    for name in ("0", "2"):
        assert_close(dense(found[f"inner.{name}"].outputs), dense(expected[name].outputs))
    frozen = Checkpointed(False).requires_grad_(False)
    assert_same(remember(frozen, vectors()), found)
    with pytest.raises(RuntimeError, match="cannot see through reentrant gradient checkpointing"):
        remember(Checkpointed(True), vectors())


def test_transformers_checkpointing_and_caches_do_not_matter():
    model = t5().train()
    expected = remember(model, texts())
    model.gradient_checkpointing_enable()
    assert_same(remember(model, texts()), expected)


def test_tied_weights_are_named():
    memory = remember(gpt2(), [{"input_ids": b["input_ids"]} for b in texts()])
    assert memory.uncovered == {
        "transformer.wte.weight": "transformer.wte and lm_head share one weight"
    }
    with pytest.raises(ValueError, match=r"strict: transformer.wte.weight .*share one weight"):
        remember(gpt2(), [{"input_ids": b["input_ids"]} for b in texts()], strict=True)


def test_also_where_inference_is_all_that_happens():
    expected = remember(network(), vectors())
    model = network()
    with torch.inference_mode():
        assert_same(remember(model, vectors()), expected)
        assert torch.is_inference_mode_enabled()


def test_a_compiled_model_is_seen():
    model = network()
    compiled = torch.compile(model)
    assert_same(remember(compiled, vectors()), remember(model, vectors()))


def test_fused_encoder_layers_are_not_passed_by():
    torch.manual_seed(0)
    encoder = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True).double().requires_grad_(False)
    x = torch.randn(3, 5, 8, generator=generator(), dtype=torch.float64)
    found = remember(encoder, [x], of=lambda m, b: m(b))
    assert {"linear1", "linear2"} <= set(found)
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.parametrize("rank", [2, 3])
def test_sketches_find_the_top_of_large_factors(rank):
    """With fewer rows than columns of the sketch the top is exact; the trace always is."""
    asked, expected = {}, {}
    for number, count in enumerate((9, 1, 0, 6)):  # all are decomposed together
        rows = torch.randn(count, 40, generator=generator(number), dtype=torch.float64)
        rows *= torch.logspace(1, -1, count, dtype=torch.float64)[:, None]
        exact, sketch = (GatheredMoments(40, wanted, RandomColumns(0)) for wanted in (None, rank))
        exact.add(rows)
        for part in rows.split(4):
            sketch.add(part)
        assert 0 < sketch.columns <= 20
        expected["layer", str(number)] = exact.side(9.0).truncated(rank)
        asked["layer", str(number)] = (sketch, 9.0)
    for key, found in sides_of(asked).items():
        assert found.rank == rank
        assert found.trace == pytest.approx(expected[key].trace, rel=1e-12)
        most = expected[key].dense().abs().max()
        assert (found.dense() - expected[key].dense()).abs().max() <= 1e-6 * most


def test_a_sketch_of_a_flat_spectrum_has_no_rest_above_its_eigenvalues():
    rows = torch.randn(4000, 100, generator=generator())
    sketch = GatheredMoments(100, 8, RandomColumns(0))
    sketch.add(rows)
    found = sides_of({("layer", "inputs"): (sketch, 4000.0)})["layer", "inputs"]
    assert found.eigen.rest <= found.eigen.values.min()
    assert found.trace == pytest.approx(float(rows.square().sum()) / 4000, rel=1e-5)


def test_a_sketch_protects_like_the_true_top():
    """Of a slowly falling spectrum: what filtered moves of one length still damage."""
    drawn = generator()
    scale = torch.arange(1, 301, dtype=torch.float64) ** -0.5
    rows = torch.randn(2000, 300, generator=drawn, dtype=torch.float64) * scale
    exact, sketch = (GatheredMoments(300, wanted, RandomColumns(0)) for wanted in (None, 16))
    exact.add(rows)
    sketch.add(rows)
    full, moves = exact.side(2000.0), torch.randn(300, 64, generator=drawn, dtype=torch.float64)

    def damage(side):
        moved = side.filtered(moves, 0.1)
        return (moved * full.product(moved)).sum() / moved.square().sum()

    found = sides_of({("layer", "inputs"): (sketch, 2000.0)})["layer", "inputs"]
    assert damage(full) < damage(found) < 1.1 * damage(full.truncated(16))


def test_the_rank_follows_from_what_is_small_or_from_a_budget():
    full = remember(network(), vectors())
    assert full.rank is None
    assert "full factors" in str(full)
    wide = nn.Linear(2000, 3)
    assert SMALL < 4 * 2000**2
    assert remember(wide, [torch.randn(4, 2000)]).rank == 12
    small = remember(network(), vectors(), budget=280)
    assert small.rank == 4
    assert "4 eigenpairs of each factor and one number for the rest, chosen by" in str(small)
    own = remember(network(), vectors(), rank=2)
    assert own.rank == 2
    assert "chosen" not in str(own)


def test_numbers_of_double_precision_take_twice_the_budget():
    model, data = network().float(), [(x.float(), y) for x, y in vectors()]
    full = remember(model, data).bytes
    assert remember(model, data, budget=full).rank is None
    assert remember(network().double(), vectors(), budget=full).rank is not None
    assert remember(network().double(), vectors(), budget=2 * full).bytes == 2 * full


def test_everything_is_left_as_it_was_found():
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(), nn.Linear(5, 3))
    model = model.double().train()
    model[0].weight.requires_grad_(False)
    model[3].eval()
    model[3].weight.grad = torch.ones(3, 5, dtype=torch.float64)
    state, flags = copy.deepcopy(model.state_dict()), [m.training for m in model.modules()]
    before = torch.get_rng_state()

    def noisy(m, batch):
        torch.rand(3)
        m[1].running_mean.add_(1)
        m[3].train()
        if noisy.fails:
            raise KeyError("broken batch")
        return m(batch[0]), batch[1]

    for noisy.fails in (False, True):
        if noisy.fails:
            with pytest.raises(KeyError, match="broken batch"):
                remember(model, vectors(), predict=noisy)
        else:
            remember(model, vectors(), predict=noisy)
        assert torch.equal(torch.get_rng_state(), before)
        assert [m.training for m in model.modules()] == flags
        for name, value in model.state_dict().items():
            assert torch.equal(value, state[name]), name
        assert [p.requires_grad for p in model.parameters()] == [False] + [True] * 5
        assert torch.equal(model[3].weight.grad, torch.ones(3, 5, dtype=torch.float64))
        assert all(p.grad is None for p in model.parameters() if p is not model[3].weight)
        assert not any(m._forward_hooks for m in model.modules())


def test_a_table_that_cuts_its_rows_is_left_as_it_was():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(7, 4, max_norm=0.5), nn.Linear(4, 3))
    before = model[0].weight.detach().clone()
    remember(model, [(torch.arange(7), torch.zeros(7).long())])
    assert torch.equal(model[0].weight, before)


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_layer_that_is_called_as_wrappers_are(wrapped):
    """Of "module.weight" wrappers leave "weight": its layer has the name of the whole model."""
    plain = nn.Linear(4, 3).double()
    model = nn.ModuleDict({"module": plain}) if wrapped else plain
    found = remember(model, vectors(), predict=lambda _, batch: (plain(batch[0]), batch[1]))
    assert list(found) == [""]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    risegrad.attach(optimizer, risegrad.Informed(found, strict=True), model.named_parameters())
    assert set(found.sides(model)) == {"weight", "bias"}


def test_modules_outside_the_model_keep_their_gradients():
    """A host's adapters may be remembered alone, with a trained head outside."""
    head = nn.Linear(5, 3).double()
    adapters = nn.ModuleList([nn.Linear(4, 5)]).double()
    found = remember(adapters, vectors(), predict=lambda m, b: (head(m[0](b[0])), b[1]))
    assert list(found) == ["0"]
    assert head.weight.grad is None


def test_adapters_of_the_vision_hosts():
    adapter = Adapter(4, 2, 0.5, 0.3, generator()).double()
    adapters = nn.ModuleList([adapter])
    head = network()

    def predict(m, batch):
        return head(batch[0] + m[0](batch[0])), batch[1]

    fresh = remember(adapters, vectors(), predict=predict)
    assert set(fresh) == {"0.down", "0.up"}
    assert fresh["0.down"].outputs.mean == 0  # nothing comes through an up of zeros
    assert fresh["0.up"].outputs.mean > 0
    nn.init.normal_(adapter.up.weight)
    assert remember(adapters, vectors(), predict=predict)["0.down"].outputs.mean > 0


def test_stacked_lora_of_the_language_hosts():
    model = t5()
    layers = add_lora(model, "t5", ("q",), 2, 6.0, 0.0)
    for layer in layers.values():
        layer.A.requires_grad_(True)
        layer.B.requires_grad_(True)
    found = remember(model.double(), texts())
    assert set(found) == set(layers)
    assert_same(found, remember(t5(), texts(), layers=["*.q"]))
    assert len(found.sides(model)) == 2 * len(layers)


def test_roles_of_all_parameters_of_a_peft_model():
    model = with_lora(bert(), ["query"], modules_to_save=["classifier"], bias="lora_only")
    roles = {role_of(name) for name, p in named_parameters(model).items() if p.requires_grad}
    query = "bert.encoder.layer.0.attention.self.query"
    assert roles == {
        (query, "lora_A", "default"), (query, "lora_B", "default"), (query, "bias", ""),
        ("classifier", "weight", ""), ("classifier", "bias", ""),
    }  # fmt: skip
