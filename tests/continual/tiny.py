"""A stream and a ViT small enough for every test: digits of a few classes, one or two blocks."""

import copy

from riselab.continual.devices import Devices
from riselab.continual.runs import make_host, read_config

TINY = {
    "domain": "vision",
    "stream": {
        "name": "digits",
        "image_size": 8,
        "base": 2,
        "increment": 2,
        "classes": 6,
        "train_per_class": 8,
        "test_per_class": 6,
        "augment": "pilot",
    },
    "model": {
        "name": "vit_tiny_patch16_224",
        "pretrained": False,
        "width": 16,
        "depth": 2,
        "heads": 2,
        "patch": 4,
        "adapter_width": 4,
    },
    "host": {"name": "adapter-classifier"},
    "rule": {"name": "fo", "q": 2},
    "head": {"epochs": 2, "lr": 0.1},
    "adapter": {"epochs": 2, "lr": 0.1},
    "loop": {"batch": 6, "device": "cpu"},
    "seed": 0,
}


def config(**changes):
    """The tiny configuration with tables changed key by key: ``config(host={"name": "ease"})``."""
    plain = copy.deepcopy(TINY)
    for name, value in changes.items():
        merged = isinstance(value, dict) and isinstance(plain.get(name), dict)
        plain[name] = plain[name] | value if merged else value
    rule, host = plain["rule"], plain["host"]["name"]
    if (rule.get("name") or ("zo" if host.startswith("zo-fc") else "fo")) == "fo":
        rule.pop("q", None)  # a setting that a rule does not use is an error
    return plain


def host_of(**changes):
    return make_host(read_config(config(**changes)), Devices(device="cpu"))
