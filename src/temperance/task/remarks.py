"""What a reader must know beside a value: classes, features and rows that it leaves out."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from temperance.records import Features
from temperance.task.moments import Moments
from temperance.task.neighbour_statistics import Neighbours

__all__ = ["remarks_on_classes", "remarks_on_moments", "remarks_on_neighbours"]

_MANY_TIES = 0.01  # share of drawn rows from which the status mentions them


def remarks_on_classes(features: Features) -> dict[str, str]:
    """Say which classes are odd.

    Args:
        features: the rows and their classes.

    Returns:
        ``empty``: classes without rows; ``single``: classes with one; each only where there are
        any.
    """
    counts = np.bincount(features.y, minlength=len(features.class_map))
    names, empty, single = features.class_names, counts == 0, counts == 1
    return _said(
        empty=f"classes without rows are left out, {(~empty).sum()} of {len(names)} are measured: "
        + _some(names, empty),
        single="classes with one row: " + _some(names, single),
        only={"empty": empty.any(), "single": single.any()},
    )


def remarks_on_moments(moments: Moments) -> dict[str, str]:
    """Say which features and rows are left out.

    Args:
        moments: of all rows.

    Returns:
        ``constant``: features that do not vary; ``undirected`` and ``undirected_centred``: rows
        without a cosine to their class mean; each only where there are any.
    """
    still = int((moments.variance == 0).sum())
    bare = int(np.isnan(moments.rows.cosine).sum())
    centred = int(np.isnan(moments.rows.cosine_centred).sum())
    text = "rows that are 0, alone in their class or of a class whose mean is 0 are left out"
    return _said(
        constant=f"{still} of {len(moments.variance)} features are constant and left out",
        undirected=f"{bare} of {moments.n} {text}",
        undirected_centred=f"{centred} of {moments.n} {text}",
        only={"constant": still, "undirected": bare, "undirected_centred": centred},
    )


def remarks_on_neighbours(found: Neighbours) -> dict[str, str]:
    """Say how many of the drawn rows have duplicates or several nearest rows.

    Args:
        found: the neighbours of the drawn rows.

    Returns:
        ``twins``: rows with a duplicate; ``twins_out``: the same where they are left out; ``ties``:
        rows with two rows equally near, where these are 1 % or more.
    """
    total = len(found.labels)
    twins = int((found.distance[:, 0] == 0).sum())
    ties = int((found.distance[:, 0] == found.distance[:, -1]).sum()) if total > 2 else 0
    duplicates = f"duplicates: {twins} of {total} rows have one"
    return _said(
        twins=f"{duplicates}, which is their nearest row",
        twins_out=f"{duplicates} and are left out",
        ties=f"ties: {ties} of {total} rows have two nearest rows, the value depends on the order "
        "of the rows",
        only={"twins": twins, "twins_out": twins, "ties": ties >= _MANY_TIES * total},
    )


def _said(*, only: Mapping[str, object], **texts: str) -> dict[str, str]:
    return {name: text for name, text in texts.items() if only[name]}


def _some(names: tuple[str, ...], which: NDArray[np.bool_]) -> str:
    chosen = [repr(names[c]) for c in np.flatnonzero(which)]
    return ", ".join(chosen[:5]) + (f" and {len(chosen) - 5} more" if len(chosen) > 5 else "")
