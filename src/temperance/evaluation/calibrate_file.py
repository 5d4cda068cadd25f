"""``temperance calibrate`` as a function: fit on some rows of a file, judge on the others.

The file is read in chunks, several times, and is never in memory as a whole: the plain temperature
is fitted on all fit rows, the other methods on as many as fit into a fixed amount of memory, and so
are the figures judged.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from temperance.errors import InvalidInput
from temperance.evaluation.calibrators import Calibrator, find_method, fit_calibrator
from temperance.evaluation.logit_csv import CsvLogits, open_logits
from temperance.evaluation.logit_files import LogitsFile
from temperance.evaluation.posthoc import TemperatureFit
from temperance.evaluation.predictions import read_predictions
from temperance.evaluation.report import EvaluateOptions, evaluate
from temperance.evaluation.stream import fit_temperature_stream
from temperance.evaluation.two_models import ModelComparison, compare_models
from temperance.files import write_through
from temperance.records import Report

__all__ = [
    "Calibration",
    "CalibrationPlan",
    "Part",
    "apply_to_file",
    "calibrate_file",
    "gather_rows",
]

_MEMORY = 1 << 27  # bytes of float32 logits that are held together
Progress = Callable[[str, int], None]
Source = LogitsFile | CsvLogits
Chunk = tuple[NDArray[Any], NDArray[Any]]


@dataclass(frozen=True)
class CalibrationPlan:
    """What to calibrate, and how.

    Attributes:
        file: logits with labels: ``.npz``, ``.npy``, ``.csv``, ``.parquet``.
        labels: where the labels are: the name of an array or column, or a file for ``.npy``.
        columns: names of the logits; guessed only where one guess is possible.
        test_file: other rows to judge on, in the same form; without it ``fit_share`` of the rows of
            ``file`` fit and the others judge.
        method: a name in ``CALIBRATORS``.
        fit_share: share of the rows that fit, drawn by ``seed``.
        seed: of the draw, and of the intervals.
        bins: of the ECE.
    """

    file: str
    labels: str = "labels"
    columns: tuple[str, ...] = ()
    test_file: str | None = None
    method: str = "temperature"
    fit_share: float = 0.5
    seed: int = 0
    bins: int = 15

    def __post_init__(self) -> None:
        find_method(self.method)
        if not 0 < self.fit_share < 1:
            raise InvalidInput(
                "fit share",
                expected="a share between 0 and 1",
                found=repr(self.fit_share),
                fix="0.5 fits on half of the rows and judges on the other half.",
            )


@dataclass(frozen=True)
class Calibration:
    """The outcome: a calibrator, and what it did to rows that it was not fitted on.

    Attributes:
        plan: what was asked for.
        calibrator: the fitted calibrator.
        interval: 95 % interval of the temperature, for the method ``temperature``.
        rows: numbers of rows: ``fit``, ``fit_used``, ``test``, ``judged``.
        before: figures of the judged rows as they came.
        after: the same after calibration.
        comparison: after against before, paired by row.
        one_column: whether the file has one logit per row, that of class 1.
        notes: what people should know, in words.
    """

    plan: dict[str, Any]
    calibrator: Calibrator
    interval: tuple[float, float] | None
    rows: dict[str, int]
    before: Report
    after: Report
    comparison: ModelComparison
    one_column: bool = False
    notes: tuple[str, ...] = field(default_factory=tuple)


def calibrate_file(plan: CalibrationPlan, *, progress: Progress = lambda *_: None) -> Calibration:
    """Fit a calibrator on some rows of a file and judge it on the others.

    Args:
        plan: what to do.
        progress: called with a stage and the rows read in it.

    Returns:
        The calibrator with the figures before and after.

    Raises:
        InvalidInput: for a file, labels or logits that cannot be used, by row.
        NotFound: for an unknown method.

    Example:
        >>> import numpy as np, tempfile
        >>> from pathlib import Path
        >>> from temperance.evaluation.calibrate_file import CalibrationPlan, calibrate_file
        >>> rng = np.random.default_rng(0)
        >>> z = rng.normal(size=(4000, 3)) * 2
        >>> y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "val.npz"
        ...     np.savez(file, logits=5 * z, labels=y)
        ...     found = calibrate_file(CalibrationPlan(str(file)))
        >>> 4.5 < found.calibrator.parameters["temperature"] < 5.5
        True
        >>> found.comparison.verdicts["nll"]
        'better'
    """
    _refuse_same(plan)
    fit_part, test_part = _parts(plan)
    for file in (plan.file, plan.test_file):
        if file is not None:
            _check_file(_source(plan, file), file, progress)
    rows = {"fit": _count(fit_part), "test": _count(test_part)}
    _check_rows(plan, rows)
    calibrator, interval, rows["fit_used"] = _fitted(plan, fit_part, rows["fit"], progress)
    logits, labels = gather_rows(
        test_part, rows["test"], plan.seed + 1, "reading the test rows", progress
    )
    rows["judged"] = len(labels)
    options = EvaluateOptions(bins=plan.bins, seed=plan.seed)
    calibrated = calibrator.log_probs(logits)  # logarithms do not underflow, and are logits
    before = evaluate(logits=logits, labels=labels, options=options)
    after = evaluate(logits=calibrated, labels=labels, options=options)
    comparison = compare_models(
        {"logits": calibrated}, {"logits": logits}, labels=labels, options=options
    )
    notes = [*calibrator.notes]
    for used, all_of, what in (("fit_used", "fit", "fitted"), ("judged", "test", "judged")):
        if rows[used] < rows[all_of]:
            notes.append(f"{rows[used]:,} of {rows[all_of]:,} rows, drawn by seed, were {what}")
    return Calibration(
        asdict(plan),
        calibrator,
        interval,
        rows,
        before,
        after,
        comparison,
        one_column=logits.ndim == 1 or logits.shape[1] == 1,
        notes=tuple(notes),
    )


# ------------------------------------------------------------------ which rows
@dataclass(frozen=True)
class Part:
    """Rows of a file: all of them, or those that a seeded draw gives to one side."""

    source: Source
    seed: int
    low: float = 0.0
    high: float = 1.0

    def __iter__(self) -> Iterator[Chunk]:
        rng = np.random.default_rng(self.seed)  # the same draw on every pass
        for logits, labels in self.source:
            u = rng.random(len(labels))
            mine = (u >= self.low) & (u < self.high)
            if mine.all():
                yield logits, labels
            elif mine.any():
                yield logits[mine], labels[mine]


def _source(plan: CalibrationPlan, file: str) -> Source:
    return open_logits(file, labels=plan.labels, columns=list(plan.columns) or None)


def _parts(plan: CalibrationPlan) -> tuple[Part, Part]:
    one, share = _source(plan, plan.file), plan.fit_share
    if plan.test_file is not None:
        return Part(one, plan.seed), Part(_source(plan, plan.test_file), plan.seed)
    return Part(one, plan.seed, 0.0, share), Part(one, plan.seed, share, 1.0)


def _refuse_same(plan: CalibrationPlan) -> None:
    paths = [Path(f) for f in (plan.file, plan.test_file) if f is not None]
    if len(paths) == 2 and all(p.exists() for p in paths) and paths[0].samefile(paths[1]):
        raise InvalidInput(
            f"test file {plan.test_file}",
            expected="other rows than those that fit",
            found="the same file",
            fix="Leave --test out: the rows are then divided, or name another file.",
        )


def _check_file(source: Source, file: str, progress: Progress) -> None:
    """Read every row once before any work, so that a bad one is named by its place in the file."""
    done = 0
    for logits, labels in source:
        try:
            read_predictions(logits=logits, labels=labels)
        except InvalidInput as error:
            where = f" (counted from row {done} of {file})" if done else f" of {file}"
            raise InvalidInput(
                error.subject, expected=error.expected, found=error.found + where, fix=error.fix
            ) from error
        done += len(labels)
        progress(f"checking {Path(file).name}", done)


def _count(part: Part) -> int:
    return sum(len(labels) for _, labels in part)


def _check_rows(plan: CalibrationPlan, rows: dict[str, int]) -> None:
    for side, count in rows.items():
        if count < 2:
            raise InvalidInput(
                f"{side} rows of {(side == 'test' and plan.test_file) or plan.file}",
                expected="2 or more",
                found=str(count),
                fix="Give more rows, another fit share, or a test file.",
            )


def gather_rows(
    part: Part, n: int, seed: int, stage: str, progress: Progress
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Rows in memory: all of them, or a seeded draw of as many as the limit allows."""
    rng, logits, labels, seen = np.random.default_rng(seed), [], [], 0
    share = 1.0
    for z, y in part:
        if not seen:
            share = min(1.0, _MEMORY / (4.0 * max(1, z[:1].size) * n))
        kept = slice(None) if share == 1.0 else rng.random(len(y)) < share
        logits.append(np.asarray(z[kept]))
        labels.append(np.asarray(y[kept]))
        seen += len(y)
        progress(stage, seen)
    return np.concatenate(logits), np.concatenate(labels)


# ------------------------------------------------------------------ the fit
def _fitted(
    plan: CalibrationPlan, part: Part, n: int, progress: Progress
) -> tuple[Calibrator, tuple[float, float] | None, int]:
    if plan.method == "temperature":
        fit = fit_temperature_stream(
            part, progress=lambda number, rows: progress(f"fitting, pass {number}", rows)
        )
        width = next(iter(part))[0]
        return _plain(fit, max(2, width[:1].size)), fit.interval, fit.n
    logits, labels = gather_rows(part, n, plan.seed + 2, "reading the fit rows", progress)
    progress(f"fitting {plan.method}", len(labels))
    return fit_calibrator(plan.method, logits=logits, labels=labels), None, len(labels)


def _plain(fit: TemperatureFit, n_classes: int) -> Calibrator:
    applied = fit.status == "converged"
    return Calibrator(
        method="temperature",
        parameters={"temperature": fit.applied},
        n_classes=n_classes,
        n=fit.n,
        status=fit.status,
        plain=False,
        nll_before=fit.nll_before,
        nll_after=fit.nll_after if applied else fit.nll_before,
        n_parameters=1,
        notes=fit.notes,
    )


# ------------------------------------------------------------------ use
def apply_to_file(
    calibrator: Calibrator,
    source: Source,
    out: Path,
    *,
    progress: Progress = lambda *_: None,
) -> int:
    """Write calibrated probabilities of every row of a file, chunk by chunk, as ``.npy``.

    Args:
        calibrator: what ``calibrate_file`` fitted.
        source: the rows.
        out: the file, float32 ``[n, C]``; written under a temporary name first.
        progress: called with a stage and the rows written.

    Returns:
        Number of rows written.
    """
    n = sum(len(labels) for _, labels in source)

    def blocks() -> Iterator[bytes]:
        header = {"descr": "<f4", "fortran_order": False, "shape": (n, calibrator.n_classes)}
        yield _npy_header(header)
        done = 0
        for logits, _ in source:
            yield calibrator.probs(logits).astype("<f4").tobytes()
            done += len(logits)
            progress("writing probabilities", done)

    write_through(out, blocks())
    return n


def _npy_header(header: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, header)
    return buffer.getvalue()
