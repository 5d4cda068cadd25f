"""Multiply-adds against counts by hand, and the model as it was."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from temperance.ensemble import convert, predict_members
from temperance.models import multiply_adds


class First(nn.Module):
    """The first of what a layer gives."""

    def __init__(self, layer, *, times=1):
        super().__init__()
        self.layer, self.times = layer, times

    def forward(self, x):
        return self.layer(*[x] * self.times)[0]


class Attention(nn.Module):
    """PyTorch's attention of ``x`` over its first ``keys`` rows."""

    def __init__(self, keys, **options):
        super().__init__()
        self.keys, self.options = keys, options
        self.unused = nn.Linear(1, 1)

    def forward(self, x):
        kept = x[:, :, : self.keys]
        return F.scaled_dot_product_attention(x, kept, kept, **self.options)


class Vectors(nn.Module):
    """Products with vectors: [3, 4] by [4], and a dot product."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.ones(3, 4)), nn.Parameter(torch.ones(3))

    def forward(self, x):
        return (torch.mv(self.a, x[0]) @ self.b).reshape(1, 1)


@pytest.mark.parametrize(
    ("model", "shape", "by_hand"),
    [
        (nn.Linear(4, 8), (2, 4), 2 * 4 * 8),
        (nn.Linear(4, 8), (2, 3, 4), 6 * 4 * 8),
        (nn.Conv2d(3, 8, 3), (2, 3, 6, 6), 2 * 8 * 4 * 4 * 3 * 9),
        (nn.Conv2d(4, 8, 3, groups=2), (1, 4, 6, 6), 8 * 4 * 4 * 2 * 9),
        (nn.Conv2d(4, 4, 3, groups=4, padding=1), (1, 4, 6, 6), 4 * 6 * 6 * 9),
        (nn.Conv2d(4, 8, 3, stride=2, dilation=2, padding=2), (1, 4, 8, 8), 8 * 4 * 4 * 4 * 9),
        (nn.Conv1d(4, 8, 3), (1, 4, 6), 8 * 4 * 4 * 3),
        (nn.ConvTranspose2d(4, 8, 3, stride=2), (1, 4, 5, 5), 25 * 4 * 8 * 9),
        (Attention(5), (2, 4, 5, 8), 2 * 2 * 4 * 5 * 5 * 8),
        (Attention(3), (2, 4, 5, 8), 2 * 2 * 4 * 5 * 3 * 8),
        (Attention(5, is_causal=True), (2, 4, 5, 8), 2 * 2 * 4 * 5 * 5 * 8),
        (
            First(nn.MultiheadAttention(16, 4, batch_first=True), times=3),
            (3, 7, 16),
            3 * (7 * 16 * 48 + 7 * 16 * 16) + 2 * 3 * 4 * 7 * 7 * 4,
        ),
        (
            nn.TransformerEncoderLayer(16, 4, 32, batch_first=True),
            (3, 7, 16),
            3 * (7 * 16 * 48 + 7 * 16 * 16) + 2 * 3 * 4 * 7 * 7 * 4 + 2 * 3 * 7 * 16 * 32,
        ),
        (First(nn.LSTM(5, 6, batch_first=True)), (2, 3, 5), 2 * 3 * 4 * 6 * (5 + 6)),
        (First(nn.GRU(5, 6, batch_first=True)), (2, 3, 5), 2 * 3 * 3 * 6 * (5 + 6)),
        (Vectors(), (1, 4), 3 * 4 + 3),
        (nn.Sequential(nn.BatchNorm2d(3), nn.ReLU(), nn.AvgPool2d(2)), (2, 3, 4, 4), 0),
    ],
)
@pytest.mark.parametrize("frozen", [False, True])
def test_counts_by_hand(model, shape, by_hand, frozen):
    model.requires_grad_(not frozen)
    assert multiply_adds(model, torch.ones(shape)) == by_hand


def test_it_grows_with_the_rows_and_does_not_depend_on_how_it_is_called():
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 3))
    one = multiply_adds(model, torch.ones(1, 4))
    assert multiply_adds(model, torch.ones(7, 4)) == 7 * one == 7 * 56
    with torch.inference_mode():
        assert multiply_adds(model, torch.ones(1, 4)) == one
    assert multiply_adds(model, (torch.ones(1, 4), torch.zeros(1))) == one  # with labels


def test_the_model_and_the_settings_stay_as_they_were(rng_guard):
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 3))
    model.train()
    model[1].eval()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with rng_guard():
            multiply_adds(model, torch.randn(3, 4, generator=torch.Generator().manual_seed(0)))
        assert not torch.backends.mha.get_fastpath_enabled()
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    multiply_adds(model, torch.ones(1, 4))
    assert torch.backends.mha.get_fastpath_enabled()
    assert [m.training for m in model] == [True, False, True, True]
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_an_ensemble_counts_what_is_shared_once_and_as_its_prediction():
    from torch.utils.flop_counter import FlopCounterMode

    model = nn.Sequential(
        *(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU()),
        *(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)),
    )
    ensemble, x = convert(model, 4), torch.ones(1, 6)
    assert multiply_adds(ensemble, x) == 6 * 8 + 4 * (8 * 8 + 8 * 3)
    with FlopCounterMode(display=False) as counter:
        predict_members(ensemble, x)
    assert counter.get_total_flops() == 2 * multiply_adds(ensemble, x)
