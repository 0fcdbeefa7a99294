"""Views are torchvision's, and a pure function of (seed, index)."""

import pickle
import random

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode, v2

from riselab.continual.vision.streams import ImageStreamSettings, build_stream
from riselab.continual.vision.streams.images import SCALE, View, crop_box, resize


def view(**changes):
    fields = {
        "image_size": 24,
        "augment": "pilot",
        "test_view": "crop",
        "resize_ratio": 256 / 224,
        "normalize": "none",
    }
    return View(**fields | changes)


def picture(height, width, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (3, height, width), generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize("shape", [(32, 32), (40, 61), (77, 40), (9, 8), (28, 28)])
def test_the_test_view_is_torchvisions(shape):
    expected = v2.Compose(
        [
            v2.Resize(256, interpolation=InterpolationMode.BICUBIC),
            v2.CenterCrop(224),
        ]
    )
    image = picture(*shape)
    assert torch.equal(view(image_size=224).test([image])[0], expected(image) / 255)


@pytest.mark.parametrize("shape", [(32, 32), (400, 610), (77, 40)])
def test_the_test_view_is_pilots(shape):
    """PILOT resizes with Pillow; a pixel may be rounded the other way."""
    image = picture(*shape)
    pilot = v1.Compose(
        [v1.Resize(256, InterpolationMode.BICUBIC), v1.CenterCrop(224), v1.ToTensor()]
    )
    expected = pilot(Image.fromarray(image.permute(1, 2, 0).numpy()))
    difference = (view(image_size=224).test([image])[0] - expected).abs() * 255
    assert difference.max() < 1.01
    assert difference.mean() < 0.01


def test_the_direct_view_shows_the_whole_image():
    image = picture(30, 50)
    expected = v2.functional.resize(image, [24, 24], InterpolationMode.BICUBIC)
    assert torch.equal(view(test_view="direct").test([image])[0], expected / 255)
    small = picture(24, 24)
    assert torch.equal(view(test_view="direct").test([small])[0], small / 255)


def test_images_of_different_sizes_make_one_batch():
    images = [picture(30, 50), picture(50, 30), picture(24, 24)]
    together = view().test(images)
    assert together.shape == (3, 3, 24, 24)
    for image, shown in zip(images, together, strict=True):
        assert torch.equal(view().test([image])[0], shown)


def test_a_random_crop_is_resized_as_torchvision_does():
    image = picture(60, 45)
    box = crop_box(60, 45, random.Random(1))
    expected = v2.functional.resized_crop(image, *box, [24, 24])
    top, left, height, width = box
    crop = image[None, :, top : top + height, left : left + width]
    assert torch.equal(resize(crop, 24, 24, "bilinear")[0], expected)


def test_boxes_have_torchvisions_distribution():
    """Area, ratio and place of 4000 boxes each: means within four standard errors."""
    size = (60, 80)
    generator = random.Random(0)
    ours = np.array([crop_box(*size, generator) for _ in range(4000)], dtype=float)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        draw = v2.RandomResizedCrop(24, scale=SCALE)
        image = torch.empty(3, *size)
        boxes = [draw.make_params([image]) for _ in range(4000)]
    names = ("top", "left", "height", "width")
    theirs = np.array([[box[name] for name in names] for box in boxes], dtype=float)
    for columns in ([0], [1], [2], [3], [2, 3]):
        a, b = ours[:, columns].prod(1), theirs[:, columns].prod(1)
        error = np.sqrt(a.var() / len(a) + b.var() / len(b))
        assert abs(a.mean() - b.mean()) < 4 * error, columns
    assert (ours[:, 0] + ours[:, 2]).max() <= 60
    assert (ours[:, 1] + ours[:, 3]).max() <= 80


@pytest.mark.parametrize(("shape", "box"), [((4, 400), (0, 197, 4, 5)), ((400, 4), (197, 0, 5, 4))])
def test_where_no_box_fits_it_is_the_middle(shape, box):
    assert crop_box(*shape, random.Random(0)) == box


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("imagenet", v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))),
        ("half", v2.Normalize([0.5] * 3, [0.5] * 3)),
        (
            "clip",
            v2.Normalize((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
        ),
    ],
)
def test_normalization(name, expected):
    image = picture(24, 24)
    plain = view(test_view="direct").test([image])
    shown = view(test_view="direct", normalize=name).test([image])
    torch.testing.assert_close(shown, expected(plain))


def test_flip_mirrors_the_test_view_half_of_the_time():
    image, flipping = picture(24, 30), view(augment="flip")
    plain = flipping.test([image])[0]
    shown = flipping.train([image] * 200, [f"0/{index}" for index in range(200)])
    mirrored = [torch.equal(one, plain.flip(2)) for one in shown]
    assert all(m or torch.equal(one, plain) for m, one in zip(mirrored, shown, strict=True))
    assert 70 < sum(mirrored) < 130  # more than four standard errors
    assert torch.equal(view(augment="none").train([image], ["0/0"])[0], plain)


@pytest.fixture
def split(npz_file):
    settings = ImageStreamSettings(source="npz", data=str(npz_file), increment=6, image_size=16)
    return build_stream(settings)[0].train


def test_a_training_view_depends_on_seed_and_index_only(split):
    batch = split.images(range(20), train=True, seed=5)
    assert batch.shape == (20, 3, 16, 16)
    assert batch.dtype == torch.float32
    backwards = split.images(torch.arange(19, -1, -1), train=True, seed=5)
    assert torch.equal(backwards.flip(0), batch)
    for index in (7, 0, 19):
        assert torch.equal(split.image(index, train=True, seed=5), batch[index])
        assert not torch.equal(split.image(index, train=True, seed=6), batch[index])
    last = len(split) - 1
    assert torch.equal(split.image(-1, train=True, seed=5), split.image(last, train=True, seed=5))


def test_the_test_view_takes_no_seed(split):
    one, other = (split.image(3, train=False, seed=seed) for seed in (0, 1))
    assert torch.equal(one, other)


def test_an_empty_batch_has_the_right_shape(split):
    assert split.images([], train=True, seed=0).shape == (0, 3, 16, 16)


def test_global_random_states_are_left_alone(split):
    def states():
        return torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state())

    before = states()
    split.images(range(5), train=True, seed=1)
    assert states() == before


class Views(Dataset):
    def __init__(self, split):
        self.split = split

    def __len__(self):
        return len(self.split)

    def __getitem__(self, index):
        return self.split.image(index, train=True, seed=2), self.split.labels[index]


def test_workers_see_what_the_main_process_sees(split):
    loader = DataLoader(Views(split), batch_size=20, num_workers=1)
    shown = torch.cat([images for images, _ in loader])
    assert torch.equal(shown, split.images(range(len(split)), train=True, seed=2))
    copy = pickle.loads(pickle.dumps(split))
    assert torch.equal(copy.images(range(5), True, 2), shown[:5])
    assert torch.equal(copy.labels, split.labels)
