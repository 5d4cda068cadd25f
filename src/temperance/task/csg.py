"""The Cumulative Spectral Gradient: how much the classes of a task overlap, as one number.

The same quantity as the public code spectral-metric 0.6.1 where that code is sound, and finite,
seeded and repeatable where it is not: volumes are kept as logarithms, duplicated rows are never
taken for the row itself, classes without rows do not become empty rows of the graph.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from temperance.arrays import as_matrix
from temperance.errors import InvalidInput
from temperance.labels import check_ids
from temperance.records import Features, Statistic
from temperance.task.csg_record import Graph, Settings, make_statistic
from temperance.task.neighbours import nearest
from temperance.task.spectrum import (
    ball_log_volume,
    cube_log_volume,
    cumulative_gradient,
    laplacian_eigenvalues,
    similarity,
)

__all__ = ["Weighting", "csg"]

Weighting = Literal["parzen", "none", "ball"]
Ints = NDArray[np.int64]
Array = NDArray[np.float64]

_DEFAULTS = {"n_samples": 250, "k": 3, "repeats": 5, "seed": 0}
# spectral-metric 0.6.1, lib.py, get_volume: "Minimum is 1e-4 to avoid division per 0".
_LOG_FLOOR = float(np.log(1e-4))


def csg(
    features: Features,
    n_samples: int = 250,
    k: int = 3,
    *,
    repeats: int = 5,
    seed: int = 0,
    weighting: Weighting = "parzen",
    progress: Callable[[int, int], None] | None = None,
) -> Statistic:
    """Measure how much classes overlap (cumulative spectral gradient, ``0 .. K-1``).

    1. Up to ``n_samples`` rows of each of the ``K`` classes that have rows are drawn.
    2. ``p_j``: share of class j among the ``k`` nearest other rows (of all rows), divided by the
       volume ``V`` around the row.
    3. ``S_i``: sum of p over the drawn rows of class i, normalized to 1.
       ``W_ij = 1 - BrayCurtis(S_i, S_j)``; ``lambda``: ascending eigenvalues of its Laplacian.
    4. ``csg = sum_i max_{l <= i} (lambda_{l+1} - lambda_l) / (K - l)``.

    ``weighting`` says what V is: ``"parzen"`` (the public code) the box that holds the neighbours,
    ``max(1e-4, prod_d 2 max |difference_d|)``; ``"none"`` 1; ``"ball"`` the ball through the k-th
    neighbour, ``pi^(M/2) r^M / Gamma(M/2 + 1)``. Parzen's floor of 1e-4 has the unit of the
    features: scaling them can change the value. The other two do not depend on their unit (no
    floor for balls; a radius of 0 counts as the smallest positive one). In high dimensions V varies
    so much that few rows decide a class; ``settings["effective_rows"]`` says how many.

    The value depends on k, on the rows per class, on duplicates and on the embedding: compare only
    values of equal ``settings``. Of rows at equal distance the one with the higher number is the
    neighbour. The public code leaves that to an unstable sort; this choice gives its value on
    scikit-learn's digits (``settings["tie_share"]``: how many rows it concerns).

    Args:
        features: the rows and their classes, two classes with rows at least.
        n_samples: rows drawn per class, 1 or more.
        k: neighbours per row, ``1 .. n-1``.
        repeats: independent draws, 1 or more; their neighbours are searched only once. If every
            class has ``n_samples`` rows or fewer, all are drawn and one repeat is made.
        seed: of the draws; 0 or more. No global random state is used.
        weighting: ``"parzen"``, ``"none"`` or ``"ball"``.
        progress: called with (steps done, steps in all) during the search.

    Returns:
        ``value`` and ``eigenvalues``: means over the repeats; ``replicates``: the single values;
        ``interval``: 95 % t-interval of the mean over draws (see ``settings["interval"]``), None
        for one repeat of a part of the rows; ``status``: ``"ok"`` or what is special.

    Raises:
        InvalidInput: if fewer than two classes have rows, if the features are not finite, or if a
            setting is out of its range.

    Example:
        >>> from temperance import Features
        >>> from temperance.task.csg import csg
        >>> x = [[0.0], [1.0], [2.1], [3.3], [9.0], [10.0], [11.1], [12.3]]
        >>> apart = csg(Features.from_arrays(x, list("aaaabbbb")), k=1)
        >>> apart.value, apart.status
        (0.0, 'separable: csg is exactly 0')
        >>> mixed = csg(Features.from_arrays(x, list("aababbab")), k=1)
        >>> round(mixed.value, 3), mixed.interval == (mixed.value, mixed.value)  # all rows drawn
        (0.931, True)

    Reference:
        F. Branchaud-Charron, A. Achkar, P.-M. Jodoin: Spectral Metric for Dataset Complexity
        Assessment, CVPR 2019, arXiv 1905.07299. Public code: spectral-metric 0.6.1.
        Ball volumes: after arXiv 2209.14743 (cmsAULS), here with csg's own sum.
    """
    settings = _check(n_samples, k, repeats, seed, weighting)
    x = as_matrix(features.x, subject="features x")
    members = _members(check_ids(features.y, len(features.class_map)), features, len(x), k)
    draws = _draw(members, settings)
    rows = np.unique(np.concatenate([row for draw in draws for row in draw]))
    ids, distance, tie_share = _neighbours(x, rows, k, progress)
    log_volume, floor_share = _log_volume(x, rows, (ids, distance), weighting)
    duplicate_share = float((distance[:, 0] == 0).mean())
    label = np.empty(len(x), np.int64)
    for place, member in enumerate(members):
        label[member] = place
    graphs = [_measure(draw, rows, label[ids], log_volume) for draw in draws]
    return make_statistic(
        features,
        members,
        settings=settings,
        graphs=graphs,
        shares={
            "duplicate_share": duplicate_share,
            "tie_share": tie_share,
            "floor_share": floor_share,
        },
    )


# ------------------------------------------------------------------ what is asked for
def _check(n_samples: int, k: int, repeats: int, seed: int, weighting: str) -> Settings:
    whole = {"n_samples": n_samples, "k": k, "repeats": repeats, "seed": seed}
    for name, value in whole.items():
        least = 0 if name == "seed" else 1
        try:
            whole[name] = operator.index(value)
        except TypeError:
            whole[name] = -1
        if isinstance(value, bool) or whole[name] < least:
            raise InvalidInput(
                f"csg {name}",
                expected=f"a whole number of at least {least}",
                found=repr(value),
                fix=f"Pass {name}={_DEFAULTS[name]}, the default.",
            )
    if weighting not in get_args(Weighting):
        raise InvalidInput(
            "csg weighting",
            expected=", ".join(map(repr, get_args(Weighting))),
            found=repr(weighting),
            fix="Pass one of these names.",
        )
    return Settings(**whole, weighting=weighting)


def _members(y: Ints, features: Features, n: int, k: int) -> list[Ints]:
    """Row numbers of every class that has rows."""
    if len(y) != n:
        raise InvalidInput(
            "features x and labels y",
            expected="as many rows as labels",
            found=f"{n} rows and {len(y)} labels",
            fix="Pass arrays of the same length.",
        )
    counts = np.bincount(y, minlength=len(features.class_map))
    if (counts > 0).sum() < 2:
        raise InvalidInput(
            "csg classes",
            expected="two classes or more that have rows",
            found=f"{(counts > 0).sum()}",
            fix="Overlap is between classes: add rows of another class.",
        )
    if k >= n:
        raise InvalidInput(
            "csg k",
            expected=f"fewer neighbours than the other rows: 1..{n - 1}",
            found=str(k),
            fix="Pass a smaller k, or more rows.",
        )
    return np.split(np.argsort(y, kind="stable"), np.cumsum(counts[counts > 0])[:-1])


def _draw(members: list[Ints], settings: Settings) -> list[list[Ints]]:
    """Rows of each class, for every repeat; one draw if it takes all rows."""
    if max(map(len, members)) <= settings.n_samples:
        return [members]
    streams = np.random.SeedSequence(settings.seed).spawn(settings.repeats)
    return [
        [_choose(member, settings.n_samples, rng) for member in members]
        for rng in map(np.random.default_rng, streams)
    ]


def _choose(member: Ints, n_samples: int, rng: np.random.Generator) -> Ints:
    if len(member) <= n_samples:
        return member
    return np.sort(rng.choice(member, n_samples, replace=False, shuffle=False))


# ------------------------------------------------------------------ the measurement
def _neighbours(
    x: NDArray[Any], rows: Ints, k: int, progress: Callable[[int, int], None] | None
) -> tuple[Ints, Array, float]:
    """The k nearest neighbours, and the share of rows whose next one is as near as the k-th."""
    ids, distance = nearest(x, rows, min(k + 1, len(x) - 1), progress=progress)
    tie_share = float((distance[:, k:] == distance[:, k - 1 : k]).sum() / len(rows))
    return ids[:, :k], distance[:, :k], tie_share


def _log_volume(
    x: NDArray[Any], rows: Ints, found: tuple[Ints, Array], weighting: str
) -> tuple[Array, float]:
    """Finite log volume of every drawn row, and the share of rows that a floor holds."""
    ids, distance = found
    if weighting == "none":
        return np.zeros(len(rows)), 0.0
    if weighting == "parzen":
        volume, floor = cube_log_volume(x, rows, ids), _LOG_FLOOR
    else:
        volume = ball_log_volume(distance[:, -1], x.shape[1])
        finite = volume[np.isfinite(volume)]
        floor = float(finite.min()) if len(finite) else 0.0
    return np.maximum(volume, floor), float((volume < floor).mean())


def _measure(draw: list[Ints], rows: Ints, labels: Ints, log_volume: Array) -> Graph:
    owner = np.repeat(np.arange(len(draw)), [len(part) for part in draw])
    place = np.searchsorted(rows, np.concatenate(draw))
    shares = similarity(owner, labels[place], -log_volume[place])
    eigenvalues = laplacian_eigenvalues(shares)
    effective = [_effective(-log_volume[place[owner == c]]) for c in range(len(draw))]
    return Graph(
        value=cumulative_gradient(eigenvalues),
        eigenvalues=eigenvalues,
        own_share=float(np.trace(shares)) / len(shares),
        effective_rows=np.array(effective),
    )


def _effective(log_weight: Array) -> float:
    """Kish's effective number of rows: ``(sum w)^2 / sum w^2``."""
    weight = np.exp(log_weight - log_weight.max())
    return float(weight.sum() ** 2 / np.square(weight).sum())
