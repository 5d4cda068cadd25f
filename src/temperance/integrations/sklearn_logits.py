"""A classifier as a step of a scikit-learn pipeline that gives its logits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, MetaEstimatorMixin, TransformerMixin, clone
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import check_cv
from sklearn.utils import _safe_indexing, assert_all_finite, get_tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    check_is_fitted,
    column_or_1d,
    has_fit_parameter,
    indexable,
)

from temperance.errors import InvalidInput

__all__ = ["LogitTransformer", "or_default"]

_FLOOR = 1e-7  # of probabilities before their logarithm: about the rounding of float32


def or_default(estimator: Any) -> Any:
    """The classifier, or logistic regression where none was given."""
    # not "estimator or ...": an ensemble that is not fitted has a length, and cannot say it
    return LogisticRegression(max_iter=1000) if estimator is None else estimator


class LogitTransformer(TransformerMixin, MetaEstimatorMixin, BaseEstimator):
    """A classifier as a transformer: its logits are what it gives.

    ``fit_transform``, which pipelines call, gives *out-of-fold* logits: of every row by a
    classifier that was fitted without it. So it differs from ``fit(X, y).transform(X)``, on purpose
    and as in stacking. A classifier that is fitted already goes in as
    ``FrozenEstimator(classifier)``: it is used as it is, and the rows should be new to it.

    Args:
        estimator: a classifier with ``decision_function`` (used first), ``predict_log_proba`` or
            ``predict_proba``; logistic regression if absent.
        cv: number of stratified folds, or what else scikit-learn takes there, as a partition.
        floor: smallest probability before the logarithm, where a classifier has probabilities only.

    Attributes:
        estimator_: the classifier fitted on all rows.
        classes_: its classes, the order of the columns.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.pipeline import make_pipeline
        >>> from sklearn.svm import LinearSVC
        >>> from temperance.integrations.sklearn import LogitTransformer, TemperatureCalibrator
        >>> x, y = load_iris(return_X_y=True)
        >>> model = make_pipeline(LogitTransformer(LinearSVC()), TemperatureCalibrator())
        >>> model.fit(x, y).predict_proba(x[:5]).shape
        (5, 3)
    """

    def __init__(self, estimator: Any = None, *, cv: Any = 5, floor: float = _FLOOR) -> None:
        self.estimator = estimator
        self.cv = cv
        self.floor = floor

    def fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Fit the classifier on all rows.

        Args:
            X: whatever the classifier takes.
            y: labels, shape ``[n]``.
            sample_weight: handed on to a classifier that takes it.

        Returns:
            The transformer itself.
        """
        X, y = self._read(X, y)
        weights = None if sample_weight is None else _check_sample_weight(sample_weight, X)
        self.estimator_ = self._fitted(X, y, weights)
        self.classes_ = self.estimator_.classes_
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimator_, name):
                setattr(self, name, getattr(self.estimator_, name))
        return self

    def transform(self, X: Any) -> NDArray[np.float64]:
        """Logits by the classifier of all rows, shape ``[n, C]``; ``[n, 1]`` for two classes."""
        check_is_fitted(self)
        return self._logits(self.estimator_, X)

    def fit_transform(
        self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> NDArray[np.float64]:
        """Fit on all rows, and give the out-of-fold logits of these rows."""
        X, y = self._read(X, y)
        self.fit(X, y, sample_weight)
        if isinstance(self.estimator, FrozenEstimator):
            return self.transform(X)
        weights = None if sample_weight is None else np.asarray(sample_weight)
        width = 1 if len(self.classes_) == 2 else len(self.classes_)
        out, seen = np.empty((len(y), width)), np.zeros(len(y), dtype=int)
        for train, test in self._folds(y):
            part = None if weights is None else weights[train]
            fitted = self._fitted(_safe_indexing(X, train), y[train], part)
            out[test] = self._logits(fitted, _safe_indexing(X, test))
            seen[test] += 1
        if not (seen == 1).all():
            row = int(np.argmax(seen != 1))
            raise InvalidInput(
                "cv",
                expected="folds that hold every row once",
                found=f"row {row} {seen[row]} times",
                fix="Pass a number of folds, or splits that are a partition.",
            )
        return out

    def _read(self, X: Any, y: ArrayLike) -> tuple[Any, NDArray[Any]]:
        if y is None:
            raise InvalidInput(
                "y",
                expected="labels: this requires y to be passed, but the target y is None",
                found="None",
                fix="Pass one label per row.",
            )
        labels = column_or_1d(y, warn=True)
        if labels.dtype.kind == "f":
            assert_all_finite(labels, input_name="y")
        check_classification_targets(labels)
        X, labels = indexable(X, labels)
        return X, labels

    def _fitted(self, X: Any, y: NDArray[Any], weights: Any) -> Any:
        model = clone(or_default(self.estimator))
        if weights is not None and has_fit_parameter(model, "sample_weight"):
            return model.fit(X, y, sample_weight=weights)
        return model.fit(X, y)

    def _folds(self, y: NDArray[Any]) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
        """Splits; the classifier of each has seen every class."""
        for train, test in check_cv(self.cv, y, classifier=True).split(np.zeros(len(y)), y):
            missing = np.setdiff1d(y, y[train])
            if len(missing):
                raise InvalidInput(
                    "y",
                    expected="rows of every class outside every fold",
                    found=f"all {int((y == missing[0]).sum())} of class {missing[0]!r} in one",
                    fix="Add rows, lower cv, or pass FrozenEstimator(fitted classifier).",
                )
            yield train, test

    def _logits(self, model: Any, X: Any) -> NDArray[np.float64]:
        if hasattr(model, "decision_function"):
            z = np.asarray(model.decision_function(X), dtype=np.float64)
        elif hasattr(model, "predict_proba"):
            z = np.log(np.maximum(model.predict_proba(X), self.floor))
        else:
            raise InvalidInput(
                "estimator",
                expected="a classifier with decision_function or predict_proba",
                found=type(model).__name__,
                fix="Choose a classifier that says how sure it is.",
            )
        if z.ndim == 1:
            return z[:, None]
        if z.shape[1] != len(model.classes_):
            raise InvalidInput(
                "estimator",
                expected=f"{len(model.classes_)} columns of decision_function, one per class",
                found=f"{z.shape[1]}",
                fix="In an SVC, set decision_function_shape='ovr'.",
            )
        return z[:, 1:] - z[:, :1] if z.shape[1] == 2 else z

    def __sklearn_tags__(self) -> Any:
        """Take what the classifier takes, and need labels."""
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.input_tags = get_tags(or_default(self.estimator)).input_tags
        return tags
