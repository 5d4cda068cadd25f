"""The nouns of the library: frozen records. Their JSON round trip is in ``temperance.serial``.

They are checked where they are made, and never changed after.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from temperance.errors import InvalidInput
from temperance.serial import SCHEMA_VERSION, dumps, from_dict, loads, to_dict

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from temperance.labels import ClassMap

__all__ = [
    "SCHEMA_VERSION",
    "Alternative",
    "Estimate",
    "Features",
    "Report",
    "Run",
    "Statistic",
    "Suggestion",
    "Task",
    "dumps",
    "from_dict",
    "loads",
    "to_dict",
]

Interval = tuple[float, float]


@dataclass(frozen=True, eq=False)
class Features:
    """The inputs of an output layer, with their labels.

    Attributes:
        x: features, shape ``[n, M]``, float32 or float64, finite.
        y: class ids, shape ``[n]``, int64, ``0 .. C-1``.
        class_map: names of the ``C`` classes, in the order of the ids.
        source: what the features are, in words (model and layer, or ``"arrays"``).
    """

    x: NDArray[Any]
    y: NDArray[Any]
    class_map: ClassMap
    source: str = "arrays"

    @classmethod
    def from_arrays(
        cls,
        x: ArrayLike,
        y: ArrayLike,
        *,
        class_map: ClassMap | None = None,
        ignore: object = (),
        source: str = "arrays",
    ) -> Features:
        """Check arrays and make a record of them.

        Args:
            x: numbers, shape ``[n, M]``; half precision and integers become float32, 64-bit
                integers float64. Tensors are welcome.
            y: labels in any form that ``temperance.labels.read_labels`` reads, ``n`` of them.
            class_map: the map of the training split, to match by name; made from ``y`` if absent.
            ignore: label value or values whose rows are left out; none unless named here.
            source: what the features are, in words.

        Returns:
            The features of the rows that are not ignored.

        Raises:
            InvalidInput: if ``x`` is not a finite ``[n, M]`` array of numbers, if the lengths
                differ, or if the labels cannot be read.

        Example:
            >>> from temperance import Features
            >>> f = Features.from_arrays([[0.0, 1.0], [1.0, 0.0]], ["cat", "dog"])
            >>> f.x.shape, f.class_names
            ((2, 2), ('cat', 'dog'))
        """
        from temperance.arrays import as_matrix
        from temperance.labels import read_labels

        matrix = as_matrix(x, subject="features x")
        labels = read_labels(y, class_map=class_map, ignore=ignore)
        if len(labels.kept) != len(matrix):
            raise InvalidInput(
                "features x and labels y",
                expected="as many rows as labels",
                found=f"{len(matrix)} rows and {len(labels.kept)} labels",
                fix="Pass arrays of the same length.",
            )
        if not labels.kept.all():
            matrix = matrix[labels.kept]
        return cls(x=matrix, y=labels.ids, class_map=labels.class_map, source=source)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the ids."""
        return self.class_map.names

    @property
    def feature_dim(self) -> int:
        """M, the number of features."""
        return int(self.x.shape[1])

    def __len__(self) -> int:
        return int(self.x.shape[0])


@dataclass(frozen=True)
class Statistic:
    """One measured number of a task, with all that is needed to judge it.

    Attributes:
        value: the number.
        interval: 95 % interval of ``value`` (what it covers is said in ``settings``), or None.
        status: ``"ok"``, or what is special about the value, in words.
        settings: everything the value depends on: parameters, seed, embedding, rows per class.
        replicates: the values of the single repeats that ``value`` is the mean of.
        eigenvalues: for spectral statistics, the ascending eigenvalues, mean over the repeats.
    """

    value: float
    interval: Interval | None = None
    status: str = "ok"
    settings: Mapping[str, Any] = field(default_factory=dict)
    replicates: tuple[float, ...] = ()
    eigenvalues: tuple[float, ...] = ()

    def __float__(self) -> float:
        return self.value


@dataclass(frozen=True)
class Task:
    """What is known of a classification task before its training.

    Attributes:
        feature_dim: M, the true ``in_features`` of the output layer.
        n_classes: C, the number of classes that the head has.
        n_samples: rows of the training data, if known.
        n_nonempty: how many of the classes have rows, if known.
        statistics: measured statistics by name; a bare number is taken as given.
        training: facts of the training (``optimizer``, ``lr``, ``steps``, ...), if known; from an
            optimizer and a loader: ``temperance.training_facts``.
    """

    feature_dim: int
    n_classes: int
    n_samples: int | None = None
    n_nonempty: int | None = None
    statistics: Mapping[str, Statistic] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, least in (("feature_dim", 1), ("n_classes", 2)):
            found = getattr(self, name)
            try:
                whole = -1 if isinstance(found, bool) else operator.index(found)
            except TypeError:
                whole = -1
            object.__setattr__(self, name, whole)  # NumPy's whole numbers become Python's
            if whole < least:
                raise InvalidInput(
                    f"task.{name}",
                    expected=f"a whole number of at least {least}",
                    found=repr(found),
                    fix="Classification needs two classes or more; with one output for two "
                    "classes, pass 2."
                    if name == "n_classes"
                    else "Pass the in_features of the output layer.",
                )
        given = {
            name: s if isinstance(s, Statistic) else Statistic(float(s), settings={"given": True})
            for name, s in self.statistics.items()
        }
        object.__setattr__(self, "statistics", given)


@dataclass(frozen=True)
class Alternative:
    """What another rule says about the same task.

    Attributes:
        temperature: the value a trainer would get, or None if the rule cannot be used here.
        unclipped: the value of its formula, or None if the rule cannot be computed.
        norm: the normalization that the rule is for.
        in_domain: whether the task lies where the rule was fitted.
        note: why not, in words.
    """

    temperature: float | None
    unclipped: float | None
    norm: str
    in_domain: bool
    note: str = ""


@dataclass(frozen=True)
class Suggestion:
    """A training temperature, and why.

    Attributes:
        temperature: T to train with; positive and safe to hand to a trainer.
        unclipped: the value of the rule's formula before any bound.
        rule: name of the rule that was asked.
        norm: normalization in front of the output layer: ``batch``, ``layer``, ``none`` or
            ``cosine``.
        in_domain: whether the task lies where the rule was fitted and its value can be used.
        reasons: why it does not, and what was done; empty when all is well.
        terms: the shares that add up (or multiply, see the rule) to ``unclipped``.
        fallback: name of the rule whose value ``temperature`` is, when it is not ``rule``.
        interval: 95 % prediction interval of ``temperature`` where the rule knows its own spread;
            else the range that the spread of the measured statistics implies, or None where no
            measured spread goes into it (also where a fallback answered).
        unclipped_interval: the same for the formula of ``rule``, before any bound.
        others: what every other rule says, by name.
        inputs: M, C, the statistics that went in, with their settings, and the training.
        prediction: prediction intervals by level (``80 %``, ``95 %``), where the rule has them.
        expectation: what the rule did for such trainings on data that it was not fitted on, in
            words; empty where that is not known.
    """

    temperature: float
    unclipped: float
    rule: str
    norm: str
    in_domain: bool
    reasons: tuple[str, ...] = ()
    terms: Mapping[str, float] = field(default_factory=dict)
    fallback: str | None = None
    interval: Interval | None = None
    unclipped_interval: Interval | None = None
    others: Mapping[str, Alternative] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)
    prediction: Mapping[str, Interval] = field(default_factory=dict)
    expectation: str = ""


@dataclass(frozen=True)
class Estimate:
    """A measured figure with its 95 % interval, and how the interval was made.

    Attributes:
        value: the figure.
        interval: lower and upper end, or None where none can be given.
        method: how the interval was made, in words.
    """

    value: float
    interval: Interval | None = None
    method: str = ""


@dataclass(frozen=True)
class Report:
    """How good the predictions of one model on one set of rows are.

    Attributes:
        n: number of rows judged.
        n_classes: C.
        metrics: figures by name: ``accuracy`` (share), ``nll`` (nats), ``brier`` (0..2), ``ece``
            (share), and, where a post-hoc T was fitted, ``nll_posthoc`` and ``ece_posthoc``.
        per_class: accuracy of every class by name; None for a class without rows.
        posthoc_temperature: T that was applied: fitted on held-out logits, or 1 where that fit did
            not converge; None if there was none.
        posthoc_status: status of that fit.
        reliability: bins of the reliability diagram: ``edges, count, confidence, accuracy``.
        settings: bins, scheme, interval method, seed, rows and origin of the post-hoc fit.
    """

    n: int
    n_classes: int
    metrics: Mapping[str, Estimate]
    per_class: Mapping[str, Estimate | None] = field(default_factory=dict)
    posthoc_temperature: float | None = None
    posthoc_status: str | None = None
    reliability: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """The outcome of one planned training (a trial).

    Attributes:
        trial: what was planned: arm, norm, temperature, seed, optimizer, learning rate, steps, ...
        outcome: ``done``, ``diverged`` or ``failed``.
        message: why, for the last two.
        report: figures on the test rows, for ``done``.
        history: per-epoch curves by name.
        seconds: wall-clock time of the training.
    """

    trial: Mapping[str, Any]
    outcome: str
    message: str = ""
    report: Report | None = None
    history: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    seconds: float = 0.0
