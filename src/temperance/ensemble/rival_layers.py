"""What the rivals have in common: arguments, copies, the layers to change, and members in rows."""

from __future__ import annotations

import copy
import math
import numbers
import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from temperance.ensemble.rows import Layout, Rows, unfold
from temperance.errors import InvalidInput, NotFound
from temperance.models.find import Head, find_head
from temperance.models.probe import unwrap

__all__ = [
    "WEIGHTED",
    "by_member",
    "check_number",
    "check_whole",
    "copied",
    "find_layers",
    "first_layer",
    "gather",
    "hidden_layers",
    "output_layer",
    "read_from_outside",
    "seeded",
    "shaped",
]

WEIGHTED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""Layers with a weight matrix or filters."""

_ROWS = Layout(0, grouped=True)  # rows on the first axis, also where windows are folded into it
_SHOWN = 6


# ------------------------------------------------------------------ arguments
def check_whole(subject: str, value: Any, least: int) -> int:
    """Check a whole number."""
    try:
        number = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise InvalidInput(
            subject, expected=f"a whole number of {least} or more", found=repr(value), fix="Set it."
        )
    return number


def check_number(subject: str, value: Any, low: float, high: float = math.inf) -> float:
    """Check a finite number from ``low`` to ``high``."""
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not real or not math.isfinite(value) or not low <= float(value) <= high:
        expected = f"a number of {low} or more" + (f", at most {high}" if high < math.inf else "")
        raise InvalidInput(subject, expected=expected, found=repr(value), fix="Set it.")
    return float(value)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Let layers draw their weights from ``seed`` inside, and put torch's generator back."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        yield


# ------------------------------------------------------------------ the model
def copied(model: nn.Module) -> nn.Module:
    """Copy a plain model; torch's encoder layers leave their fused path, which skips submodules."""
    if unwrap(model) is not model:
        raise InvalidInput(
            "model",
            expected="the plain model",
            found=f"a {type(model).__name__} around it",
            fix="Make the ensemble before wrapping or compiling.",
        )
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule) or isinstance(
            getattr(module, "rows", None), Rows
        ):
            raise InvalidInput(
                "model",
                expected="plain modules",
                found=f"{name or 'the model'} ({type(module).__name__}), scripted or of an "
                "ensemble already",
                fix="Start from the plain model.",
            )
    copy_of = copy.deepcopy(model)
    for module in copy_of.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0
        elif isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False
    return copy_of


def find_layers(
    model: nn.Module,
    kinds: tuple[type[nn.Module], ...] = WEIGHTED,
    patterns: str | Sequence[str] | None = None,
) -> dict[str, nn.Module]:
    """Find the layers that a method changes, each once, in the order of registration.

    Args:
        model: the model; unchanged.
        kinds: classes of the layers.
        patterns: patterns of dotted names as in ``find_norms``: ``"blocks.*"``, ``["*", "!head"]``;
            None for all.

    Returns:
        Layers by dotted name.

    Raises:
        NotFound: if there is none, or a pattern fits none.
        InvalidInput: for projections that torch's attention computes inside of one function.
    """
    known = {n: m for n, m in model.named_modules() if isinstance(m, kinds)}
    chosen = known
    if patterns is not None:
        given = [patterns] if isinstance(patterns, str) else list(patterns)
        for pattern in given:
            if not any(fnmatchcase(n, pattern.removeprefix("!")) for n in known):
                raise _no_layers(f"layers {pattern!r}", model, kinds, tuple(known))
        out = [p[1:] for p in given if p.startswith("!")]
        chosen = {
            n: m
            for n, m in known.items()
            if any(fnmatchcase(n, p) for p in given if not p.startswith("!"))
            and not any(fnmatchcase(n, p) for p in out)
        }
    if not chosen:
        raise _no_layers("layers", model, kinds, tuple(known))
    for name, module in model.named_modules():
        inside = f"{name}.out_proj".lstrip(".")
        if isinstance(module, nn.MultiheadAttention) and inside in chosen:
            raise InvalidInput(
                f"layer {inside!r}",
                expected="a layer that is called by itself",
                found="a part of nn.MultiheadAttention, which computes it in one function",
                fix="Leave it shared: layers=['*', '!*out_proj'], or use an attention of linear "
                "layers.",
            )
    return chosen


def hidden_layers(
    model: nn.Module, patterns: str | Sequence[str] | None = None
) -> dict[str, nn.Module]:
    """Find the layers whose input is not the data, as for dropout and masks in front of them.

    Args:
        model: the model; unchanged.
        patterns: as in ``find_layers``, taken as they are; None for all layers but the first, or
            for all of them where an embedding in front of the first one reads the data.

    Returns:
        Layers by dotted name.

    Raises:
        NotFound: see ``find_layers``.
        InvalidInput: if none is left, or the model itself is the layer; see ``find_layers``.
    """
    found = find_layers(model, patterns=patterns)
    if patterns is None:
        first = next(iter(found))
        for name, module in model.named_modules():
            if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
                break
            if name == first:
                del found[first]
                break
    if not found or "" in found:
        raise InvalidInput(
            "model",
            expected="two layers with weights or more",
            found="one, whose input is the data",
            fix="Choose a model with a hidden layer, or name layers.",
        )
    return found


def first_layer(model: nn.Module) -> tuple[str, nn.Module]:
    """Give the first layer with weights in the order of registration.

    Raises:
        NotFound: if there is none.
    """
    for name, module in model.named_modules():
        if isinstance(module, WEIGHTED):
            return name, module
    raise _no_layers("layers", model, WEIGHTED, ())


def read_from_outside(error: AttributeError) -> InvalidInput:
    """Say what to do where a model reads the weights of a layer that was changed."""
    return InvalidInput(
        "layers",
        expected="layers that the model calls, and whose weights it does not read itself",
        found=str(error),
        fix="Leave such layers out, by name: layers=['*', '!NAME'].",
    )


def output_layer(model: nn.Module, example: Any = None) -> Head:
    """Find the output layer, which must be a plain ``nn.Linear`` with a place of its own."""
    head = find_head(model, example)
    if head.kind != "linear" or not head.name:
        raise InvalidInput(
            f"output layer {head.name!r}",
            expected="an nn.Linear behind other layers",
            found=f"a {type(head.module).__name__}",
            fix="End the model in nn.Linear; divide the logits by T afterwards.",
        )
    return head


def _no_layers(
    subject: str, model: nn.Module, kinds: tuple[type, ...], names: tuple[str, ...]
) -> NotFound:
    wanted = ", ".join(kind.__name__ for kind in kinds)
    return NotFound(
        subject,
        found=f"{type(model).__name__} has no such layer among its {wanted}",
        candidates=names[:_SHOWN],
        fix="Take names from model.named_modules(); * stands for anything.",
    )


# ------------------------------------------------------------------ members in rows
def by_member(x: Tensor, rows: Rows) -> Tensor:
    """Show rows ``b * M + m`` as ``[B, M, k, ...]``, a view; unchanged for one member alone."""
    return x if _alone(rows) else unfold(x, rows, _ROWS)


def gather(x: Tensor, rows: Rows) -> Tensor:
    """Go back from ``by_member``."""
    return x if _alone(rows) else x.flatten(0, 2)


def shaped(values: Tensor, x: Tensor, rows: Rows, channel_axis: int) -> Tensor:
    """Shape ``[M, C]`` so that it multiplies or adds to ``by_member(x, rows)``.

    Args:
        values: one row for each member.
        x: the rows, ``[R, C, ...]`` or ``[R, ..., C]``.
        rows: the pass.
        channel_axis: 1 or -1.

    Returns:
        A view of ``values``, of the type of ``x``.
    """
    ones = (1,) * (x.dim() - 2)
    tail = (*ones, -1) if channel_axis == -1 else (-1, *ones)
    values = values.to(x.dtype)
    if _alone(rows):
        return values[rows.active or 0].view(tail)
    return values.view(rows.members, 1, *tail[:-1], values.shape[1]) if channel_axis == -1 else (
        values.view(rows.members, 1, values.shape[1], *ones)
    )  # fmt: skip


def _alone(rows: Rows) -> bool:
    return rows.active is not None or rows.members == 1
