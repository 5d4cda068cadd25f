"""member_loss against a loop over members and rows."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from temperance.ensemble import convert, member_loss
from temperance.errors import InvalidInput

CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def naive(logits, targets, *, of, smoothing=0.0, weight=None):
    """One row of one member after the other, in Python's floats."""
    members, batch, classes = logits.shape
    weight = [1.0] * classes if weight is None else weight.tolist()
    p = logits.double().softmax(dim=-1).tolist()
    soft = targets.is_floating_point()
    with_members = targets.dim() == (3 if soft else 2)
    total = norm = 0.0
    for m in range(members if of == "members" else 1):
        for b in range(batch):
            target = (targets[m] if with_members else targets)[b]
            if not soft and target == -100:
                continue
            goal = target.tolist() if soft else [float(c == target) for c in range(classes)]
            goal = [(1 - smoothing) * g + smoothing / classes for g in goal]
            for c in range(classes):
                q = p[m][b][c] if of == "members" else sum(one[b][c] for one in p) / members
                total -= weight[c] * goal[c] * math.log(q)
            norm += 1.0 if soft else weight[int(target)]
    return total / norm


@settings(max_examples=40, deadline=None)
@given(
    members=st.integers(1, 4),
    batch=st.integers(1, 5),
    classes=st.integers(2, 4),
    seed=st.integers(0, 999),
    soft=st.booleans(),
    per_member=st.booleans(),
    of=st.sampled_from(["members", "mean"]),
    smoothing=st.sampled_from([0.0, 0.1, 1.0]),
    weighted=st.booleans(),
)
def test_it_is_the_loop(
    members, batch, classes, seed, soft, per_member, of, smoothing, weighted
):  # fmt: skip
    g = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(members, batch, classes, generator=g)
    own = (members, batch) if per_member and of == "members" else (batch,)
    y = torch.randint(classes, own, generator=g)
    if soft:
        y = torch.rand(*own, classes, generator=g) + 0.01
        y = y / y.sum(dim=-1, keepdim=True)
    weight = torch.rand(classes, generator=g) + 0.5 if weighted else None
    loss = member_loss(logits, y, of=of, label_smoothing=smoothing, weight=weight)
    expected = naive(logits, y, of=of, smoothing=smoothing, weight=weight)
    assert loss.dtype == torch.float32
    assert loss.shape == ()
    assert loss.item() == pytest.approx(expected, rel=1e-4, abs=1e-5)


@settings(max_examples=30, deadline=None)
@given(members=st.integers(1, 5), seed=st.integers(0, 999))
def test_the_loss_of_the_mean_is_never_above_the_mean_of_losses(members, seed):
    g = torch.Generator().manual_seed(seed)
    z, y = 4 * torch.randn(members, 6, 3, generator=g), torch.randint(3, (6,), generator=g)
    each, together = member_loss(z, y), member_loss(z, y, of="mean")
    assert together <= each + 1e-5
    alone = [member_loss(one[None], y) for one in z]
    torch.testing.assert_close(each, torch.stack(alone).mean(), **CLOSE)
    if members == 1:
        torch.testing.assert_close(together, each, **CLOSE)
    order = torch.randperm(members, generator=g)
    torch.testing.assert_close(member_loss(z[order], y, of="mean"), together, **CLOSE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("of", ["members", "mean"])
def test_wrong_and_sure_stays_finite(dtype, of):
    z = torch.tensor([[[400.0, 0.0]], [[600.0, 0.0]]], dtype=dtype, requires_grad=True)
    loss = member_loss(z, torch.tensor([1]), of=of)
    assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    expected = 500.0 if of == "members" else 400 + math.log(2)
    assert loss.item() == pytest.approx(expected, rel=1e-6)
    loss.backward()
    assert torch.isfinite(z.grad).all()
    slopes = z.grad[:, 0, 0].tolist()  # of the mean, the member that is less wrong learns
    assert slopes == pytest.approx([0.5, 0.5] if of == "members" else [1.0, 0.0], abs=1e-3)


def test_a_class_that_cannot_be():
    z = torch.tensor([[[0.0, 1.0, -math.inf]]] * 2, requires_grad=True)
    for of in ("members", "mean"):
        (grad,) = torch.autograd.grad(member_loss(z, torch.tensor([0]), of=of), z)
        assert torch.isfinite(grad).all(), of


def test_rows_left_out_and_dense_labels():
    g = torch.Generator().manual_seed(0)
    z, y = torch.randn(2, 3, 4, 5, generator=g), torch.randint(5, (3, 4), generator=g)
    y[0, :2] = -100
    for of in ("members", "mean"):
        flat = naive(z.flatten(1, 2), y.flatten(), of=of)
        assert member_loss(z, y, of=of).item() == pytest.approx(flat, rel=1e-5)


@pytest.mark.parametrize("protocol", ["repeat", "split"])
def test_targets_of_the_ensemble_fit_under_either_protocol(protocol):
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    ensemble = convert(model.train(), 2, protocol=protocol)
    x, y = torch.randn(8, 4), torch.randint(3, (8,))
    logits, targets = ensemble(x), ensemble.targets(y)
    expected = naive(logits.detach(), targets, of="members")
    assert member_loss(logits, targets).item() == pytest.approx(expected, rel=1e-5)
    if protocol == "repeat":
        for same in (y, targets, targets.clone()):
            found = member_loss(logits, same, of="mean").item()
            assert found == pytest.approx(naive(logits.detach(), y, of="mean"), rel=1e-5)
        return
    with pytest.raises(InvalidInput) as caught:
        member_loss(logits, targets, of="mean")
    assert "same rows" in caught.value.expected
    with pytest.raises(InvalidInput) as caught:  # all rows, but each member saw half
        member_loss(logits, y)
    assert caught.value.subject == "targets"
    assert "ensemble.targets" in caught.value.fix


def test_class_ids_of_any_whole_type():
    z, y = torch.randn(2, 4, 3), torch.tensor([0, 1, 2, 1])
    for dtype in (torch.uint8, torch.uint16, torch.int32):
        assert member_loss(z, y.to(dtype)) == member_loss(z, y)


Z = torch.zeros(2, 4, 3)
Y = torch.zeros(4, dtype=torch.long)


@pytest.mark.parametrize(
    ("call", "subject"),
    [
        (lambda: member_loss(Z[0], Y), "logits"),
        (lambda: member_loss(Z.long(), Y), "logits"),
        (lambda: member_loss([[0.0]], Y), "logits"),
        (lambda: member_loss(Z[:, :0], Y[:0]), "logits"),
        (lambda: member_loss(Z, Y.tolist()), "targets"),
        (lambda: member_loss(Z, Y[:3]), "targets"),
        (lambda: member_loss(Z, Y.float()), "targets"),
        (lambda: member_loss(Z, Y.bool()), "targets"),
        (lambda: member_loss(Z, Y.expand(3, 4)), "targets"),
        (lambda: member_loss(Z, torch.zeros(4, 2)), "targets"),
        (lambda: member_loss(Z, torch.zeros(4, 3)), "targets"),
        (lambda: member_loss(Z, torch.tensor([2.0, -1.0, 0.0]).expand(4, 3)), "targets"),
        (lambda: member_loss(Z, Y + 3), "targets"),
        (lambda: member_loss(Z, Y - 1), "targets"),
        (lambda: member_loss(Z, Y - 100), "targets"),
        (lambda: member_loss(Z, Y, of="median"), "of"),
        (lambda: member_loss(Z, Y, label_smoothing=1.5), "label_smoothing"),
        (lambda: member_loss(Z, Y, label_smoothing=True), "label_smoothing"),
        (lambda: member_loss(Z, Y, weight=torch.ones(4)), "weight"),
        (lambda: member_loss(Z, Y, weight=[1, 1, 1]), "weight"),
    ],
)
def test_what_does_not_fit_is_refused(call, subject):
    with pytest.raises(InvalidInput) as caught:
        call()
    assert caught.value.subject == subject
    assert caught.value.fix
