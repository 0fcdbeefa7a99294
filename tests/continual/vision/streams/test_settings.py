"""Settings say what is wrong with them; named streams exist and say when they were changed."""

import tomllib
from dataclasses import asdict, fields
from pathlib import Path

import pytest

from riselab.continual.vision.streams import DESCRIPTIONS, NAMED, ImageStreamSettings, named_stream


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": "cifar"}, "source must be one of cifar100, folder, .* got 'cifar'"),
        ({"class_order": "x"}, "class_order must be one of seed, natural; got 'x'"),
        ({"augment": "x"}, "augment must be one of pilot, flip, none; got 'x'"),
        ({"test_view": "x"}, "test_view must be one of crop, direct; got 'x'"),
        ({"normalize": "x"}, "normalize must be one of none, imagenet, clip, half; got 'x'"),
        ({"name": ""}, 'name must not be empty, got ""'),
        ({"source": "npz"}, 'data must say where the images of source="npz" are, got ""'),
        ({"increment": 0}, "increment must be an integer >= 1, got 0"),
        ({"base": -1}, "base must be an integer >= 0, got -1"),
        ({"image_size": 0}, "image_size must be an integer >= 1, got 0"),
        ({"resize_ratio": 0.5}, "resize_ratio must be a finite number >= 1, got 0.5"),
        ({"resize_ratio": float("nan")}, "resize_ratio must be a finite number >= 1, got nan"),
        ({"order_seed": -1}, "order_seed must be an integer >= 0 and < 4294967296, got -1"),
        (
            {"split_seed": 2**32},
            "split_seed must be an integer >= 0 and < 4294967296, got 4294967296",
        ),
        ({"validation": 1.0}, "validation must be a finite number >= 0 and < 1, got 1.0"),
        ({"test_fraction": 0.0}, "test_fraction must be a finite number > 0 and < 1, got 0.0"),
    ],
)
def test_wrong_settings_are_errors(changes, message):
    with pytest.raises(ValueError, match=message):
        ImageStreamSettings(**changes)


def test_an_integer_does_for_a_fraction():
    assert ImageStreamSettings(validation=0).validation == 0


def test_a_toml_table_can_say_every_field():
    kinds = {type(field.default) for field in fields(ImageStreamSettings)}
    assert kinds <= {str, int, float, bool, tuple}
    table = tomllib.loads("increment = 3\nvalidation = 0.1\naugment = 'flip'")
    assert asdict(ImageStreamSettings(**table))["validation"] == 0.1


def test_the_streams_of_the_paper_have_names():
    sizes = {name: (settings.base, settings.increment) for name, settings in NAMED.items()}
    assert sizes == {
        "cifar100-inc5": (0, 5),
        "cifar100-inc10": (0, 10),
        "imagenet-r-inc5": (0, 5),
        "imagenet-r-inc10": (0, 10),
        "domainnet-inc69": (0, 69),
        "digits": (4, 2),
        "turned-digits": (0, 10),
    }
    assert list(DESCRIPTIONS) == list(NAMED)
    for name, settings in NAMED.items():
        assert (settings.name, settings.order_seed, settings.normalize) == (name, 1993, "none")
        assert settings.class_order == "seed"


def test_a_named_stream_can_be_changed():
    settings = named_stream("cifar100-inc5", source="npz", data="x.npz")
    assert (settings.increment, settings.data, settings.name) == (5, "x.npz", "cifar100-inc5")


def test_an_unknown_stream_is_an_error_that_lists_what_exists():
    nearest = r"digits; got 'cifar100-inc6' \(did you mean 'cifar100-inc"
    with pytest.raises(ValueError, match=nearest):
        named_stream("cifar100-inc6")
    with pytest.raises(ValueError, match="stream must be one of cifar100-inc5, cifar100-inc10"):
        named_stream("!")


def test_the_documentation_has_every_stream():
    page = (Path(__file__).parents[4] / "docs" / "streams.md").read_text(encoding="utf-8")
    for name, description in DESCRIPTIONS.items():
        assert f"| `{name}` | {description} |" in page
