"""How the rows of several members lie in one batch: batch-major, member-minor.

Row ``b * members + m`` is sample b as member m sees it. Then ``[B * M, C, H, W]`` seen as
``[B, M * C, H, W]`` costs nothing, and one native BatchNorm over ``M * C`` channels gives every
member statistics of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from temperance.errors import InvalidInput

__all__ = ["Expansion", "Layout", "Rows", "unfold", "walk"]


@dataclass(eq=False)
class Rows:
    """What every layer of one ensemble knows of the pass that is running; one object for them all.

    Attributes:
        members: M.
        active: the member that runs alone, on rows of its own; None for all together.
        expanding: whether one copy of the rows becomes M on the way (``repeat``), or the rows came
            dealt out to the members already (``split``).
        total: rows behind that place, of all members together.
    """

    members: int
    active: int | None = None
    expanding: bool = True
    total: int = 0


@dataclass(frozen=True)
class Layout:
    """Where the rows are in a tensor.

    Attributes:
        axis: the axis of the rows; 1 in models that keep sequences first.
        grouped: whether each row stands there several times in a row (windows, tokens, heads that
            were folded into the batch): axis ``[rows * k]``, k behind the member.
    """

    axis: int = 0
    grouped: bool = False


def unfold(x: Tensor, rows: Rows, layout: Layout, *, single: bool = False) -> Tensor:
    """Show the axis of the rows as three: ``[.., B * M * k, ..]`` as ``[.., B, M, k, ..]``, a view.

    Args:
        x: a tensor of the pass that ``rows`` describes.
        rows: the pass.
        layout: where the rows are in ``x``.
        single: ``x`` is in front of the expansion: ``[.., B * k, ..]`` gives ``[.., B, 1, k, ..]``.

    Returns:
        The view; ``flatten(axis, axis + 2)`` is the way back.

    Raises:
        InvalidInput: if the rows do not divide among the members.

    Example:
        >>> import torch
        >>> unfold(torch.arange(6), Rows(members=3), Layout()).tolist()
        [[[0], [1], [2]], [[3], [4], [5]]]
    """
    size, copies = x.shape[layout.axis], 1 if single else rows.members
    expected = rows.total // rows.members * copies
    each = size // max(expected, 1) if layout.grouped else 1
    batch = size // (copies * max(each, 1))
    if batch * copies * each != size or (rows.total and batch * copies != expected):
        raise InvalidInput(
            "rows of the ensemble",
            expected=f"{expected} of the {rows.members} members"
            if rows.total
            else f"a multiple of the {rows.members} members",
            found=f"{size} on axis {layout.axis}",
            fix="Run the whole Ensemble. Where windows or tokens are folded into the batch, call "
            "ensemble.place(example) with a batch of the size that comes.",
        )
    return x.unflatten(layout.axis, (batch, copies, each))


class Expansion:
    """A forward pre-hook that makes M copies of the rows of what goes into a module.

    An object and not a closure, so that a deep copy of the model has a hook of its own.

    Args:
        rows: the pass.
        layouts: where the rows are, by path of the tensor in ``(args, kwargs)``; None for a tensor
            that has none, such as a table of positions.
    """

    def __init__(self, rows: Rows, layouts: Mapping[str, Layout | None]) -> None:
        self.rows, self.layouts = rows, dict(layouts)

    def __call__(self, _module: Any, args: Any, kwargs: Any) -> Any:
        """Give the arguments with every row M times, or None where nothing is expanded."""
        if self.rows.active is not None or not self.rows.expanding or self.rows.members == 1:
            return None
        return walk(args, self._expand, "args"), walk(kwargs, self._expand, "kwargs")

    def _expand(self, path: str, x: Tensor) -> Tensor:
        if path not in self.layouts:
            raise InvalidInput(
                f"tensor {path} of the module where the members part",
                expected="tensors that were there in the example",
                found="one that was not",
                fix="Call ensemble.place(example) with a batch of this form.",
            )
        layout = self.layouts[path]
        if layout is None:
            return x
        wide = unfold(x, self.rows, layout, single=True)
        return wide.repeat_interleave(self.rows.members, layout.axis + 1).flatten(
            layout.axis, layout.axis + 2
        )


def walk(value: Any, change: Callable[[str, Tensor], Any], path: str) -> Any:
    """Change every tensor in nested tuples, lists and mappings, knowing its path.

    Args:
        value: anything; what is no tensor and holds none stays as it is.
        change: called with a path such as ``"kwargs.pixel_values"`` and the tensor.
        path: where ``value`` is.

    Returns:
        The same structure.
    """
    if isinstance(value, Tensor):
        return change(path, value)
    if type(value) is dict:
        return {k: walk(v, change, f"{path}.{k}") for k, v in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(walk(v, change, f"{path}.{i}") for i, v in enumerate(value)))
    if type(value) in (tuple, list):
        return type(value)([walk(v, change, f"{path}.{i}") for i, v in enumerate(value)])
    return value
