"""Points on the line from start to end need weights that are the same ones in every session."""

import pytest

from continual.language.tiny_text import config
from riselab.continual.host import silent
from riselab.continual.runs import perform, read_config


def test_a_host_with_new_weights_in_every_session_is_refused(data, weights, tmp_path):
    plain = config(data, weights, host={"name": "inc-lora"}, loop={"interpolate": [0.5]})
    with pytest.raises(ValueError, match=r"loop\.interpolate needs a host .*got 'inc-lora'"):
        perform(read_config(plain), tmp_path, silent)
