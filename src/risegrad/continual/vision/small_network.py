"""A small network for small images: a stack of linear layers, made in a moment, without timm."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

MLP = "mlp"
"""The name of the model in settings."""
WIDTH, DEPTH = 128, 2


class FeatureModel(nn.Module):
    """A model that is not a ViT: ``forward`` takes images ``[B, 3, S, S]`` and gives features."""

    num_features: int
    """How many numbers a feature has."""


class SmallNetwork(FeatureModel):
    """``depth`` linear layers with a ReLU behind each, over the gray values of an image."""

    def __init__(self, image_size: int, width: int = WIDTH, depth: int = DEPTH) -> None:
        super().__init__()
        sizes = [image_size**2, *[width] * depth]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.num_features = width

    def forward(self, images: Tensor) -> Tensor:
        """The features of a batch of images."""
        found = images.mean(1).flatten(1)
        for layer in self.layers:
            found = relu(layer(found))
        return found


def make_network(image_size: int, width: int, depth: int, seed: int) -> SmallNetwork:
    """Fresh weights by ``seed`` alone; 0 stands for the usual width and depth."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return SmallNetwork(image_size, width or WIDTH, depth or DEPTH)
