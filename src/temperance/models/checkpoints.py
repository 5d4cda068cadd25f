"""Loading weights so that nothing stays at random without a word."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from temperance.errors import InvalidInput, TemperanceWarning
from temperance.models.files import check_tensors, read_safetensors, write_safetensors
from temperance.models.probe import is_tempered, unwrap

__all__ = ["LoadReport", "load_state", "read_safetensors", "strip_prefixes", "write_safetensors"]

# Names that wrappers put into parameter names: DataParallel and DistributedDataParallel,
# torch.compile, FSDP, activation checkpointing.
_WRAPPERS = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
_SHOWN = 6


@dataclass(frozen=True)
class LoadReport:
    """What became of every name.

    Attributes:
        loaded: names in the model that got a value from the checkpoint.
        new: names in the model that kept the value they had.
        ignored: names in the checkpoint (without wrappers' prefixes) that were not used.
    """

    loaded: tuple[str, ...]
    new: tuple[str, ...]
    ignored: tuple[str, ...]

    def __str__(self) -> str:
        parts = [f"{len(self.loaded)} loaded"]
        for word, names in (("new", self.new), ("ignored", self.ignored)):
            parts.append(f"{len(names)} {word}" + (f" ({_list(names)})" if names else ""))
        return ", ".join(parts)


def strip_prefixes(state: Mapping[str, Any]) -> dict[str, Any]:
    """Take the names that wrappers add out of a state dict, at any depth and place.

    Args:
        state: values by parameter name.

    Returns:
        The same values by plain name, in the same order.

    Raises:
        InvalidInput: if two names become one.

    Example:
        >>> from temperance.models import strip_prefixes
        >>> strip_prefixes({"module._orig_mod.fc.weight": 1, "layer._orig_mod.bias": 2})
        {'fc.weight': 1, 'layer.bias': 2}
    """
    plain: dict[str, Any] = {}
    for name, value in state.items():
        short = _strip(name)
        if short in plain:
            raise InvalidInput(
                "state dict",
                expected="names that differ without wrappers' prefixes",
                found=f"{short!r} twice",
                fix="Keep one of the two sets of weights.",
            )
        plain[short] = value
    return plain


def load_state(
    model: nn.Module, state: Mapping[str, Any], *, allow_missing: bool = False
) -> LoadReport:
    """Load weights by name into a model, all or nothing.

    Wrappers' prefixes are ignored on both sides, unless the names are the model's own as they are.
    A plain output layer fills the linear layer of a tempered head, whose norm and T are then
    reported as new; the other way round the checkpoint's norm and T are ignored, with a warning,
    since the model then computes something else. Two tempered heads must have the same norm, also
    with ``allow_missing``; a learned T and a fixed one take each other's value.

    Args:
        model: the model, changed in place.
        state: tensors by name.
        allow_missing: let names of the model that the checkpoint lacks keep their value (they are
            reported as new); else they are an error.

    Returns:
        What was loaded, what is new, what was ignored; ``str`` gives one line.

    Raises:
        InvalidInput: if nothing fits, names are missing, shapes or the norms of tempered heads
            differ, or values are no tensors; the model is unchanged.

    Example:
        >>> import torch
        >>> from temperance.models import load_state
        >>> source = torch.compile(torch.nn.Linear(3, 2))
        >>> print(load_state(torch.nn.Linear(3, 2), source.state_dict()))
        2 loaded, 0 new, 0 ignored
    """
    wrapped, model = model, unwrap(model)
    check_tensors(state)
    values = model.state_dict()
    own, given = {k: k for k in values}, _own_names(wrapped, values, state)
    expected_new: set[str] = set()
    dropped: list[str] = []
    if given is None:
        own = strip_prefixes(own)
        given, expected_new, dropped = _fit_heads(model, strip_prefixes(state), own)
    loaded = {own[k]: v for k, v in given.items() if k in own}
    new = [own[k] for k in own if k not in given]
    ignored = tuple([k for k in given if k not in own] + dropped)
    missing = [
        own[k] for k in own if k not in given and k not in expected_new and not _is_counter(k)
    ]
    if not loaded or (missing and not allow_missing):
        raise _missing(missing, tuple(state), total=len(own))
    _check_shapes(loaded, values)
    _check_temperatures(model, loaded)
    model.load_state_dict({**values, **loaded})
    _warn_dropped(dropped)
    return LoadReport(tuple(loaded), tuple(new), ignored)


# ------------------------------------------------------------------ helpers
def _own_names(
    wrapped: nn.Module, values: Mapping[str, Any], state: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The state by the names of the unwrapped model, if it has all of the model's own names.

    Nothing is stripped then: a model may have ``fc`` and ``module.fc`` of its own.
    """
    for names in (list(values), list(wrapped.state_dict())):
        if set(names) == set(state):
            return {own: state[name] for own, name in zip(values, names, strict=True)}
    return None


def _strip(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def _fit_heads(
    model: nn.Module, given: dict[str, Any], own: Mapping[str, str]
) -> tuple[dict[str, Any], set[str], list[str]]:
    """Rename plain and tempered output layers into each other where the two sides differ."""
    tempered = {_strip(n) for n, m in model.named_modules() if is_tempered(m)}
    _check_norms(tempered, given, own)
    expected_new: set[str] = set()
    dropped: list[str] = []
    for head in tempered:
        if _at(head, "linear.weight") in given or _at(head, "weight") not in given:
            continue
        for part in ("weight", "bias"):
            if _at(head, part) in given:
                given[_at(head, f"linear.{part}")] = given.pop(_at(head, part))
        expected_new |= {k for k in own if k.startswith(_at(head, "norm."))}
        expected_new |= {_at(head, k) for k in ("temperature", "log_temperature", "linear.eps")}
    for head in tempered:
        log, value = _at(head, "log_temperature"), given.get(_at(head, "temperature"))
        if log in own and log not in given and isinstance(value, Tensor):
            given[log] = value.cpu().double().log().reshape(1)  # where the learned one starts
    for key in [k for k in given if k.rpartition(".")[2] == "temperature"]:
        head = key.rpartition(".")[0]
        if _at(head, "linear.weight") not in given or _at(head, "weight") not in own:
            continue
        for part in ("weight", "bias"):
            if _at(head, f"linear.{part}") in given:
                given[_at(head, part)] = given.pop(_at(head, f"linear.{part}"))
        extra = (key, _at(head, "log_temperature"), _at(head, "linear.eps"))
        gone = [k for k in given if k in extra or k.startswith(_at(head, "norm."))]
        dropped += gone
        given = {k: v for k, v in given.items() if k not in gone}
    return given, expected_new, dropped


def _check_norms(heads: set[str], given: Mapping[str, Any], own: Mapping[str, str]) -> None:
    """Two tempered heads with different norms are different functions, even with equal names."""
    for head in sorted(heads):
        tempered = _at(head, "temperature") in given or _norm_kind(given, head) != "none"
        if _at(head, "linear.weight") not in given or not tempered:
            continue
        theirs, ours = _norm_kind(given, head), _norm_kind(own, head)
        if theirs != ours:
            raise InvalidInput(
                f"tempered head {head!r} of the checkpoint",
                expected=f"norm={ours!r}, as in the model",
                found=f"norm={theirs!r}",
                fix=f"Load it into a model with insert(..., norm={theirs!r}).",
            )


def _norm_kind(names: Mapping[str, Any], head: str) -> str:
    """The kind of norm by its names, which is all that a state dict says of it."""
    if _at(head, "linear.eps") in names:
        return "cosine"
    scale = _at(head, "norm.weight") in names
    if _at(head, "norm.running_mean") in names:
        return "batch" if scale else "batch-no-affine"
    return "layer" if scale else "none"


def _at(head: str, part: str) -> str:
    return f"{head}.{part}" if head else part


def _is_counter(name: str) -> bool:
    return name.rpartition(".")[2] == "num_batches_tracked"  # absent from very old checkpoints


def _check_shapes(loaded: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    wrong = [
        f"{k} (model {list(values[k].shape)}, checkpoint {list(v.shape)})"
        for k, v in loaded.items()
        if isinstance(v, Tensor) and v.shape != values[k].shape
    ]
    if wrong:
        raise InvalidInput(
            "checkpoint",
            expected="the shapes of the model",
            found=_list(wrong),
            fix="For another number of classes, leave the head's names out of the state dict and "
            "pass allow_missing=True.",
        )


def _check_temperatures(model: nn.Module, loaded: Mapping[str, Any]) -> None:
    """T of tempered heads; a model's own parameter of that name may be any number."""
    for head, module in [(n, m) for n, m in model.named_modules() if is_tempered(m)]:
        name, bounds = _at(head, "temperature"), getattr(module, "learned", None)
        value = loaded.get(name)
        if value is not None and not (bool(torch.isfinite(value)) and float(value) > 0):
            raise InvalidInput(
                name, expected="a positive T", found=str(float(value)), fix="Check the file."
            )
        if value is not None and bounds is not None:
            bounds.check(float(value))  # else they would change it without a word


def _warn_dropped(dropped: list[str]) -> None:
    if dropped:
        warnings.warn(
            f"the checkpoint has a tempered head, the model a plain one: {_list(dropped)} were "
            "left out, so the logits differ. Call insert first, or save a folded model.",
            TemperanceWarning,
            stacklevel=3,
        )


def _missing(missing: list[str], names: tuple[str, ...], *, total: int) -> InvalidInput:
    return InvalidInput(
        "checkpoint",
        expected=f"the {total} names of the model",
        found=f"{len(missing)} missing: {_list(missing)}; it has {_list(names) or 'none'}",
        fix="Load a checkpoint of this architecture, or pass allow_missing=True for names that "
        "shall keep their value.",
    )


def _list(names: Any) -> str:
    names = list(names)
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
