"""Cosine layers of any making are known by what they compute."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from temperance.errors import InvalidInput
from temperance.head import CosineLinear, insert
from temperance.models import find_head
from temperance.models.cosine import cosine_facts


class Own(nn.Module):
    """A cosine layer with classes first (``[C, M]``) or last."""

    def __init__(self, scale=1.0, *, last=False, learned=False):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 3) if last else torch.randn(3, 8))
        self.last = last
        self.scale = nn.Parameter(torch.tensor(scale)) if learned else scale

    def forward(self, x):
        weight = self.weight.T if self.last else self.weight
        return self.scale * F.linear(F.normalize(x), F.normalize(weight))


class OfLinear(nn.Linear):
    def forward(self, x):
        return 16 * F.cosine_similarity(x[:, None], self.weight[None], dim=-1)


class WantsLabels(Own):
    def forward(self, x, y):
        return super().forward(x) - F.one_hot(y, 3)


@pytest.mark.parametrize(
    ("layer", "scale"),
    [
        (Own(), 1.0),
        (Own(30.0), 30.0),
        (Own(12.5, last=True), 12.5),
        (Own(14.3, learned=True), 14.3),
        (OfLinear(8, 3), 16.0),
        (CosineLinear(8, 3), 1.0),
        (Own(30.0).bfloat16(), 30.0),
    ],
)
def test_found_with_its_scale(layer, scale, rng_guard):
    with rng_guard():
        facts = cosine_facts(layer)
    assert (facts.in_features, facts.out_features) == (8, 3)
    assert facts.scale == pytest.approx(
        scale, rel=1e-3 if layer.weight.dtype == torch.float32 else 0.01
    )


@pytest.mark.parametrize(
    "layer",
    [
        nn.Linear(8, 3),
        nn.Bilinear(8, 8, 3),
        nn.Sequential(nn.Linear(8, 3), nn.Linear(3, 3)),
        nn.Conv1d(8, 3, 1),
        nn.ReLU(),
        WantsLabels(),
        Own(-30.0),
        nn.Linear(8, 3, device="meta"),
    ],
)
def test_other_layers_are_none(layer):
    assert cosine_facts(layer) is None


def test_find_head_says_cosine_and_what_t_that_is():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), Own(20.0))
    head = find_head(model, torch.randn(4, 6))
    assert (head.name, head.kind, head.in_features, head.out_features) == ("2", "cosine", 8, 3)
    assert head.verified
    assert "T = 0.05" in head.notes[0]
    assert find_head(model, name="2").kind == "cosine"


def test_insert_refuses_it_and_says_what_to_do():
    for layer in (Own(20.0), OfLinear(8, 3)):
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), layer)
        with pytest.raises(InvalidInput) as error:
            insert(model, 0.1, example=torch.randn(4, 6))
        assert "cosine" in error.value.found
        assert "norm='cosine'" in error.value.fix
        assert model[2] is layer


def test_a_tempered_cosine_head_is_tempered():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    insert(model, 0.1, norm="cosine", example=torch.randn(4, 6))
    found = find_head(model, torch.randn(4, 6))
    assert (found.name, found.kind, found.in_features) == ("2", "tempered", 8)
    assert math.isclose(float(found.module.temperature), 0.1, rel_tol=1e-6)
