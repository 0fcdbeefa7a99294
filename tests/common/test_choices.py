"""Choices in error texts: all of them can be seen."""

import pytest

from risegrad.common.checks import check_choice


def test_no_choice_is_shown_as_nothing():
    """An empty choice is a choice: a list that begins with a comma hides it."""
    with pytest.raises(ValueError, match=r'rule must be one of "", fo; got \'x\''):
        check_choice("rule", "x", ("", "fo"))
    with pytest.raises(ValueError, match="host must be one of nothing: there is none; got 'x'"):
        check_choice("host", "x", ())
