"""Compiled code stands aside for a while, and comes back whoever leaves last."""

import threading

import torch
from torch._dynamo import eval_frame

from risegrad.core.undisturbed import uncompiled


def stance():
    return eval_frame._stance.stance


def test_one_inside_another_and_an_error():
    try:
        with uncompiled(), uncompiled():
            assert stance() == "force_eager"
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    assert stance() == "default"


def test_two_threads_that_overlap_leave_it_as_it_was():
    """The first to come is the first to go: putting back what each found would leave it set."""
    second_is_in, first_is_out = threading.Event(), threading.Event()

    def second():
        with uncompiled():
            second_is_in.set()
            first_is_out.wait(20)
            assert stance() == "force_eager"

    thread = threading.Thread(target=second)
    with uncompiled():
        thread.start()
        assert second_is_in.wait(20)
    assert not torch.backends.mha.get_fastpath_enabled()
    first_is_out.set()
    thread.join()
    assert stance() == "default"
    assert torch.backends.mha.get_fastpath_enabled()


def test_what_stood_before_comes_back():
    with torch.compiler.set_stance("eager_on_recompile"):
        with uncompiled():
            assert stance() == "force_eager"
        assert stance() == "eager_on_recompile"
    assert stance() == "default"
