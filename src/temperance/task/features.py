"""From a model and a loader to features, and from features to a task."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from temperance.arrays import as_numpy
from temperance.errors import InvalidInput, TemperanceWarning
from temperance.labels import ClassMap, check_ids, labelled_rows, read_labels
from temperance.records import Features, Task
from temperance.task.csg import csg
from temperance.task.statistic_spec import StatisticSpec
from temperance.task.statistics import find_statistics, measure_statistics

if TYPE_CHECKING:
    from torch import Tensor, nn

    from temperance.models import Head

__all__ = ["collect", "measure"]

_RAM_LIMIT = 1 << 30  # bytes of features kept in memory; beyond that they go to a temporary file

Progress = Callable[[int, int | None], None]


def collect(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    name: str | None = None,
    class_map: ClassMap | None = None,
    ignore: object = (),
    progress: Progress | None = None,
) -> Features:
    """Collect the inputs of a model's output layer over a loader, with the labels.

    The output layer is found and verified on the first batch (``temperance.find_head``); a hook on
    it sees each batch, in eval mode and without gradients. The model's mode, its buffers and the
    random states are left as they were. Beyond the features themselves working memory is one
    batch; features of more than 1 GiB are kept in a temporary file that goes away with them.

    C is the number of classes that the head has: labels that are numbers must be its class ids,
    ``0 .. C-1``, and classes without rows stay classes. Names become ids in plain character order,
    unless ``class_map`` says otherwise.

    Args:
        model: any torch model with a linear output layer; a tempered head counts, and the features
            are then those in front of its norm.
        loader: batches as the training gets them: ``(inputs, labels)``, or a mapping with a label
            key. Labels in any form that ``temperance.labels.read_labels`` reads.
        name: dotted name of the output layer, where it cannot be found by itself.
        class_map: the classes of the training split, for a later split.
        ignore: label value or values whose rows are left out.
        progress: called after every batch with batches done and their number (None if unknown).

    Returns:
        Features ``x [n, M]`` and class ids ``y [n]``; ``source`` names model and layer.

    Raises:
        NotFound: if there is no linear output layer, or more than one that it could be.
        InvalidInput: for an empty loader, batches without labels, features that are not one row
            per label, NaN features (by row), and labels that the head has no output for.

    Example:
        >>> import torch
        >>> from temperance import collect
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> batches = [(torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1]))]
        >>> collect(model, batches).x.shape
        (5, 8)
    """
    import torch

    from temperance.models.probe import evaluating

    store, labels, heads = _RowStore(), [], []
    with evaluating(model), torch.no_grad():
        for head, x, y in _walk(model, loader, name, progress):
            flat, found = _one_row_per_label(x, y)
            kept = labelled_rows(found, ignore=ignore)
            store.add(flat[kept])
            labels.append(found[kept])
            heads.append(head)
    y, outputs = np.concatenate(labels), max(2, heads[0].out_features)
    known = class_map or _classes_of(y, outputs)
    source = f"{type(model).__name__}, input of {heads[0].name or 'the model'}"
    return Features.from_arrays(store.rows(), y, class_map=known, source=source)


def measure(
    features: Features,
    *,
    n_samples: int = 250,
    k: int = 3,
    repeats: int = 5,
    seed: int = 0,
    training: Mapping[str, Any] | None = None,
    statistics: str | Iterable[str | StatisticSpec] | None = (),
) -> Task:
    """Measure a task: its size, its difficulty as CSG with its spread, and more if asked for.

    Args:
        features: inputs of the output layer, or whatever stands for them.
        n_samples: rows drawn per class for the CSG.
        k: neighbours per row for the CSG.
        repeats: independent draws, and groups of rows for the spread of the other statistics.
        seed: seed of the draws and groups.
        training: facts of the training, if known (``optimizer``, ``lr``, ``steps``, ...).
        statistics: further statistics to measure, names of
            ``temperance.task.statistics.STATISTICS``; None for all of them.

    Returns:
        The task, ready for ``temperance.suggest``. A statistic that does not exist on these rows is
        left out, and a ``TemperanceWarning`` says why.

    Raises:
        InvalidInput: if fewer than two classes have rows, or a setting is out of range.
        NotFound: for a statistic that is not there.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> from temperance import Features, measure
        >>> task = measure(Features.from_arrays(*load_digits(return_X_y=True)))
        >>> task.feature_dim, task.n_classes, round(task.statistics["csg"].value, 6)
        (64, 10, 0.041128)
    """
    more = [spec for spec in find_statistics(statistics) if spec.name != "csg"]
    counts = np.bincount(features.y, minlength=len(features.class_names))
    measured = {"csg": csg(features, n_samples, k, repeats=repeats, seed=seed)}
    if more:
        measured |= measure_statistics(features, more, repeats=repeats, seed=seed)
    return Task(
        feature_dim=features.feature_dim,
        n_classes=len(features.class_names),
        n_samples=len(features),
        n_nonempty=int((counts > 0).sum()),
        statistics=measured,
        training=dict(training or {}),
    )


def _classes_of(y: NDArray[Any], outputs: int) -> ClassMap | None:
    """The classes of a head: all of its outputs, whatever the labels use of them."""
    if not len(y):
        return None
    if y.ndim == 2 and y.shape[1] > 1:
        if y.shape[1] != outputs:
            raise _too_many("one-hot columns", y.shape[1], outputs)
        return None
    y = y.reshape(-1)
    if y.dtype.kind in "fiub":
        check_ids(y, outputs, subject=f"labels, for a head with {outputs} outputs")
        return ClassMap(tuple(map(str, range(outputs))))
    found = read_labels(y).class_map
    if len(found) > outputs:
        raise _too_many("classes", len(found), outputs)
    if len(found) < outputs:
        warnings.warn(
            f"the head has {outputs} outputs and the labels name {len(found)} classes; C is taken "
            f"as {len(found)}. Pass class_map= to name all of them.",
            TemperanceWarning,
            stacklevel=3,
        )
    return found


def _too_many(what: str, found: int, outputs: int) -> InvalidInput:
    return InvalidInput(
        "labels",
        expected=f"{what} for the {outputs} outputs of the head",
        found=str(found),
        fix="Give the head an output for every class.",
    )


# ------------------------------------------------------------------ walking the loader
def _walk(
    model: nn.Module, loader: Iterable[Any], name: str | None, progress: Progress | None
) -> Iterator[tuple[Head, Tensor, Any]]:
    """Give head, head input and labels of every batch."""
    from temperance.models import call_model, device_of, find_head, split_batch, to_device

    total = len(loader) if isinstance(loader, Sized) else None
    head, seen = None, 0
    for seen, batch in enumerate(loader, 1):
        inputs, labels = split_batch(to_device(batch, device_of(model)))
        if labels is None:
            raise InvalidInput(
                "loader",
                expected="batches with labels",
                found=f"batch {seen - 1} without",
                fix="Let the loader yield (inputs, labels).",
            )
        if head is None:
            head = _linear_head(find_head(model, inputs, name=name))
        x = _input_of(head.module, partial(call_model, model, inputs))
        yield head, _features_last(x, head.module), labels
        if progress:
            progress(seen, total)
    if not seen:
        raise InvalidInput(
            "loader",
            expected="at least one batch",
            found="none",
            fix="Check the data set, and drop_last with fewer rows than a batch.",
        )


def _linear_head(head: Head) -> Head:
    if head.kind != "conv":
        return head
    raise InvalidInput(
        f"output layer {head.name}",
        expected="a linear layer, or a convolution of size 1",
        found="a convolution of another size",
        fix="Pool the features yourself and use Features.from_arrays.",
    )


def _features_last(x: Tensor, module: nn.Module) -> Tensor:
    """Channels of a convolution go last; one position (after pooling) is one row."""
    from temperance.models.layer import feature_axis

    axis: int = getattr(module, "feature_axis", feature_axis(module))
    if axis == -1:
        return x
    x = x.movedim(axis, -1)
    return x.flatten(1, -2).squeeze(1) if x.ndim > 2 else x


def _input_of(module: nn.Module, run: Callable[[], Any]) -> Tensor:
    """What a module got as its input while ``run`` ran."""
    caught: list[Any] = []
    handle = module.register_forward_pre_hook(
        lambda _, args, named: caught.append([*args, *named.values()][0]), with_kwargs=True
    )
    try:
        run()
    finally:
        handle.remove()
    if len(caught) != 1:
        raise InvalidInput(
            "output layer",
            expected="one call per batch",
            found=f"{len(caught)} calls",
            fix="Name the layer that makes the logits, or collect its inputs yourself and use "
            "Features.from_arrays.",
        )
    return caught[0]


def _one_row_per_label(x: Tensor, y: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Features ``[rows, M]`` and their labels; token features go with token labels only."""
    features, labels = x.float() if x.element_size() < 4 else x, as_numpy(y)
    one_hot = labels.ndim == 2 and features.ndim == 2 and len(labels) == len(features)
    if not one_hot and labels.shape != tuple(features.shape[:-1]):
        raise InvalidInput(
            "features of a batch",
            expected=f"one row per label ({list(labels.shape)} labels)",
            found=f"features of shape {list(features.shape)}",
            fix="The output layer sees more rows than there are labels (tokens, pixels): collect "
            "the rows that matter yourself and use Features.from_arrays.",
        )
    flat = as_numpy(features.reshape(-1, features.shape[-1]))
    return flat, labels if one_hot else labels.reshape(-1)


class _RowStore:
    """Rows that arrive in blocks: in memory, or beyond a limit in a temporary file."""

    def __init__(self) -> None:
        self._blocks: list[NDArray[Any]] = []
        self._bytes = 0
        self._file: Any = None
        self._shape: tuple[int, ...] = ()
        self._dtype: Any = None
        self._rows = 0

    def add(self, block: NDArray[Any]) -> None:
        """Take one block of rows."""
        self._shape, self._dtype = block.shape[1:], block.dtype
        self._rows += len(block)
        self._bytes += block.nbytes
        if self._file is not None:
            block.tofile(self._file)
            return
        self._blocks.append(block)
        if self._bytes > _RAM_LIMIT:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the rows
            for kept in self._blocks:
                kept.tofile(self._file)
            self._blocks = []

    def rows(self) -> NDArray[Any]:
        """Give all rows as one array."""
        if self._file is None:
            return np.concatenate(self._blocks)
        self._file.flush()
        shape = (self._rows, *self._shape)
        with self._file:  # the map keeps the file alive
            return np.memmap(self._file, dtype=self._dtype, mode="r", shape=shape)
