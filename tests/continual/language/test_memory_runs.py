"""Text hosts that learn by memory: old answers, new adapters on the same layers, resuming."""

from dataclasses import replace

import pytest
import torch

from continual.language.tiny_text import config, save_model
from riselab.continual.additions.memory import MemorySettings, RunMemory, layers_of
from riselab.continual.devices import Devices
from riselab.continual.host import differentiable, silent
from riselab.continual.language.batches import IGNORED
from riselab.continual.runs import make_host, perform, read_config
from riselab.continual.training import SessionTraining


def settings_of(data, weights, name="seq-lora", **changes):
    host = {"name": name, "zero_shot": False}
    return read_config(config(data, weights, host=host, **changes))


def begun(data, weights, name="seq-lora"):
    settings = settings_of(data, weights, name)
    host = make_host(settings, Devices())
    return host, host.begin(0), settings


@pytest.mark.parametrize("name", ["seq-lora", "inc-lora", "o-lora"])
@pytest.mark.parametrize("rule", ["informed", "informed-rise", "keep"])
def test_every_host_learns_by_memory(data, weights, tmp_path, name, rule):
    found, plain = (
        perform(settings_of(data, weights, name, rule={"name": r}), tmp_path / r, silent)
        for r in (rule, "fo")
    )
    losses, others = ([row["loss"] for row in result["losses"]] for result in (found, plain))
    assert losses[0] == others[0]  # nothing is to be kept yet
    assert losses[2] != others[2]
    assert len(found["memory_bytes"]) == 3


def test_new_adapters_are_protected_on_the_layers_that_hold_the_old(data, weights):
    """A memory belongs to layers: that of one session shapes the new pair of the next."""
    host, session, settings = begun(data, weights, "inc-lora")
    memory = RunMemory(MemorySettings(), 0)
    training = SessionTraining(session, settings.loop, Devices(), [memory], 0)
    memory.end(training)
    host.finish(0)
    later = host.begin(1)
    object.__setattr__(later.groups[0].rule, "name", "informed")
    again = SessionTraining(later, settings.loop, Devices(), [memory], 0)
    assert len(again.shaping["lora"].layout.names) == len(later.parameters)
    assert set(memory.memory) == set(layers_of(later))


@pytest.mark.parametrize("kind", ["t5", "llama", "gpt2", "bert"])
def test_predictions_and_features_are_those_of_the_answers(data, tmp_path, kind):
    host, session, _ = begun(data, save_model(tmp_path / "model", kind))
    host.kit.model.module.eval()
    batch = session.items.fetch([(0, 0), (0, 1), (0, 2)], 0)
    rows, features = session.predictions(batch), session.features(batch)
    assert len(rows) == len(features)
    if kind == "bert":
        assert len(rows) == 3
        return
    counted = batch.targets[batch.targets != IGNORED]
    loss = torch.nn.functional.cross_entropy(rows, counted)
    torch.testing.assert_close(loss, session.loss(batch, False))
    logits = host.kit.model.net.lm_head(features)
    tied = kind == "t5" and host.kit.model.net.config.tie_word_embeddings
    scale = 16**-0.5 if tied else 1  # T5 scales by the width where the embedding is the head
    torch.testing.assert_close(logits * scale, rows, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("of", ["predictions", "features"])
@pytest.mark.parametrize("rule", ["informed", "keep"])
def test_a_killed_run_goes_on_with_the_memory(data, weights, tmp_path, of, rule):
    changes = {"rule": {"name": rule}, "memory": {"of": of}}
    settings = settings_of(data, weights, additions=[{"name": "kron-anchor"}], **changes)
    whole = perform(settings, tmp_path / "whole", silent)

    def stop(news):
        if news.get("task") == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        perform(settings, tmp_path / "killed", stop)
    again = perform(settings, tmp_path / "killed", silent)
    assert again["losses"] == whole["losses"]
    assert again["scores"] == whole["scores"]
    assert again["memory_bytes"] == whole["memory_bytes"]


@pytest.mark.parametrize("kind", ["t5", "llama", "bert"])
def test_parts_count_by_their_answers(data, tmp_path, kind):
    """A loss is a mean over tokens, and answers of one batch have different numbers of them."""
    _, session, settings = begun(data, save_model(tmp_path / "model", kind))
    refs = [(0, index) for index in range(6)]
    found = []
    for parts in (1, 4):
        loop = replace(settings.loop, batch=6, accumulate=parts)
        training = SessionTraining(session, loop, Devices(), [], 0)
        session.module.eval()  # no dropout
        with differentiable(session.parameters.values()):
            loss = training.backward(refs)
        found.append([loss, *(p.grad for p in session.parameters.values() if p.grad is not None)])
    assert len(found[0]) > 1
    for whole, summed in zip(*found, strict=True):
        torch.testing.assert_close(summed, whole, rtol=1e-4, atol=1e-6)
