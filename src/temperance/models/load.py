"""Loading a checkpoint as it lies on the disk: the weights in it, whatever is around them."""

from __future__ import annotations

import os
import pickle
import struct
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from temperance.errors import InvalidInput, NotFound
from temperance.models.checkpoints import LoadReport, load_state, strip_prefixes
from temperance.models.files import read_safetensors

__all__ = ["find_state", "load_checkpoint"]

_SHOWN = 6
# What torch.load raises for damaged bytes.
_BROKEN = (
    pickle.UnpicklingError, RuntimeError, EOFError, ValueError, OSError, LookupError, TypeError,
    AttributeError, AssertionError, struct.error,
)  # fmt: skip
_DEPTH = 3  # levels of a checkpoint that are searched for weights


def load_checkpoint(
    model: nn.Module,
    source: str | os.PathLike[str] | Mapping[str, Any],
    *,
    entry: str | None = None,
    prefix: str = "",
    allow_missing: bool = False,
) -> LoadReport:
    """Load the weights of a checkpoint into a model, in place, all or nothing.

    What training scripts save is seldom a bare state dict: ``{"epoch": ..., "model": {...},
    "optimizer": {...}}``, names with ``module.`` and ``_orig_mod.`` anywhere. This takes the
    weights out of it and gives them to ``load_state``, which ignores such prefixes on both sides,
    fits plain and tempered output layers into each other, and reports every name.

    Args:
        model: the model, wrapped or not.
        source: a safetensors file; a file of ``torch.save``, which is read with
            ``weights_only=True``, so that no code in it runs; or what was read already.
        entry: which entry of the checkpoint holds the weights, such as ``"model"`` or, deeper,
            ``"ema.state_dict"``; None for the only one that does.
        prefix: take only names that start with it, and without it: ``"model."`` for the attribute
            of a LightningModule, say; the last dot may be left out. The others are reported as
            ignored.
        allow_missing: let names of the model that the checkpoint lacks keep their value (they are
            reported as new); else they are an error.

    Returns:
        What was loaded, what is new, what was ignored; ``str`` gives one line.

    Raises:
        NotFound: if there is no such file, no entry with weights, or more than one (``.candidates``
            names them).
        InvalidInput: if the file cannot be read safely, no name has the prefix, or the weights do
            not fit, see ``load_state``. The model is unchanged.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from temperance.models import load_checkpoint
        >>> trained = nn.DataParallel(torch.compile(nn.Linear(3, 2)))
        >>> checkpoint = {"epoch": 7, "model": trained.state_dict(), "optimizer": {"state": {}}}
        >>> print(load_checkpoint(nn.Linear(3, 2), checkpoint))
        2 loaded, 0 new, 0 ignored
    """
    _check_arguments(source, prefix)
    content = source if isinstance(source, Mapping) else _read(source)
    state = find_state(content, entry=entry)
    chosen, left = _without(state, prefix)
    try:
        report = load_state(model, chosen, allow_missing=allow_missing)
    except InvalidInput as error:
        hint = _hint(model, chosen)
        if not hint:
            raise
        raise InvalidInput(
            error.subject, expected=error.expected, found=error.found, fix=hint
        ) from None
    return LoadReport(report.loaded, report.new, (*report.ignored, *left))


def find_state(content: Mapping[str, Any], *, entry: str | None = None) -> Mapping[str, Any]:
    """Find the weights in a checkpoint: a mapping of names to tensors.

    Args:
        content: what was read: a state dict, or a mapping that holds one at some depth.
        entry: its name, with dots for depth; None for the only one.

    Returns:
        The state dict, as it is.

    Raises:
        NotFound: if there is none, or more than one.

    Example:
        >>> import torch
        >>> from temperance.models import find_state
        >>> list(find_state({"epoch": 3, "state_dict": {"fc.weight": torch.zeros(2, 2)}}))
        ['fc.weight']
    """
    found = dict(_states(content, "", _DEPTH))
    if entry is not None:
        if entry not in found:
            raise _unclear(f"no weights in {entry!r}", found)
        return found[entry]
    if len(found) != 1:
        raise _unclear(f"{len(found)} entries with weights" if found else "no weights", found)
    return next(iter(found.values()))


# ------------------------------------------------------------------ looking for weights
def _states(value: Any, path: str, depth: int) -> list[tuple[str, Mapping[str, Any]]]:
    if not isinstance(value, Mapping) or not value:
        return []
    if _is_state(value):
        return [(path, value)]
    found = []
    for key, inner in value.items():
        if depth and not _is_optimizer(inner):
            found += _states(inner, f"{path}.{key}".lstrip("."), depth - 1)
    return found


def _is_state(value: Mapping[Any, Any]) -> bool:
    """Tensors by name, and one of more than no dimension: scalars are counters and losses."""
    names = all(isinstance(k, str) for k in value)
    tensors = [v for k, v in value.items() if not str(k).endswith("_extra_state")]
    return names and all(isinstance(v, Tensor) for v in tensors) and any(v.dim() for v in tensors)


def _is_optimizer(value: Any) -> bool:
    return isinstance(value, Mapping) and "param_groups" in value


def _without(state: Mapping[str, Any], prefix: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The names behind a prefix, and the others; wrappers' own prefixes may stand in front."""
    if not prefix:
        return dict(state), ()
    prefix = f"{prefix.removesuffix('.')}."
    plain = strip_prefixes(state)
    chosen = {k.removeprefix(prefix): v for k, v in plain.items() if k.startswith(prefix)}
    if not chosen:
        raise InvalidInput(
            "prefix",
            expected=f"names that start with {prefix!r}",
            found=_list(plain),
            fix="Take it from the names of the checkpoint.",
        )
    return chosen, tuple(k for k in plain if not k.startswith(prefix))


def _check_arguments(source: Any, prefix: Any) -> None:
    for subject, value, expected, kinds in (
        ("source", source, "a path, or a mapping that was read", (str, os.PathLike, Mapping)),
        ("prefix", prefix, "the start of names", (str,)),
    ):
        if not isinstance(value, kinds):
            found = f"a {type(value).__name__}"
            raise InvalidInput(subject, expected=expected, found=found, fix="Pass one.")


def _hint(model: nn.Module, state: Mapping[str, Any]) -> str:
    """What to do where the names would fit behind one more part, as a LightningModule's do."""
    own = set(strip_prefixes(dict.fromkeys(model.state_dict())))
    names = list(strip_prefixes(dict.fromkeys(state)))
    for first in dict.fromkeys(n.partition(".")[0] for n in names):
        behind = {n.removeprefix(f"{first}.") for n in names if n.startswith(f"{first}.")}
        if own <= behind:
            return f"The names fit without {first + '.'!r}: pass prefix={first + '.'!r}."
    return ""


# ------------------------------------------------------------------ reading
def _read(path: str | os.PathLike[str]) -> Mapping[str, Any]:
    path = Path(path)
    if not path.is_file() or not _is_pickle(path):
        return read_safetensors(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, about old storages
            content = torch.load(path, map_location="cpu", weights_only=True)
    except _BROKEN as error:
        line = str(error).strip().splitlines()[:1]
        raise InvalidInput(
            str(path),
            expected="a checkpoint of tensors and plain values",
            found=": ".join([type(error).__name__, *line]),
            fix="If it is whole and you trust its origin, read it yourself, "
            "torch.load(path, weights_only=False), which runs code in it, and pass the result.",
        ) from error
    if isinstance(content, Mapping):
        return content
    raise NotFound(
        f"weights in {path}",
        found=f"a {type(content).__name__}",
        fix="Save model.state_dict() instead.",
    )


def _is_pickle(path: Path) -> bool:
    with path.open("rb") as file:
        start = file.read(10)
    zipped = start[:4] == b"PK\x03\x04" or start[:1] == b"\x80"
    return zipped and start[8:9] != b"{"  # a header of safetensors may begin with 0x80, too


def _unclear(found: str, states: Mapping[str, Any]) -> NotFound:
    return NotFound(
        "weights in the checkpoint",
        found=found,
        candidates=tuple(states)[:_SHOWN],
        fix="Name one with entry=." if states else "Pass a state dict, or a mapping with one.",
    )


def _list(names: Any) -> str:
    names = list(names)
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
