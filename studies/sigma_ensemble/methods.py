"""Every method as the one loop trains it: a model, parameter groups, an objective.

The rivals are those of ``temperance.ensemble.baselines``, at the settings of their papers' code:
MIMO repeats each batch 4 times, Packed-Ensembles have alpha 2, Masksembles scale 2, MC dropout
drops a tenth, BatchEnsemble's factors have half the learning rate and no weight decay. A deep
ensemble is put together from single models that were trained alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from cells import Cell
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from temperance.ensemble import (
    convert,
    diversity_loss,
    member_loss,
    parameter_groups,
    sigma_norms,
)
from temperance.ensemble.baselines import BASELINES
from temperance.ensemble.batch_ensemble import RankOneLayer
from temperance.ensemble.swap import START
from temperance.head import parameter_groups as plain_groups
from temperance.training.loop import OPTIMIZERS, Objective

__all__ = ["METHODS", "make"]

SIGMA = ("sigma", "sigma_plain", "sigma_split", "sigma_paper", "sigma_mean")
"""With the diversity term; without; rows split; the paper's init; the loss of the mean."""
METHODS = ("single", "deep_ensemble", *SIGMA, *(n for n in BASELINES if n != "deep_ensemble"))
EXTRA: Mapping[str, Mapping[str, Any]] = {"mc_dropout": {"p": 0.1}}

Made = tuple[nn.Module, list[dict[str, Any]], Objective]


def make(cell: Cell, model: nn.Module, example: Tensor) -> Made:
    """Put a method into a new model.

    Args:
        cell: what is to be trained.
        model: a new net, in training mode.
        example: one batch of inputs.

    Returns:
        What gives logits ``[B, C]`` or ``[M, B, C]``; groups for the optimizer; the objective.

    Raises:
        InvalidInput, NotFound: if the method is not defined for such a net.
    """
    decay = OPTIMIZERS[cell.optimizer]["weight_decay"]
    if cell.method == "single":
        return model, plain_groups(model, decay), Objective()
    if cell.method in SIGMA:
        return _sigma(cell, model, example, decay)
    return _rival(cell, model, example, decay)


# ------------------------------------------------------------------ members in one backbone
def _sigma(cell: Cell, model: nn.Module, example: Tensor, decay: float) -> Made:
    ensemble = convert(
        model,
        cell.members,
        init="paper" if cell.method == "sigma_paper" else "function",
        spread=cell.spread,
        heads="fresh",
        seed=cell.seed,
        example=example,
        protocol="split" if cell.method == "sigma_split" else "repeat",
    )
    _move_start(ensemble, cell.start, keep=cell.method != "sigma_paper")
    groups = parameter_groups(ensemble, decay, lr=cell.lr, gamma_rate=cell.rate)
    of = "mean" if cell.method == "sigma_mean" else "members"

    def loss(logits: Tensor, y: Tensor, smoothing: float) -> Tensor:
        return member_loss(logits, ensemble.targets(y), of=of, label_smoothing=smoothing)

    penalty: Callable[[nn.Module], Tensor] | None = None
    if cell.strength > 0 and cell.members > 1 and cell.method != "sigma_plain":
        penalty = partial(diversity_loss, tau=cell.tau, strength=cell.strength)
    multiple = cell.members if cell.method == "sigma_split" else 1
    return ensemble, groups, Objective(loss, penalty, multiple)


def _move_start(ensemble: nn.Module, start: float, *, keep: bool) -> None:
    """Move gamma's start; with ``keep`` the function for gamma at its start stays."""
    ratio = (1 + math.exp(-start)) / (1 + math.exp(-START))  # sigmoid(START) / sigmoid(start)
    with torch.no_grad():
        for norm in sigma_norms(ensemble).values():
            norm.gamma.add_(start - START)
            if keep:
                norm.weight.mul_(ratio)


# ------------------------------------------------------------------ rivals
def _rival(cell: Cell, model: nn.Module, example: Tensor, decay: float) -> Made:
    baseline = BASELINES[cell.method]
    known = {"example": example} if baseline.takes_example else {}
    ensemble = baseline.build(
        model, cell.members, seed=cell.seed, **known, **EXTRA.get(cell.method, {})
    )

    def loss(logits: Tensor, y: Tensor, smoothing: float) -> Tensor:
        targets = ensemble.targets(y)
        losses = cross_entropy(
            logits.flatten(0, 1), targets.flatten(), reduction="none", label_smoothing=smoothing
        )
        means = losses.view(targets.shape).mean(1)
        return means.sum() if baseline.loss == "sum" else means.mean()

    groups = plain_groups(ensemble, decay)
    if cell.method == "batch_ensemble":
        groups = _half_rate(ensemble, groups, cell.lr)
    multiple = cell.members if baseline.protocol == "split" else 1
    return ensemble, groups, Objective(loss, None, multiple)


def _half_rate(
    ensemble: nn.Module, groups: list[dict[str, Any]], lr: float
) -> list[dict[str, Any]]:
    """Give the factors and biases of BatchEnsemble half the rate, and no decay."""
    layers = [m for m in ensemble.modules() if isinstance(m, RankOneLayer)]
    slow = {p for m in layers for p in (m.r, m.s, m.bias) if isinstance(p, nn.Parameter)}
    kept = [{**g, "params": [p for p in g["params"] if p not in slow], "lr": lr} for g in groups]
    fast = {"params": list(slow), "weight_decay": 0.0, "lr": lr / 2}
    ordered = [p for p in ensemble.parameters() if p in slow]
    return [g for g in (*kept, {**fast, "params": ordered}) if g["params"]]
