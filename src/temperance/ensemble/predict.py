"""Logits of every member for all rows, the ensemble left as it was."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from temperance.ensemble.members import Ensemble
from temperance.errors import InvalidInput
from temperance.models.outputs import call_model, device_of, map_tensors, split_batch, to_device
from temperance.models.probe import evaluating

__all__ = ["predict_members"]


def predict_members(model: nn.Module, data: Any, *, batch_size: int = 256) -> Tensor:
    """Give the logits of every member for every row.

    The ensemble runs in evaluation mode, without gradients, each member with its own running
    statistics: the result does not depend on how the rows fall into batches. Modes, buffers and the
    global random state are as before afterwards.

    Args:
        model: what ``convert`` gave, or a function of ``BASELINES``.
        data: rows: a tensor, or a mapping of tensors as Hugging Face models take it, which is cut
            into batches; or a loader of batches in any form that ``split_batch`` reads (labels are
            passed over).
        batch_size: rows at a time for rows; a loader has its own.

    Returns:
        Logits ``[M, n, C]`` on the CPU, float32 (float64 of a float64 model). Mean probabilities,
        their entropy and its parts come from ``temperance.evaluation``.

    Raises:
        InvalidInput: if the model is no ensemble, there are no rows, or a pair ``(x, y)`` is given.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from temperance.ensemble import convert, predict_members
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
        >>> predict_members(convert(model, 4), torch.zeros(10, 4)).shape
        torch.Size([4, 10, 3])
    """
    if not isinstance(getattr(model, "members", None), int):
        raise InvalidInput(
            "model",
            expected="an ensemble, of convert or of a function in BASELINES",
            found=f"a {type(model).__name__}",
            fix="Convert it with temperance.convert, or unwrap it.",
        )
    device, parts = device_of(model), []
    with evaluating(model), torch.no_grad():
        for inputs in _batches(data, batch_size):
            z = _logits(model, to_device(inputs, device)).cpu()
            parts.append(z if z.dtype == torch.float64 else z.float())
    if not parts:
        raise _no_rows("none")
    return torch.cat(parts, dim=1)


def _logits(model: nn.Module, inputs: Any) -> Tensor:
    """On a CPU an Ensemble's members in turn, whose tensors are smaller; else all together."""
    if not isinstance(model, Ensemble) or device_of(model).type != "cpu":
        together: Tensor = call_model(model, inputs)
        return together
    if isinstance(inputs, Mapping):
        return torch.stack(list(model.run_each(**{str(k): v for k, v in inputs.items()})))
    args = inputs if isinstance(inputs, (tuple, list)) else (inputs,)
    return torch.stack(list(model.run_each(*args)))


def _batches(data: Any, batch_size: int) -> Iterator[Any]:
    if isinstance(data, (Tensor, Mapping)):
        yield from _cut(split_batch(data)[0], batch_size)
    elif isinstance(data, tuple) or not isinstance(data, Iterable):
        raise _no_rows(f"a {type(data).__name__}")
    else:
        for batch in data:
            yield split_batch(batch)[0]


def _cut(inputs: Any, batch_size: int) -> Iterator[Any]:
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        found = repr(batch_size)
        raise InvalidInput("batch_size", expected="1 or more", found=found, fix="Set it.")
    first = inputs if isinstance(inputs, Tensor) else next(
        (v for v in inputs.values() if isinstance(v, Tensor)), torch.zeros(0)
    )  # fmt: skip
    for start in range(0, len(first), batch_size):
        rows = slice(start, start + batch_size)
        yield map_tensors(inputs, lambda x: x[rows] if x.ndim and len(x) == len(first) else x)  # noqa: B023


def _no_rows(found: str) -> InvalidInput:
    return InvalidInput(
        "data",
        expected="a tensor or a mapping of rows, or a loader of batches",
        found=found,
        fix="Pass the inputs alone, or a list of batches.",
    )
