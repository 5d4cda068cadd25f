"""Calibrators beyond one number, behind one call: the table, the fit, and the frozen result.

Logits count only up to a constant per row, as in the softmax: where a method looks at single logits
(vector, matrix), it looks at them less their row mean. So ``[n]``, ``[n, 1]`` and ``[n, 2]`` logits
of two classes, and logits and their log-probabilities, give one answer.

Three rules hold for every method:

- Nothing is fitted where the plain temperature does not converge (all rows right, all wrong, one
  row, constant logits): the rows do not say more than that. T = 1 is given, with that status.
- What is chosen by held-out rows (inner cross-validation, seeded) is used only if they favour it
  over the plain temperature by more than one standard error; otherwise that temperature is given,
  with the status ``"not favoured"``.
- The NLL of the fit rows is never above that at T = 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from temperance import serial
from temperance.errors import InvalidInput, NotFound
from temperance.evaluation.calibration_method import Arrays, CalibrationMethod, Found, plain
from temperance.evaluation.ensemble_scaling import ENSEMBLE_TEMPERATURE
from temperance.evaluation.fit_rows import FitRows, log_softmax, mean_nll, read_fit_rows
from temperance.evaluation.isotonic import ISOTONIC, ISOTONIC_JOINT
from temperance.evaluation.matrix_scaling import DIRICHLET, MATRIX
from temperance.evaluation.persample import SAMPLE_TEMPERATURE
from temperance.evaluation.predictions import FLOOR, Predictions, read_logits
from temperance.evaluation.scaling import CLASS_TEMPERATURE, VECTOR

__all__ = ["CALIBRATORS", "Calibrator", "find_method", "fit_calibrator", "fit_on_rows"]

_ROWS_PER_NUMBER = 10  # fewer are remarked on: an old rule of thumb for regressions
_ROUNDING = 1e-12  # nats by which an equal NLL may come out higher


def _fit_plain(data: FitRows, options: Mapping[str, Any]) -> Found:  # noqa: ARG001
    fit = data.fit
    settings = {"fitted_temperature": fit.temperature, "interval": list(fit.interval or ()) or None}
    arrays = {"temperature": np.asarray(data.temperature)}
    return Found(arrays, 1, fit.status, settings, fit.notes)


def _plain_log_probs(arrays: Arrays, d: NDArray[np.float64]) -> NDArray[np.float64]:
    return log_softmax(d / float(arrays["temperature"]))


TEMPERATURE = CalibrationMethod(
    name="temperature",
    formula="softmax(z / T)",
    n_parameters="1",
    reference="Guo, Pleiss, Sun, Weinberger, On calibration of modern neural networks, 2017, "
    "arXiv 1706.04599, section 4.2",
    trust="logits that are too large or too small as a whole; some hundred rows are enough",
    keeps_top=True,
    masks=True,
    shapes={"temperature": ()},
    fit=_fit_plain,
    log_probs=_plain_log_probs,
    valid=lambda arrays: bool(arrays["temperature"] > 0),
)

_TABLE = (
    TEMPERATURE,
    VECTOR,
    MATRIX,
    DIRICHLET,
    CLASS_TEMPERATURE,
    ENSEMBLE_TEMPERATURE,
    ISOTONIC,
    ISOTONIC_JOINT,
    SAMPLE_TEMPERATURE,
)
CALIBRATORS: Mapping[str, CalibrationMethod] = MappingProxyType({row.name: row for row in _TABLE})
"""The calibration methods, by name."""


@dataclass(frozen=True)
class Calibrator:
    """A fitted calibrator: plain numbers that turn logits into calibrated probabilities.

    Attributes:
        method: a name in ``CALIBRATORS``.
        parameters: numbers and nested lists by name, ready for JSON.
        n_classes: C.
        n: number of fit rows.
        status: ``"converged"``; ``"at a bound"`` or ``"not converged"`` (the NLL is still no higher
            than that of one temperature); ``"not favoured"`` (by held-out rows: one temperature is
            given); ``"worse on the fit rows"`` (than T = 1: one temperature is given); or the
            status of a plain temperature that did not converge (T = 1 is given).
        plain: whether one temperature is given although the method is another.
        nll_before: NLL of the fit rows at T = 1, in nats.
        nll_after: NLL of the fit rows after calibration; never above ``nll_before``.
        n_parameters: how many free numbers were fitted.
        settings: options, and what was chosen by held-out rows.
        notes: what else should be known, in words.
    """

    method: str
    parameters: Mapping[str, Any]
    n_classes: int
    n: int
    status: str
    plain: bool
    nll_before: float
    nll_after: float
    n_parameters: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        find_method(self.method)
        if self.n < 1:
            raise InvalidInput(
                "calibrator", expected="1 fit row or more", found=str(self.n), fix="Fit it again."
            )
        self._row.read_parameters(self.parameters, self.n_classes)

    @property
    def _row(self) -> CalibrationMethod:
        return TEMPERATURE if self.plain else CALIBRATORS[self.method]

    def log_probs(self, logits: ArrayLike) -> NDArray[np.float64]:
        """Logarithms of the calibrated probabilities; exact where these are next to 0 or 1.

        Args:
            logits: shape ``[n, C]``; for two classes also ``[n]`` or ``[n, 1]``, the logit of
                class 1 (the result has two columns then). -inf marks a class that a row cannot
                have, where the method takes that.

        Returns:
            Shape ``[n, C]``, float64; -inf where the logit is.

        Raises:
            InvalidInput: if the logits cannot be used, or have another number of classes.
        """
        return self.log_probs_of(read_logits(logits))

    def log_probs_of(self, scores: NDArray[np.generic]) -> NDArray[np.float64]:
        """``log_probs`` of logits ``[n, C]`` that have been checked."""
        if scores.shape[1] != self.n_classes:
            raise InvalidInput(
                "logits",
                expected=f"{self.n_classes} classes, as in the fit",
                found=f"{scores.shape[1]}",
                fix="Pass logits of the model that the calibrator was fitted for.",
            )
        arrays = self._row.read_parameters(self.parameters, self.n_classes)
        n = len(scores)
        rows = Predictions(scores, True, np.zeros(n, dtype=np.int64), np.ones(n, dtype=bool))
        out = np.empty(scores.shape)
        for part, d, _ in rows.shifted():
            masked = d <= FLOOR
            if masked.any() and not self._row.masks:
                raise _masked(self.method, part.start + int(np.argmax(masked.any(axis=1))))
            out[part] = self._row.log_probs(arrays, d)
            out[part][masked] = -np.inf
        return out

    def probs(self, logits: ArrayLike) -> NDArray[np.float64]:
        """Calibrated probabilities, shape ``[n, C]``, float64; see ``log_probs``."""
        p = self.log_probs(logits)
        return np.exp(p, out=p)

    def to_dict(self) -> dict[str, Any]:
        """A mapping of texts, numbers, lists and mappings, for JSON."""
        return serial.to_dict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Calibrator:
        """Read what ``to_dict`` gave; the parameters are checked.

        Raises:
            InvalidInput: if it is not a calibrator, or its parameters cannot be used.
        """
        return serial.from_dict(data, cls)


def find_method(method: str) -> CalibrationMethod:
    """Give the method of a name.

    Raises:
        NotFound: if there is none.
    """
    if not isinstance(method, str) or method not in CALIBRATORS:
        raise NotFound(
            "calibration method",
            found=f"there is no method {method!r}",
            candidates=tuple(CALIBRATORS),
            fix="Name one of them.",
        )
    return CALIBRATORS[method]


def fit_calibrator(
    method: str,
    *,
    logits: ArrayLike,
    labels: ArrayLike,
    ignore: tuple[object, ...] = (),
    weights: ArrayLike | None = None,
    options: Mapping[str, Any] | None = None,
) -> Calibrator:
    """Fit a calibrator on held-out logits.

    Fit on rows that the model was not trained on. More numbers want more rows, and one temperature
    is often hard to beat: ``compare_calibrators`` says what the rows at hand show.

    Args:
        method: a name in ``CALIBRATORS``.
        logits: numbers before the softmax, shape ``[n, C]``; for two classes also ``[n]`` or
            ``[n, 1]``, the logit of class 1. Log-probabilities are valid logits.
        labels: class ids ``0 .. C-1``, shape ``[n]``.
        ignore: numbers in ``labels`` that mark rows without a label; these rows are left out.
        weights: one number of 0 or more per row; all rows count the same if absent.
        options: numbers by name, as ``CALIBRATORS[method].options`` lists them; among them the
            ``seed`` and ``folds`` of what is chosen by held-out rows.

    Returns:
        The calibrator, with its status.

    Raises:
        NotFound: if there is no such method.
        InvalidInput: for logits, labels, weights or options that cannot be used, the row named.

    Example:
        >>> import numpy as np
        >>> from temperance.evaluation import fit_calibrator
        >>> rng = np.random.default_rng(0)
        >>> z = rng.normal(size=(500, 3))
        >>> y = (z + [0, 0, 2] + rng.gumbel(size=z.shape)).argmax(axis=1)  # class 2 is frequent
        >>> calibrator = fit_calibrator("vector", logits=z, labels=y)
        >>> calibrator.status, bool(calibrator.nll_after < calibrator.nll_before)
        ('converged', True)
        >>> calibrator.probs([[0.0, 0.0, 0.0]]).round(1).tolist()
        [[0.1, 0.1, 0.8]]
    """
    row = find_method(method)
    chosen = row.read_options(options)
    data = read_fit_rows(logits=logits, labels=labels, ignore=ignore, weights=weights)
    return fit_on_rows(row, data, chosen)


def fit_on_rows(row: CalibrationMethod, data: FitRows, options: Mapping[str, Any]) -> Calibrator:
    """Fit a method on checked rows."""
    before = data.fit.nll_before
    found = _found(row, data, options)
    after = _nll(row, found, data)
    if not after <= before + _ROUNDING and not found.plain and row is not TEMPERATURE:
        note = f"its NLL of the fit rows is {after:.6g}, {before:.6g} at T = 1"
        found = plain(data, status="worse on the fit rows", note=note, settings=found.settings)
        after = _nll(row, found, data)
    return Calibrator(
        method=row.name,
        parameters={k: v.tolist() for k, v in found.parameters.items()},
        n_classes=data.rows.n_classes,
        n=len(data.rows),
        status=found.status,
        plain=found.plain,
        nll_before=before,
        nll_after=min(after, before),  # equal but for rounding
        n_parameters=found.n_parameters,
        settings={**options, **found.settings},
        notes=(*found.notes, *_notes(row, found, data)),
    )


def _found(row: CalibrationMethod, data: FitRows, options: Mapping[str, Any]) -> Found:
    if row is not TEMPERATURE and data.fit.status != "converged":
        note = "the plain temperature has no minimum on these rows, so nothing more was fitted"
        return plain(data, status=data.fit.status, note=note, settings={})
    return row.fit(data, options)


def _nll(row: CalibrationMethod, found: Found, data: FitRows) -> float:
    apply = TEMPERATURE.log_probs if found.plain else row.log_probs
    return mean_nll(data, lambda d: apply(found.parameters, d))


def _notes(row: CalibrationMethod, found: Found, data: FitRows) -> tuple[str, ...]:
    """What is odd about the rows, for this method."""
    notes = () if row is TEMPERATURE else data.fit.notes
    crowded = len(data.rows) < _ROWS_PER_NUMBER * found.n_parameters
    if crowded and "steps" not in row.n_parameters and not found.plain and row is not TEMPERATURE:
        notes = (*notes, f"{found.n_parameters} numbers from only {len(data.rows)} rows")
    missing = np.flatnonzero(np.bincount(data.rows.ids, minlength=data.rows.n_classes) == 0)
    if len(missing) and not row.keeps_top and not found.plain:
        these = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
        notes = (*notes, f"classes without fit rows get what their prior says: {these}")
    return notes


def _masked(method: str, row: int) -> InvalidInput:
    return InvalidInput(
        "logits",
        expected=f"finite numbers: {method!r} mixes the logits of all classes",
        found=f"-inf in row {row}",
        fix="Choose a method that takes masked classes, such as 'vector'.",
    )
