"""From a member of an ensemble back to a plain model."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from temperance.ensemble.expansion import clear
from temperance.ensemble.measure import member_layers
from temperance.ensemble.members import Ensemble, check_member
from temperance.ensemble.sigma_norm import SigmaNorm
from temperance.ensemble.swap import plain_linear_of, plain_norm_of
from temperance.errors import InvalidInput
from temperance.head.fold import fold
from temperance.models.probe import registered, replace_module

__all__ = ["fold_member", "revert"]


def revert(ensemble: Any, member: int = 0) -> nn.Module:
    """Make a plain model that computes what one member does, exactly; the ensemble stays as it is.

    Every norm is again of the model's own class, with ``weight = a * sigmoid(gamma_m)``,
    ``bias = b`` and the member's running statistics; a norm that had no scale has one now. A
    TemperedHead stays one, with its T.

    Args:
        ensemble: what ``convert`` gave.
        member: which one, from 0.

    Returns:
        The model, a copy, in the ensemble's mode.

    Raises:
        InvalidInput: if there is no such member, or it is no Ensemble.

    Example:
        >>> from torch import nn
        >>> from temperance.ensemble import convert, revert
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 3))
        >>> revert(convert(model, 4), 2)[1]
        LayerNorm((8,), eps=1e-05, elementwise_affine=True, bias=True)
    """
    if not isinstance(ensemble, Ensemble):
        found = f"a {type(ensemble).__name__}"
        raise InvalidInput(
            "ensemble", expected="what temperance.convert gave", found=found, fix="Unwrap it first."
        )
    check_member(member, ensemble.members)
    model = copy.deepcopy(ensemble.backbone)
    clear(model)
    for layer in member_layers(model).values():
        if isinstance(layer, SigmaNorm):
            replace_module(model, layer, plain_norm_of(layer, member))
        else:
            replace_module(model, layer, plain_linear_of(layer, member))
    for name, settings in ensemble.changed.items():
        for key, value in settings.items():
            setattr(registered(model, name), key, value)
    return model


def fold_member(ensemble: Any, member: int = 0, *, example: Any = None) -> nn.Module:
    """Make a plain model of one member whose tempered head is one linear layer.

    ``revert``, then ``temperance.fold``, which compares the folded layer with the head.

    Args:
        ensemble: what ``convert`` gave, with a TemperedHead.
        member: which one, from 0.
        example: one batch to compare the whole model on.

    Returns:
        The model, a copy, in evaluation mode.

    Raises:
        InvalidInput: see ``revert`` and ``temperance.fold``.
        NotFound: if the model has no tempered head; ``revert`` is then all there is to do.

    Example:
        >>> from torch import nn
        >>> from temperance import insert
        >>> from temperance.ensemble import convert, fold_member
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> _ = insert(model, 4.0, norm="none", name="2")
        >>> model[1] = nn.LayerNorm(8)
        >>> fold_member(convert(model, 4))[2]
        Linear(in_features=8, out_features=3, bias=True)
    """
    return fold(revert(ensemble, member).eval(), example, inplace=True)
