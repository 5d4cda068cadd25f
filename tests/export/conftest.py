"""Models to export: small, with statistics and members that are all different."""

import pytest
import torch
from torch import nn

from temperance import convert, insert


@pytest.fixture
def net():
    """``net(norm)``: a classifier of 8 features and 5 classes, T = 4 in its head."""

    def build(norm="batch"):
        model = nn.Sequential(
            nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 5)
        )
        insert(model, 4.0, norm=norm, example=torch.randn(4, 8))
        model.train()
        for _ in range(3):
            model(3 + 2 * torch.randn(64, 8))
        return model.eval()

    return build


@pytest.fixture
def ensemble(net):
    """Three members in one backbone."""
    return convert(net(), 3, spread=1.0, example=torch.randn(4, 8)).eval()


@pytest.fixture
def rows():
    return 3 + 2 * torch.randn(6, 8)
