"""Plugins and scripts that were written when the laboratory was part of ``risegrad``."""

import importlib
import sys
import warnings

import pytest

from risegrad.moved import MOVED, find_moved_modules


@pytest.mark.parametrize("name", MOVED)
def test_an_old_name_is_the_module_that_it_became(name):
    sys.modules.pop(name, None)
    with pytest.warns(DeprecationWarning, match=rf"{name} is {MOVED[name]} now"):
        found = importlib.import_module(name)
    assert found is importlib.import_module(MOVED[name])
    assert found.__spec__ is not None
    assert found.__spec__.name == MOVED[name]


def test_what_old_plugins_import_from_there():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from risegrad.common.declared_fields import Positive
        from risegrad.continual.host import saved_parameters
        from risegrad.continual.session import ParameterGroup, Session
        from risegrad.continual.update_rules import Rule
        from risegrad.continual.vision.hosts.vision_host import VisionHost
        from risegrad.continual.vision.image_batches import AugmentedImages
        from risegrad.continual.vision.streams import OwnImageStream
        from risegrad.core.whole_steps import Tie, WholeStep

        from risegrad import lab, plugins
    from riselab.continual.rules import Rule as now

    assert Rule is now
    assert plugins is sys.modules["riselab.plugins"]
    assert lab.run.__module__ == "riselab.runs"
    named = (Positive, saved_parameters, ParameterGroup, Session, VisionHost, AugmentedImages)
    assert all((*named, OwnImageStream, Tie, WholeStep))


def test_asking_twice_is_as_good_as_once():
    before = list(sys.meta_path)
    find_moved_modules()
    assert sys.meta_path == before


def test_what_has_no_old_name_is_missing():
    with pytest.raises(ModuleNotFoundError, match=r"risegrad\.continual\.metrics_of_old"):
        importlib.import_module("risegrad.continual.metrics_of_old")
