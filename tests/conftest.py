"""What all tests share: one thread, a seeded torch, and a guard over global random state."""

import random
from contextlib import contextmanager

import numpy as np
import pytest
import torch


@contextmanager
def untouched_random_state():
    """Assert that the block moves none of the global random states."""
    before = random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state()  # noqa: NPY002
    yield
    after = random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state()  # noqa: NPY002
    assert before[0] == after[0], "Python's global random state moved"
    assert before[1] == after[1], "NumPy's global random state moved"
    assert torch.equal(before[2], after[2]), "torch's global random state moved"


@pytest.fixture
def rng_guard():
    """The guard as a context manager: ``with rng_guard(): library_call()``."""
    return untouched_random_state


@pytest.fixture(autouse=True)
def _seeded():
    """Tests build their models from torch's seed 0 and leave its state as it was."""
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
