"""Settings for all tests."""

import gc
import os

# The tensors here are tiny, and threads that wait for each other cost more than they bring; so they
# do in the processes that tests start. Before torch is imported, which reads this once.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

# No test touches the network: a library that tries fails at once instead of waiting.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

# No test writes into the user's cache; those of the cache choose a folder of their own.
os.environ.setdefault("RISEGRAD_CACHE", "none")

torch.set_num_threads(1)  # whatever the environment says

gc.disable()  # until all is imported, which is a quarter quicker so, and most of it stays


def pytest_collection_finish() -> None:
    """What is imported by now stays: trainers collect garbage at every turn, and half a second of
    each search would be spent on torch, transformers and some thousands of tests."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_sessionfinish() -> None:
    """Some libraries complain at the end of what was not freed."""
    gc.unfreeze()
