"""All weights of a text model trained: as a plain loop does, resumed, remembered and kept."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM

from continual.language.test_label_encoder import TASKS, write_intents
from continual.language.test_runs import killed_runs_go_on_to_the_same_end, run
from continual.language.tiny_text import config, make_model, save_model
from risegrad.common.seal import digest
from risegrad.common.seeds import seed_for
from riselab.common.settings import essence
from riselab.continual.additions.memory import MemorySettings, RunMemory
from riselab.continual.batches import epoch_batches
from riselab.continual.devices import Devices
from riselab.continual.host import silent
from riselab.continual.language.lora import free, own_linears
from riselab.continual.preflight import checkpoint_bytes
from riselab.continual.runs import make_host, needs, read_config
from riselab.continual.training import SessionTraining

LOADERS = {"t5": AutoModelForSeq2SeqLM, "gpt2": AutoModelForCausalLM, "bert": AutoModel}
SHORT = {"tasks": ["SST-2", "RTE", "agnews"], "train_size": 4, "test_size": 2}


def whole(data, weights, **sections):
    """As ``config``, without the settings of LoRA."""
    plain = config(data, weights, **sections)
    model = {"trains": "all"} | {k: v for k, v in plain["model"].items() if k != "rank"}
    return plain | {"model": model | sections.get("model", {})}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return {kind: save_model(tmp_path_factory.mktemp(kind), kind) for kind in LOADERS}


@pytest.fixture(scope="module")
def intents(tmp_path_factory):
    return write_intents(tmp_path_factory.mktemp("intents"))


def encoder_run(intents, models, **sections):
    """Of ``label-encoder``."""
    fixed = {"host": {"name": "label-encoder"}, "stream": {"tasks": list(TASKS)}}
    return whole(intents, models["bert"], **(fixed | sections))


def host_of(plain):
    return make_host(read_config(plain), Devices())


def plain_loop(net, kit, task, epochs, lr):
    """What anyone would write: AdamW on all parameters, clipping, the model's own loss."""
    trained = [p for n, p in net.named_parameters() if not n.startswith("pooler")]
    optimizer = torch.optim.AdamW(trained, lr=lr, weight_decay=0.0)
    items, size = kit.items(task), len(kit.stream[task].train)
    lengths = items.tasks[task].prompts.lengths()
    for epoch in range(epochs):
        torch.manual_seed(seed_for(kit.seed, "epoch", task, epoch, 0))
        net.train()
        for refs in epoch_batches(
            size, kit.loop.batch, seed=kit.seed, task=task, epoch=epoch, lengths=lengths
        ):
            batch = items.fetch(refs, epoch)
            loss = net(input_ids=batch.source, attention_mask=batch.mask, labels=batch.targets,
                       use_cache=False).loss  # fmt: skip
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
    net.eval()


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_two_sessions_are_a_plain_loop_bit_for_bit(data, models, kind):
    host = host_of(whole(data, models[kind], adapter={"lr": 0.003, "epochs": 2}))
    kit, net = host.kit, LOADERS[kind].from_pretrained(models[kind])
    for task in (0, 1):
        training = SessionTraining(host.begin(task), kit.loop, kit.devices, (), kit.seed)
        for epoch in range(2):
            training.epoch(epoch, silent)
        plain_loop(net, kit, task, 2, 0.003)
    ours, before = dict(kit.model.net.named_parameters()), make_model(kind, kit.model.tokenizer)
    assert list(ours) == [name for name, _ in net.named_parameters()]
    assert all(torch.equal(p, ours[name]) for name, p in net.named_parameters())
    moved = [n for n, p in before.named_parameters() if not torch.equal(p, ours[n])]
    assert moved == list(ours), "no weight is left out"


def test_label_encoder_trains_all_but_the_pooler(intents, models, tmp_path):
    plain = encoder_run(intents, models, adapter={"lr": 0.01, "epochs": 15})
    found = run(plain, tmp_path)
    held = sum(p.numel() for p in AutoModel.from_pretrained(models["bert"]).pooler.parameters())
    every = sum(p.numel() for p in AutoModel.from_pretrained(models["bert"]).parameters())
    assert found["trainable"] == {"network": every - held}
    after = found["scores"]["accuracy"]["matrix"]
    for task in range(2):
        assert after[task][task] > max(found["before"]["accuracy"][task], 90)


def test_weights_that_an_architecture_holds_fixed_stay_so(tokenizer):
    net = make_model("bert", tokenizer)
    net.embeddings.position_embeddings.weight.requires_grad_(False)
    found = free(net)
    assert "embeddings.position_embeddings.weight" not in found
    assert not any(name.startswith("pooler") for name in found)
    assert len(found) == sum(1 for p in net.parameters()) - 3


def test_linear_layers_are_those_with_a_weight_of_their_own(tokenizer):
    net = make_model("t5", tokenizer)
    found = own_linears(net, free(net))
    assert "lm_head.weight" not in found, "it is the embedding's"
    assert len(found) == 2 * (4 + 2) + 2 * (8 + 2)
    assert all(net.get_parameter(name) is layer.weight for name, layer in found.items())
    assert not own_linears(net, ())


@pytest.mark.parametrize("host", ["seq-lora", "label-encoder"])
@pytest.mark.parametrize("rule", ["rise", "zo", "informed"])
def test_a_killed_run_goes_on_to_the_same_end(data, intents, models, tmp_path, host, rule):
    sections = {
        "rule": {"name": rule}, "adapter": {"epochs": 2, "lr": 1e-3},
        "loop": {"checkpoint_seconds": 0, "batch": 6},
    }  # fmt: skip
    plain = whole(data, models["t5"], **sections)
    if host == "label-encoder":
        plain = encoder_run(intents, models, **sections)
    killed_runs_go_on_to_the_same_end(plain, tmp_path)


@pytest.mark.parametrize(
    "rule",
    [{"name": "rise", "on": "update"}, {"name": "covariance-noise"}, {"name": "informed-rise"}],
    ids=lambda rule: rule["name"],
)
@pytest.mark.parametrize("kind", ["t5", "gpt2", "bert"])
def test_rules_shape_the_network_and_an_encoders_head(data, models, tmp_path, kind, rule):
    plain = whole(data, models[kind], stream=SHORT, rule=rule, host={"zero_shot": False})
    found = run(plain, tmp_path / "shaped")
    exact = run(plain | {"rule": {"name": "fo"}}, tmp_path / "exact")
    assert set(found["trainable"]) == ({"network", "head"} if kind == "bert" else {"network"})
    assert found["losses"][0] == exact["losses"][0]  # one batch: from before the first step
    assert found["losses"][2] != exact["losses"][2]


@pytest.mark.parametrize(
    ("addition", "budget"),
    [
        ({"name": "ewc", "samples": 2}, {}),
        ({"name": "replay", "size": 4}, {}),
        ({"name": "kron-anchor"}, {}),
        ({"name": "retract"}, {}),
        ({"name": "interpolate"}, {}),
        ({"name": "gpm", "samples": 2}, {"optimizer": "sgd", "lr": 0.1}),
    ],
    ids=lambda value: value.get("name"),
)
def test_additions(data, models, tmp_path, addition, budget):
    sections = {"stream": SHORT, "host": {"zero_shot": False}, "loop": {"batch": 2}}
    plain = whole(data, models["t5"], adapter=budget, **sections)
    without = run(plain, tmp_path / "without")
    found = run(plain | {"additions": [addition]}, tmp_path / "with")
    assert found["losses"][0] == without["losses"][0]  # nothing to protect yet
    assert found["losses"][2] != without["losses"][2]


def test_one_first_task_for_all_and_the_way_back(data, models, tmp_path):
    first = {"epochs": 2, "optimizer": "adamw", "lr": 0.003, "weight_decay": 0.0}
    loop = {"batch": 4, "first": first, "interpolate": [0.0, 0.5]}
    plain = whole(data, models["t5"], stream=SHORT, loop=loop, rule={"name": "rise"})
    found = run(plain, tmp_path / "rise")
    other = run(plain | {"rule": {"name": "fo"}}, tmp_path / "fo")
    assert found["losses"][:2] == other["losses"][:2]
    assert found["losses"][2:] != other["losses"][2:]
    assert [point["share"] for point in found["line"]] == [0.0, 0.5]


@pytest.mark.parametrize("rule", ["informed", "zo"])
@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_a_memory_holds_every_layer_with_a_weight_of_its_own(data, models, kind, rule):
    host = host_of(whole(data, models[kind], rule={"name": rule}))
    kit, memory = host.kit, RunMemory(MemorySettings(), 0)
    training = SessionTraining(host.begin(0), kit.loop, kit.devices, [memory], 0)
    training.epoch(0, silent)
    memory.end(training)
    matrices = {name for name, p in kit.model.trained.items() if p.ndim == 2}
    tied = {"t5": "shared.weight", "gpt2": "transformer.wte.weight"}[kind]
    assert matrices - {f"{name}.weight" for name in memory.memory} == {tied}
    assert "share one weight" in memory.memory.uncovered[tied]
    if rule == "informed":
        again = SessionTraining(host.begin(1), kit.loop, kit.devices, [memory], 0)
        assert matrices - set(again.shaping["network"].layout.names) == {tied}


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"host": {"name": "inc-lora"}},
            "model.trains must be 'lora' with host 'inc-lora', which freezes .*; got 'all'",
        ),
        ({"host": {"name": "o-lora"}}, "model.trains must be 'lora' with host 'o-lora'"),
        ({"model": {"rank": 2}}, r"model\.rank is of LoRA, and model\.trains is 'all'; got 2"),
        ({"model": {"targets": ["q"]}}, r"model\.targets is of LoRA"),
        ({"model": {"trains": "some"}}, r"model\.trains: expected one of 'lora', 'all'"),
        ({"additions": [{"name": "all-classes"}]}, "'all-classes' does not compose"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_loaded(data, sections, message):
    with pytest.raises(ValueError, match=message):
        read_config(whole(data, "nowhere", **sections))


@pytest.mark.parametrize(
    ("kind", "sections", "message"),
    [
        ("t5", {"additions": [{"name": "gpm"}]}, "'gpm' does not compose with group 'network'"),
        ("t5", {"additions": [{"name": "lwf"}]}, "'lwf' needs the scores of all classes seen"),
        (
            "gpt2",  # its layers are transformers' Conv1D, and its output layer is the embedding
            {"additions": [{"name": "gpm"}], "adapter": {"optimizer": "sgd"}},
            "'gpm' needs trained linear layers whose inputs it can look at",
        ),
        ("t5", {"rule": {"name": "rise", "only": ["lora.*"]}}, r"no parameter matches 'lora\.\*'"),
    ],
)
def test_what_does_not_fit_the_session_is_refused(data, models, tmp_path, kind, sections, message):
    sections = sections | {"host": {"zero_shot": False}}
    with pytest.raises(ValueError, match=message):
        run(whole(data, models[kind], **sections), tmp_path)


def test_lora_is_the_default_and_has_no_part_in_what_a_run_is(data, weights):
    """Records of before keep their names; all weights are another run."""
    plain = config(data, weights)
    told = plain | {"model": plain["model"] | {"trains": "lora"}}
    assert essence(read_config(told)) == essence(read_config(plain))
    assert "trains" not in essence(read_config(plain))["model"]
    other = read_config(whole(data, weights))
    assert essence(other)["model"]["trains"] == "all"
    assert digest(essence(other)) != digest(essence(read_config(plain)))


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_a_kept_model_is_a_folder_of_transformers_that_scores_the_same(
    data, models, tmp_path, kind
):
    loop = {"keep_weights": True, "batch": 4}
    stream = {"tasks": ["SST-2", "agnews"]}
    budget = {"epochs": 15, "lr": 0.02}
    plain = whole(data, models[kind], stream=stream, adapter=budget, loop=loop)
    found, kept = run(plain, tmp_path / "run"), tmp_path / "run" / "weights"
    ours = host_of(plain)
    ours.load_state_dict(torch.load(kept / "state.pt"))
    net = LOADERS[kind].from_pretrained(kept)
    for name, weight in ours.kit.model.net.state_dict().items():
        assert torch.equal(net.state_dict()[name], weight), name
    again = run(whole(data, kept, stream=stream), tmp_path / "again")
    for score, table in found["scores"].items():
        assert again["before"][score] == table["matrix"][-1]
    assert found["before"] != again["before"], "something was learned"
    assert not (kept / "adapter_config.json").exists()


def test_a_kept_label_encoder_has_its_labels_beside_it(intents, models, tmp_path):
    """They are the pretrained model's, which the trained one could not make again."""
    plain = encoder_run(
        intents, models, loop={"keep_weights": True}, adapter={"lr": 0.01, "epochs": 5}
    )
    found, kept = run(plain, tmp_path), tmp_path / "weights"
    host = host_of(plain)
    labels = load_file(kept / "labels.safetensors")
    assert set(labels) == set(host.kit.labels)
    for name, vector in zip(host.kit.labels, host.labels, strict=True):
        assert torch.equal(labels[name], vector)
    host.kit.model.net.load_state_dict(AutoModel.from_pretrained(kept).state_dict())
    host.seen = 2
    last = [score.percent for score in host.score([0, 1])["accuracy"]]
    assert last == found["scores"]["accuracy"]["matrix"][-1]


def test_an_encoders_head_is_kept_beside_it(data, models, tmp_path):
    plain = whole(data, models["bert"], stream=SHORT, loop={"keep_weights": True})
    run(plain, tmp_path)
    head = load_file(tmp_path / "weights" / "head.safetensors")
    assert set(head) == {"weight", "bias"}
    assert (
        AutoModel.from_pretrained(tmp_path / "weights").config.hidden_size
        == head["weight"].shape[1]
    )


@pytest.mark.parametrize("kind", LOADERS)
def test_checkpoints_of_all_weights_are_foreseen(data, models, kind):
    """About: the feed-forward layers of these models are narrower than usual."""
    found = {
        trains: needs(read_config(plain), {})["bytes"]
        for trains, plain in (
            ("lora", config(data, models[kind])), ("all", whole(data, models[kind]))
        )
    }  # fmt: skip
    size = sum(p.numel() for p in LOADERS[kind].from_pretrained(models[kind]).parameters())
    assert found["all"] / checkpoint_bytes(size) == pytest.approx(1, abs=0.6)
    assert found["all"] > found["lora"]
