"""A temperature fitted on logits that come in chunks: from a loader, a generator, a large file.

The rows are walked three to five times and never held together. What can be run through only once
is written to a temporary file first.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from temperance.errors import InvalidInput
from temperance.evaluation.logit_rows import LogitRows, read_logit_rows
from temperance.evaluation.nll_curve import Block, blocks_of
from temperance.evaluation.temperature_fit import BOUNDS, TemperatureFit, check_bounds, fit_rows

__all__ = ["Progress", "fit_temperature_stream"]

#: Called now and then with the number of the pass, from 1, and the rows it has seen so far.
Progress = Callable[[int, int], None]

_IN_MEMORY = 1 << 26  # bytes of a used-once source that are kept out of the temporary file
_EVERY = 1 << 22  # numbers between two calls of progress


def fit_temperature_stream(
    chunks: Iterable[Any] | Callable[[], Iterable[Any]],
    *,
    ignore: tuple[object, ...] = (),
    axis: int | None = None,
    bounds: tuple[float, float] = BOUNDS,
    progress: Progress | None = None,
) -> TemperatureFit:
    """Fit the temperature with the lowest NLL on logits that come in chunks.

    The same T, interval, status and notes as those of ``fit_temperature`` on all chunks put
    together; the largest chunk decides the memory.

    Args:
        chunks: gives ``(logits, labels)`` or ``(logits, labels, weights)``, each in a form that
            ``fit_temperature`` takes. A list, a loader, a ``LogitsFile``, or a function without
            arguments that makes an iterator is run through three to five times, and must give the
            same rows each time, in any order. A generator is run through once; its rows wait in a
            temporary file if they are many.
        ignore: numbers in the labels that mark rows without a label, or one such number.
        axis: the class axis; must be given for logits of more than two axes: 1 for (B, C, H, W).
        bounds: lower and upper bound of T, with 1 between them.
        progress: is called with the number of the pass and the rows seen in it.

    Returns:
        T with its status, 95 % interval and the NLL before and after.

    Raises:
        InvalidInput: as ``fit_temperature`` does, naming the chunk too; for a chunk of another
            form or number of classes; if a pass gives other rows than the first.

    Example:
        >>> from temperance.evaluation import fit_temperature_stream
        >>> fit = fit_temperature_stream([([[8.0, 0.0]] * 3, [0, 0, 0]), ([[0.0, 8.0]], [0])])
        >>> round(fit.temperature, 4), fit.status
        (7.2819, 'converged')
    """
    bounds = check_bounds(bounds)
    if not isinstance(chunks, Iterable) and not callable(chunks):
        raise _wrong_chunks(f"a {type(chunks).__name__}")

    def source() -> Iterable[Any]:
        return chunks if isinstance(chunks, Iterable) else chunks()

    if not isinstance(chunks, Iterator):
        return fit_rows(_Chunks(source, ignore, axis, progress), bounds)
    with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY) as file:
        first = _Chunks(source, ignore, axis, None)
        _write(first, file, progress)
        again = _Chunks(lambda: _records(file), (), None, progress)
        again.passes, again.form = 1, first.form
        return fit_rows(again, bounds)


class _Chunks:
    """A source of chunks as a walk; every pass must give as many rows as the first."""

    def __init__(
        self,
        source: Callable[[], Iterable[Any]],
        ignore: tuple[object, ...],
        axis: int | None,
        progress: Progress | None,
    ) -> None:
        self.source, self.ignore, self.axis = source, ignore, axis
        self.progress, self.passes = progress, 0
        self.n: int | None = None
        self.form: tuple[bool, bool] | None = None  # of the first chunk, as two properties give it

    @property
    def one_column(self) -> bool:
        """Whether there is one logit per row."""
        return self.form is not None and self.form[0]

    @property
    def floating(self) -> bool:
        """Whether the logits are floating-point numbers."""
        return self.form is not None and self.form[1]

    def parts(self) -> Iterator[LogitRows]:
        """The chunks, read and checked; those without rows are left out."""
        classes: int | None = None
        for number, chunk in enumerate(self.source()):
            part = _read_chunk(chunk, number, self.ignore, self.axis)
            if part is None:
                continue
            classes = classes or part.n_classes
            self.form = self.form or (part.one_column, part.floating)
            if part.n_classes != classes:
                raise InvalidInput(
                    f"chunk {number}",
                    expected=f"{classes} classes, as in the chunks before",
                    found=f"{part.n_classes}",
                    fix="Pass the logits of one model.",
                )
            yield part

    def __iter__(self) -> Iterator[Block]:
        self.passes += 1
        n = told = 0
        for part in self.parts():
            for block in part:
                n += block.d.shape[1]
                yield block
                if self.progress is not None and (n - told) * len(block.d) >= _EVERY:
                    self.progress(self.passes, n)
                    told = n
        if self.n is not None and n != self.n:
            raise InvalidInput(
                "chunks",
                expected=f"the same {self.n} rows on every pass",
                found=f"{n} on pass {self.passes}",
                fix="Pass a list, a loader or a function that makes a new iterator each time; a "
                "generator is written to a temporary file.",
            )
        self.n = n
        if self.progress is not None and n > told:
            self.progress(self.passes, n)


def _read_chunk(
    chunk: Any, number: int, ignore: tuple[object, ...], axis: int | None
) -> LogitRows | None:
    if not isinstance(chunk, (tuple, list)) or len(chunk) not in (2, 3):
        size = f" of {len(chunk)} entries" if isinstance(chunk, (tuple, list)) else ""
        raise _wrong_chunks(f"a {type(chunk).__name__}{size} as chunk {number}")
    logits, labels, weights = (*chunk, None)[:3]
    try:
        rows = read_logit_rows(
            logits,
            labels,
            ignore=ignore,
            weights=weights,
            axis=axis,
            source=f" of chunk {number}",
        )
    except InvalidInput as error:
        raise InvalidInput(
            f"{error.subject} of chunk {number}",
            expected=error.expected,
            found=error.found,
            fix=error.fix,
        ) from None
    return rows if rows.ids.size else None


def _wrong_chunks(found: str) -> InvalidInput:
    return InvalidInput(
        "chunks",
        expected="an iterable of (logits, labels) or (logits, labels, weights)",
        found=found,
        fix="Arrays go into fit_temperature(logits=..., labels=...), a model with a loader into "
        "fit_temperature(model, loader).",
    )


# ------------------------------------------------------------------ what can be run through once
def _write(chunks: _Chunks, file: Any, progress: Progress | None) -> None:
    """Write the rows that count to a file, checked."""
    n = told = 0
    for part in chunks.parts():
        for z, ids, w, places in part.pieces():
            for _ in blocks_of(z, ids, w, places.name):
                pass  # looks at every row, so that errors name the chunk it came in
            for array in (z.T, ids, w):
                np.lib.format.write_array(file, np.ascontiguousarray(array), allow_pickle=False)
            n += len(ids)
            if progress is not None and (n - told) * len(z) >= _EVERY:
                progress(1, n)
                told = n
    if progress is not None and n > told:
        progress(1, n)


def _records(file: Any) -> Iterator[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]]:
    """What ``_write`` wrote."""
    end = file.seek(0, 2)
    file.seek(0)
    while file.tell() < end:
        z, ids, w = (np.lib.format.read_array(file, allow_pickle=False) for _ in range(3))
        yield z, ids, w
