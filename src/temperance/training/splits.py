"""Which rows train, which fit the post-hoc T and choose the arm, and which judge: never the same.

Every draw is stratified by class, comes from one seed, and keeps at least one row of every class
for training where that is possible. Counts per class stay within one row of their exact share, but
where rare classes are kept in a small subset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from temperance.errors import InvalidInput
from temperance.training.dataset import DataSet, Part

__all__ = ["Rows", "Splits", "default_fit_rows", "make_splits", "select"]

Ids = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Rows:
    """Some rows of one part of a data set.

    Attributes:
        part: name of the part.
        index: places of the rows in the part, ascending, int64, each once.
    """

    part: str
    index: Ids

    def __len__(self) -> int:
        return len(self.index)


@dataclass(frozen=True, eq=False)
class Splits:
    """Three disjoint sets of rows.

    Attributes:
        train: rows that the net is trained on.
        fit: held out from training, for the post-hoc T and for choosing what is shipped.
        test: rows that judge; used once, for the figures of the report.
        notices: what was decided, and which classes a set lacks, in words.
    """

    train: Rows
    fit: Rows
    test: Rows
    notices: tuple[str, ...] = ()


def default_fit_rows(n: int) -> int:
    """How many of ``n`` training rows are held out for the post-hoc fit.

    ``min(max(n // 10, min(500, n // 5)), 2000)``: a tenth, but 500 where that is at most a fifth,
    and never more than 2,000, where a fitted T is already known to about two percent.

    Args:
        n: rows of the training part.

    Returns:
        Number of rows, ``0 .. 2000``.

    Example:
        >>> [default_fit_rows(n) for n in (100, 3_000, 10_000, 60_000)]
        [20, 500, 1000, 2000]
    """
    return min(max(n // 10, min(500, n // 5)), 2000)


def make_splits(
    data: DataSet,
    *,
    seed: int,
    train_rows: int | None = None,
    fractions: tuple[float, float, float] = (0.6, 0.2, 0.2),
) -> Splits:
    """Choose the rows that train, fit and judge.

    With ``train``, ``val`` and ``test`` in the source, ``val`` fits and ``test`` judges. With
    ``train`` and one other part, that part judges and ``default_fit_rows`` rows of ``train``, drawn
    stratified, fit. With one part only it is divided by ``fractions``.

    Args:
        data: the data set.
        seed: seed of all draws; no global random state is touched.
        train_rows: train on a stratified subset of that many rows; all that are left, if absent.
            The rows for fitting then come from the rows that do not train.
        fractions: shares that train, fit and judge, where the source has one part only.

    Returns:
        Disjoint rows. A class of one row is kept for training, a class of two trains with one and
        is judged on the other; the notices name the classes that a set lacks.

    Raises:
        InvalidInput: if ``train_rows`` is not 2 or more, or more than there are; if ``fractions``
            are not three positive shares that sum to 1; or if a set would be empty.

    Example:
        >>> from temperance.training.sources import open_data
        >>> splits = make_splits(open_data("digits"), seed=0)
        >>> len(splits.train), len(splits.fit), len(splits.test)
        (1078, 360, 359)
    """
    _check_arguments(train_rows, fractions)
    part = data.parts["train"]
    others = [name for name in ("val", "test") if name in data.parts]
    rng = np.random.default_rng(seed)
    counts = data.counts()
    if len(others) == 2:
        shares = _subset(counts, train_rows, len(part), rng)[:, None]
    elif others:
        shares = _with_fit(counts, train_rows, rng)
    else:
        shares = _apportion(counts, fractions)
        shares[:, 0] = _subset(shares[:, 0], train_rows, int(shares[:, 0].sum()), rng)
    dealt = [Rows("train", index) for index in _deal(part.y, shares, rng)]
    whole = {name: Rows(name, np.arange(len(data.parts[name]))) for name in others}
    if len(others) == 2:
        dealt += [whole["val"], whole["test"]]
    elif others:
        dealt += [whole[others[0]]]
    _check_filled(dealt)
    train, fit, test = dealt
    return Splits(train, fit, test, _notices(data, dealt, others))


def select(data: DataSet, rows: Rows) -> Part:
    """Give rows of a data set as a part of their own.

    Args:
        data: the data set.
        rows: which rows.

    Returns:
        The part itself if ``rows`` are all of its rows; otherwise a copy of these rows.
    """
    part = data.parts[rows.part]
    if len(rows) == len(part):
        return part
    index = rows.index
    return Part(part.x[index], part.y[index], tuple(part.ids[i] for i in index.tolist()))


# ------------------------------------------------------------------ shares per class
def _apportion(counts: Ids, fractions: Sequence[float]) -> Ids:
    """Rows of every class for train, fit and test, shape ``[C, 3]``.

    Each share is its exact quota rounded down or up. What rounding leaves goes where the classes
    before have left most, so that many small classes do not all fall to the same side.
    """
    shares = np.zeros((len(counts), 3), dtype=np.int64)
    debt = np.zeros(3)
    for c, n in enumerate(counts.tolist()):
        quota = n * np.asarray(fractions)
        share = np.floor(quota + 1e-9).astype(np.int64)
        wish = debt + quota - share
        if share[0] == 0:
            wish[0] = np.inf  # every class is trained on
        if n == 2 and not share[1:].any():
            wish[2] = np.inf  # one row to train, one to judge
        share[np.argsort(-wish, kind="stable")[: n - share.sum()]] += 1
        debt += quota - share
        shares[c] = share
    return shares


def _exact(counts: Ids, total: int, rng: np.random.Generator, *, spare: int = 0) -> Ids:
    """Rows of every class so that they sum to ``total``: the method of largest remainders.

    Args:
        counts: rows that there are, shape ``[C]``.
        total: rows to take.
        rng: breaks ties.
        spare: rows of every class that are not taken.
    """
    caps = np.maximum(counts - spare, 0)
    total = min(total, int(caps.sum()))
    quota = counts * (total / max(1, int(counts.sum())))
    shares = np.minimum(np.floor(quota + 1e-9).astype(np.int64), caps)
    while (left := total - int(shares.sum())) > 0:
        absent = (shares == 0) & (spare == 0)  # a class without any row comes first
        order = np.lexsort((rng.random(len(counts)), shares - quota, ~absent, shares >= caps))
        open_places = int((shares < caps).sum())
        shares[order[: min(left, open_places)]] += 1
    return shares


def _subset(counts: Ids, train_rows: int | None, most: int, rng: np.random.Generator) -> Ids:
    """Rows of every class for a subset; a class that its share would leave out gets one row."""
    if train_rows is None:
        return counts
    if train_rows > most:
        raise InvalidInput(
            "train_rows",
            expected=f"at most {most}, the rows that may be trained on",
            found=str(train_rows),
            fix="Ask for fewer rows, or leave train_rows out to train on all of them.",
        )
    rare = np.zeros(len(counts), dtype=bool)
    if train_rows >= (counts > 0).sum():  # enough for one row of every class
        while True:
            rest = np.where(rare, 0, counts)
            quota = rest * ((train_rows - rare.sum()) / max(1, int(rest.sum())))
            if not (missed := (rest > 0) & (quota < 1)).any():
                break
            rare |= missed
    return _exact(np.where(rare, 0, counts), train_rows - int(rare.sum()), rng) + rare


def _with_fit(counts: Ids, train_rows: int | None, rng: np.random.Generator) -> Ids:
    """Shares of train and fit, shape ``[C, 2]``, where another part judges."""
    n = int(counts.sum())
    fit_rows = default_fit_rows(n)
    if train_rows is None:
        fit = _exact(counts, fit_rows, rng, spare=1)
        return np.stack([counts - fit, fit], axis=1)
    train = _subset(counts, train_rows, n - fit_rows, rng)
    return np.stack([train, _exact(counts - train, fit_rows, rng)], axis=1)


def _deal(y: Ids, shares: Ids, rng: np.random.Generator) -> list[Ids]:
    """Draw rows: for every column of ``shares`` that many of each class, ascending."""
    shuffled = rng.permutation(len(y))
    by_class = shuffled[np.argsort(y[shuffled], kind="stable")]
    place = np.arange(len(y)) - np.searchsorted(y[by_class], y[by_class])  # within its class
    ends = np.cumsum(shares, axis=1)[y[by_class]]
    starts = ends - shares[y[by_class]]
    inside = (place[:, None] >= starts) & (place[:, None] < ends)
    return [np.sort(by_class[inside[:, k]]) for k in range(shares.shape[1])]


# ------------------------------------------------------------------ checks and words
def _check_arguments(train_rows: int | None, fractions: Sequence[float]) -> None:
    if train_rows is not None and train_rows < 2:
        raise InvalidInput(
            "train_rows",
            expected="2 rows or more",
            found=str(train_rows),
            fix="Ask for more rows, or leave train_rows out to train on all of them.",
        )
    if len(fractions) != 3 or min(fractions) <= 0 or abs(sum(fractions) - 1) > 1e-6:
        raise InvalidInput(
            "fractions",
            expected="three positive shares (train, fit, test) that sum to 1",
            found=str(tuple(fractions)),
            fix="Pass, for instance, (0.6, 0.2, 0.2).",
        )


def _check_filled(rows: Sequence[Rows]) -> None:
    for name, part in zip(("train", "fit", "test"), rows, strict=True):
        if not len(part):
            raise InvalidInput(
                f"rows that {name}",
                expected="at least one",
                found="none",
                fix="There are too few rows to train, fit and judge; bring more data.",
            )


def _notices(data: DataSet, rows: Sequence[Rows], others: Sequence[str]) -> tuple[str, ...]:
    train, fit, test = rows
    notices = []
    if len(others) < 2:
        judge = f"{others[0]} judges" if others else f"{len(test)} judge"
        notices.append(
            f"the source has {' and '.join(['train', *others])} only: {len(fit)} rows of train, "
            f"drawn by class, are held out to fit the post-hoc T; {judge}"
        )
    single = np.flatnonzero(data.counts() == 1)
    if len(single):
        notices.append(f"classes with one row, which trains: {_names(data, single)}")
    present = data.counts() > 0
    for what, part in (("train", train), ("fit", fit), ("test", test)):
        ids = data.parts[part.part].y[part.index]
        missing = np.flatnonzero(present & (np.bincount(ids, minlength=data.n_classes) == 0))
        if len(missing):
            notices.append(f"classes without a row in {what}: {_names(data, missing)}")
    return tuple(notices)


def _names(data: DataSet, ids: Ids) -> str:
    shown = ", ".join(data.class_map.names[i] for i in ids[:8])
    return shown + (f" and {len(ids) - 8} more" if len(ids) > 8 else "")
