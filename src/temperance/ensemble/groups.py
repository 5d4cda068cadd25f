"""Parameter groups of an ensemble: the gates learn faster, and are not decayed."""

from __future__ import annotations

import math
import numbers
from typing import Any

from torch import nn

from temperance.ensemble.members import Ensemble
from temperance.ensemble.sigma_norm import sigma_norms
from temperance.errors import InvalidInput
from temperance.head import groups as head_groups
from temperance.models.probe import unwrap

__all__ = ["GAMMA_RATE", "parameter_groups"]

GAMMA_RATE = 10.0
"""How much faster gamma learns. The predecessor TS-sigma-BN, arXiv 2512.20420, is stable up to 100
times; 10 was among the best on fit rows in studies/sigma_ensemble, with AdamW."""


def parameter_groups(
    model: nn.Module,
    weight_decay: float,
    *,
    lr: float,
    gamma_rate: float = GAMMA_RATE,
    temperature_lr: float | None = None,
) -> list[dict[str, Any]]:
    """Split the trainable parameters of an ensemble for an optimizer.

    Weights are decayed; norms, biases, a learned temperature, gamma and what the model's own
    ``no_weight_decay()`` lists are not, as in ``temperance.parameter_groups``. The gammas are a
    group of their own, last, with ``lr * gamma_rate``: behind a sigmoid their gradients are small.

    Every group has its ``lr``, so that the optimizer's own is not used and the rates keep their
    ratio. Schedules that multiply (cosine, step, linear warm-up by a factor) keep it, too;
    ``OneCycleLR`` needs one maximum for each group.

    Args:
        model: an Ensemble, also one that is compiled or wrapped for parallel training.
        weight_decay: the decay of the weights, 0 or more.
        lr: learning rate of everything but gamma, above 0.
        gamma_rate: factor for gamma, above 0.
        temperature_lr: learning rate of learned temperatures; None for ``lr``.

    Returns:
        One to four groups: with decay, without, learned temperatures if they have a rate of their
        own, gamma. Together they hold every parameter that requires a gradient exactly once.

    Raises:
        InvalidInput: if a number is out of range, the model is no Ensemble, nothing is trainable,
            or there is a ``temperature_lr`` and no learned temperature.

    Example:
        >>> from torch import nn, optim
        >>> from temperance.ensemble import convert, parameter_groups
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 3))
        >>> groups = parameter_groups(convert(model, 4), 0.05, lr=1e-3)
        >>> [(len(g["params"]), g["weight_decay"], g["lr"]) for g in groups]
        [(2, 0.05, 0.001), (4, 0.0, 0.001), (1, 0.0, 0.01)]
        >>> optimizer = optim.AdamW(groups)
    """
    _check_positive("lr", lr)
    _check_positive("gamma_rate", gamma_rate)
    ensemble = unwrap(model) if isinstance(model, nn.Module) else model
    if not isinstance(ensemble, Ensemble):
        raise InvalidInput(
            "model",
            expected="an Ensemble",
            found=f"a {type(ensemble).__name__}",
            fix="Convert it with temperance.convert; for other models there is "
            "temperance.parameter_groups.",
        )
    # the backbone, not the ensemble: its no_weight_decay() gives names as they are inside it
    plain = head_groups.parameter_groups(
        ensemble.backbone, weight_decay, temperature_lr=temperature_lr
    )
    norms = sigma_norms(ensemble).values()
    gammas = {norm.gamma for norm in norms if norm.gamma.requires_grad}
    groups = [
        {"lr": float(lr), **group, "params": [p for p in group["params"] if p not in gammas]}
        for group in plain
    ]
    ordered = [norm.gamma for norm in norms if norm.gamma in gammas]
    groups.append({"params": ordered, "weight_decay": 0.0, "lr": float(lr) * float(gamma_rate)})
    return [group for group in groups if group["params"]]


def _check_positive(subject: str, value: Any) -> None:
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not real or not 0 < float(value) < math.inf:
        raise InvalidInput(
            subject, expected="a finite number above 0", found=repr(value), fix="Set it."
        )
