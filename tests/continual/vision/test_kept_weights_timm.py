"""Weights that a run keeps: timm loads the whole network."""

import timm
import torch

from riselab.continual.devices import Devices
from riselab.continual.host import silent
from riselab.continual.runs import make_host, perform, read_config

SHAPE = {"embed_dim": 16, "depth": 1, "num_heads": 2, "patch_size": 4, "img_size": 8}
PLAIN = {
    "stream": {"name": "turned-digits", "train_per_class": 2, "test_per_class": 1,
               "turns": [0, 90]},
    "model": {"name": "vit_tiny_patch16_224", "pretrained": False, "width": 16, "depth": 1,
              "heads": 2, "patch": 4},
    "host": {"name": "fine-tune"},
    "loop": {"keep_weights": True, "device": "cpu"},
    "adapter": {"epochs": 1, "lr": 0.01},
    "head": {"epochs": 1, "lr": 0.01},
}  # fmt: skip


def test_timm_loads_the_network_of_a_run(tmp_path):
    perform(read_config(PLAIN), tmp_path, silent)
    kept = tmp_path / "weights"
    model = timm.create_model(
        "vit_tiny_patch16_224", num_classes=10, checkpoint_path=str(kept / "model.safetensors"),
        **SHAPE,
    ).eval()  # fmt: skip
    host = make_host(read_config(PLAIN), Devices("float32", "cpu"))
    host.load_state_dict(torch.load(kept / "state.pt"))
    images = torch.rand(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = host.head(host.kit.extract(images, None))
        torch.testing.assert_close(model(images), expected, rtol=1e-4, atol=1e-5)
