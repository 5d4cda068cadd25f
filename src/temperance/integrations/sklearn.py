"""Calibrators as scikit-learn estimators. Needs scikit-learn 1.6 or newer.

- ``TemperatureCalibrator``: logits in, calibrated probabilities out; for logits that you have.
- ``LogitTransformer``: a step of a pipeline that turns a classifier into its logits. Where it is
  fitted in a pipeline, it hands on out-of-fold logits, so that the calibrator behind it never sees
  logits of rows that the classifier was trained on.
- ``CalibratedModel``: both behind one estimator.
- ``TemperedClassifier``: a small net with a tempered head, trained on a table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    MetaEstimatorMixin,
)
from sklearn.utils import get_tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from temperance.errors import InvalidInput
from temperance.evaluation import fit_calibrator
from temperance.integrations.sklearn_logits import LogitTransformer, or_default
from temperance.integrations.sklearn_tempered import TemperedClassifier

__all__ = ["CalibratedModel", "LogitTransformer", "TemperatureCalibrator", "TemperedClassifier"]


class TemperatureCalibrator(ClassifierMixin, BaseEstimator):
    """Calibrate logits: ``fit(logits, y)``, then ``predict_proba(logits)``.

    Args:
        method: a name in ``temperance.evaluation.CALIBRATORS``.
        options: numbers by name for the method, as its row in ``CALIBRATORS`` lists them.
        classes: labels of the columns of the logits, in their order; if absent, the labels in ``y``
            in sorted order, which must then be as many as the columns. Needed where rows of some
            class are missing in ``y``.

    Attributes:
        classes_: the labels, sorted; the order of the columns of ``predict_proba``.
        calibrator_: the fitted ``temperance.evaluation.Calibrator``, with status and notes.
        n_features_in_: number of columns of the logits.

    Example:
        >>> import numpy as np
        >>> from temperance.integrations.sklearn import TemperatureCalibrator
        >>> rng = np.random.default_rng(0)
        >>> z = rng.normal(size=(400, 3))
        >>> y = np.array(["a", "b", "c"])[(z + rng.gumbel(size=z.shape)).argmax(axis=1)]
        >>> model = TemperatureCalibrator().fit(8 * z, y)
        >>> model.predict_proba(8 * z).shape, model.calibrator_.status
        ((400, 3), 'converged')
    """

    def __init__(
        self,
        method: str = "temperature",
        *,
        options: Mapping[str, Any] | None = None,
        classes: Sequence[Any] | None = None,
    ) -> None:
        self.method = method
        self.options = options
        self.classes = classes

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Fit the calibrator.

        Args:
            X: logits ``[n, C]`` of rows that their model was not trained on; for two classes also
                ``[n, 1]``, the logit of the second class, as ``decision_function`` gives it.
            y: labels, shape ``[n]``, of any kind.
            sample_weight: one number of 0 or more per row.

        Returns:
            The estimator itself.

        Raises:
            InvalidInput: if the columns are not the logits of the classes, or cannot be used.
        """
        z, y = validate_data(self, X, y, ensure_all_finite=False)
        check_classification_targets(y)
        self._order, self.classes_, ids = self._read_classes(np.asarray(y), z.shape[1])
        weights = None
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, z, dtype=np.float64)
        self.calibrator_ = fit_calibrator(
            self.method, logits=self._ordered(z), labels=ids, weights=weights, options=self.options
        )
        return self

    def _read_classes(
        self, y: NDArray[Any], columns: int
    ) -> tuple[NDArray[np.intp], NDArray[Any], NDArray[np.intp]]:
        """Order of the columns that sorts the labels; the sorted labels; ids of the rows."""
        names = np.unique(y) if self.classes is None else np.asarray(self.classes)
        if len(names) < 2 or columns not in ({1, 2} if len(names) == 2 else {len(names)}):
            raise InvalidInput(
                "logits",
                expected=f"one column for each of the {len(names)} classes"
                if len(names) > 1
                else "labels of two classes or more",
                found=f"{columns} column(s)" if len(names) > 1 else "one class",
                fix="X must be logits; name all classes with classes= where y lacks some.",
            )
        order = np.argsort(names)
        classes = names[order]
        ids = np.minimum(np.searchsorted(classes, y), len(classes) - 1)
        unknown = classes[ids] != y
        if unknown.any():
            raise InvalidInput(
                "y",
                expected=f"the {len(classes)} labels in classes",
                found=f"{y[int(np.argmax(unknown))]!r} in row {int(np.argmax(unknown))}",
                fix="Name that class, too, or leave the row out.",
            )
        return order, classes, ids

    def _ordered(self, X: NDArray[Any]) -> NDArray[Any]:
        if X.shape[1] == 1:
            return X if self._order[0] == 0 else -X
        return np.ascontiguousarray(X[:, self._order])

    def predict_log_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Logarithms of the calibrated probabilities, shape ``[n, C]``."""
        check_is_fitted(self)
        z = validate_data(self, X, ensure_all_finite=False, reset=False)
        return self.calibrator_.log_probs(self._ordered(z))

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Calibrated probabilities, shape ``[n, C]``, in the order of ``classes_``."""
        return np.exp(self.predict_log_proba(X))

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Calibrated logits: log-probabilities ``[n, C]``; for two classes the log-odds ``[n]``."""
        log_p = self.predict_log_proba(X)
        return log_p[:, 1] - log_p[:, 0] if log_p.shape[1] == 2 else log_p

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The most probable class of every row; the first of equals."""
        top = self.predict_log_proba(X).argmax(axis=1)
        return self.classes_[top]


class CalibratedModel(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):
    """A classifier whose probabilities are calibrated by any method, on out-of-fold logits.

    Args:
        estimator: as in ``LogitTransformer``; one that is fitted goes in as
            ``FrozenEstimator(classifier)``.
        method: as in ``TemperatureCalibrator``.
        options: as in ``TemperatureCalibrator``.
        cv: as in ``LogitTransformer``.

    Attributes:
        classes_: the labels, sorted.
        logits_: the fitted ``LogitTransformer``.
        calibrator_: the fitted ``temperance.evaluation.Calibrator``.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.naive_bayes import GaussianNB
        >>> from temperance.integrations.sklearn import CalibratedModel
        >>> x, y = load_iris(return_X_y=True)
        >>> model = CalibratedModel(GaussianNB()).fit(x, y)
        >>> bool(model.calibrator_.nll_after < model.calibrator_.nll_before)
        True
    """

    def __init__(
        self,
        estimator: Any = None,
        *,
        method: str = "temperature",
        options: Mapping[str, Any] | None = None,
        cv: Any = 5,
    ) -> None:
        self.estimator = estimator
        self.method = method
        self.options = options
        self.cv = cv

    def fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Fit the classifier on all rows, and the calibrator on their out-of-fold logits.

        Args:
            X: whatever the classifier takes.
            y: labels, shape ``[n]``.
            sample_weight: of the calibrator, and of a classifier that takes it.

        Returns:
            The estimator itself.
        """
        self.logits_ = LogitTransformer(self.estimator, cv=self.cv)
        z = self.logits_.fit_transform(X, y, sample_weight)
        self.classes_ = self.logits_.classes_
        self._calibrator = TemperatureCalibrator(
            self.method, options=self.options, classes=self.classes_
        ).fit(z, column_or_1d(y), sample_weight)
        self.calibrator_ = self._calibrator.calibrator_
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.logits_, name):
                setattr(self, name, getattr(self.logits_, name))
        return self

    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """Logarithms of the calibrated probabilities, shape ``[n, C]``."""
        check_is_fitted(self)
        return self._calibrator.predict_log_proba(self.logits_.transform(X))

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Calibrated probabilities, shape ``[n, C]``, in the order of ``classes_``."""
        return np.exp(self.predict_log_proba(X))

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Calibrated logits: log-probabilities ``[n, C]``; for two classes the log-odds ``[n]``."""
        check_is_fitted(self)
        return self._calibrator.decision_function(self.logits_.transform(X))

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of every row; the first of equals."""
        top = self.predict_log_proba(X).argmax(axis=1)
        return self.classes_[top]

    def __sklearn_tags__(self) -> Any:
        """Take what the classifier takes."""
        tags = super().__sklearn_tags__()
        tags.input_tags = get_tags(or_default(self.estimator)).input_tags
        return tags
