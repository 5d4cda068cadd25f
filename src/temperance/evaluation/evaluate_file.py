"""``temperance evaluate`` as a function: every figure of a file of logits, OOD and shift too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from temperance.errors import InvalidInput
from temperance.evaluation.calibrate_file import Part, Progress, gather_rows
from temperance.evaluation.calibrators import Calibrator
from temperance.evaluation.detection import OodMetrics, ood_metrics
from temperance.evaluation.figures import FIGURES, with_interval
from temperance.evaluation.logit_csv import open_logits
from temperance.evaluation.logit_files import DAMAGED
from temperance.evaluation.ood import energy, max_logit, msp, mutual_information, predictive_entropy
from temperance.evaluation.predictions import read_logits, read_predictions
from temperance.evaluation.report import EvaluateOptions, evaluate
from temperance.evaluation.uncertainty import member_uncertainty, pooled_log_probs
from temperance.records import Estimate, Report

__all__ = ["EvaluationPlan", "FileEvaluation", "evaluate_file"]

SHIFT = ("accuracy", "nll", "ece")


@dataclass(frozen=True)
class EvaluationPlan:
    """What to judge.

    Attributes:
        file: logits with labels; an ``.npz`` may hold ``[members, n, C]`` of an ensemble.
        labels: name of the label array or column; for ``.npy`` another file.
        columns: names of the logits; guessed only where one guess is possible.
        ood: logits of out-of-distribution rows (``.npz`` or ``.npy``), or None.
        shift: files like ``file``, of the same model under a shift, in the order of its severity.
        bins: of the calibration errors.
        bootstrap: replicates of the intervals.
        seed: of all draws.
    """

    file: str
    labels: str = "labels"
    columns: tuple[str, ...] = ()
    ood: str | None = None
    shift: tuple[str, ...] = ()
    bins: int = 15
    bootstrap: int = 300
    seed: int = 0


@dataclass(frozen=True)
class FileEvaluation:
    """The outcome.

    Attributes:
        plan: what was asked for.
        rows: rows of the file, and how many were judged.
        report: accuracy, NLL, Brier score, ECE and accuracy by class.
        figures: every figure of the table ``FIGURES`` with its interval.
        uncertainty: of an ensemble, means over the rows in nats; empty for one model.
        ood: of every score (higher = more OOD) how well it tells the two sets apart.
        shift: figures by file, in order.
        notes: what people should know, in words.
    """

    plan: Mapping[str, Any]
    rows: Mapping[str, int]
    report: Report
    figures: Mapping[str, Estimate]
    uncertainty: Mapping[str, float] = field(default_factory=dict)
    ood: Mapping[str, OodMetrics] = field(default_factory=dict)
    shift: Mapping[str, Mapping[str, Estimate]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class _Rows:
    """Logits of one file; of an ensemble, the logarithms of its mean probabilities."""

    logits: NDArray[Any]
    labels: NDArray[Any]
    n: int
    members: NDArray[Any] | None = None


def evaluate_file(
    plan: EvaluationPlan,
    *,
    calibrator: Calibrator | None = None,
    progress: Progress = lambda *_: None,
) -> FileEvaluation:
    """Judge a file of logits by every figure of the library.

    Args:
        plan: what to judge.
        calibrator: applied to the logits first; not for ensembles.
        progress: called with a stage and the rows read in it.

    Returns:
        The figures with their intervals.

    Raises:
        InvalidInput: for a file, labels or logits that cannot be used, by row.

    Example:
        >>> import numpy as np, tempfile
        >>> from pathlib import Path
        >>> from temperance.evaluation.evaluate_file import EvaluationPlan, evaluate_file
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "test.npz"
        ...     np.savez(file, logits=5 * np.eye(3)[[0, 1, 2, 0]], labels=[0, 1, 2, 1])
        ...     found = evaluate_file(EvaluationPlan(str(file), bootstrap=50))
        >>> found.report.metrics["accuracy"].value
        0.75
    """
    if len(set(plan.shift)) < len(plan.shift):
        raise InvalidInput(
            "shift files", expected="each file once", found="one twice", fix="Name it once."
        )
    rows = _read(plan, plan.file, calibrator, progress)
    options = EvaluateOptions(bins=plan.bins, seed=plan.seed, bootstrap=plan.bootstrap)
    draws = {"bootstrap": plan.bootstrap, "seed": plan.seed}
    figures = {}
    for name in FIGURES:
        progress(f"figure: {name}", len(rows.labels))
        figures[name] = with_interval(name, logits=rows.logits, labels=rows.labels, **draws)
    report = evaluate(logits=rows.logits, labels=rows.labels, options=options)
    notes = []
    if len(rows.labels) < rows.n:
        notes.append(f"{len(rows.labels):,} of {rows.n:,} rows, drawn by seed, were judged")
    return FileEvaluation(
        plan=asdict(plan),
        rows={"file": rows.n, "judged": len(rows.labels)},
        report=report,
        figures=figures,
        uncertainty=_uncertainty(rows),
        ood={} if plan.ood is None else _ood(plan, rows, calibrator),
        shift={
            file: _shift(plan, file, report.n_classes, calibrator=calibrator, progress=progress)
            for file in plan.shift
        },
        notes=tuple(notes),
    )


# ------------------------------------------------------------------ reading
def _read(
    plan: EvaluationPlan, file: str, calibrator: Calibrator | None, progress: Progress
) -> _Rows:
    members = _members(file)
    if members is not None:
        if calibrator is not None:
            raise InvalidInput(
                f"file {file}",
                expected="logits of one model, to calibrate",
                found=f"{len(members)} members",
                fix="Calibrate the logarithm of their mean probability.",
            )
        labels = _array(file, plan.labels)
        for number, logits in enumerate(members):
            try:
                read_predictions(logits=logits, labels=labels)
            except InvalidInput as error:
                error.args = (f"member {number}: {error}",)
                raise
        return _Rows(pooled_log_probs(logits=members), labels, len(labels), members)
    source = open_logits(file, labels=plan.labels, columns=list(plan.columns) or None)
    part = Part(source, plan.seed)
    n = sum(len(y) for _, y in part)
    logits, labels = gather_rows(part, n, plan.seed + 1, "reading the rows", progress)
    return _Rows(_scored(logits, calibrator), labels, n)


def _scored(logits: NDArray[Any], calibrator: Calibrator | None) -> NDArray[Any]:
    """Logits ``[n, C]``; calibrated ones are log-probabilities, which do not underflow."""
    return read_logits(logits) if calibrator is None else calibrator.log_probs(logits)


def _members(file: str) -> NDArray[Any] | None:
    """Logits ``[members, n, C]`` of an ensemble, or None for one model."""
    if Path(file).suffix.lower() != ".npz" or not Path(file).is_file():
        return None
    try:
        with open(file, "rb") as handle, np.load(handle, allow_pickle=False) as arrays:
            logits = arrays["logits"] if "logits" in arrays.files else np.empty(0)
    except DAMAGED:
        return None  # the reader of one model says what is wrong
    return logits if logits.ndim == 3 else None


def _array(file: str, name: str) -> NDArray[Any]:
    with np.load(file, allow_pickle=False) as arrays:
        if name in arrays.files:
            return np.asarray(arrays[name])
        raise InvalidInput(
            f"file {file}",
            expected=f"the array {name!r}",
            found=", ".join(arrays.files),
            fix="Name it with --labels.",
        )


def _uncertainty(rows: _Rows) -> dict[str, float]:
    if rows.members is None:
        return {}
    found = member_uncertainty(logits=rows.members)
    names = ("total", "aleatoric", "mutual_information", "disagreement")
    return {name: float(getattr(found, name).mean()) for name in names}


# ------------------------------------------------------------------ OOD and shift
def _ood(plan: EvaluationPlan, rows: _Rows, calibrator: Calibrator | None) -> dict[str, OodMetrics]:
    file = str(plan.ood)
    try:
        with open(file, "rb") as handle:
            loaded = np.load(handle, allow_pickle=False)
            name = plan.columns[0] if len(plan.columns) == 1 else "logits"
            outside = loaded if isinstance(loaded, np.ndarray) else loaded[name]
    except DAMAGED as error:
        raise InvalidInput(
            f"file {file}",
            expected="logits as .npy, or as the array logits of .npz",
            found=str(error),
            fix="Write them with numpy.save.",
        ) from error
    both: dict[Callable[..., NDArray[Any]], tuple[NDArray[Any], NDArray[Any]]] = {}
    if rows.members is not None:
        _check_classes(file, outside.shape[-1], rows.logits.shape[1])
        both[mutual_information] = (rows.members, outside)
        outside = pooled_log_probs(logits=outside)
    else:
        outside = _scored(outside, calibrator)
        _check_classes(file, outside.shape[1], rows.logits.shape[1])
    # energy and the largest logit mean nothing for log-probabilities: their energy is always 0
    raw = rows.members is None and calibrator is None
    for score in (msp, max_logit, energy, predictive_entropy) if raw else (msp, predictive_entropy):
        both[score] = (rows.logits, outside)
    options = {"bootstrap": plan.bootstrap, "seed": plan.seed}
    return {
        score.__name__: ood_metrics(
            id_scores=score(logits=a), ood_scores=score(logits=b), **options
        )
        for score, (a, b) in both.items()
    }


def _check_classes(file: str, found: int, wanted: int) -> None:
    if found != wanted:
        raise InvalidInput(
            f"file {file}",
            expected=f"{wanted} classes, as in the rows judged",
            found=str(found),
            fix="Compare logits of one model only.",
        )


def _shift(
    plan: EvaluationPlan,
    file: str,
    classes: int,
    *,
    calibrator: Calibrator | None,
    progress: Progress,
) -> dict[str, Estimate]:
    rows = _read(plan, file, calibrator, progress)
    _check_classes(file, rows.logits.shape[1], classes)
    draws = {"bootstrap": plan.bootstrap, "seed": plan.seed}
    return {
        name: with_interval(name, logits=rows.logits, labels=rows.labels, **draws) for name in SHIFT
    }
