"""Training rows that are changed at random in each step: pictures are shifted, features get noise.

::

    shift        pictures moved by up to an eighth of their height, filled with zeros
    shift-flip   the same, and half of them mirrored left to right
    noise        features x + 0.3 s e, with e drawn from N(0, 1) for each number and
                 s^2 = mean over training rows and columns of (x - mean of the column)^2

Draws come from the seed of a trial and the number of the step, and from nothing else: all
temperatures of a seed see the same rows, whoever is trained beside them. Rows that judge are never
changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from temperance.errors import InvalidInput
from temperance.study.outcome import StudyData
from temperance.study.trial import Trial
from temperance.training.loop import mixed_seed
from temperance.training.preprocess import augment

__all__ = ["NOISE", "Augmentation", "check_augment", "new_augmentation", "spread_of"]

NOISE = 0.3
"""Standard deviation of the noise, in units of ``spread_of``. A choice of ours: for standardized
columns it leaves 1 / 1.09 of their variance to the data. It is the same for all columns, so that
columns of a small spread, as the last ones of ``pca``, are drowned in it."""

_LEAST_HEIGHT = 8  # an eighth of less is no pixel
_BLOCK = 1 << 20  # numbers that are summed together: 8 MB in float64

Rows = NDArray[np.float32]
Augmentation = Callable[[Rows, int], Rows]
"""Gives the training rows of a step, from its own copy of them, which it may change."""


def new_augmentation(data: StudyData, trial: Trial) -> Augmentation:
    """Make what changes the training rows of a trial.

    Args:
        data: the rows.
        trial: says how (``augment``), and by which draws (``seed``).

    Returns:
        A function of the rows of a step, float32 ``[B, M]`` or ``[B, channels, height, width]``,
        and its number from 0. It may change them in place and gives rows of the same shape; gray
        pictures may be replicated to channels before or after.

    Example:
        >>> import numpy as np
        >>> from temperance.study.augmentation import new_augmentation
        >>> from temperance.study.data import load
        >>> from temperance.study.trial import Trial
        >>> data = load("iris")
        >>> noisy = new_augmentation(data, Trial("iris", augment="noise"))
        >>> one, again, other = (noisy(data.x["train"][:4].copy(), step) for step in (0, 0, 1))
        >>> bool((one == again).all()), bool((one == other).any())
        (True, False)

    Reference:
        K. He et al., "Deep residual learning for image recognition", CVPR 2016, section 4.2 (shift
        and flip); C. Bishop, "Training with noise is equivalent to Tikhonov regularization", Neural
        Computation 7 (1995).
    """
    if trial.augment == "none":
        return lambda rows, step: rows  # noqa: ARG005
    if trial.augment == "noise":
        size = NOISE * spread_of(data.x["train"])
        return lambda rows, step: _noisy(rows, size, generator=_generator(trial, step))
    flip = trial.augment == "shift-flip"

    def moved(rows: Rows, step: int) -> Rows:
        pictures = torch.from_numpy(rows)
        return augment(pictures, _generator(trial, step), flip=flip).numpy()

    return moved


def _generator(trial: Trial, step: int) -> torch.Generator:
    return torch.Generator().manual_seed(mixed_seed("augment", trial.seed, step))


def _noisy(rows: Rows, size: float, *, generator: torch.Generator) -> Rows:
    torch.from_numpy(rows).add_(torch.randn(rows.shape, generator=generator), alpha=size)
    return rows


def spread_of(x: Rows) -> float:
    """Give the root mean square of rows around their mean, over all columns.

    Args:
        x: rows, ``[n, M]``; may be a memory map.

    Returns:
        ``sqrt(mean (x - mean of the column)^2)``; 1 for standardized columns.

    Example:
        >>> import numpy as np
        >>> from temperance.study.augmentation import spread_of
        >>> spread_of(np.array([[1.0, 5.0], [3.0, 7.0]], dtype=np.float32))
        1.0
    """
    mean = x.mean(axis=0, dtype=np.float64)
    step = max(1, _BLOCK // x.shape[1])
    squares = sum(
        float(np.square(x[start : start + step] - mean).sum()) for start in range(0, len(x), step)
    )
    return math.sqrt(squares / x.size)


def check_augment(data: StudyData, trials: Sequence[Trial]) -> None:
    """Refuse augmentation that the rows do not allow.

    Args:
        data: the rows, checked.
        trials: the trials.

    Raises:
        InvalidInput: for noise on pictures, for shifts of features, and for shifts of pictures that
            are too low to be moved by an eighth of their height.
    """
    shape = list(data.input_shape)
    for kind in dict.fromkeys(trial.augment for trial in trials):
        if kind == "noise" and len(shape) != 1:
            raise InvalidInput(
                "trial.augment",
                expected="shift, shift-flip or none, for pictures",
                found=f"noise, for rows of shape {shape}",
                fix='Take one of these, or make features of the pictures, such as "pixels".',
            )
        if kind.startswith("shift") and len(shape) == 1:
            raise InvalidInput(
                "trial.augment",
                expected="noise or none, for features",
                found=f"{kind}, for rows of {shape[0]} numbers",
                fix='Take one of these, or pictures as a net takes them (features = "input").',
            )
        if kind.startswith("shift") and shape[1] < _LEAST_HEIGHT:
            raise InvalidInput(
                "trial.augment",
                expected=f"none, for pictures of less than {_LEAST_HEIGHT} lines",
                found=f"{kind}, for rows of shape {shape}",
                fix="Leave augment out: shifts go up to an eighth of the height, here no pixel.",
            )
