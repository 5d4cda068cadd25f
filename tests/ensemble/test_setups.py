"""Ensembles in training setups: AMP, DataParallel, averaging, accumulation, freezing, files."""

import copy
import dataclasses

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils.checkpoint import checkpoint

from temperance import insert, member_loss
from temperance.ensemble import backward_each, convert, film_ensemble, predict_members, sigma_norms
from temperance.errors import InvalidInput
from temperance.head import (
    accumulate_statistics,
    check_frozen,
    freeze,
    recompute_statistics,
    update_once,
)
from temperance.models import load_checkpoint

X = torch.randn(24, 3, 8, 8, generator=torch.Generator().manual_seed(1)) * 3 + 5
Y = torch.arange(24) % 5


def plain():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, 5),
    )  # fmt: skip
    insert(model, 4.0)
    return model


def build(members=3, **settings):
    return convert(plain(), members, example=X[:2], **settings)


def running(model):
    return {n: b.clone() for n, b in model.named_buffers() if "running" in n}


# ------------------------------------------------------------------ AMP
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("each", [False, True])
def test_autocast_with_a_scaler(dtype, each):
    ensemble = build()
    full = copy.deepcopy(ensemble)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, enabled=dtype == torch.float16)
    optimizer = torch.optim.SGD(ensemble.parameters(), lr=1e-3)
    with torch.autocast("cpu", dtype=dtype):
        if each:

            def loss_of(z, y):
                return scaler.scale(nn.functional.cross_entropy(z, y))

            loss = backward_each(ensemble, X, targets=Y, loss=loss_of) / scaler.get_scale()
        else:
            loss = member_loss(ensemble(X), Y)
            scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    expected = member_loss(full(X), Y)
    torch.testing.assert_close(loss.detach(), expected.detach(), rtol=1e-2, atol=1e-3)
    assert all(t.isfinite().all() for t in ensemble.state_dict().values())
    for name, value in running(full).items():
        torch.testing.assert_close(running(ensemble)[name], value, rtol=2e-2, atol=2e-2)


# ------------------------------------------------------------------ DataParallel
def test_replicas_of_data_parallel_are_refused():
    """They would join members for rows: [2 M, B / 2, C]."""
    replica = build()._replicate_for_data_parallel()
    with pytest.raises(InvalidInput) as error:
        replica(X)
    assert "DistributedDataParallel" in error.value.fix
    assert nn.DataParallel(build())(X).shape == (3, 24, 5)  # one device or none: no replica


# ------------------------------------------------------------------ averaging
@pytest.mark.parametrize("use_buffers", [False, True])
def test_statistics_of_averaged_members(use_buffers):
    """Of each member; torch's own update_bn passes over them without a word."""
    ensemble = build()
    averaged = AveragedModel(
        ensemble, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=use_buffers
    )
    optimizer = torch.optim.SGD(ensemble.parameters(), lr=0.2)
    for _ in range(4):
        member_loss(ensemble(X), Y).backward()
        optimizer.step()
        optimizer.zero_grad()
        averaged.update_parameters(ensemble)
    before = running(averaged)
    update_bn([X], averaged)
    assert all(torch.equal(v, before[n]) for n, v in running(averaged).items())
    figures = recompute_statistics(
        averaged, [{"input": X[:20], "labels": Y[:20]}, (X[20:], Y[20:])]
    )
    assert figures.mean_shift > 0.3
    assert figures.norms == ("module.backbone.1", "module.backbone.5.norm")
    assert recompute_statistics(averaged, [X]).n_rows == 24


def test_recomputed_statistics_are_those_of_each_member(differ):
    """Against each member alone, whose norms are told to take whole batches, and two passes."""
    ensemble, batches = differ(build()), X.split(12)
    original = copy.deepcopy(ensemble)
    recompute_statistics(ensemble, batches)
    for m in range(3):
        alone = copy.deepcopy(original)
        values = {n: [] for n in sigma_norms(alone)}
        for norm in sigma_norms(alone).values():
            norm.facts = dataclasses.replace(norm.facts, momentum=1.0)
        with alone.member(m), torch.no_grad():
            for part in batches:
                alone.train()(part)
                for name, norm in sigma_norms(alone).items():
                    values[name].append((norm.running_mean[m].clone(), norm.running_var[m].clone()))
        for name, norm in sigma_norms(ensemble).items():
            places = 36 if name.endswith(".1") else 1
            n, (a, b) = 12 * places, values[name]
            mean = (a[0] + b[0]) / 2
            squares = (n - 1) * (a[1] + b[1]) + n * ((a[0] - mean) ** 2 + (b[0] - mean) ** 2)
            torch.testing.assert_close(norm.running_mean[m], mean, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(
                norm.running_var[m], squares / (2 * n - 1), rtol=1e-4, atol=0
            )


def test_other_ensembles_with_statistics_of_members():
    ensemble = film_ensemble(plain(), 2, init="function")
    figures = recompute_statistics(ensemble, [X])
    assert len(figures.norms) == 2
    assert accumulate_statistics(ensemble, 4)[figures.norms[0]] == pytest.approx(1 - 0.9**0.25)


# ------------------------------------------------------------------ accumulation
def test_accumulation_reaches_members():
    ensemble = build()
    found = accumulate_statistics(ensemble, 8)
    assert found == pytest.approx(dict.fromkeys(sigma_norms(ensemble), 1 - 0.9 ** (1 / 8)))
    whole = copy.deepcopy(ensemble)
    accumulate_statistics(whole, 1)
    assert {n.facts.momentum for n in sigma_norms(whole).values()} == {0.1}
    with torch.no_grad():
        whole(X)
        for part in X.split(3):
            ensemble(part)
    name = "backbone.1.running_mean"
    torch.testing.assert_close(running(ensemble)[name], running(whole)[name], rtol=0.1, atol=0.02)


# ------------------------------------------------------------------ checkpointing
class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.mode = plain(), None

    def forward(self, x):
        if self.mode is None:
            return self.inner(x)
        return checkpoint(self.inner, x, use_reentrant=self.mode)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("protocol", ["repeat", "split"])
def test_members_count_a_batch_once(reentrant, protocol):
    expected = convert(Checkpointed(), 3, example=X[:2], protocol=protocol)
    ensemble = copy.deepcopy(expected)
    ensemble.backbone.mode = reentrant
    update_once(ensemble)
    for e in (ensemble, expected):
        x = X.clone().requires_grad_()
        member_loss(e(x), e.targets(Y)).backward()
    for name, buffer in expected.named_buffers():
        torch.testing.assert_close(dict(ensemble.named_buffers())[name], buffer, rtol=0, atol=0)


def test_one_member_after_the_other_with_checkpoints():
    expected = convert(Checkpointed(), 3, example=X[:2])
    ensemble = copy.deepcopy(expected)
    ensemble.backbone.mode = False
    update_once(ensemble)
    for e in (ensemble, expected):
        backward_each(e, X, targets=Y)
    for name, buffer in expected.named_buffers():
        torch.testing.assert_close(dict(ensemble.named_buffers())[name], buffer, rtol=0, atol=0)


# ------------------------------------------------------------------ frozen backbones
def test_frozen_but_for_norms_and_heads():
    """Members' own layers train, with their statistics; what all share stays."""
    ensemble = build()
    frozen = freeze(ensemble, trained=[*sigma_norms(ensemble), "backbone.5"])
    before = {k: v.clone() for k, v in ensemble.state_dict().items()}
    optimizer = torch.optim.AdamW(ensemble.parameters(), lr=0.1)
    ensemble.train()
    member_loss(ensemble(X), Y).backward()
    optimizer.step()
    check_frozen(ensemble, frozen)
    moved = {k for k, v in ensemble.state_dict().items() if not torch.equal(v, before[k])}
    assert "backbone.1.gamma" in moved
    assert "backbone.1.running_mean" in moved
    assert not any(k.startswith("backbone.0.") for k in moved)


def test_frozen_members_keep_their_statistics():
    ensemble = build()
    frozen = freeze(ensemble)  # all but the tempered head
    assert frozen.trained == ("backbone.5",)
    ensemble.train()
    member_loss(ensemble(X), Y).backward()
    check_frozen(ensemble, frozen)
    assert ensemble.backbone[5].norm.num_batches_tracked.tolist() == [1, 1, 1]
    assert ensemble.backbone[1].num_batches_tracked.tolist() == [0, 0, 0]


# ------------------------------------------------------------------ files
@pytest.mark.parametrize(
    "wrap",
    [
        lambda m: torch.compile(m, backend="eager"),
        nn.DataParallel,
        lambda m: torch.compile(nn.DataParallel(m), backend="eager"),
        AveragedModel,
    ],
    ids=["compile", "DataParallel", "both", "AveragedModel"],
)
def test_checkpoints_of_wrapped_ensembles(wrap, tmp_path, differ):
    source, target = differ(build()), build()
    torch.save({"epoch": 2, "model": wrap(source).state_dict()}, tmp_path / "last.pt")
    report = load_checkpoint(target, tmp_path / "last.pt")
    assert len(report.loaded) == len(target.state_dict())
    assert report.ignored in ((), ("n_averaged",))
    torch.testing.assert_close(predict_members(target, X), predict_members(source, X))
    with pytest.raises(InvalidInput):
        load_checkpoint(build(members=2), tmp_path / "last.pt")
