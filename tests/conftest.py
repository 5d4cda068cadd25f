"""What all tests share."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread_and_no_leak():
    """Run on one thread, and fail a test that touches global random state."""
    torch.set_num_threads(1)
    import random

    import numpy as np

    before = (random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state())  # noqa: NPY002
    yield
    after = (random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state())  # noqa: NPY002
    assert before[0] == after[0], "the test or the library moved Python's global random state"
    assert before[1] == after[1], "the test or the library moved NumPy's global random state"
    assert torch.equal(before[2], after[2]), "the test or the library moved torch's random state"
