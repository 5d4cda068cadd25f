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


@pytest.fixture
def law_content():
    """Coefficients of the budget rule as its file holds them, made for tests.

    The law of ``sgd`` is the log-linear fit to thirteen trainings of one net on Fashion-MNIST (our
    methods page); that of ``adam`` is made up.
    """
    domain = {
        "M": [32, 512], "C": [10, 10], "n": [1000, 9000], "steps": [188, 2256],
        "batch_size": [64, 64], "mean_lr_ratio": [0.5, 0.51], "norm": ["batch"],
    }  # fmt: skip
    sgd = {
        "intercept": 0.6715,
        "terms": {"log(M)": 0.1139, "log(n)": -0.4352, "log(steps)": 0.8977, "log(lr)": 0.6873},
        "covariance": [
            [1.38198, -0.07038, -0.08605, -0.04908, 0.01301],
            [-0.07038, 0.0145, 0.0, 0.0, 0.0],
            [-0.08605, 0.0, 0.00981, 0.00167, 0.00075],
            [-0.04908, 0.0, 0.00167, 0.00667, 0.00221],
            [0.01301, 0.0, 0.00075, 0.00221, 0.01066],
        ],
        "residual_sd": 0.2361,
        "degrees_of_freedom": 8,
        "n_settings": 13,
        "domain": {**domain, "lr": [0.0125, 0.2], "momentum": [0.9, 0.9], "optimizer": ["sgd"]},
    }
    adam = {
        "intercept": -2.0,
        "terms": {"log(epochs)": 0.5, "log(mean_lr) * log(C)": 0.1, "label_noise": 1.0},
        "covariance": [[0.01 * (i == j) for j in range(4)] for i in range(4)],
        "residual_sd": 0.3,
        "degrees_of_freedom": 20,
        "n_settings": 40,
        "domain": {**domain, "lr": [1e-4, 1e-2], "optimizer": ["adamw"]},
    }
    return {
        "version": "test",
        "default": True,
        "target": "nll",
        "temperatures": [1.0, 32.0],
        "source": "13 settings of fashion-mnist",
        "fit": {"datasets": ["fashion-mnist"]},
        "targets": {"nll": {"sgd": sgd, "adam": adam}, "accuracy": {"sgd": sgd}},
    }


@pytest.fixture
def with_law(law_content, monkeypatch):
    """``with_law(default=False)`` puts the budget rule with these coefficients into RULES."""
    from types import MappingProxyType

    import temperance.rules
    from temperance.rules import Budget, suggestion
    from temperance.rules.budget_file import coefficients_of

    def put(**changes):
        content = {"kind": "temperance budget law", "schema": 1, **law_content, **changes}
        rule = Budget(coefficients_of(content))
        table = MappingProxyType({**suggestion.RULES, "budget": rule})
        for module in (suggestion, temperance.rules):
            monkeypatch.setattr(module, "RULES", table)
        return rule

    return put
