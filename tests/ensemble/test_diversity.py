"""The diversity term: the paper's sum, its sign, its range, and the saddle of equal members."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from temperance.ensemble import (
    convert,
    diversity_loss,
    diversity_range,
    member_loss,
    require_distinct,
    sigma_norms,
)
from temperance.errors import InvalidInput


@pytest.mark.parametrize("tau", [1.0, 1e3, 1e8, 1e12])
def test_the_range_is_reached_at_any_large_tau(tau):
    ensemble = ensemble_of(4)
    with torch.no_grad():
        for norm in sigma_norms(ensemble).values():
            norm.gamma.copy_(torch.tensor([50.0, 50.0, -50.0, -50.0])[:, None])
    assert diversity_loss(ensemble, tau, form="range").item() == pytest.approx(-1, abs=1e-5)


def ensemble_of(members, *, spread=1.0, heads="copy", seed=0):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 5), nn.LayerNorm(5),
        nn.Linear(5, 3),
    )  # fmt: skip
    return convert(model, members, spread=spread, heads=heads, seed=seed)


def gate(ensemble, pattern):
    """Open and shut the gates of every feature by a pattern of 0 and 1 over the members."""
    with torch.no_grad():
        for norm in sigma_norms(ensemble).values():
            norm.gamma.copy_(torch.tensor(pattern)[:, None] * 200.0 - 100)
    return ensemble


def naive(ensemble, tau):
    """Layer by layer, feature by feature, member by member."""
    total, features = 0.0, 0
    for norm in sigma_norms(ensemble).values():
        for column in norm.gamma.detach().double().T.tolist():
            gates = [1 / (1 + math.exp(-g)) for g in column]
            whole = sum(math.exp(s / tau) for s in gates)
            total += sum(math.log(math.exp(s / tau) / whole) for s in gates)
            features += 1
    return total, features


@settings(max_examples=25, deadline=None)
@given(
    members=st.integers(2, 6),
    tau=st.floats(0.02, 50),
    strength=st.sampled_from([0.0, 1e-4, 1.0, 3.0]),
    seed=st.integers(0, 99),
)
def test_it_is_the_papers_sum(members, tau, strength, seed):
    ensemble = ensemble_of(members, seed=seed, spread=2.0)
    total, features = naive(ensemble, tau)
    paper = diversity_loss(ensemble, tau, strength=strength)
    assert paper.dtype == torch.float32
    assert paper.item() == pytest.approx(strength * total, rel=1e-5)
    floor = members * math.log(members)
    per_feature = (total / features + floor) / diversity_range(members, tau)
    found = diversity_loss(ensemble, tau, strength=strength, form="range").item()
    assert found == pytest.approx(strength * per_feature, rel=1e-4, abs=1e-5)
    assert -strength * (1 + 1e-6) <= found <= 1e-6
    assert paper.item() <= -strength * features * floor * (1 - 1e-6)


# ------------------------------------------------------------------ sign and range
@pytest.mark.parametrize("tau", [0.1, 0.3, 1.0, 10.0])
def test_lower_means_fewer_owners(tau):
    by_owners = [
        diversity_loss(gate(ensemble_of(4), [1.0] * k + [0.0] * (4 - k)), tau, form="range").item()
        for k in range(5)
    ]
    assert by_owners[0] == pytest.approx(0, abs=1e-6)  # all shut: shared alike, too
    assert by_owners[4] == pytest.approx(0, abs=1e-6)
    assert min(by_owners) == pytest.approx(-1, rel=1e-6)
    assert by_owners.index(min(by_owners)) == (1 if tau < 0.4 else 2)


@settings(max_examples=60, deadline=None)
@given(members=st.integers(2, 12), tau=st.floats(0.01, 1e4))
def test_the_best_corner_has_at_most_half_the_members(members, tau):
    def value(k):
        logits = torch.tensor([1.0] * k + [0.0] * (members - k), dtype=torch.float64) / tau
        return torch.log_softmax(logits, dim=0).sum().item()

    values = [value(k) for k in range(members + 1)]
    uniform = -members * math.log(members)
    gap = uniform - min(values)
    assert diversity_range(members, tau) == pytest.approx(gap, rel=1e-6, abs=1e-11)
    best = [k for k, v in enumerate(values) if v <= min(values) + 1e-9 * abs(gap)]
    assert min(best) <= members / 2


@pytest.mark.parametrize(("members", "tau"), [(2, 0.2), (3, 0.5), (3, 5.0), (4, 0.1), (4, 1.0)])
def test_no_gates_between_0_and_1_are_below_the_corners(members, tau):
    """A grid, and a descent from many places, in the box; ends at the range that is stated."""
    least = -members * math.log(members) - diversity_range(members, tau)

    def value(s):
        return torch.log_softmax(s / tau, dim=0).sum(dim=0)

    axis = torch.linspace(0, 1, 9, dtype=torch.float64)
    grid = torch.stack([g.flatten() for g in torch.meshgrid([axis] * members, indexing="ij")])
    assert value(grid).min().item() == pytest.approx(least, abs=1e-9)
    g = torch.Generator().manual_seed(0)
    s = torch.rand(members, 200, generator=g, dtype=torch.float64).requires_grad_()
    for _ in range(300):
        (slope,) = torch.autograd.grad(value(s).sum(), s)
        s = (s - 0.1 * tau * slope).clamp(0, 1).detach().requires_grad_()
    assert value(s).min().item() == pytest.approx(least, abs=1e-6)
    assert value(s).min().item() >= least - 1e-9


def test_the_range_vanishes_with_tau_and_neither_end_breaks():
    found = [diversity_range(4, tau) for tau in (0.1, 1.0, 10.0)]
    assert found == pytest.approx([30 - 4 * math.log(4), 0.4805, 0.005], abs=1e-3)
    assert diversity_range(4, 1e-4) == pytest.approx(3e4 - 4 * math.log(4))
    assert diversity_range(4, 1e6) == pytest.approx(1 / (2 * 1e12), rel=1e-3)  # k (M-k) / 2M tau^2


@pytest.mark.parametrize("tau", [1e-3, 1.0, 1e4])
def test_the_range_form_does_not_fade(tau):
    half = gate(ensemble_of(4), [1.0, 1.0, 0.0, 0.0])
    one = gate(ensemble_of(4), [1.0, 0.0, 0.0, 0.0])
    found = min(diversity_loss(e, tau, form="range").item() for e in (half, one))
    assert found == pytest.approx(-1, rel=1e-6)
    ensemble = ensemble_of(4)
    diversity_loss(ensemble, tau, form="range").backward()
    slopes = torch.cat([n.gamma.grad for n in sigma_norms(ensemble).values()], dim=1)
    assert torch.isfinite(slopes).all()
    assert slopes.abs().max() > 1e-3


def test_both_forms_push_the_same_way_and_part_the_members():
    slopes = {}
    for form in ("paper", "range"):
        ensemble = ensemble_of(4)
        diversity_loss(ensemble, 0.3, form=form).backward()
        slopes[form] = torch.cat([n.gamma.grad for n in sigma_norms(ensemble).values()], dim=1)
    scale = 11 * diversity_range(4, 0.3)  # features
    torch.testing.assert_close(slopes["paper"], scale * slopes["range"])
    gammas = torch.cat([n.gamma for n in sigma_norms(ensemble).values()], dim=1)
    top, low = gammas.argmax(dim=0, keepdim=True), gammas.argmin(dim=0, keepdim=True)
    assert (slopes["paper"].gather(0, top) < 0).all()  # minimizing opens the most open gate
    assert (slopes["paper"].gather(0, low) > 0).all()  # and shuts the least open one


def test_half_precision_gates_give_a_float32_term():
    ensemble = ensemble_of(4)
    expected = diversity_loss(ensemble, 0.2)
    half = diversity_loss(copy.deepcopy(ensemble).to(torch.bfloat16), 0.2)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, expected, rtol=2e-2, atol=0)


# ------------------------------------------------------------------ the saddle
def step(ensemble, x, y):
    loss = member_loss(ensemble(x), y) + diversity_loss(ensemble, 0.2, strength=0.1)
    loss.backward()
    return [n.gamma.grad for n in sigma_norms(ensemble).values()]


def test_members_that_start_equal_get_equal_gradients_and_stay_equal():
    ensemble = ensemble_of(4, spread=0.0).train()
    x, y = torch.randn(16, 4), torch.randint(3, (16,))
    optimizer = torch.optim.SGD(ensemble.parameters(), lr=0.5)
    for _ in range(5):
        optimizer.zero_grad()
        for slope in step(ensemble, x, y):
            torch.testing.assert_close(slope, slope[:1].expand_as(slope), rtol=1e-4, atol=1e-7)
        optimizer.step()
    for norm in sigma_norms(ensemble).values():
        torch.testing.assert_close(
            norm.gamma, norm.gamma[:1].expand_as(norm.gamma), rtol=1e-4, atol=1e-5
        )
    alone = ensemble_of(4, spread=0.0)
    diversity_loss(alone, 0.2).backward()  # the saddle of the term by itself
    assert all(n.gamma.grad.abs().max() < 1e-6 for n in sigma_norms(alone).values())


def test_members_that_differ_get_gradients_that_differ():
    ensemble = ensemble_of(4).train()
    slopes = step(ensemble, torch.randn(16, 4), torch.randint(3, (16,)))
    assert all((s - s[:1]).abs().max() > 1e-3 for s in slopes)


@pytest.mark.parametrize("wrap", [lambda e: e, lambda e: nn.ModuleDict({"net": e})])
def test_identical_starts_are_refused(wrap):
    require_distinct(wrap(ensemble_of(3)))
    require_distinct(wrap(ensemble_of(3, spread=0.0, heads="fresh")))
    with pytest.raises(InvalidInput) as caught:
        require_distinct(wrap(ensemble_of(3, spread=0.0)))
    assert "0, 1, 2" in caught.value.found
    assert "spread" in caught.value.fix
    some = ensemble_of(4)
    with torch.no_grad():
        for norm in sigma_norms(some).values():
            norm.gamma[3] = norm.gamma[1]
    with pytest.raises(InvalidInput) as caught:
        require_distinct(wrap(some))
    assert "members 1, 3 " in caught.value.found


# ------------------------------------------------------------------ refusals
@pytest.mark.parametrize(
    ("options", "subject"),
    [
        *(({"tau": t}, "tau") for t in (0, -1.0, math.inf, math.nan, "1", True, None)),
        *(({"tau": 1, "strength": s}, "strength") for s in (-1e-9, math.inf, math.nan, "1")),
        ({"tau": 1, "form": "mine"}, "form"),
    ],
)
def test_options_out_of_range_are_refused(options, subject):
    with pytest.raises(InvalidInput) as caught:
        diversity_loss(ensemble_of(2), **options)
    assert caught.value.subject == subject


@pytest.mark.parametrize("call", [lambda m: diversity_loss(m, 0.5), require_distinct])
def test_other_models_and_one_member_are_refused(call):
    for model in (nn.Linear(2, 2), None):
        with pytest.raises(InvalidInput) as caught:
            call(model)
        assert (caught.value.subject, caught.value.expected) == ("model", "an ensemble")
    with pytest.raises(InvalidInput) as caught:
        call(ensemble_of(1))
    assert caught.value.subject == "members"
    with pytest.raises(InvalidInput) as caught:
        call(nn.ModuleList([ensemble_of(2), ensemble_of(3)]))
    assert caught.value.expected == "one ensemble"


def test_a_range_needs_two_members():
    for members in (1, 0, True, 2.0):
        with pytest.raises(InvalidInput) as caught:
            diversity_range(members, 1.0)
        assert caught.value.subject == "members"
