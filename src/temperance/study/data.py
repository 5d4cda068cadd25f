"""The data of studies: a data set by name, a representation by name, rows ready for the engines."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from temperance.arrays import first_nonfinite_row
from temperance.errors import InvalidInput
from temperance.labels import ClassMap
from temperance.records import Features
from temperance.study.data_sources import feature_file, find_source, read_source
from temperance.study.data_splits import nested_rows, noisy_labels
from temperance.study.extractors import EXTRACTORS, Step, extract, parse_features
from temperance.study.outcome import SPLITS, StudyData
from temperance.training.dataset import DataSet
from temperance.training.preprocess import make_preprocess
from temperance.training.splits import Rows, Splits, make_splits

__all__ = ["features_of", "load"]

Root = str | os.PathLike[str] | None
Arrays = dict[str, NDArray[Any]]

_SPLIT_SEED = 0  # part of what a task is: every study judges on the same rows
_KEPT_BYTES = 1 << 28  # representations kept in memory for the next call


def load(
    dataset: str,
    features: str = "input",
    *,
    train_rows: int | None = None,
    label_noise: float = 0.0,
    data_root: Root = None,
) -> StudyData:
    """Load a data set in a representation, split into rows that train, choose and judge.

    ``dataset`` is ``digits``, ``wine``, ``breast_cancer`` or ``iris``; or ``NAME`` for
    ``ROOT/NAME.npz``; or a path to any form that ``temperance.training.sources.open_data`` reads.
    Without a split of its own it is divided 60 : 20 : 20 by class, always in the same way
    (``temperance.training.splits.make_splits``, seed 0). Texts come as ready features only.

    ``features`` is ``input`` (pictures standardized per channel, ``[n, c, h, w]``; features as they
    are), an extractor of ``temperance.study.extractors.EXTRACTORS`` such as ``pca:64``, ready
    features in a file (``net:128`` reads ``ROOT/NAME+net-128.npz``), or several steps joined by
    ``|``. Extractors are fitted on the rows that train and see no label.

    Args:
        dataset: name or path.
        features: representation.
        train_rows: keep that many training rows, by class shares; a smaller number gives a part of
            the rows of a larger one. All, if absent. Validation and test rows stay as they are.
        label_noise: share of training labels that are replaced by another class, 0 to below 1.
        data_root: folder of prepared data sets; the variable ``TEMPERANCE_DATA`` if absent.

    Returns:
        Rows and labels by split; arrays of the caller's own.

    Raises:
        NotFound: for a data set or a representation that is not there; lists those that are.
        InvalidInput: for data that cannot be read, are not finite or lack a class in training; for
            a size that the rows do not allow; for ``train_rows`` or ``label_noise`` out of range.

    Example:
        >>> from temperance.study.data import load
        >>> data = load("digits", "pca:16", train_rows=500)
        >>> data.x["train"].shape, data.n_classes, len(data.y["test"])
        ((500, 16), 10, 359)
    """
    steps = parse_features(features)
    known = tuple(EXTRACTORS)
    if steps[0].name in known:
        source = find_source(dataset, data_root)
    else:
        source = feature_file(dataset, steps[0].text, data_root=data_root, known=known)
    x, y, n_classes = _represented(source, steps, train_rows)
    labels = {split: ids.copy() for split, ids in y.items()}
    labels["train"] = noisy_labels(labels["train"], label_noise, n_classes)
    return StudyData(dataset, {s: r.copy() for s, r in x.items()}, labels, n_classes, features)


def features_of(data: StudyData) -> Features:
    """Give the training rows as features, for the statistics of the task.

    Args:
        data: rows in the representation that a model is trained on.

    Returns:
        Training rows, flattened to ``[n, M]``, with all C classes, named by their ids.

    Example:
        >>> from temperance.study.data import features_of, load
        >>> features_of(load("digits")).x.shape
        (1078, 64)
    """
    x = np.ascontiguousarray(data.x["train"])
    return Features(
        x=x.reshape(len(x), -1),
        y=data.y["train"],
        class_map=ClassMap(tuple(map(str, range(data.n_classes)))),
        source=f"training rows of {data.name}, {data.source}",
    )


# ------------------------------------------------------------------ what is kept between calls
_sources: OrderedDict[object, tuple[DataSet, Splits]] = OrderedDict()
_represented_rows: OrderedDict[object, tuple[Arrays, Arrays, int]] = OrderedDict()


def _identity(source: str | Path) -> object:
    if isinstance(source, str):
        return source
    facts = source.stat()
    return str(source.resolve()), facts.st_mtime_ns, facts.st_size


def _opened(source: str | Path) -> tuple[DataSet, Splits]:
    key = _identity(source)
    if key not in _sources:
        data = read_source(source)
        _sources[key] = data, _checked_splits(data)
        while len(_sources) > 2:
            _sources.popitem(last=False)
    _sources.move_to_end(key)
    return _sources[key]


def _represented(
    source: str | Path, steps: tuple[Step, ...], train_rows: int | None
) -> tuple[Arrays, Arrays, int]:
    key = _identity(source), steps, train_rows
    if key not in _represented_rows:
        data, splits = _opened(source)
        rows = _chosen(data, splits, train_rows)
        y = {s: data.parts[r.part].y[r.index] for s, r in rows.items()}
        x = _extracted(data, rows, steps)
        _represented_rows[key] = _finite(x, source), y, data.n_classes
        while len(_represented_rows) > 1 and _kept_bytes() > _KEPT_BYTES:
            _represented_rows.popitem(last=False)
    _represented_rows.move_to_end(key)
    return _represented_rows[key]


def _kept_bytes() -> int:
    return sum(a.nbytes for x, _, _ in _represented_rows.values() for a in x.values())


# ------------------------------------------------------------------ rows
def _checked_splits(data: DataSet) -> Splits:
    """Splits in which every class trains."""
    splits = make_splits(data, seed=_SPLIT_SEED)
    y = data.parts["train"].y[splits.train.index]
    absent = np.flatnonzero(np.bincount(y, minlength=data.n_classes) == 0)
    if len(absent):
        names = ", ".join(data.class_map.names[i] for i in absent[:8])
        raise InvalidInput(
            f"data set {data.name}",
            expected=f"a training row of each of the {data.n_classes} classes",
            found=f"none of {len(absent)}: {names}",
            fix="Leave these classes out, or bring more rows.",
        )
    return splits


def _chosen(data: DataSet, splits: Splits, train_rows: int | None) -> Mapping[str, Rows]:
    train = splits.train
    if train_rows is not None:
        y = data.parts["train"].y[train.index]
        train = Rows("train", train.index[nested_rows(y, train_rows, data.n_classes)])
    return dict(zip(SPLITS, (train, splits.fit, splits.test), strict=True))


# ------------------------------------------------------------------ representations
def _extracted(data: DataSet, rows: Mapping[str, Rows], steps: tuple[Step, ...]) -> Arrays:
    first = steps[0]
    if first.name == "pixels" and data.kind != "images":
        raise InvalidInput(
            f"features pixels of {data.name}",
            expected="pictures",
            found=f"rows of {data.input_shape[0]} numbers",
            fix="Use input or standardized.",
        )
    net_input = first.name == "input" or (
        first.name in EXTRACTORS and EXTRACTORS[first.name].pictures
    )
    x = _net_input(data, rows) if net_input and data.kind == "images" else _flat(data, rows)
    computed = first.name in EXTRACTORS and first.name not in ("input", "pixels")
    for step in steps if computed else steps[1:]:
        x = extract(step, x)
    return x


def _net_input(data: DataSet, rows: Mapping[str, Rows]) -> Arrays:
    """Pictures as a net takes them, standardized per channel by the training rows."""
    preprocess = make_preprocess(data, rows["train"])
    return {s: preprocess.apply(_stored(data, r)).numpy() for s, r in rows.items()}


def _flat(data: DataSet, rows: Mapping[str, Rows]) -> Arrays:
    """Features as they are; pixels of pictures as shares of white."""
    white = np.float32(data.white or 1.0)
    stored = {s: _stored(data, r).astype(np.float32) for s, r in rows.items()}
    return {s: np.ascontiguousarray(x.reshape(len(x), -1)) / white for s, x in stored.items()}


def _stored(data: DataSet, rows: Rows) -> NDArray[Any]:
    return np.asarray(data.parts[rows.part].x[rows.index])


def _finite(x: Arrays, source: str | Path) -> Arrays:
    for split, rows in x.items():
        if (bad := first_nonfinite_row(rows)) is not None:
            raise InvalidInput(
                f"features of {source}, {split}",
                expected="finite numbers that float32 can hold",
                found=f"NaN or infinity in row {bad}",
                fix="Remove or repair that row, or standardize the columns.",
            )
    return x
