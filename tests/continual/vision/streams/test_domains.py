"""Streams of domains: the same classes and the same images, turned."""

import math
import pickle

import numpy as np
import pytest
import torch

from riselab.continual.vision.streams import ImageStreamSettings, build_stream, named_stream
from riselab.continual.vision.streams.sources import turned


def picture(height: int, width: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (3, height, width), generator=generator, dtype=torch.uint8)


def turned_slowly(image: np.ndarray, degrees: float) -> np.ndarray:
    """Pixel by pixel: look where each came from, and mix its four neighbours there."""
    height, width = image.shape
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    found = np.zeros(image.shape)
    for row in range(height):
        for column in range(width):
            x, y = column - (width - 1) / 2, row - (height - 1) / 2
            # The y axis points down: counter-clockwise on the screen.
            from_x = cos * x - sin * y + (width - 1) / 2
            from_y = sin * x + cos * y + (height - 1) / 2
            left, top = math.floor(from_x), math.floor(from_y)
            for i in (top, top + 1):
                for j in (left, left + 1):
                    if 0 <= i < height and 0 <= j < width:
                        share = (1 - abs(from_y - i)) * (1 - abs(from_x - j))
                        found[row, column] += share * image[i, j]
    return found


@pytest.mark.parametrize("size", [(8, 8), (6, 9)])
@pytest.mark.parametrize("degrees", [17, 45, 135, -30])
def test_a_turn_mixes_the_four_pixels_it_comes_from(size: tuple[int, int], degrees: int) -> None:
    image = picture(*size)
    wanted = turned_slowly(image[0].double().numpy(), degrees)
    assert np.abs(turned(image, degrees)[0].double().numpy() - wanted).max() <= 0.51  # rounded


@pytest.mark.parametrize("quarters", [1, 2, 3])
def test_quarter_turns_lose_nothing_and_go_counter_clockwise(quarters: int) -> None:
    image = picture(8, 8)
    assert torch.equal(turned(image, 90 * quarters), torch.rot90(image, quarters, (1, 2)))


def test_every_domain_has_all_classes_and_the_same_images() -> None:
    stream = build_stream(named_stream("turned-digits", validation=0.2))
    assert [task.name for task in stream] == ["turned 0", "turned 45", "turned 90", "turned 135"]
    assert {task.classes for task in stream} == {stream[0].classes}
    assert len(stream[0].classes) == 10
    first, third = stream[0], stream[2]
    assert torch.equal(first.train.labels, third.train.labels)
    for split in ("train", "validation", "test"):
        before = getattr(first, split).images([0, 3], train=False)
        after = getattr(third, split).images([0, 3], train=False)
        assert torch.equal(after, torch.rot90(before, 1, (2, 3)))


def test_worker_processes_can_have_a_domain() -> None:
    split = build_stream(named_stream("turned-digits"))[1].test
    copy = pickle.loads(pickle.dumps(split))
    assert torch.equal(copy.image(4, train=False), split.image(4, train=False))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"kind": "domains"},
            r'if and only if kind is "domains", got kind="domains" and turns \[\]',
        ),
        ({"turns": (0, 45)}, r'got kind="classes" and turns \[0, 45\]'),
        ({"kind": "domains", "turns": (45, 45)}, "turns must be different from each other"),
        ({"kind": "domains", "turns": (0, 45), "base": 4}, "base and increment must be left out"),
        ({"kind": "tasks"}, "kind must be one of"),
    ],
)
def test_what_makes_no_stream_is_refused(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ImageStreamSettings(**changes)
