"""Where the rows of a batch are in what goes into a module: measured, not guessed.

The model runs with two and with three rows; what grows with them is the axis of the rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.overrides import TorchFunctionMode

from temperance.ensemble.member_linear import MemberLinear
from temperance.ensemble.rows import Layout, walk
from temperance.ensemble.sigma_norm import SigmaNorm
from temperance.errors import InvalidInput
from temperance.models.outputs import call_model

__all__ = [
    "LARGE",
    "SMALL",
    "Call",
    "Run",
    "layouts_of",
    "member_layers",
    "member_layouts",
    "record",
    "refuse_functional",
    "run_call",
]

SMALL, LARGE = 2, 3  # rows of the two runs

Shapes = dict[str, tuple[int, ...]]
Call = tuple[tuple[Any, ...], dict[str, Any]]


def run_call(backbone: nn.Module, call: Call) -> Any:
    """Call a model with ``(args, kwargs)``; a single named input also where it has another name."""
    args, kwargs = call
    return backbone(*args, **kwargs) if args else call_model(backbone, kwargs)


def member_layers(backbone: nn.Module) -> dict[str, SigmaNorm | MemberLinear]:
    """Every member-specific layer, by dotted name."""
    kinds = (SigmaNorm, MemberLinear)
    return {n: m for n, m in backbone.named_modules() if isinstance(m, kinds)}


@dataclass
class Run:
    """What one pass showed.

    Attributes:
        shapes: of the tensors that went into each module, by path, for each call.
        members: names of member-specific layers in the order in which they ran.
        functional: module and shape of every batch_norm outside of these layers.
        stack: modules that are running.
    """

    shapes: dict[str, list[Shapes]] = field(default_factory=dict)
    members: list[str] = field(default_factory=list)
    functional: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    stack: list[str] = field(default_factory=list)


class _Watch(TorchFunctionMode):
    """Notes every F.batch_norm that is called outside of the members' layers."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        place = self.run.stack[-1] if self.run.stack else ""
        if func in (F.batch_norm, torch.batch_norm) and place not in self.run.members:
            x = args[0] if args else (kwargs or {})["input"]
            self.run.functional.append((place, tuple(x.shape)))
        return func(*args, **(kwargs or {}))


def record(backbone: nn.Module, call: Call) -> Run:
    """Run some rows and note what goes where; hooks are gone afterwards."""
    run, handles = Run(), []
    own = member_layers(backbone)
    for name, module in backbone.named_modules():
        enter, leave = _hooks(run, name, own=name in own)
        handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
        handles.append(module.register_forward_hook(leave, always_call=True))
    try:
        with _Watch(run):
            run_call(backbone, call)
    except Exception as error:
        error.add_note(f"raised by {type(backbone).__name__} on rows of the example batch")
        raise
    finally:
        for handle in handles:
            handle.remove()
    return run


def _hooks(run: Run, name: str, *, own: bool) -> tuple[Any, Any]:
    def enter(_module: nn.Module, args: Any, kwargs: Any) -> None:
        shapes: Shapes = {}

        def note(path: str, x: Tensor) -> Tensor:
            shapes[path] = tuple(x.shape)
            return x

        walk(args, note, "args")
        walk(kwargs, note, "kwargs")
        run.shapes.setdefault(name, []).append(shapes)
        run.stack.append(name)
        if own:
            run.members.append(name)

    def leave(*_: Any) -> None:
        run.stack.pop()

    return enter, leave


def member_layouts(backbone: nn.Module, small: Run, large: Run) -> dict[str, Layout]:
    """Say where the rows are in the input of every member-specific layer that ran.

    Args:
        backbone: the converted model.
        small: a run of ``SMALL`` rows.
        large: a run of ``LARGE`` rows.

    Returns:
        Layouts by name.

    Raises:
        InvalidInput: for an input without rows, or with rows on several axes; for BatchNorm and
            GroupNorm, on another than the first; for a BatchNorm that runs several times.
    """
    found = {}
    for name, layer in member_layers(backbone).items():
        calls = list(zip(small.shapes.get(name, ()), large.shapes.get(name, ()), strict=False))
        if calls:
            found[name] = _layout_of_calls(name, layer, calls)
    return found


def _layout_of_calls(
    name: str, layer: SigmaNorm | MemberLinear, calls: list[tuple[Shapes, Shapes]]
) -> Layout:
    kind = layer.facts.kind if isinstance(layer, SigmaNorm) else "linear"
    if len(calls) > 1 and kind == "batch":
        times = f"one that runs {len(calls)} times, which mixes its statistics"
        fix = "Give each place in the model a BatchNorm of its own."
        raise _unusable(name, layer, "a BatchNorm that runs once in a pass", times, fix=fix)
    layouts = []
    for small, large in calls:
        found = layouts_of(small, large) or {}
        layouts.append(next(iter(found.values()), None))
    axes = {None if x is None else x.axis for x in layouts}
    if None in axes or len(axes) > 1:
        shapes = f"shapes {calls[0][0]} for {SMALL} rows"
        raise _unusable(name, layer, "an input with the rows of the batch on one axis", shapes)
    axis = next(iter(x.axis for x in layouts if x is not None))
    if axis and kind in ("batch", "group"):
        raise _unusable(name, layer, "rows on the first axis", f"rows on axis {axis}")
    return Layout(axis, any(x is not None and x.grouped for x in layouts))


def layouts_of(small: Shapes, large: Shapes) -> dict[str, Layout | None] | None:
    """Where the rows are in each tensor; None if that cannot be told."""
    layouts: dict[str, Layout | None] = {}
    if set(small) != set(large):
        return None
    for path, a in small.items():
        b = large[path]
        changed = [i for i in range(len(a)) if len(a) != len(b) or a[i] != b[i]]
        if not changed:
            layouts[path] = None
            continue
        each = a[changed[0]] // SMALL
        if len(changed) > 1 or (a[changed[0]], b[changed[0]]) != (SMALL * each, LARGE * each):
            return None
        layouts[path] = Layout(changed[0], each > 1)
    return layouts


def refuse_functional(small: Run, large: Run) -> None:
    """A batch_norm of weights (weight standardization) has the same shape for any batch."""
    for (place, a), (_, b) in zip(small.functional, large.functional, strict=False):
        if a != b:
            raise InvalidInput(
                f"forward of {place or 'the model'}",
                expected="BatchNorm as a module",
                found="F.batch_norm, whose batch statistics would mix the members",
                fix="Make it an nn.BatchNorm module of the model, then convert.",
            )


def _unusable(
    name: str, layer: nn.Module, expected: str, found: str, *, fix: str | None = None
) -> InvalidInput:
    return InvalidInput(
        f"layer {name!r} ({layer.extra_repr()})",
        expected=expected,
        found=found,
        fix=fix or f"Leave it to all members: norms=['*', '!{name}'].",
    )
