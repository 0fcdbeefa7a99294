"""Two processes share every batch and every test set, and learn what one does."""

import json
import os
import socket
import subprocess
import sys

import pytest

from continual.language.tiny_text import config, save_model
from riselab.continual.host import silent
from riselab.continual.runs import perform, read_config

RUN = """
import json, os, sys, torch
from pathlib import Path
from riselab.continual.runs import perform, read_config
torch.set_num_threads(1)
found = perform(read_config(json.loads(sys.argv[1])), Path(sys.argv[2]), lambda news: None)
Path(sys.argv[2], "result" + os.environ["RANK"]).write_text(json.dumps(found))
"""


def without_dropout(folder):
    """Each process has masks of its own, so only without them can the numbers be the same."""
    path = save_model(folder) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"dropout_rate": 0.0}))
    return folder


def two_processes(plain, folder):
    """What each of two processes found that learned together."""
    folder.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = []
    for rank in range(2):
        world = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        command = [sys.executable, "-c", RUN, json.dumps(plain), str(folder)]
        ranks.append(subprocess.Popen(command, env=os.environ | world | place))
    assert [process.wait(timeout=300) for process in ranks] == [0, 0]
    return [json.loads((folder / f"result{rank}").read_text()) for rank in range(2)]


@pytest.mark.slow  # three interpreters load transformers
def test_two_processes_learn_what_one_learns(data, tmp_path):
    weights = without_dropout(tmp_path / "model")
    # The labels of these two tasks are one word each: means over tokens are means over texts.
    plain = config(
        data, weights, stream={"tasks": ["SST-2", "RTE"]}, model={"dropout": 0.0},
        host={"name": "o-lora"}, rule={"name": "rise"},
    )  # fmt: skip
    expected = perform(read_config(plain), tmp_path / "one", silent)
    for found in two_processes(plain, tmp_path / "two"):
        assert found["scores"] == expected["scores"]
        for mine, other in zip(found["losses"], expected["losses"], strict=True):
            assert mine["loss"] == pytest.approx(other["loss"], rel=1e-4)
