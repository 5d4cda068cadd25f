"""What the picture of an ensemble's sharing shows; ``plot_sharing`` draws it."""

from __future__ import annotations

from typing import Any

import numpy as np

from temperance.ensemble.sharing import SharingStatistics
from temperance.errors import InvalidInput

__all__ = ["prepare_sharing"]

_QUANTILES = (0.05, 0.5, 0.95)


def prepare_sharing(statistics: SharingStatistics) -> dict[str, Any]:
    """Bring the sharing of an ensemble to what a picture shows; plain numbers, ready for JSON.

    Args:
        statistics: what ``temperance.ensemble.sharing_statistics`` gave.

    Returns:
        ``members``, ``threshold``, ``names`` of the layers and their ``places`` from 1; by layer
        ``owners`` (three lists: 5, 50 and 95 % of the features' effective owners), ``above`` (mean
        of the members above the threshold) and ``spread``; ``correlation`` as M lists, mean over
        the layers by their features; None where it is not defined.

    Raises:
        InvalidInput: if it is something else.

    Example:
        >>> from torch import nn
        >>> from temperance.ensemble import convert, sharing_statistics
        >>> from temperance.evaluation.prepare_sharing import prepare_sharing
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 3))
        >>> prepare_sharing(sharing_statistics(convert(model, 4)))["names"]
        ['backbone.1']
    """
    if not isinstance(statistics, SharingStatistics):
        raise InvalidInput(
            "statistics",
            expected="what sharing_statistics gave",
            found=f"a {type(statistics).__name__}",
            fix="Call temperance.ensemble.sharing_statistics(model) first.",
        )
    layers = statistics.layers
    owners = np.array([np.quantile(x.effective_owners, _QUANTILES) for x in layers])
    stack = np.ma.masked_invalid([x.correlation for x in layers])
    mean = np.ma.average(stack, axis=0, weights=[len(x.owners_above) for x in layers])
    return {
        "members": statistics.members,
        "threshold": statistics.threshold,
        "names": [x.name for x in layers],
        "places": list(range(1, len(layers) + 1)),
        "owners": owners.T.tolist(),
        "above": [float(x.owners_above.mean()) for x in layers],
        "spread": [x.spread for x in layers],
        "correlation": mean.tolist(),
    }
