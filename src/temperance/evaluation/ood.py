"""Scores that tell rows of another kind apart; ``detection`` says how well they do it.

One convention throughout: *higher means more out of distribution*. A temperature divides the
logits; it changes all scores but the largest logit, so that it is an argument and never left to a
default elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from temperance.errors import InvalidInput
from temperance.evaluation.predictions import (
    FLOOR,
    Predictions,
    read_array,
    read_logits,
    read_probs,
)
from temperance.evaluation.uncertainty import member_uncertainty

__all__ = [
    "OOD_SCORES",
    "energy",
    "max_logit",
    "msp",
    "mutual_information",
    "predictive_entropy",
]

Floats = NDArray[np.float64]


# ------------------------------------------------------------------ scores
def msp(
    *, logits: ArrayLike | None = None, probs: ArrayLike | None = None, temperature: float = 1.0
) -> Floats:
    """Score by the maximum softmax probability: ``1 - max_c softmax(z / T)_c``.

    Args:
        logits: numbers before the softmax, shape ``[n, C]``, or ``[n]`` for two classes.
        probs: probabilities, same shapes; exactly one of the two is given.
        temperature: T, positive. ODIN's is 1000, without its change of the inputs.

    Returns:
        Scores ``[n]``, 0 to ``1 - 1 / C``; higher is more OOD. From logits they tell rows apart
        whose largest probability rounds to 1.

    Raises:
        InvalidInput: if the predictions or the temperature cannot be used.

    Example:
        >>> from temperance.evaluation import msp
        >>> msp(probs=[[0.9, 0.1], [0.5, 0.5]]).round(6).tolist()
        [0.1, 0.5]

    Reference:
        Hendrycks, Gimpel, A baseline for detecting misclassified and out-of-distribution examples
        in neural networks, 2017, arXiv 1610.02136.
    """

    def score(z: Floats, at: NDArray[np.intp], top: NDArray[np.intp]) -> Floats:
        _, rest = _rest(z, at, top)
        return np.asarray(rest / (1.0 + rest))

    return _scored(score, logits=logits, probs=probs, temperature=temperature)


def predictive_entropy(
    *, logits: ArrayLike | None = None, probs: ArrayLike | None = None, temperature: float = 1.0
) -> Floats:
    """Score by the entropy of the probabilities, ``-sum_c p_c log p_c`` with ``softmax(z / T)``.

    Args:
        logits: numbers before the softmax, shape ``[n, C]``, or ``[n]`` for two classes.
        probs: probabilities, same shapes; exactly one of the two is given.
        temperature: T, positive.

    Returns:
        Scores ``[n]`` in nats, 0 to ``log C``; higher is more OOD.

    Raises:
        InvalidInput: if the predictions or the temperature cannot be used.

    Example:
        >>> from temperance.evaluation import predictive_entropy
        >>> predictive_entropy(probs=[[1.0, 0.0], [0.5, 0.5]]).round(4).tolist()
        [0.0, 0.6931]
    """

    def score(z: Floats, at: NDArray[np.intp], top: NDArray[np.intp]) -> Floats:
        p, rest = _rest(z, at, top)
        # log(sum exp) - sum p z, with z = 0 for the largest
        return np.asarray(np.log1p(rest) - (p * z).sum(axis=1) / (1.0 + rest))

    return _scored(score, logits=logits, probs=probs, temperature=temperature)


def max_logit(*, logits: ArrayLike) -> Floats:
    """Score by the largest logit: ``-max_c z_c``.

    Args:
        logits: numbers before the softmax, shape ``[n, C]``, C of 2 or more. Not one logit per row,
            whose other one is 0 by convention only; not log-probabilities, whose level is lost.

    Returns:
        Scores ``[n]``; higher is more OOD.

    Raises:
        InvalidInput: if the logits cannot be used.

    Example:
        >>> from temperance.evaluation import max_logit
        >>> max_logit(logits=[[5.0, 1.0], [0.5, 0.0]]).tolist()
        [-5.0, -0.5]

    Reference:
        Hendrycks, Basart, Mazeika, Zou, Kwon, Mostajabi, Steinhardt, Song, Scaling
        out-of-distribution detection for real-world settings, 2022, arXiv 1911.11132.
    """
    return -np.asarray(_levelled(logits).max(axis=1), dtype=np.float64)


def energy(*, logits: ArrayLike, temperature: float = 1.0) -> Floats:
    """Score by the energy at temperature T: ``-T log sum_c exp(z_c / T)``.

    Args:
        logits: numbers before the softmax, shape ``[n, C]``, C of 2 or more; as for ``max_logit``.
        temperature: T, positive. For T towards 0 the energy becomes ``max_logit``.

    Returns:
        Scores ``[n]``; higher is more OOD.

    Raises:
        InvalidInput: if the logits or the temperature cannot be used.

    Example:
        >>> from temperance.evaluation import energy
        >>> energy(logits=[[5.0, 1.0], [0.5, 0.0]]).round(3).tolist()
        [-5.018, -0.974]

    Reference:
        Liu, Wang, Owens, Li, Energy-based out-of-distribution detection, 2020, arXiv 2010.03759,
        equation 4.
    """
    array = _levelled(logits)
    _check_temperature(temperature)

    def score(z: Floats, at: NDArray[np.intp], top: NDArray[np.intp]) -> Floats:
        return np.log1p(_rest(z, at, top)[1])

    above = _scored(score, logits=array, temperature=temperature)
    return -np.asarray(array.max(axis=1), dtype=np.float64) - temperature * above


def mutual_information(
    *, logits: ArrayLike | None = None, probs: ArrayLike | None = None, temperature: float = 1.0
) -> Floats:
    """Score by what the members of an ensemble disagree on, see ``member_uncertainty``.

    Args:
        logits: numbers before the softmax, shape ``[members, n, C]``.
        probs: probabilities, same shape; exactly one of the two is given.
        temperature: T, positive, divides the logits of every member.

    Returns:
        Scores ``[n]`` in nats, 0 to ``log members``; higher is more OOD. One member gives 0.

    Raises:
        InvalidInput: if the predictions or the temperature cannot be used.

    Example:
        >>> from temperance.evaluation import mutual_information
        >>> mutual_information(probs=[[[1.0, 0.0]], [[0.0, 1.0]]]).round(4).tolist()
        [0.6931]
    """
    _check_temperature(temperature)
    if temperature != 1.0 and (logits is None) != (probs is None):
        member_uncertainty(logits=logits, probs=probs)  # the checks see what was given
        with np.errstate(divide="ignore"):
            if logits is None:
                logits, probs = np.log(read_array(probs, "probs").astype(np.float64)), None
        logits = read_array(logits, "logits").astype(np.float64)
        with np.errstate(over="ignore"):
            logits = (logits - logits.max(axis=-1, keepdims=True)) / temperature
    return member_uncertainty(logits=logits, probs=probs).mutual_information


#: Every score by name; ``mutual_information`` takes members, the others one model.
OOD_SCORES: Mapping[str, Callable[..., Floats]] = {
    "msp": msp,
    "max_logit": max_logit,
    "energy": energy,
    "predictive_entropy": predictive_entropy,
    "mutual_information": mutual_information,
}


# ------------------------------------------------------------------ reading
def _scored(
    score: Callable[[Floats, NDArray[np.intp], NDArray[np.intp]], Floats],
    *,
    logits: ArrayLike | None = None,
    probs: ArrayLike | None = None,
    temperature: float,
) -> Floats:
    """Apply a score to logits, less the largest of their row and divided by T, in chunks."""
    if (logits is None) == (probs is None):
        raise InvalidInput(
            "predictions",
            expected="exactly one of logits= and probs=",
            found="none" if logits is None else "both",
            fix="Name the one that the numbers are; the values do not tell.",
        )
    _check_temperature(temperature)
    half = "float16" in str(getattr(probs, "dtype", ""))
    scores = read_logits(logits) if probs is None else read_probs(probs, half=half)  # type: ignore[arg-type]
    n = len(scores)
    nobody = np.zeros(n, dtype=np.int64)
    rows = Predictions(scores, probs is None, nobody, np.ones(n, dtype=bool))
    out = np.empty(n)
    for part, z, top in rows.shifted():
        with np.errstate(over="ignore"):
            z = np.maximum(z / temperature, FLOOR)
        out[part] = score(z, np.arange(len(z)), top)
    return out


def _rest(z: Floats, at: NDArray[np.intp], top: NDArray[np.intp]) -> tuple[Floats, Floats]:
    """``exp(z)`` without the largest, which is 1, and its sum: keeps what rounds away beside 1."""
    p = np.exp(z)
    p[at, top] = 0.0
    return p, p.sum(axis=1)


def _levelled(logits: ArrayLike) -> NDArray[np.generic]:
    """Logits whose level means something: a column for every class."""
    array = read_array(logits, "logits")
    if array.ndim == 1 or (array.ndim == 2 and array.shape[1] == 1):
        raise InvalidInput(
            "logits",
            expected="a column for every class, two or more",
            found=f"shape {list(array.shape)}, one logit per row",
            fix="The level of a single logit says how sure class 1 is, not how familiar the row: "
            "use msp or predictive_entropy.",
        )
    return read_logits(array)


def _check_temperature(temperature: float) -> None:
    if not isinstance(temperature, (int, float, np.number)) or not 0 < temperature < np.inf:
        raise InvalidInput(
            "temperature",
            expected="a positive number",
            found=repr(temperature),
            fix="1 leaves the logits as they are.",
        )
