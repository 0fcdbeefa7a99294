"""Which device a process gets, how processes talk, and which gradients they add up."""

import pytest
import torch
from torch.nn import Parameter

from riselab.continual import devices
from riselab.continual.devices import Devices


class Both(Devices):
    """Two processes of which the other has what ``other`` says, in the order of the sums."""

    def __init__(self, *other):
        super().__init__(device="cpu")
        self.count, self.other = 2, iter(other)

    def total(self, value):
        return value + next(self.other)


def test_a_parameter_without_gradient_in_every_process_keeps_none():
    here, there, nowhere = (Parameter(torch.ones(2)) for _ in range(3))
    here.grad = torch.full((2,), 3.0)
    known = torch.tensor([0.0, 1.0, 0.0])
    both = Both(known, torch.zeros(2), torch.full((2,), 5.0))
    both.total_gradients([here, there, nowhere])
    assert here.grad.tolist() == [3.0, 3.0]
    assert there.grad.tolist() == [5.0, 5.0]
    assert nowhere.grad is None


@pytest.fixture
def machine(monkeypatch):
    """A machine with two GPUs, as far as torch would say."""
    chosen = []
    fake = {
        "current_accelerator": lambda: torch.device("cuda"),
        "is_available": lambda: True,
        "device_count": lambda: 2,
        "set_device_index": chosen.append,
    }
    for name, function in fake.items():
        monkeypatch.setattr(torch.accelerator, name, function)
    return chosen


def test_processes_get_accelerators_in_turn(machine, monkeypatch):
    found = []
    for rank in range(3):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        found.append(str(devices._device("auto")))
    assert found == ["cuda:0", "cuda:1", "cuda:0"]
    assert machine == [0, 1, 0]


def test_a_device_that_is_named_is_taken_by_every_process(machine, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert str(devices._device("cpu")) == "cpu"


@pytest.mark.parametrize(
    ("device", "processes", "backend"),
    [("cpu", 1, "gloo"), ("cpu", 8, "gloo"), ("cuda:0", 2, "nccl"), ("cuda:0", 3, "gloo")],
)
def test_processes_that_share_an_accelerator_talk_by_gloo(
    machine, monkeypatch, device, processes, backend
):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    assert devices._backend(torch.device(device)) == backend


def test_inside_every_pass_of_the_model_is_in_the_precision_and_afterwards_none() -> None:
    model, x = torch.nn.Linear(8, 8), torch.randn(2, 8)
    with Devices("bfloat16", "cpu").inside(model):
        assert model(x).dtype == torch.bfloat16
    assert model(x).dtype == torch.float32
    assert "forward" not in model.__dict__
    patched = model.forward = model.forward
    with Devices("bfloat16", "cpu").inside(model):
        assert model(x).dtype == torch.bfloat16
    assert model.forward is patched


def test_tf32_is_a_matter_of_the_run():
    """Not run on a GPU: what is seen here is the switch of torch."""
    try:
        with Devices("tf32", "cpu").autocast():
            assert torch.backends.cuda.matmul.allow_tf32
            assert torch.ones(1, 1).mm(torch.ones(1, 1)).dtype == torch.float32
    finally:
        Devices("float32", "cpu")
    assert not torch.backends.cuda.matmul.allow_tf32
