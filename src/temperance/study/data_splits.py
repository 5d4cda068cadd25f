"""Smaller training sets and wrong labels for studies: nested, stratified, the same everywhere."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from temperance.errors import InvalidInput

__all__ = ["nested_rows", "noisy_labels"]

Ids = NDArray[np.int64]

_ORDER_SEED, _NOISE_SEED = 20, 21  # part of what a task is; any other numbers would do


def nested_rows(y: Ids, n_rows: int, n_classes: int) -> Ids:
    """Choose training rows by class shares, so that fewer rows are always a part of more rows.

    Every class is put in a random order. First comes one row of each class, then all others by
    their place in their class as a share of it: any beginning of that order is stratified.

    Args:
        y: class ids of all training rows, shape ``[n]``.
        n_rows: rows to keep, C to ``n``.
        n_classes: C.

    Returns:
        Places of the kept rows, ascending.

    Raises:
        InvalidInput: for more rows than there are, or too few to have one of every class.

    Example:
        >>> import numpy as np
        >>> y = np.array([0, 0, 0, 0, 1, 1])
        >>> np.bincount(y[nested_rows(y, 3, 2)]).tolist()
        [2, 1]
    """
    if not n_classes <= n_rows <= len(y):
        raise InvalidInput(
            "train_rows",
            expected=f"{n_classes} (one of every class) to {len(y)} (all training rows)",
            found=str(n_rows),
            fix="Change it in the plan.",
        )
    shuffled = np.random.default_rng(_ORDER_SEED).permutation(len(y))
    by_class = shuffled[np.argsort(y[shuffled], kind="stable")]
    counts = np.bincount(y, minlength=n_classes)
    place = np.arange(len(y)) - np.repeat(np.cumsum(counts) - counts, counts)
    share = np.where(place == 0, 0.0, (place + 0.5) / counts[y[by_class]])
    # Classes of equal size have equal shares: the random order of the rows decides among them.
    order = np.lexsort((np.argsort(shuffled)[by_class], share))
    return np.sort(by_class[order[:n_rows]])


def noisy_labels(y: Ids, share: float, n_classes: int) -> Ids:
    """Replace a share of labels by another class, drawn uniformly; more noise includes less.

    Args:
        y: class ids, shape ``[n]``.
        share: of labels that become wrong, 0 to below 1; ``round(share * n)`` of them.
        n_classes: C, 2 or more.

    Returns:
        A copy with the wrong labels.

    Raises:
        InvalidInput: for a share out of range.

    Example:
        >>> import numpy as np
        >>> int((noisy_labels(np.zeros(10, dtype=np.int64), 0.3, 4) > 0).sum())
        3
    """
    if not 0 <= share < 1:
        raise InvalidInput(
            "label_noise",
            expected="a share from 0 to below 1",
            found=repr(share),
            fix="Change it in the plan.",
        )
    rng = np.random.default_rng(_NOISE_SEED)
    chosen = rng.permutation(len(y))[: round(share * len(y))]
    shift = rng.integers(1, n_classes, size=len(y))
    noisy = y.copy()
    noisy[chosen] = (y[chosen] + shift[chosen]) % n_classes
    return noisy
