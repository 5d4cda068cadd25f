"""Sharing statistics against loops, their ends, disagreement, and the picture."""

import json
import math
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from temperance.ensemble import convert, disagreement, sharing_statistics, sigma_norms
from temperance.errors import InvalidInput
from temperance.evaluation import member_uncertainty
from temperance.evaluation.plot_sharing import plot_sharing
from temperance.evaluation.plot_style import png_bytes
from temperance.evaluation.prepare_sharing import prepare_sharing


def ensemble_of(members, *, spread=1.0, seed=0):
    model = nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 9), nn.LayerNorm(9),
        nn.Linear(9, 3),
    )  # fmt: skip
    return convert(model, members, spread=spread, seed=seed)


def set_gates(ensemble, pattern):
    with torch.no_grad():
        for norm in sigma_norms(ensemble).values():
            norm.gamma.copy_(torch.as_tensor(pattern, dtype=torch.float32)[:, None])
    return ensemble


# ------------------------------------------------------------------ statistics
@settings(max_examples=20, deadline=None)
@given(
    members=st.integers(2, 5),
    seed=st.integers(0, 99),
    spread=st.sampled_from([0.5, 2.0, 6.0]),
    threshold=st.floats(0.05, 0.95),
)
def test_it_is_the_loop(members, seed, spread, threshold):
    ensemble = ensemble_of(members, seed=seed, spread=spread)
    found = sharing_statistics(ensemble, threshold=threshold)
    assert (found.members, found.threshold) == (members, threshold)
    assert [x.name for x in found.layers] == list(sigma_norms(ensemble))
    effective, above, variances, correlations = [], [], [], []
    for layer, norm in zip(found.layers, sigma_norms(ensemble).values(), strict=True):
        gates = 1 / (1 + np.exp(-norm.gamma.detach().double().numpy()))
        for i, column in enumerate(gates.T):
            shares = [s / sum(column) for s in column]
            effective.append(math.exp(-sum(q * math.log(q) for q in shares)))
            above.append(sum(s > threshold for s in column))
            variances.append(np.var(column))
            assert layer.effective_owners[i] == pytest.approx(effective[-1])
            assert layer.owners_above[i] == above[-1]
        assert layer.spread == pytest.approx(np.sqrt(np.mean(variances[-gates.shape[1] :])))
        np.testing.assert_allclose(layer.correlation, np.corrcoef(gates), atol=1e-7)
        correlations += [
            layer.correlation[a, b] for a, b in combinations(range(members), 2)
        ] * gates.shape[1]
    assert found.effective_owners == pytest.approx(np.mean(effective))
    assert found.owners_above == pytest.approx(np.mean(above))
    assert found.spread == pytest.approx(np.sqrt(np.mean(variances)))
    assert found.correlation == pytest.approx(np.mean(correlations))
    assert 1 <= found.effective_owners <= members + 1e-9


@pytest.mark.parametrize(
    ("pattern", "effective", "above", "spread"),
    [
        ([3.0, 3.0, 3.0, 3.0], 4, 4, 0.0),
        ([-3.0, -3.0, -3.0, -3.0], 4, 0, 0.0),  # shared alike, though hardly let through
        ([60.0, -60.0, -60.0, -60.0], 1, 1, math.sqrt(3) / 4),
        ([60.0, 60.0, -60.0, -60.0], 2, 2, 0.5),
        ([-800.0, -900.0, -900.0, -900.0], 1, 0, 0.0),  # gates that are 0 in float64
    ],
)
def test_the_ends(pattern, effective, above, spread):
    found = sharing_statistics(set_gates(ensemble_of(4), pattern))
    assert found.effective_owners == pytest.approx(effective)
    assert found.owners_above == above
    assert found.spread == pytest.approx(spread, abs=1e-7)
    assert math.isnan(found.correlation)  # each member's gates are all equal
    assert np.isnan(found.layers[0].correlation).all()


def test_the_ensemble_stays_as_it_is(assert_unchanged, picture, rng_guard):
    ensemble = ensemble_of(3)
    before = picture(ensemble)
    with rng_guard():
        sharing_statistics(nn.ModuleList([ensemble]))
    assert_unchanged(ensemble, before)


@pytest.mark.parametrize("threshold", [0, 1, -0.5, math.nan, "0.5", True])
def test_thresholds_out_of_range_are_refused(threshold):
    with pytest.raises(InvalidInput) as caught:
        sharing_statistics(ensemble_of(2), threshold=threshold)
    assert caught.value.subject == "threshold"


def test_other_models_and_one_member_are_refused():
    with pytest.raises(InvalidInput) as caught:
        sharing_statistics(nn.Linear(2, 2))
    assert caught.value.subject == "model"
    with pytest.raises(InvalidInput) as caught:
        sharing_statistics(ensemble_of(1))
    assert caught.value.subject == "members"


# ------------------------------------------------------------------ disagreement
@settings(max_examples=40, deadline=None)
@given(members=st.integers(2, 5), rows=st.integers(1, 6), seed=st.integers(0, 99))
def test_disagreement_is_the_loop_and_what_evaluation_says(members, rows, seed):
    z = torch.randn(members, rows, 3, generator=torch.Generator().manual_seed(seed))
    votes = z.argmax(dim=-1).tolist()
    pairs = list(combinations(range(members), 2))
    differ = [votes[a][b] != votes[c][b] for a, c in pairs for b in range(rows)]
    found = disagreement(z)
    assert found == pytest.approx(np.mean(differ))
    assert found == pytest.approx(member_uncertainty(logits=z.numpy()).disagreement.mean())
    assert found == disagreement(z.softmax(dim=-1)) == disagreement(z.numpy())
    assert disagreement(z[:1].expand(members, -1, -1)) == 0
    assert found == pytest.approx(disagreement(z[:, :, None].expand(-1, -1, 4, -1)))


@pytest.mark.parametrize(
    "predictions",
    [
        torch.zeros(4, 3),
        torch.zeros(1, 4, 3),
        torch.zeros(2, 0, 3),
        torch.full((2, 2, 2), math.nan),
    ],
)
def test_predictions_that_do_not_fit_are_refused(predictions):
    with pytest.raises(InvalidInput) as caught:
        disagreement(predictions)
    assert caught.value.subject == "predictions"


# ------------------------------------------------------------------ the picture
def test_what_the_picture_shows():
    found = sharing_statistics(ensemble_of(3, spread=2.0))
    prepared = prepare_sharing(found)
    json.dumps(prepared, allow_nan=False)
    assert prepared["names"] == ["backbone.1", "backbone.4"]
    assert prepared["places"] == [1, 2]
    for place, layer in enumerate(found.layers):
        low, middle, high = (prepared["owners"][k][place] for k in range(3))
        assert low <= middle <= high
        assert middle == pytest.approx(np.median(layer.effective_owners))
        assert prepared["above"][place] == pytest.approx(layer.owners_above.mean())
        assert prepared["spread"][place] == layer.spread
    mean = np.average([x.correlation for x in found.layers], axis=0, weights=[6, 9])
    np.testing.assert_allclose(prepared["correlation"], mean)
    with pytest.raises(InvalidInput) as caught:
        prepare_sharing({})
    assert caught.value.subject == "statistics"


@pytest.mark.parametrize(("members", "spread"), [(2, 0.0), (4, 1.0), (10, 3.0)])
def test_the_picture_is_drawn_and_reproducible(members, spread):
    prepared = prepare_sharing(sharing_statistics(ensemble_of(members, spread=spread)))
    figure = plot_sharing(prepared)
    owners, spreads, correlations = figure.axes[:3]
    np.testing.assert_allclose(owners.lines[0].get_ydata(), prepared["owners"][1])
    np.testing.assert_allclose(owners.lines[1].get_ydata(), prepared["above"])
    np.testing.assert_allclose(spreads.lines[0].get_ydata(), prepared["spread"])
    assert len(correlations.texts) == (members**2 if members <= 8 else 0)
    assert png_bytes(figure) == png_bytes(plot_sharing(prepared))
