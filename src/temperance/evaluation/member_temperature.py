"""A temperature after training for an ensemble: for each member before averaging, or after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from temperance.errors import InvalidInput
from temperance.evaluation.calibration import nll
from temperance.evaluation.posthoc import apply_temperature, fit_temperature
from temperance.evaluation.predictions import read_array
from temperance.evaluation.temperature_fit import TemperatureFit
from temperance.evaluation.uncertainty import pooled_log_probs

__all__ = [
    "POOLING",
    "MemberTemperature",
    "apply_member_temperatures",
    "fit_member_temperature",
]

POOLING = ("before", "after")
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class MemberTemperature:
    """Post-hoc temperatures of an ensemble.

    Attributes:
        when: ``before`` or ``after`` averaging.
        members: M.
        fits: one for each member, or the one of their average.
        nll_before: of the ensemble on the fit rows, without a temperature, in nats.
        nll_after: with the temperatures. After averaging it is never above ``nll_before``; before,
            it may be, as each member is fitted by itself.
    """

    when: str
    members: int
    fits: tuple[TemperatureFit, ...]
    nll_before: float
    nll_after: float

    def log_probs(self, logits: ArrayLike) -> Floats:
        """Give the log-probabilities of the ensemble.

        Args:
            logits: of the members, shape ``[members, batch, classes]``.

        Returns:
            Shape ``[batch, classes]``, float64; they are valid logits for every function here.
        """
        applied = [fit.applied for fit in self.fits]
        return _pooled(read_array(logits, "logits"), applied, self.when, self.members)


def fit_member_temperature(
    logits: ArrayLike, labels: ArrayLike, *, when: str = "after"
) -> MemberTemperature:
    """Fit post-hoc temperatures for an ensemble, before or after averaging its members.

    ``after``: one T, ``p = softmax(log(mean_m p_m) / T)``, of least NLL of the ensemble;
    ``before``: one T for each member, of least NLL of that member, ``mean_m softmax(z_m / T_m)``.
    Averaging makes predictions less sure, so that members that are calibrated one by one give an
    average that is not sure enough: ``after`` is the default.

    Args:
        logits: of the members on held-out rows, shape ``[members, batch, classes]``.
        labels: class ids ``0 .. C-1``, shape ``[batch]``.
        when: ``before`` or ``after``.

    Returns:
        The fits, and ``log_probs`` for other rows.

    Raises:
        InvalidInput: if ``when`` is neither, the shapes do not fit, or a row cannot be used.

    Example:
        >>> from temperance.evaluation.member_temperature import fit_member_temperature
        >>> z = [[[8.0, 0.0]] * 3 + [[0.0, 8.0]], [[6.0, 0.0]] * 4]
        >>> found = fit_member_temperature(z, [0, 0, 0, 1], when="before")
        >>> [fit.status for fit in found.fits]
        ['at lower bound', 'converged']

    Reference:
        Rahaman, Thiery, "Uncertainty quantification and deep ensembles", 2021, arXiv 2007.08792:
        averaging calibrated members leaves the ensemble underconfident; pool, then calibrate.
    """
    _check_when(when)
    z = read_array(logits, "logits")
    pooled = pooled_log_probs(logits=z)
    parts = list(z) if when == "before" else [pooled]
    fits = tuple(fit_temperature(logits=part, labels=labels) for part in parts)
    after = _pooled(z, [fit.applied for fit in fits], when)
    return MemberTemperature(
        when=when,
        members=len(z),
        fits=fits,
        nll_before=nll(logits=pooled, labels=labels),
        nll_after=nll(logits=after, labels=labels),
    )


def apply_member_temperatures(
    logits: ArrayLike, temperatures: Sequence[float], *, when: str
) -> Floats:
    """Pool the members of an ensemble with given post-hoc temperatures.

    ``after``: ``log softmax(log(mean_m softmax(z_m)) / T)``; ``before``:
    ``log mean_m softmax(z_m / T_m)``.

    Args:
        logits: of the members, shape ``[members, batch, classes]``.
        temperatures: one for their mean (``after``), or one for each member (``before``).
        when: ``before`` or ``after``.

    Returns:
        Log-probabilities of the ensemble, shape ``[batch, classes]``, float64; they are valid
        logits for every function here.

    Raises:
        InvalidInput: if ``when`` is neither, there are more or fewer temperatures, one is no
            positive number, or the logits cannot be used.

    Example:
        >>> import numpy as np
        >>> from temperance.evaluation.member_temperature import apply_member_temperatures
        >>> z = [[[2.0, 0.0]], [[0.0, 0.0]]]
        >>> np.exp(apply_member_temperatures(z, [1.0, 2.0], when="before")).round(4)
        array([[0.6904, 0.3096]])
    """
    _check_when(when)
    return _pooled(read_array(logits, "logits"), temperatures, when)


def _pooled(
    z: NDArray[np.generic], temperatures: Sequence[float], when: str, members: int | None = None
) -> Floats:
    # reads first, so that members or axes that do not fit get the clear error
    pooled = pooled_log_probs(logits=z, members=members)
    wanted = len(z) if when == "before" else 1
    if len(temperatures) != wanted:
        raise InvalidInput(
            "temperatures",
            expected=f"{wanted} to divide by {when} averaging",
            found=f"{len(temperatures)}",
            fix="Give one for each member before averaging, one after it.",
        )
    if when == "before":
        parts = [apply_temperature(m, t) for m, t in zip(z, temperatures, strict=True)]
        return pooled_log_probs(logits=np.stack(parts))
    return pooled_log_probs(logits=apply_temperature(pooled, temperatures[0])[None])


def _check_when(when: str) -> None:
    if when not in POOLING:
        raise InvalidInput(
            "when", expected=" or ".join(POOLING), found=repr(when), fix="Choose one of them."
        )
