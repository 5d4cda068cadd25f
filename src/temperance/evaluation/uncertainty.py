"""What the members of an ensemble say together: total uncertainty and its two parts, in nats.

Members come first: ``[members, batch, classes]``. The probability of the ensemble is the mean of
its members' probabilities, not of their logits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from temperance.errors import InvalidInput
from temperance.evaluation.predictions import read_array, read_logits, read_probs, row_chunks

__all__ = ["MemberUncertainty", "log_mean_exp", "member_uncertainty", "pooled_log_probs"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class MemberUncertainty:
    """Uncertainty of every row; all arrays have shape ``[batch]``.

    Attributes:
        total: entropy of the mean probabilities, in nats, 0 to ``log C``.
        aleatoric: mean of the members' entropies, in nats: what the members agree is uncertain.
        mutual_information: ``total - aleatoric``, in nats, 0 to ``log members``: what they disagree
            on. Of separately trained members it is called epistemic, of members that share their
            features modulation uncertainty; it is 0 for one member.
        disagreement: share of the pairs of members whose most probable classes differ, 0 to 1.
        pairwise_kl: mean Kullback-Leibler divergence over the ordered pairs of members, in nats;
            inf where a member excludes a class that another does not.
        members: number of members.
    """

    total: Floats
    aleatoric: Floats
    mutual_information: Floats
    disagreement: Floats
    pairwise_kl: Floats
    members: int


def member_uncertainty(
    *,
    probs: ArrayLike | None = None,
    logits: ArrayLike | None = None,
    members: int | None = None,
) -> MemberUncertainty:
    """Take the uncertainty of an ensemble apart.

    ``H(mean_m p_m) = mean_m H(p_m) + mean_m KL(p_m || mean_m p_m)``: total = aleatoric + mutual
    information, all in nats.

    Args:
        probs: probabilities of every member, shape ``[members, batch, classes]``. Rows that sum to
            1 within 1e-3 (1e-2 in half precision) are brought to 1 exactly.
        logits: numbers before the softmax, same shape; exactly one of the two is given.
        members: number of members, if it is known: the first axis is then checked. The values
            cannot tell members from rows.

    Returns:
        The parts for every row of the batch.

    Raises:
        InvalidInput: if there are not three axes, if the class axis is not the last, if the number
            of members is another, or if a row cannot be used (named by member and row).

    Example:
        >>> from temperance.evaluation import member_uncertainty
        >>> found = member_uncertainty(probs=[[[1.0, 0.0]], [[0.0, 1.0]]])
        >>> found.total.round(3), found.aleatoric, found.disagreement
        (array([0.693]), array([0.]), array([1.]))

    Reference:
        Depeweg, Hernandez-Lobato, Doshi-Velez, Udluft, Decomposition of uncertainty in Bayesian
        deep learning for efficient and risk-sensitive learning, 2018, arXiv 1710.07283. Pairwise:
        Malinin, Gales, Uncertainty estimation in autoregressive structured prediction, 2021,
        arXiv 2002.07650.
    """
    stack, from_logits = _read_members(probs=probs, logits=logits, members=members)
    n_members, n, _ = stack.shape
    out = {name: np.empty(n) for name in MemberUncertainty.__dataclass_fields__ if name != _COUNT}
    for part, log_p in _log_chunks(stack, from_logits):
        for name, values in _parts(log_p).items():
            out[name][part] = values
    return MemberUncertainty(**out, members=n_members)


def log_mean_exp(values: ArrayLike, *, axis: int = 0) -> Floats:
    """Logarithm of a mean of exponentials, ``log(mean(exp(v)))``, without under- or overflow.

    Of members' log-probabilities it gives the log-probabilities of their mean.

    Args:
        values: logarithms, any shape; -inf stands for 0.
        axis: the axis to average over; 0 is that of the members.

    Returns:
        The logarithms of the means, without that axis.

    Raises:
        InvalidInput: if there are no values, or no such axis.

    Example:
        >>> import numpy as np
        >>> from temperance.evaluation import log_mean_exp
        >>> log_mean_exp(np.array([-1000.0, -1000.0 + np.log(3.0)])).round(4)
        np.float64(-999.3069)
    """
    array = read_array(values, "values").astype(np.float64)
    if array.size == 0 or not -array.ndim <= axis < array.ndim:
        raise InvalidInput(
            "values",
            expected=f"logarithms, some of them, with an axis {axis}",
            found=f"shape {list(array.shape)}",
            fix="Stack the members along axis 0.",
        )
    top = np.maximum(array.max(axis=axis, keepdims=True), -1e300)  # all -inf: not -inf + inf
    with np.errstate(divide="ignore"):
        mean = np.log(np.exp(array - top).mean(axis=axis))
    return np.asarray(mean + np.squeeze(top, axis=axis))[()]


def pooled_log_probs(
    *,
    probs: ArrayLike | None = None,
    logits: ArrayLike | None = None,
    members: int | None = None,
) -> Floats:
    """Log-probabilities of the ensemble, ``log mean_m p_m``.

    They are valid logits for every function of this room (``nll(logits=...)``), exact where
    probabilities round to 0 or 1.

    Args:
        probs: probabilities of every member, shape ``[members, batch, classes]``.
        logits: numbers before the softmax, same shape; exactly one of the two is given.
        members: number of members, if it is known: the first axis is then checked.

    Returns:
        Shape ``[batch, classes]``, float64.

    Raises:
        InvalidInput: as ``member_uncertainty``.

    Example:
        >>> from temperance.evaluation import nll, pooled_log_probs
        >>> pooled = pooled_log_probs(logits=[[[0.0, 2.0]], [[0.0, -2000.0]]])
        >>> round(nll(logits=pooled, labels=[1]), 4)
        0.8201
    """
    stack, from_logits = _read_members(probs=probs, logits=logits, members=members)
    out = np.empty(stack.shape[1:])
    for part, log_p in _log_chunks(stack, from_logits):
        out[part] = log_mean_exp(log_p)
    return out


# ------------------------------------------------------------------ the parts
_COUNT = "members"


def _parts(log_p: Floats) -> dict[str, Floats]:
    """All figures of a chunk ``[members, rows, classes]`` of log-probabilities."""
    n_members = len(log_p)
    p, log_mean = np.exp(log_p), log_mean_exp(log_p)
    mean = np.exp(log_mean)
    own = _plog(p, log_p).sum(axis=2)  # minus the entropy of each member
    with np.errstate(invalid="ignore"):  # -inf less -inf, where p is 0
        ratio = np.where(p > 0, log_p - log_mean, 0.0)
    information = (p * ratio - p + mean).sum(axis=2).mean(axis=0)
    return {
        "total": np.maximum(-_plog(mean, log_mean).sum(axis=1), 0.0),
        "aleatoric": np.maximum(-own.mean(axis=0), 0.0),
        # a sum of divergences: less than 0 is rounding, and one member differs from no other
        "mutual_information": np.maximum(information, 0.0) if n_members > 1 else 0 * information,
        "disagreement": _disagreement(log_p),
        "pairwise_kl": _pairwise_kl(p, log_p, own),
    }


def _plog(p: Floats, log_p: Floats) -> Floats:
    """``p log p`` with 0 log 0 = 0."""
    return p * np.where(p > 0, log_p, 0.0)


def _disagreement(log_p: Floats) -> Floats:
    n_members, _, n_classes = log_p.shape
    if n_members == 1:
        return np.zeros(log_p.shape[1])
    votes = log_p.argmax(axis=2)
    counts = (votes[..., None] == np.arange(n_classes)).sum(axis=0).astype(np.float64)
    same = (counts * (counts - 1)).sum(axis=1)
    return np.asarray(1.0 - same / (n_members * (n_members - 1)))


def _pairwise_kl(p: Floats, log_p: Floats, own: Floats) -> Floats:
    """``sum_{m != k} KL(p_m || p_k)`` over the pairs, from sums over members."""
    n_members = len(p)
    if n_members == 1:
        return np.zeros(p.shape[1])
    all_p, all_log = p.sum(axis=0), log_p.sum(axis=0)
    cross = (all_p * np.where(all_p > 0, all_log, 0.0)).sum(axis=1)
    total = n_members * own.sum(axis=0) - cross
    return np.maximum(total, 0.0) / (n_members * (n_members - 1))


def _log_chunks(stack: NDArray[np.generic], from_logits: bool) -> Iterator[tuple[slice, Floats]]:
    """Log-probabilities ``[members, rows, classes]``, exactly normalized, in bounded chunks."""
    n_members, n, n_classes = stack.shape
    for part in row_chunks(n, n_members * n_classes):
        z = stack[:, part].astype(np.float64)
        with np.errstate(divide="ignore"):
            z = z if from_logits else np.log(z)
        z = z - z.max(axis=2, keepdims=True)
        yield part, z - np.log(np.exp(z).sum(axis=2, keepdims=True))


# ------------------------------------------------------------------ reading
def _read_members(
    *, probs: ArrayLike | None, logits: ArrayLike | None, members: int | None
) -> tuple[NDArray[np.generic], bool]:
    """Check members' predictions; gives them and whether they are logits."""
    if (logits is None) == (probs is None):
        raise InvalidInput(
            "predictions",
            expected="exactly one of logits= and probs=",
            found="none" if logits is None else "both",
            fix="Name the one that the numbers are; the values do not tell.",
        )
    from_logits = logits is not None
    subject = "logits" if from_logits else "probs"
    given = logits if from_logits else probs
    stack = read_array(given, subject)
    _check_shape(stack, subject, members)
    half = "float16" in str(getattr(given, "dtype", ""))
    for number, one in enumerate(stack):
        try:
            if from_logits:
                read_logits(one)
            else:
                read_probs(one, half=half)
        except InvalidInput as error:
            raise _of_member(error, stack, subject, number) from error
    return stack, from_logits


def _check_shape(stack: NDArray[Any], subject: str, members: int | None) -> None:
    if stack.ndim != 3 or 0 in stack.shape or stack.shape[-1] < 2:
        raise InvalidInput(
            subject,
            expected="shape [members, batch, classes] with two classes or more",
            found=f"shape {list(stack.shape)}",
            fix="Stack the members along a new first axis; a flat [members * batch, classes] is "
            "reshaped by whoever knows its order.",
        )
    if members is not None and len(stack) != members:
        raise InvalidInput(
            subject,
            expected=f"{members} members along the first axis",
            found=f"shape {list(stack.shape)}",
            fix="Move the axis of the members to the front.",
        )


def _of_member(error: InvalidInput, stack: NDArray[Any], subject: str, number: int) -> InvalidInput:
    """Name the member, and the class axis where another one adds up to 1."""
    fix = error.fix
    if subject == "probs" and stack.dtype.kind == "f":
        for axis in (0, 1):
            if np.allclose(stack.sum(axis=axis, dtype=np.float64), 1, atol=1e-3, equal_nan=False):
                fix = f"Axis {axis} adds up to 1: move the class axis to the end."
    return InvalidInput(
        f"{subject} of member {number}", expected=error.expected, found=error.found, fix=fix
    )
