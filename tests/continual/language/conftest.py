"""One model and one folder of tasks for all tests here; no test writes into a user's cache."""

import pytest

from continual.language.tiny_text import make_tokenizer, save_model, write_task


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RISEGRAD_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def tokenizer():
    return make_tokenizer()


@pytest.fixture(scope="session")
def weights(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("tasks")
    for name in ("agnews", "SST-2", "RTE"):
        write_task(root, name)
    return root
