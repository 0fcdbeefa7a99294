"""``risegrad.keep`` against plain loops in float64: the pull, the budget, state and end."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, kl_div

import risegrad
from risegrad.keeping import answers as answers_module
from risegrad.keeping.answers import TOP, features, predictions
from risegrad.keeping.examples import ROOM, TOKENS, count, split, taken
from risegrad.keeping.pull import STRENGTH, pulled, strength_after


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def net(outputs=3):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        parts = [
            nn.Linear(4, 6),
            nn.BatchNorm1d(6),
            nn.Tanh(),
            nn.Dropout(0.5),
            nn.Linear(6, outputs),
        ]
        return nn.Sequential(*parts).double()


def inputs(n=20, seed=1):
    return torch.randn(n, 4, generator=generator(seed), dtype=torch.float64)


def task(seed=2):
    return inputs(12, seed), torch.randint(3, (12,), generator=generator(seed))


def batches(n=20, size=20, seed=1):
    return [*inputs(n, seed).split(size)]


def sgd(model, **options):
    return torch.optim.SGD(model.parameters(), **({"lr": 0.1} | options))


def kept(model=None, optimizer=None, old=None, **options):
    model = net() if model is None else model
    optimizer = sgd(model) if optimizer is None else optimizer
    return risegrad.keep(model, optimizer, batches() if old is None else old, **options)


def step(model, optimizer, seed=2):
    x, y = task(seed)
    optimizer.zero_grad()
    loss = cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


def pull_by_hand(model, before, groups, clip=True):
    """The gradient of KL(then || now) as torch's own functions have it, clipped, times strength."""
    x = torch.cat([group.batch for group in groups])
    twin = copy.deepcopy(model).eval()
    now, then = twin(x).log_softmax(-1), before.eval()(x).log_softmax(-1).detach()
    loss = kl_div(now, then, log_target=True, reduction="batchmean")
    gradients = torch.autograd.grad(loss, [*twin.parameters()])
    length = math.sqrt(sum(float(g.square().sum()) for g in gradients))
    return [STRENGTH * (g / max(length, 1) if clip else g) for g in gradients]


def moved(model, scale=0.5):
    """A model away from what it was: at the start the pull is zero."""
    drawn = generator(5)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(scale * torch.randn(p.shape, generator=drawn, dtype=p.dtype))


def pulls(scale=0.5, **options):
    """A keeper on a model that has moved since, the model as it was, and its optimizer."""
    model = net()
    before, optimizer = copy.deepcopy(model), sgd(model)
    keeper = kept(model, optimizer, damping=None, **options)
    moved(model, scale)
    return keeper, before, model, optimizer


@pytest.mark.parametrize("scale", [0.01, 0.5])
def test_the_pull_is_the_clipped_gradient_of_the_divergence(scale):
    keeper, before, model, optimizer = pulls(scale)
    groups = taken(keeper.kept.pulled, 0, 0)
    assert count(groups) == 8
    model.eval()  # or its own forward pass would move the running statistics, too
    x, y = task()
    start = [p.detach().clone() for p in model.parameters()]
    wanted = pull_by_hand(model, before, groups)
    cross_entropy(model(x), y).backward()
    plain = [p.grad.clone() for p in model.parameters()]
    optimizer.step()
    for p, old, g, h in zip(model.parameters(), start, plain, wanted, strict=True):
        torch.testing.assert_close(p, old - 0.1 * (g + h), rtol=1e-9, atol=1e-11)


def test_the_model_is_left_as_found():
    keeper, _, model, optimizer = pulls()
    model.train()
    x, y = task()
    cross_entropy(model(x), y).backward()
    torch.manual_seed(3)
    state, buffers = torch.get_rng_state(), [b.clone() for b in model.buffers()]
    optimizer.step()
    keeper.drift()
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), buffers, strict=True))
    assert all(module.training for module in model.modules())


def test_every_second_step_and_never_where_no_gradient_is():
    keeper, _, model, optimizer = pulls(pull=2)
    frozen = model[0].weight
    seen = []
    for number in range(4):
        optimizer.zero_grad()
        for p in model.parameters():
            p.grad = None if p is frozen else torch.zeros_like(p)
        start = [p.detach().clone() for p in model.parameters()]
        optimizer.step()
        seen.append(
            any(not torch.equal(p, s) for p, s in zip(model.parameters(), start, strict=True))
        )
        assert torch.equal(frozen, start[0]), number
    assert seen == [True, False, True, False]
    assert keeper.steps == 4


def test_accumulation_pulls_once_and_closures_pull_after_the_gradient():
    results = []
    for how in ("whole", "parts", "closure", "keyword"):
        _, _, model, optimizer = pulls()
        model.eval()
        x, y = task()

        def gradients(model=model, optimizer=optimizer, x=x, y=y, parts=1):
            optimizer.zero_grad()
            for a, b in zip(x.chunk(parts), y.chunk(parts), strict=True):
                (cross_entropy(model(a), b) / parts).backward()
            return torch.zeros(())

        if how == "closure":
            optimizer.step(gradients)
        elif how == "keyword":
            optimizer.step(closure=gradients)
        else:
            gradients(parts=3 if how == "parts" else 1)
            optimizer.step()
        results.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("fused", [False, True])
def test_a_grad_scaler_changes_nothing(fused):
    def run(scaled):
        model = net()
        optimizer = torch.optim.Adam(model.parameters(), 1e-2, fused=fused)
        keeper = kept(model, optimizer)
        moved(model)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, enabled=scaled)
        for number in range(3):
            model.eval()
            optimizer.zero_grad()
            x, y = task(number)
            scaler.scale(cross_entropy(model(x), y)).backward()
            if number == 1 and scaled:  # a step that the scaler skips
                model[0].bias.grad[0] = math.inf
                scaler.step(optimizer)
                scaler.update(2.0**12)
                optimizer.zero_grad()
                scaler.scale(cross_entropy(model(x), y)).backward()
            scaler.step(optimizer)
            scaler.update()
        assert keeper.steps == 3
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    torch.testing.assert_close(run(True), run(False), rtol=1e-6, atol=1e-9)


def test_ones_own_loss_in_the_place_of_the_pull():
    keeper, before, model, optimizer = pulls()
    wanted = pull_by_hand(model, before, taken(keeper.kept.pulled, 0, 0), clip=False)
    start = [p.detach().clone() for p in model.parameters()]
    keeper.loss().backward()
    optimizer.step()  # and it does not pull
    for p, old, g in zip(model.parameters(), start, wanted, strict=True):
        torch.testing.assert_close(p, old - 0.1 * g)


def test_large_vocabularies_keep_the_most_likely_and_the_rest(monkeypatch):
    drawn = generator()
    then, now = (3 * torch.randn(5, 700, generator=drawn, dtype=torch.float64) for _ in range(2))
    answers = predictions(then)
    assert answers.values.shape == (5, TOP + 1)
    p, q = then.softmax(-1), now.softmax(-1)
    top = p.topk(TOP).indices
    pairs = [(v.gather(1, top), 1 - v.gather(1, top).sum(1, keepdim=True)) for v in (p, q)]
    (a, b), (c, d) = pairs
    wanted = (a * (a / c).log()).sum(1) + (b * (b / d).log())[:, 0]
    now.requires_grad_(True)
    q = now.softmax(-1)
    d = 1 - q.gather(1, top).sum(1, keepdim=True)
    dense = (a * (a / q.gather(1, top)).log()).sum(1) + (b * (b / d).log())[:, 0]
    weights = torch.rand(5, generator=drawn, dtype=torch.float64)
    monkeypatch.setattr(answers_module, "ELEMENTS", 1400)  # two rows at a time
    found = answers.distances(now)
    both = [torch.autograd.grad((x * weights).sum(), now)[0] for x in (dense, found)]
    torch.testing.assert_close(*both)
    torch.testing.assert_close(found, wanted)
    now, q = now.detach(), q.detach()
    assert bool((wanted <= kl_div(q.log(), p, reduction="none").sum(-1)).all())
    assert answers.distances(then).abs().max() < 1e-12
    assert answers.agreements(then).all()
    grown = torch.cat([now, torch.randn(5, 9, generator=drawn)], 1)  # classes that came later
    torch.testing.assert_close(answers.distances(grown), wanted)


def test_features_are_measured_by_their_variance():
    rows = torch.randn(50, 3, generator=generator(), dtype=torch.float64)
    first, second = features([rows[:20], rows[20:]])
    spread = rows.var(0, correction=0).sum()
    move = torch.tensor([1.0, 2.0, 2.0])
    torch.testing.assert_close(second.distances(rows[20:] + move), (9 / (2 * spread)).expand(30))
    assert first.agreements(rows[:20]) is None


def test_the_budget_sets_the_strength():
    model = net()
    keeper = kept(model, sgd(model), budget=0.01, damping=None)
    strength = STRENGTH
    for number in range(12):
        if number and number % 4 == 0:
            strength = strength_after(strength, keeper.drift().mean, 0.01)
        step(model.eval(), keeper.optimizer, number)
        assert keeper.strength == strength
    assert strength != STRENGTH
    assert keeper.report()["within_budget"] == (keeper.drift().mean <= 0.01)


def test_drift_and_its_error_are_of_examples_that_are_held_out():
    keeper, before, model, _ = pulls()
    held = torch.cat([group.batch for group in keeper.kept.held])
    pulled = torch.cat([group.batch for group in keeper.kept.pulled])
    assert (len(held), len(pulled)) == (4, 16)
    assert torch.equal(torch.cat([held, pulled]).sort(0).values, inputs().sort(0).values)
    then, now = (m.eval()(held).log_softmax(-1) for m in (before, model))
    each = (then.exp() * (then - now)).sum(-1).detach()
    drift = keeper.drift()
    assert drift.mean == pytest.approx(float(each.mean()))
    assert drift.error == pytest.approx(float(each.std() / 2))
    assert drift.agreement == float((then.argmax(-1) == now.argmax(-1)).double().mean())


def digits():
    """A little of the turned digits: three quarters of a minute of the page's table."""
    sklearn = pytest.importorskip("sklearn.datasets")
    found = sklearn.load_digits()
    images = torch.tensor(found.images, dtype=torch.float32)[:900] / 16
    return images, torch.tensor(found.target)[:900]


def forgets(how):
    """Percent right on upright digits after learning turned ones, and on these."""
    images, labels = digits()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    for turns in (0, 1):
        optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
        if turns and how is not None:
            risegrad.keep(model, optimizer, [images[:128]], **how)
        x = torch.rot90(images, turns, (1, 2))
        for number in range(120):
            rows = torch.randint(600, (32,), generator=generator(number))
            optimizer.zero_grad()
            cross_entropy(model(x[rows]), labels[rows]).backward()
            optimizer.step()
    scores = []
    for turns in (0, 1):
        right = model(torch.rot90(images, turns, (1, 2))[600:]).argmax(-1) == labels[600:]
        scores.append(100 * float(right.float().mean()))
    return scores


def test_it_keeps_at_the_plain_rate():
    plain, keeping = forgets(None), forgets({})
    assert plain[0] < 65
    assert keeping[0] > plain[0] + 20
    assert keeping[1] > plain[1] - 12


def parameters(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("order", ["before", "after"])
def test_resumes_bit_for_bit(tmp_path, order):
    """From the keeper's folder and the optimizer's state, loaded before it is kept or after."""

    def begin():
        model = net()
        return model, torch.optim.AdamW(model.parameters(), 1e-2)

    how = {"budget": 0.02, "pull": 2, "seed": 4}
    model, optimizer = begin()
    keeper = kept(model, optimizer, **how)
    for number in range(6):
        step(model, optimizer, number)
    keeper.save(tmp_path / "kept")
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    random = torch.get_rng_state()
    for number in range(6, 12):
        step(model, optimizer, number)
    again, other = begin()
    again.load_state_dict(saved[0])
    if order == "before":
        other.load_state_dict(saved[1])
    resumed = risegrad.keep(again, other, resume=tmp_path / "kept", **how)
    if order == "after":
        other.load_state_dict(saved[1])
    torch.set_rng_state(random)
    for number in range(6, 12):
        step(again, other, number)
    assert torch.equal(parameters(model), parameters(again))
    assert (resumed.steps, resumed.strength) == (12, keeper.strength)
    assert str(resumed.drift()) == str(keeper.drift())


def test_damaged_and_foreign_folders_are_refused(tmp_path):
    keeper = kept(budget=0.1)
    keeper.save(tmp_path)
    with pytest.raises(ValueError, match="another settings: budget: saved"):
        kept(resume=tmp_path)
    other = nn.Sequential(nn.Linear(4, 3)).double()
    with pytest.raises(ValueError, match="belongs to another model: layers: saved '3 layers, "):
        kept(other, resume=tmp_path, budget=0.1)
    for name in ("examples.safetensors", "keeper.json", "memory.safetensors"):
        content = (tmp_path / name).read_bytes()
        at = len(content) // 2
        (tmp_path / name).write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(ValueError, match="damaged keeper in"):
            kept(resume=tmp_path, budget=0.1)
        (tmp_path / name).write_bytes(content)
    with pytest.raises(FileNotFoundError, match="no saved keeper in"):
        kept(resume=tmp_path / "none")


def hooks_of(model, optimizer):
    held = [v for name, v in vars(optimizer).items() if "hook" in name]
    held += [v for m in model.modules() for name, v in vars(m).items() if "hook" in name]
    return sum(len(found) for found in held if hasattr(found, "__len__"))


def test_nothing_is_left_when_it_is_taken_off():
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    groups = copy.deepcopy(optimizer.state_dict()["param_groups"])
    hooks = hooks_of(model, optimizer)
    with kept(model, optimizer) as keeper:
        assert hooks_of(model, optimizer) > hooks
        step(model, optimizer)
    assert hooks_of(model, optimizer) == hooks
    assert optimizer.state_dict()["param_groups"] == groups
    step(model, optimizer)
    assert keeper.steps == 1
    assert keeper.drift().mean > 0  # it can still be asked


def test_a_failed_pull_changes_nothing(monkeypatch):
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    keeper = kept(model, optimizer)
    step(model, optimizer)
    x, y = task()
    cross_entropy(model(x), y).backward()
    before = copy.deepcopy((parameters(model), [p.grad for p in model.parameters()]))
    state = copy.deepcopy(optimizer.state_dict())

    def fail(*_):
        raise RuntimeError("no memory")

    monkeypatch.setattr(keeper._look, "rows", fail)
    with pytest.raises(RuntimeError, match="no memory"):
        optimizer.step()
    assert torch.equal(parameters(model), before[0])
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), before[1], strict=True))
    assert optimizer.state_dict()["state"][0]["step"] == state["state"][0]["step"]
    assert model.training
    assert keeper.state_dict() == {"steps": 1, "pulls": 1, "strength": STRENGTH}


def seen_by(model, *steps):
    """In which precision the first layer ran in each of these."""
    found = []
    handle = model[0].register_forward_hook(lambda _, __, out: found.append(out.dtype))
    for run in steps:
        run()
        found.append(None)
    handle.remove()
    return [{*part} for part in split_at_none(found)]


def split_at_none(found):
    parts = [[]]
    for item in found:
        if item is None:
            parts.append([])
        else:
            parts[-1].append(item)
    return parts[:-1]


def test_the_pull_has_the_precision_of_the_training_forward_pass():
    model = net().float()
    optimizer = sgd(model)
    kept(model, optimizer, [inputs().float()])

    def forward(dtype):
        x, y = task()
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            cross_entropy(model(x.float()).float(), y).backward()

    for dtype in (torch.bfloat16, None):
        _, pulled = seen_by(model, lambda dtype=dtype: forward(dtype), optimizer.step)
        assert pulled == {dtype or torch.float32}
    with torch.no_grad():
        model.eval()(inputs().float())  # no training: nothing is learned from it
    with torch.autocast("cpu", torch.bfloat16):  # nor from where the step is made
        assert seen_by(model, optimizer.step) == [{torch.float32}]


def test_references_have_the_precision_of_where_keep_is_called():
    model = net().float()
    with torch.autocast("cpu", torch.bfloat16):
        (seen,) = seen_by(model, lambda: kept(model, sgd(model), [inputs().float()], damping=None))
    assert seen == {torch.bfloat16}


def test_small_gradients_survive_float16():
    """The gradients of a mean over many tokens are below what float16 can hold."""
    found = {}
    for dtype in (torch.float16, None):
        model = net().float()
        keeper = kept(model, sgd(model), [inputs().float()], damping=None)
        moved(model, 1e-3)
        keeper._look.precision.dtype = dtype or torch.bfloat16
        keeper._look.precision.enabled = dtype is not None
        with keeper._look.quietly():
            small = (1e-5 * loss for loss in keeper._next_losses())
            found[dtype] = pulled(small, keeper._look, [*model.parameters()])
    pairs = zip(found[torch.float16], found[None], strict=True)
    for one, other in pairs:
        assert 0 < other.abs().max() < 6e-8  # the smallest number of float16
        torch.testing.assert_close(one, other, rtol=0.5, atol=0.5 * float(other.abs().max()))


def test_a_kept_model_can_be_copied_pickled_and_compiled_as_one_graph():
    model = net().float()
    optimizer = sgd(model)
    keeper = kept(model, optimizer, [inputs().float()])
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        copied(inputs().float())
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    for dtype in (None, torch.bfloat16):
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            compiled(inputs().float())
        assert keeper._look.precision.enabled == (dtype is not None)


def test_texts_are_grouped_by_length_without_their_padding():
    lengths = torch.tensor([3, 90, 5, 90, 4, 90, 90, 2, 90, 90, 90, 90])
    mask = (torch.arange(120) < lengths[:, None]).long()
    ids = torch.arange(12)[:, None] * mask
    labels = ids.masked_fill(mask == 0, -100)
    batch = {"input_ids": ids, "attention_mask": mask, "labels": labels, "other": lengths}
    to_pull, to_hold = split([batch], seed=0)
    groups = [*to_pull, *to_hold]
    assert sum(len(g["other"]) for g in groups) == 12
    for group in groups:
        width = int(group["other"].max())
        assert group["input_ids"].shape == group["labels"].shape == (len(group["other"]), width)
        assert group["input_ids"].numel() <= TOKENS
    order = torch.cat([group["other"] for group in to_pull])
    assert torch.equal(order, order.sort().values)


def test_what_was_learned_is_kept_too():
    model = net()
    keeper = kept(model, examples=20)
    hashed = keeper.memory.hash
    optimizer = torch.optim.AdamW(model.parameters())
    step(model, keeper.optimizer)
    first = keeper.optimizer
    for number in range(ROOM + 3):
        keeper.then(batches(seed=10 + number), optimizer)
        assert count(keeper.kept.pulled) + count(keeper.kept.held) <= ROOM * 20
    assert keeper.kept.seen == (ROOM + 4) * 20
    assert keeper.memory.hash != hashed
    assert not first._optimizer_step_pre_hooks
    step(model, optimizer)
    assert keeper.steps == 2


def test_memory_alone_and_pull_alone():
    model = net()
    memory = risegrad.remember(model, batches(), examples=20)
    keeper = kept(model, old=memory, pull=0)
    step(model, keeper.optimizer)
    assert keeper.drift() is None
    assert "no examples" in str(keeper)
    alone = kept(damping=None)
    assert (alone.memory, alone.handle) == (None, None)
    assert "steps are not shaped" in str(alone)


def test_three_lines_and_a_sentence():
    model = net()
    keeper = kept(model, budget=5.0)
    for number in range(3):
        step(model, keeper.optimizer, number)
    first, second, third = str(keeper).splitlines()
    assert first.startswith("keep, 3 steps: drift ")
    assert first.endswith(" the same top answer, within the budget of 5")
    assert "nats per prediction on 4 examples it was not shaped by" in first
    assert "% time per step (pull at every step, strength 4, c " in second
    assert third == "every trained parameter is covered"
    assert keeper.report()["sentence"].startswith("After 3 steps the answers have moved by ")


def frozen():
    model = net()
    for p in model.parameters():
        p.requires_grad_(False)
    return model


def infinite():
    model = net()
    with torch.no_grad():
        model[0].weight.fill_(math.nan)
    return model


def twice():
    model = net()
    optimizer = sgd(model)
    kept(model, optimizer)
    kept(model, optimizer)


def memory_alone():
    model = net()
    kept(model, old=risegrad.remember(model, batches(), examples=20))


BAD = [
    (lambda: kept(optimizer=sgd(net())), ValueError, "has no parameter of the model"),
    (lambda: kept(nn.Identity(), sgd(net())), ValueError, "has no parameter of the model"),
    (lambda: kept(frozen()), ValueError, "nothing is trained: every parameter"),
    (lambda: kept(old=[]), ValueError, "old must hold examples, got none"),
    (lambda: kept(old=[inputs(1)]), ValueError, "at least two examples, one to be held out; got 1"),
    (lambda: risegrad.keep(*(lambda m: (m, sgd(m)))(net())), ValueError,
     "old is needed: Sequential does not generate text; pass examples"),
    (lambda: kept(infinite()), FloatingPointError, "not finite"),
    (lambda: kept(budget=0), ValueError, "budget must be a finite number > 0, got 0"),
    (lambda: kept(budget=0.1, pull=0), ValueError, "pull must be >= 1"),
    (lambda: kept(pull=-1), ValueError, "pull must be an integer >= 0, got -1"),
    (lambda: kept(examples=1), ValueError, "examples must be an integer >= 2, got 1"),
    (lambda: kept(damping=None, pull=0), ValueError, "switch off both shape and pull"),
    (memory_alone, ValueError, "a memory has no examples to pull with: pass pull=0"),
    (twice, ValueError, "already has a keeper: call its then"),
    (lambda: kept(optimizer=3), TypeError, "optimizer must be a torch.optim.Optimizer, got int"),
    (lambda: kept((m := net()), torch.optim.LBFGS(m.parameters())), ValueError, "L-BFGS evaluates"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "kind", "message"), BAD)
def test_bad_input(make, kind, message):
    with pytest.raises(kind, match=message):
        make()


def test_a_split_is_of_all_examples_and_rounds_are_of_all_groups():
    given = [inputs(5, 1), inputs(17, 2)]
    to_pull, to_hold = split(given, seed=3)
    assert (sum(map(len, to_hold)), sum(map(len, to_pull))) == (4, 18)
    assert max(map(len, to_pull)) <= 8
    keeper = kept(old=batches(64, 3), examples=64)
    groups = keeper.kept.pulled
    per_round = -(-count(groups) // 8)
    seen = [id(g) for n in range(per_round + 5) for g in taken(groups, n, 0)]
    assert {id(g) for g in groups} <= set(seen)
    assert all(count(taken(groups, n, 0)) <= 8 for n in range(per_round))


def test_kept_answers_hold_no_graph():
    """They once did: all activations of all kept examples, and a second pull that failed."""
    model = net()
    keeper = risegrad.keep(model, sgd(model), batches(), damping=None)
    groups = (*keeper.kept.pulled, *keeper.kept.held)
    assert not any(group.answers.values.requires_grad for group in groups)
    for _ in range(3):
        step(model, keeper.optimizer)
    with torch.no_grad():
        assert keeper.drift().mean > 0


@pytest.mark.parametrize("classes", [3, 700])
def test_pulls_follow_each_other(classes):
    """With few classes and with many, which are kept as the likeliest and a rest."""
    model = net(classes)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    keeper = risegrad.keep(model, optimizer, batches())
    for _ in range(3):
        step(model, optimizer)
    assert keeper.steps == 3
