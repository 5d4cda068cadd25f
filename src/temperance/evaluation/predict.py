"""Running a model over a loader: logits and labels of all rows, the model left as it was."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import closing
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from temperance.errors import InvalidInput
from temperance.evaluation.predictions import read_array
from temperance.models.outputs import call_model, device_of, logits_of, split_batch, to_device
from temperance.models.probe import evaluating

__all__ = ["collect_logits", "logit_batches"]


def collect_logits(
    model: nn.Module, loader: Iterable[Any], *, key: str | int | None = None
) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    """Logits and labels of all rows of a loader, as NumPy arrays on the CPU.

    The model runs in evaluation mode without gradients; afterwards the mode of each of its modules,
    its buffers and the global random state are as they were.

    Args:
        model: any module whose output ``temperance.models.logits_of`` reads.
        loader: batches that ``temperance.models.split_batch`` reads, with labels.
        key: which entry of the output holds the logits, if it is not clear.

    Returns:
        Logits ``[n, C]`` (or ``[n]``, for one output per row), half precision widened to float32,
        and labels ``[n]``.

    Raises:
        InvalidInput: if there are no batches, if a batch lacks labels, or if the logits are not one
            row per label.

    Example:
        >>> import torch
        >>> from temperance.evaluation import collect_logits
        >>> logits, labels = collect_logits(
        ...     torch.nn.Linear(3, 2), [(torch.zeros(4, 3), torch.tensor([0, 1, 1, 0]))]
        ... )
        >>> logits.shape, labels.tolist()
        ((4, 2), [0, 1, 1, 0])
    """
    logits, labels = [], []
    with closing(logit_batches(model, loader, key=key)) as batches:
        for z, ids in batches:
            z = z.cpu()
            logits.append(np.asarray(z if z.dtype == torch.float64 else z.float()))
            labels.append(ids)
    if not logits:
        raise InvalidInput(
            "loader",
            expected="at least one batch",
            found="none",
            fix="Pass a loader that can be run through again (not a used-up generator).",
        )
    return np.concatenate(logits), np.concatenate(labels)


def logit_batches(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    key: str | int | None = None,
    dense: bool = False,
) -> Generator[tuple[torch.Tensor, NDArray[np.generic]]]:
    """Run a model over a loader, batch by batch, as ``collect_logits`` does.

    Gradients are off and the model is in evaluation mode until the generator ends: close it.

    Args:
        model: see ``collect_logits``.
        loader: see ``collect_logits``.
        key: see ``collect_logits``.
        dense: whether logits and labels may have more axes (their shapes are then not compared).

    Yields:
        Logits on the device of the model, in their own precision, and labels.
    """
    device = device_of(model)
    with evaluating(model), torch.no_grad():
        for number, batch in enumerate(loader):
            inputs, y = split_batch(batch)
            z = logits_of(call_model(model, to_device(inputs, device)), key=key)
            ids = read_array(y, f"labels of batch {number}") if y is not None else None
            yield z.detach(), _checked(z, ids, number, dense)


def _checked(
    z: torch.Tensor, ids: NDArray[np.generic] | None, number: int, dense: bool
) -> NDArray[np.generic]:
    """The labels, if there are as many as rows of logits."""
    if ids is None:
        raise InvalidInput(
            f"batch {number}",
            expected="labels beside the inputs",
            found="inputs only",
            fix="Let the loader yield (inputs, labels), or a mapping with 'labels'.",
        )
    if not dense and (z.ndim > 2 or ids.ndim < 1 or len(z) != len(ids)):
        raise InvalidInput(
            f"batch {number}",
            expected="logits [B, C] and one label per row",
            found=f"logits {list(z.shape)} and labels {list(ids.shape)}",
            fix="Outputs with more axes (dense, token-wise) go in as arrays: move the class axis "
            "last and flatten the others, of logits and labels alike.",
        )
    return ids
