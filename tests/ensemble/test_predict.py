"""predict_members: the members' own outputs, whatever the batches, and nothing moved."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from temperance.ensemble import convert, predict_members, revert
from temperance.errors import InvalidInput

X = torch.randn(13, 5, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def ensemble(differ):
    model = nn.Sequential(
        nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3)
    )
    ensemble = differ(convert(model, 4, protocol="split", example=X)).train()
    ensemble.backbone[1].eval()
    return ensemble


@pytest.mark.parametrize("batch_size", [1, 4, 5, 256])
def test_equal_to_each_member_and_free_of_batches(
    ensemble, batch_size, picture, assert_unchanged, rng_guard
):
    before = picture(ensemble)
    with rng_guard():
        logits = predict_members(ensemble, X, batch_size=batch_size)
    assert logits.shape == (4, 13, 3)
    assert (logits.dtype, logits.requires_grad) == (torch.float32, False)
    for m in range(4):
        torch.testing.assert_close(logits[m], revert(ensemble, m).eval()(X).detach())
    assert_unchanged(ensemble, before)


def test_loaders_mappings_and_types(ensemble):
    expected = predict_members(ensemble, X)
    data = TensorDataset(X, torch.zeros(13, dtype=torch.long))
    for loader in (DataLoader(data, 4), [X[:6], X[6:]], [{"x": X, "labels": torch.zeros(13)}]):
        torch.testing.assert_close(predict_members(ensemble, loader), expected)
    torch.testing.assert_close(predict_members(ensemble, {"x": X}, batch_size=5), expected)
    wide = predict_members(ensemble.double(), X.double())
    assert wide.dtype == torch.float64
    assert predict_members(ensemble.to(torch.bfloat16), X.bfloat16()).dtype == torch.float32


@pytest.mark.parametrize(
    ("data", "options"),
    [
        ((X, X), {}),
        (3, {}),
        ([], {}),
        (X[:0], {}),
        (X, {"batch_size": 0}),
        (X, {"batch_size": 2.0}),
    ],
)
def test_refused(ensemble, data, options):
    with pytest.raises(InvalidInput):
        predict_members(ensemble, data, **options)


def test_only_ensembles(ensemble):
    with pytest.raises(InvalidInput):
        predict_members(ensemble.backbone, X)
