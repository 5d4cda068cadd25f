"""A small tempered net as a scikit-learn classifier, for tables of features."""

from __future__ import annotations

import numbers
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from temperance.errors import InvalidInput, TemperanceError
from temperance.head import insert
from temperance.labels import ClassMap
from temperance.models import find_head
from temperance.records import Features, Suggestion, Task
from temperance.rules import find_rule, suggest
from temperance.task import measure
from temperance.training import loop
from temperance.training.nets import build_net
from temperance.training.preprocess import Preprocess

__all__ = ["TemperedClassifier"]

_CONSTANT = 1e-7  # spread below this share of the mean is rounding, not information
_ROWS = 4096  # that are predicted together


class TemperedClassifier(ClassifierMixin, BaseEstimator):
    """A net with norm, output layer and temperature: ``fit(X, y)``, ``predict_proba(X)``.

    Features are standardized, the net is trained by the loop behind ``temperance train``, and T
    divides its logits in training and in prediction. Predictions are made in float64, so that they
    do not depend on how rows are put together.

    Args:
        temperature: T; or the name of a rule, or of a file of ``temperance fit``, for the T that
            it suggests from M and, where it asks for them, statistics of the standardized training
            rows. 1 by default, which is safe for short trainings; a grid over T and a scorer such
            as ``neg_log_loss`` choose by your data.
        norm: in front of the output layer, as in ``temperance.insert``; the rule's, or ``batch``,
            if absent.
        net: ``mlp1`` (one hidden layer), ``mlp`` (two) or ``probe`` (none).
        feature_dim: M, the width of the hidden layers; None for 128, and for ``probe``.
        budget: epochs, batch size, optimizer and learning rate; those of ``Budget`` if absent.
        random_state: seed of weights and of the order of the rows, or a ``RandomState`` that one
            is drawn from; None for a new one at every fit. The global random state is not used.

    Attributes:
        classes_: the labels, sorted.
        module_: the trained net, in evaluation mode and float64; its inputs are standardized rows.
        temperature_: T.
        suggestion_: where T comes from; None where it was given.
        mean_: of every feature; ``scale_`` likewise, which divides it.
        train_loss_: mean loss of every epoch, in nats.
        n_features_in_: number of features.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from temperance.integrations.sklearn import TemperedClassifier
        >>> x, y = load_iris(return_X_y=True)
        >>> model = TemperedClassifier("sqrt-dim", feature_dim=64).fit(x, y)
        >>> model.temperature_, model.predict_proba(x).shape
        (8.0, (150, 3))
    """

    def __init__(
        self,
        temperature: float | str = 1.0,
        norm: str | None = None,
        *,
        net: str = "mlp1",
        feature_dim: int | None = None,
        budget: loop.Budget | None = None,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.temperature = temperature
        self.norm = norm
        self.net = net
        self.feature_dim = feature_dim
        self.budget = budget
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Train on rows with labels.

        Args:
            X: features, shape ``[n, d]``, finite numbers.
            y: labels, shape ``[n]``, of any kind, two classes or more.

        Returns:
            The estimator itself.

        Raises:
            InvalidInput: for fewer than two classes, or for a net, norm, T or budget that cannot be
                used.
            TemperanceError: if the training diverged.
        """
        self.__dict__.pop("module_", None)  # a fit that fails leaves no net of other classes
        if not isinstance(self.budget, loop.Budget | None):
            raise InvalidInput(
                "budget",
                expected="a Budget, or None",
                found=repr(self.budget),
                fix="Pass temperance.training.loop.Budget(epochs=20).",
            )
        x, y = validate_data(self, X, y, dtype=[np.float64, np.float32])
        check_classification_targets(y)
        self.classes_, ids = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise InvalidInput(
                "y", expected="two classes or more", found="one class", fix="Add rows of another."
            )
        self._standardize(x)
        z, seed = self._prepared(x), _seed(self.random_state)
        module = self._new_net(seed)
        self._insert(module, z, ids)
        self._train(module, z, ids, seed)
        return self

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Logits ``[n, C]``, divided by T; for two classes the log-odds ``[n]`` of the second."""
        z = self._logits(X)
        return z[:, 1] - z[:, 0] if z.shape[1] == 2 else z

    def predict_log_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Logarithms of the probabilities, shape ``[n, C]``."""
        z = self._logits(X)
        z = z - z.max(axis=1, keepdims=True)
        return np.asarray(z - np.log(np.exp(z).sum(axis=1, keepdims=True)))

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Probabilities, shape ``[n, C]``, in the order of ``classes_``."""
        return np.exp(self.predict_log_proba(X))

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The most probable class of every row; the first of equals."""
        top = self._logits(X).argmax(axis=1)
        return self.classes_[top]

    # ---------------------------------------------------------------- helpers
    def _standardize(self, x: NDArray[Any]) -> None:
        wide = x.astype(np.float64)
        self.mean_ = wide.mean(axis=0)
        wide = wide - self.mean_
        largest = np.abs(wide).max(axis=0)
        largest[largest == 0] = 1.0
        scale = largest * (wide / largest).std(axis=0)  # squares of the numbers may overflow
        self.scale_ = np.where(scale <= _CONSTANT * np.abs(self.mean_), 1.0, scale)

    def _prepared(self, x: NDArray[Any]) -> NDArray[np.float64]:
        return (x.astype(np.float64) - self.mean_) / self.scale_

    def _new_net(self, seed: int) -> nn.Module:
        return build_net(
            self.net,
            input_shape=(self.n_features_in_,),
            n_classes=len(self.classes_),
            seed=seed,
            feature_dim=self.feature_dim,
        ).module

    def _insert(self, module: nn.Module, z: NDArray[Any], ids: NDArray[Any]) -> None:
        """Choose T and put it into the net."""
        example = torch.from_numpy(np.concatenate([z[:2]] * 2)).float()
        self.suggestion_: Suggestion | None = None
        given: float | Suggestion = self.temperature  # type: ignore[assignment]
        if isinstance(self.temperature, str):
            m = find_head(module, example).in_features
            names = tuple(map(str, range(len(self.classes_))))
            task = _task(self.temperature, m, Features(z, ids, ClassMap(names), "standardized"))
            self.suggestion_ = given = suggest(task, self.temperature)
        head = insert(module, given, norm=self.norm, example=example)
        self.temperature_ = float(head.temperature)

    def _train(self, module: nn.Module, z: NDArray[Any], ids: NDArray[Any], seed: int) -> None:
        d = self.n_features_in_
        same = Preprocess("features", (d,), mean=(0.0,) * d, std=(1.0,) * d)
        rows = loop.Batches(z.astype(np.float32), ids.astype(np.int64), same)
        some = loop.Batches(rows.x[:_ROWS], rows.y[:_ROWS], same)
        budget = self.budget or loop.Budget()
        training = loop.start(module, budget, seed=seed)
        loop.train(training, rows, budget, held_out=some)
        if training.diverged:
            raise TemperanceError(
                f"The training diverged: {training.diverged}. Lower the learning rate, "
                "budget=Budget(lr=..), or raise the temperature."
            )
        self.train_loss_ = tuple(training.history["train_loss"])
        self.module_ = module.double().eval()

    def _logits(self, X: ArrayLike) -> NDArray[np.float64]:
        check_is_fitted(self, "module_")
        x = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        z = torch.from_numpy(self._prepared(x))
        with torch.inference_mode():
            parts = [self.module_(part) for part in z.split(_ROWS)]
        return np.asarray(torch.cat(parts).numpy())


def _seed(value: Any) -> int:
    """A seed; only a new one where none is asked for, and never from the global state."""
    if value is None:
        return int(np.random.default_rng().integers(2**31))
    if isinstance(value, np.random.RandomState):
        return int(value.randint(2**31 - 1))
    if isinstance(value, numbers.Integral) and int(value) >= 0:
        return int(value)
    raise InvalidInput(
        "random_state",
        expected="a whole number of 0 or more, a RandomState, or None",
        found=repr(value),
        fix="Pass random_state=0.",
    )


def _task(rule: str, m: int, features: Features) -> Task:
    """M, C, rows, and what the rule needs, measured on the rows."""
    bare = Task(m, len(features.class_names), n_samples=len(features.x))
    needs = find_rule(rule, bare).needs
    if not needs:
        return bare
    more = tuple(name for name in needs if name != "csg")
    return replace(measure(features, statistics=more), feature_dim=m)
