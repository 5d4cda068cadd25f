"""Exact nearest neighbours of some rows among all rows: fast, in bounded memory, proven row by row.

1. A float32 matrix product (see ``products``) gives ``-d²/2`` of blocks of rows; a few more than
   ``k`` candidates are kept per row. Where both blocks are asked for, one product serves both.
2. The candidates' distances are computed again from differences in float64, and ranked by
   (distance, row number; the higher first).
3. The rounding error of step 1 is bounded. Rows for which a row outside the candidates could still
   be nearer are searched again in float64, with every row within the bound as a candidate.

So the answer depends neither on the blocks, nor on the number of threads, nor on where the data
lie: features of mean 1e4 and spread 1 are as exact as centred ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from temperance.task.products import choose_product
from temperance.task.row_view import CLAMP, FOLD, RowView

__all__ = ["nearest"]

_SPARE = 3  # candidates beyond k: a near tie at rank k rarely reaches that far
_GROUP_BYTES = 1 << 25  # of the query blocks that a base block is prepared for once

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
Progress = Callable[[int, int], None]


def nearest(
    x: Floats, rows: Ints, k: int, *, progress: Progress | None = None
) -> tuple[Ints, NDArray[np.float64]]:
    """Find the ``k`` nearest other rows of each of ``rows`` (Euclidean, exact).

    A row is never its own neighbour, its duplicates are. Of rows at equal distance the one with the
    higher number comes first.

    Args:
        x: all rows, shape ``[n, M]``, float32 or float64, finite.
        rows: numbers of the rows to look from, ascending, distinct, shape ``[q]``.
        k: neighbours per row, ``1 .. n-1``.
        progress: called with (tiles done, tiles in all) while the search runs.

    Returns:
        Row numbers and distances of the neighbours, both ``[q, k]``, nearest first.

    Raises:
        InvalidInput: if single values are above 1e300, or 1e100 times larger than usual ones.

    Example:
        >>> import numpy as np
        >>> from temperance.task.neighbours import nearest
        >>> x = np.array([[0.0], [1.0], [3.0]])
        >>> ids, distance = nearest(x, np.array([0, 2]), 1)
        >>> ids.tolist(), distance.tolist()
        ([[1], [1]], [[1.0], [2.0]])
    """
    view = RowView.of(x)
    n_candidates = min(k + _SPARE, len(x) - 1)
    candidates, worst = _candidates(view, rows, n_candidates, progress)
    ids, squared = _rank(view, rows, candidates, k)
    if n_candidates < len(x) - 1:
        doubtful = ~_proven(view, rows, squared[:, -1], worst)
        twins = doubtful & (squared[:, -1] == 0)
        doubtful &= ~_settle_twins(view, rows, ids, twins)
        if doubtful.any():
            part = rows[doubtful]
            ids[doubtful], squared[doubtful] = _search_again(view, part, squared[doubtful, -1], k)
    return ids, np.sqrt(squared) / view.scale


# ------------------------------------------------------------------ step 1: candidates
class _Best:
    """The best scores of every query so far: ``score, place``: ``[q, c]``, ``worst``: ``[q]``."""

    def __init__(self, n_queries: int, n_candidates: int) -> None:
        self.score = np.full((n_queries, n_candidates), -np.inf, np.float32)
        self.place = np.zeros((n_queries, n_candidates), np.int64)
        self.worst = np.full(n_queries, -np.inf, np.float32)

    def offer(self, first_query: int, scores: NDArray[np.float32], first_base: int) -> None:
        """Take what is better from ``scores`` (``[base, queries]``)."""
        n_base, n_queries = scores.shape
        span = slice(first_query, first_query + n_queries)
        if np.isneginf(self.worst[first_query]):  # and so are those of the whole block
            self._start(span, np.ascontiguousarray(scores.T), first_base)
            return
        folded = scores.reshape(FOLD, n_base // FOLD, n_queries)
        better = np.flatnonzero(_fold(scores) > self.worst[span])
        if not len(better):
            return
        fold, query = np.divmod(better, n_queries)
        values = folded[:, fold, query]
        member, pair = np.divmod(np.flatnonzero(values > self.worst[span][query]), len(better))
        self._insert(
            query[pair] + first_query,
            values[member, pair],
            member * (n_base // FOLD) + fold[pair] + first_base,
        )

    def _insert(self, query: Ints, score: NDArray[np.float32], place: Ints) -> None:
        """Merge single finds: line them up as a table with a row per query."""
        by_query = np.argsort(query, kind="stable")
        begin = np.flatnonzero(np.diff(query[by_query], prepend=-1))
        count = np.diff(begin, append=len(query))
        found, line = query[by_query[begin]], np.repeat(np.arange(len(begin)), count)
        slot = np.arange(len(query)) - begin[line]
        scores = np.full((len(found), count.max()), -np.inf, np.float32)
        places = np.zeros(scores.shape, np.int64)
        scores[line, slot] = score[by_query]
        places[line, slot] = place[by_query]
        self._keep(found, scores, places)

    def _start(self, span: slice, score: NDArray[np.float32], first_base: int) -> None:
        """Take the first scores (``[queries, base]``): nothing to merge with yet."""
        place = np.broadcast_to(np.arange(first_base, first_base + score.shape[1]), score.shape)
        if score.shape[1] < self.score.shape[1]:  # fewer than the candidates wanted
            self._keep(np.arange(span.start, span.stop), score, place)
        else:
            self._store(span, score, place)

    def _keep(self, query: Ints, score: NDArray[np.float32], place: Ints) -> None:
        score = np.concatenate([self.score[query], score], axis=1)
        place = np.concatenate([self.place[query], place], axis=1)
        self._store(query, score, place)

    def _store(self, query: Ints | slice, score: NDArray[np.float32], place: Ints) -> None:
        size = self.score.shape[1]
        pick = np.argpartition(score, score.shape[1] - size, axis=1)[:, -size:]
        self.score[query] = np.take_along_axis(score, pick, axis=1)
        self.place[query] = np.take_along_axis(place, pick, axis=1)
        self.worst[query] = self.score[query].min(axis=1)


def _fold(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    """Maxima over every ``n_base / FOLD``-th row; by halves, which is quick in either order."""
    for _ in range(FOLD.bit_length() - 1):
        half = len(scores) // 2
        scores = np.maximum(scores[:half], scores[half:])
    return np.ascontiguousarray(scores)


# ------------------------------------------------------------------ the search of candidates
def _candidates(
    view: RowView, rows: Ints, n_candidates: int, progress: Progress | None
) -> tuple[Ints, NDArray[np.float32]]:
    """Row numbers of the candidates ``[q, c]``, and the score that no other row exceeds ``[q]``."""
    order = _order(len(view.x), rows)
    best = _Best(len(rows), n_candidates)
    n_tiles = _count_tiles(view.block, len(order), len(rows))
    product = choose_product(2.0 * n_tiles * view.block**2 * view.x.shape[1])
    tiles = _tiles(view, order, len(rows), product.load)
    for done, (start, query, first, base) in enumerate(tiles, 1):
        scores = product.multiply(base, query)
        if start == first:
            np.fill_diagonal(scores, -np.inf)  # a row is not its own neighbour
        best.offer(start, scores, first)
        if start < first < len(rows):
            best.offer(first, scores[: len(rows) - first].T, start)
        if progress is not None:
            progress(done, n_tiles)
    back = np.argsort(order[: len(rows)])
    return order[best.place[back]], best.worst[back]


def _order(n: int, rows: Ints) -> Ints:
    """All row numbers, ``rows`` first; shuffled, as sorted data would better scores at length."""
    rng = np.random.default_rng(0)
    others = np.ones(n, bool)
    others[rows] = False
    return np.concatenate([rng.permutation(rows), rng.permutation(np.flatnonzero(others))])


def _tiles(
    view: RowView, order: Ints, n_queries: int, load: Callable[[NDArray[np.float32]], Any]
) -> Iterator[tuple[int, Any, int, Any]]:
    """Pairs of a loaded query block and base block, none of them twice in the other order."""
    step = view.block
    group = step * max(1, _GROUP_BYTES // (4 * step * (view.x.shape[1] + 2)))
    for left in range(0, n_queries, group):
        starts = range(left, min(left + group, n_queries), step)
        places = [order[start : min(start + step, n_queries)] for start in starts]
        queries = [load(view.narrow(place, query=True)[: len(place)]) for place in places]
        for first in range(left, len(order), step):
            base = load(view.narrow(order[first : first + step], query=False))
            for start, query in zip(starts, queries, strict=True):
                if start <= first:
                    yield start, query, first, base


def _count_tiles(step: int, n: int, n_queries: int) -> int:
    base, query = -(-n // step), -(-n_queries // step)
    return query * base - query * (query - 1) // 2


# ------------------------------------------------------------------ steps 2 and 3: rank, prove
def _rank(view: RowView, rows: Ints, candidates: Ints, k: int) -> tuple[Ints, NDArray[np.float64]]:
    """The first ``k`` candidates by exact distance; at equal distance the higher number first."""
    owner = np.repeat(rows, candidates.shape[1])
    squared = view.squared(owner, candidates.ravel()).reshape(candidates.shape)
    pick = np.lexsort((-candidates, squared), axis=-1)[:, :k]
    return np.take_along_axis(candidates, pick, axis=1), np.take_along_axis(squared, pick, axis=1)


def _proven(
    view: RowView, rows: Ints, squared: NDArray[np.float64], worst: NDArray[np.float32]
) -> Flags:
    """Whether no row outside the candidates can be as near as the k-th neighbour."""
    reach = view.reach(rows, squared)
    outside = -2 * worst.astype(np.float64) - view.slack(reach, 2.0**-24)
    return (outside > squared) & (np.sqrt(view.norms[rows]) + np.sqrt(squared) < CLAMP)


def _settle_twins(view: RowView, rows: Ints, ids: Ints, todo: Flags) -> Flags:
    """Fill in the neighbours of rows with k duplicates or more: the last of them."""
    done = np.zeros(len(rows), bool)
    if not todo.any():
        return done
    twins: dict[bytes, list[int]] = {}
    for row, values in enumerate(view.x):
        twins.setdefault((values + 0.0).tobytes(), []).append(row)  # + 0.0: -0.0 equals 0.0
    k = ids.shape[1]
    for place in np.flatnonzero(todo):
        same = twins[(view.x[rows[place]] + 0.0).tobytes()][-k - 1 :]
        others = [row for row in reversed(same) if row != rows[place]][:k]
        if len(others) == k:  # else the squares underflowed
            ids[place], done[place] = others, True
    return done


def _search_again(
    view: RowView, rows: Ints, squared: NDArray[np.float64], k: int
) -> tuple[Ints, NDArray[np.float64]]:
    """Neighbours of ``rows`` among all that float64 cannot tell to be farther than the k-th."""
    slack = 4 * view.slack(view.reach(rows, squared), 2.0**-53)  # the norms round as well
    ids, distances = np.empty((len(rows), k), np.int64), np.empty((len(rows), k))
    for start in range(0, len(rows), view.block // 2):
        part = slice(start, start + view.block // 2)
        limit = 0.5 * (squared[part] + slack[part])
        ids[part], distances[part] = _search_block(view, rows[part], limit, k)
    return ids, distances


def _search_block(
    view: RowView, rows: Ints, limit: NDArray[np.float64], k: int
) -> tuple[Ints, NDArray[np.float64]]:
    query = view.wide(rows)
    half = 0.5 * view.norms[rows]
    line, found = np.empty(0, np.int64), np.empty(0, np.int64)
    distance = np.empty(0)
    for first, base in view.blocks():
        halves = half[:, None] + 0.5 * view.norms[first : first + len(base)] - query @ base.T
        new_line, new = np.nonzero(halves <= limit[:, None])
        new += first
        other = rows[new_line] != new
        new_line, new = new_line[other], new[other]
        line = np.concatenate([line, new_line])
        found = np.concatenate([found, new])
        distance = np.concatenate([distance, view.squared(rows[new_line], new)])
        first_k = np.lexsort((-found, distance, line))
        rank = np.arange(len(line)) - np.searchsorted(line[first_k], line[first_k])
        first_k = first_k[rank < k]
        line, found, distance = line[first_k], found[first_k], distance[first_k]
    return found.reshape(len(rows), k), distance.reshape(len(rows), k)
