"""How T moves in a training of a study: by a plan, by its own gradient, or by a hypergradient.

With ``u = z / T`` and ``p = softmax(u)``, ``q`` the target, all by hand for R nets at once::

    ramp            T = 1 + (temperature - 1) step / (steps - 1)
    spent           T = temperature * (rates up to here / all rates) ^ 0.9
    learned         log T by Adam on d loss / d log T = -mean over rows of (p - q) . u
    hypergradient   log T by Adam on -<dL_val / dW, dG / d log T>, with G the gradient of the
                    output layer W in the training step before

``ramp`` and ``spent`` end at the trial's temperature, the free ones start at it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from temperance.head import MAX_LEARNED, MIN_TEMPERATURE, Ramp, temperature_at
from temperance.study.batches import batch_rows, learning_rate
from temperance.study.outcome import StudyData
from temperance.study.trial import Trial
from temperance.training.loop import mixed_seed

__all__ = [
    "FREE",
    "FREE_RATE",
    "SPENT_EXPONENT",
    "SPENT_FLOOR",
    "Paths",
    "hyper_slope",
    "learned_slope",
    "moved_slope",
    "planned_path",
    "validation_batches",
]

FREE = ("learned", "hypergradient")
"""Paths whose T depends on the training."""

SPENT_EXPONENT = 0.9
"""Power of the progress made so far. From a regression on the first 128 settings of
``studies/budget``; all of them give 0.75 by regression and 0.48 by what a T costs."""

SPENT_FLOOR = 1 / 50
"""Least share of the last T: less is over in the first 1.3 % of the budget, and diverges in it."""

FREE_RATE = 0.02
"""Rate of Adam for log T at the peak learning rate: 2 % a step, so that 35 equal ones double T."""

_BETAS = (0.9, 0.999)  # as torch.optim.Adam
_EPS = 1e-20  # a hypergradient is of any size; with torch's 1e-8 a small one would not count


# ------------------------------------------------------------------ by a plan
def planned_path(trial: Trial) -> NDArray[np.float64]:
    """Give the T of every step of a path that is planned.

    Args:
        trial: its path is ``constant``, ``ramp`` or ``spent``; the free ones give their start.

    Returns:
        float64 ``[steps]``.

    Example:
        >>> from temperance.study.networks_paths import planned_path
        >>> from temperance.study.trial import Trial
        >>> planned_path(Trial("digits", path="ramp", temperature=4, steps=4)).tolist()
        [1.0, 2.0, 3.0, 4.0]
        >>> spent = Trial("digits", path="spent", temperature=4, steps=4, schedule="constant")
        >>> planned_path(spent).round(2).tolist()
        [1.15, 2.14, 3.09, 4.0]

    Reference:
        ``temperance.head.Ramp``; the exponent is that of the law of the budget
        (``studies/budget``).
    """
    steps, end = trial.steps, trial.temperature
    if trial.path == "ramp":
        return np.array([temperature_at(Ramp(1.0, end), step, steps) for step in range(steps)])
    if trial.path != "spent":
        return np.full(steps, end)
    rates = [learning_rate(s, steps, peak=1.0, schedule=trial.schedule) for s in range(steps)]
    spent = np.cumsum(rates)
    floor = max(SPENT_FLOOR * end, MIN_TEMPERATURE)
    return np.maximum(end * (spent / spent[-1]) ** SPENT_EXPONENT, floor)


class Paths:
    """The temperatures of R nets in training.

    Args:
        trials: their trials, of equal ``steps``.

    Attributes:
        value: T now, float32 ``[R, 1, 1]``.
        moves: whether any of them moves.
        learns: which are learned, ``[R]``.
        hyper: which move by the hypergradient, ``[R]``.

    Example:
        >>> from temperance.study.networks_paths import Paths
        >>> from temperance.study.trial import Trial
        >>> paths = Paths([Trial("digits", path="ramp", temperature=3, steps=3)])
        >>> [float(paths.begin(step)) for step in range(3)]
        [1.0, 2.0, 3.0]
    """

    def __init__(self, trials: Sequence[Trial]) -> None:
        self._trials = tuple(trials)
        self.value = torch.tensor([t.temperature for t in trials]).view(-1, 1, 1)
        self.moves = any(t.path != "constant" for t in trials)
        self.learns = torch.tensor([t.path == "learned" for t in trials])
        self.hyper = torch.tensor([t.path == "hypergradient" for t in trials])
        self.plain = torch.tensor([t.loss == "plain" for t in trials])
        self.adaptive = torch.tensor([t.optimizer != "sgd" for t in trials])
        self._free = self.learns | self.hyper
        self._log = torch.tensor([t.temperature for t in trials], dtype=torch.float64).log_()
        self._means = torch.zeros(2, len(trials), dtype=torch.float64)
        self._planned: Tensor | None = None
        if any(t.path in ("ramp", "spent") for t in trials):
            self._planned = torch.from_numpy(np.stack([planned_path(t) for t in trials])).float()

    @property
    def free(self) -> bool:
        """Whether any of them depends on the training."""
        return bool(self._free.any())

    def begin(self, step: int) -> Tensor:
        """Set the planned temperatures of a step, from 0; gives all, ``[R, 1, 1]``."""
        if self._planned is not None:
            now = torch.where(self._free, self.value.flatten(), self._planned[:, step])
            self.value.copy_(now.view(-1, 1, 1))
        return self.value

    def learn(self, slope: Tensor, step: int) -> None:
        """Move the free temperatures by Adam, then put them between the bounds of a learned T.

        Args:
            slope: of what is to fall, in log T, ``[R]``; of those that are not free it is ignored.
            step: number of the step, from 0.
        """
        slope = torch.where(self._free, slope.double(), 0.0)
        for mean, beta, new in zip(self._means, _BETAS, (slope, slope**2), strict=True):
            mean.mul_(beta).add_(new, alpha=1 - beta)
        first, second = (
            mean / (1 - beta ** (step + 1)) for mean, beta in zip(self._means, _BETAS, strict=True)
        )
        self._log -= self._rates(step) * first / (second.sqrt() + _EPS)
        self._log.clamp_(math.log(MIN_TEMPERATURE), math.log(MAX_LEARNED))
        now = torch.where(self._free, self._log.exp().float(), self.value.flatten())
        self.value.copy_(now.view(-1, 1, 1))

    def stop(self, index: int) -> None:
        """Let one stay where it is harmless."""
        self._free[index] = self.learns[index] = self.hyper[index] = False
        self.value[index], self._log[index], self._means[:, index] = 1.0, 0.0, 0.0

    def _rates(self, step: int) -> Tensor:
        shares = [
            learning_rate(step, t.steps, peak=FREE_RATE, schedule=t.schedule) for t in self._trials
        ]
        return torch.tensor(shares, dtype=torch.float64)


# ------------------------------------------------------------------ slopes in log T
def learned_slope(z: Tensor, g: Tensor, *, paths: Paths) -> Tensor:
    """Give the slope of the training loss in log T, ``-mean over rows of (p - q) . u``.

    That of the plain loss, also where the normalized one is trained: its factor T is there for the
    weights below, as in ``HeadOptions(gradient_compensation=True)``.

    Args:
        z: logits times T, ``[R, C, B]``.
        g: slope of the loss in them.
        paths: says T, and which losses are plain.

    Returns:
        ``[R]``, float64.
    """
    z = z - z.amax(dim=1, keepdim=True)
    slope = -(g.double() * z).sum(dim=(1, 2))
    return torch.where(paths.plain, slope, slope / paths.value.flatten())


def moved_slope(z: Tensor, g: Tensor, *, paths: Paths) -> Tensor:
    """Give how the slope of the loss in the logits changes with log T.

    ``d p / d log T = -p (u - p . u)``, over ``B T``, and minus ``g`` for the plain loss, whose
    slope has a factor 1 / T.

    Args:
        z: logits times T, ``[R, C, B]``.
        g: slope of the loss in them.
        paths: says T, and which losses are plain.

    Returns:
        ``[R, C, B]``.
    """
    u = (z - z.amax(dim=1, keepdim=True)) / paths.value
    p = torch.softmax(u, dim=1)
    plain = paths.plain.view(-1, 1, 1)
    moved = -p * (u - (p * u).sum(dim=1, keepdim=True)) / z.shape[2]
    return torch.where(plain, moved / paths.value - g, moved)


def hyper_slope(
    moved: Sequence[Tensor], trained: Sequence[Tensor], judged: Sequence[Tensor], *, paths: Paths
) -> Tensor:
    """Give the slope of the validation loss in log T through one step of the output layer.

    The step is taken as minus the gradient G; AdamW and RMSprop, which divide by its size, as minus
    ``G / |G|``: what T does to the size of G is then left out. A factor that is the same in all
    steps (the learning rate) does not matter to Adam.

    Args:
        moved: ``dG / d log T`` of each parameter of the output layer, ``[R * .., ..]``.
        trained: G.
        judged: gradients of the validation loss after the step.
        paths: says which optimizers divide by the size.

    Returns:
        ``[R]``, float64.

    Reference:
        Baydin et al., Online Learning Rate Adaptation with Hypergradient Descent, 2018, arXiv
        1703.04782: the same one-step derivative, there for the learning rate.
    """
    count = len(paths.value)
    d, g, v = (
        torch.cat([t.reshape(count, -1) for t in parts], dim=1).double()
        for parts in (moved, trained, judged)
    )
    size = (g * g).sum(dim=1, keepdim=True).clamp_(min=1e-300)
    turned = (d - g * ((g * d).sum(dim=1, keepdim=True) / size)) / size.sqrt()
    d = torch.where(paths.adaptive.view(-1, 1), turned, d)
    return -(d * v).sum(dim=1)


def validation_batches(data: StudyData, trial: Trial) -> NDArray[np.int64]:
    """Give the validation rows of every step of a hypergradient, drawn with the trial's seed.

    Args:
        data: the rows.
        trial: the trial.

    Returns:
        Row numbers, ``[steps, rows]``.
    """
    seed = mixed_seed("validation", trial.seed)
    return batch_rows(len(data.y["val"]), trial.batch_size, trial.steps, seed)
