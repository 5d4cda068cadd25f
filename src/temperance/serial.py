"""Records as strict JSON, and back.

``dumps(record)`` writes a record as flat JSON with two more keys, ``record`` and
``schema_version``; ``loads(text)`` reads it back. JSON has no NaN and no infinity, so these three
floats are written as the strings ``"nan"``, ``"inf"`` and ``"-inf"``; in free mappings such as
``settings`` they come back as these texts, and tuples as lists.
"""

from __future__ import annotations

import importlib
import json
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from temperance.errors import InvalidInput

__all__ = ["SCHEMA_VERSION", "dumps", "from_dict", "loads", "to_dict"]

SCHEMA_VERSION = 1
_SPECIAL = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def _plain(value: Any) -> Any:
    """Turn a value into what JSON knows."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if hasattr(value, "tolist"):  # NumPy arrays and scalars, tensors
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    raise InvalidInput(
        "record",
        expected="values that JSON can hold",
        found=f"{type(value).__name__} ({value!r})",
        fix="Store numbers, texts, lists and mappings only.",
    )


def to_dict(record: object) -> dict[str, Any]:
    """Turn a record into a plain mapping, with ``record`` and ``schema_version``.

    Args:
        record: any record of this module, or a frozen dataclass of plain values.

    Returns:
        A mapping of texts, numbers, lists and mappings.

    Raises:
        InvalidInput: if the record holds something that JSON cannot hold.

    Example:
        >>> from temperance.records import Estimate, to_dict
        >>> to_dict(Estimate(0.5))["value"]
        0.5
    """
    if any("NDArray" in str(f.type) for f in fields(record)):  # type: ignore[arg-type]
        raise InvalidInput(
            type(record).__name__,
            expected="a record of numbers and texts",
            found="arrays",
            fix="Keep arrays with numpy.savez; JSON is for figures.",
        )
    body: dict[str, Any] = _plain(record)
    return {"record": type(record).__name__, "schema_version": SCHEMA_VERSION, **body}


def from_dict(data: Mapping[str, Any], cls: type | None = None) -> Any:
    """Build a record from a mapping.

    Args:
        data: what ``to_dict`` returned, or the parsed JSON of it.
        cls: the record class; read from ``data["record"]`` if absent.

    Returns:
        The record.

    Raises:
        InvalidInput: if the mapping is of another kind or schema version, or lacks a field.
    """
    version = data.get("schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        raise InvalidInput(
            "record",
            expected=f"schema version {SCHEMA_VERSION}",
            found=repr(version),
            fix="Read it with the release that wrote it.",
        )
    name = data.get("record")
    known = _records()
    target = cls or known.get(str(name))
    if target is None or (cls is not None and name not in (None, cls.__name__)):
        wanted = cls.__name__ if cls else " or ".join(known)
        raise InvalidInput("record", expected=wanted, found=repr(name), fix="Check the file.")
    return _build(target, data)


def _records() -> dict[str, type]:
    """The record classes by name."""
    module = importlib.import_module("temperance.records")  # which imports this one
    things = {name: getattr(module, name) for name in module.__all__}
    return {name: t for name, t in things.items() if isinstance(t, type) and is_dataclass(t)}


def _build(cls: type, data: Mapping[str, Any]) -> Any:
    hints = typing.get_type_hints(cls, localns={"NDArray": Any, "ArrayLike": Any, "ClassMap": Any})
    known = {f.name for f in fields(cls)}
    try:
        return cls(**{k: _typed(hints[k], v) for k, v in data.items() if k in known})
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(
            cls.__name__, expected="all its fields", found=str(error), fix="Check the file."
        ) from error


def _typed(hint: Any, value: Any) -> Any:
    """Give a JSON value the type that a field has."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        return _typed(next(a for a in args if a is not type(None)), value)
    if is_dataclass(hint):
        return _build(typing.cast(type, hint), value)
    if origin is tuple:
        if args[-1] is not Ellipsis and len(value) != len(args):
            raise TypeError(f"{value!r} has not {len(args)} entries")
        return tuple(_typed(args[0], v) for v in value)
    if origin is Mapping:
        return {k: _typed(args[1], v) for k, v in value.items()}
    if hint is float:
        return _SPECIAL[value] if isinstance(value, str) else float(value)
    if hint in (int, str, bool) and type(value) is not hint:
        raise TypeError(f"{value!r} is no {hint.__name__}")
    return value


def dumps(record: object, *, indent: int | None = 2) -> str:
    """Write a record as JSON text.

    Args:
        record: any record of this module.
        indent: spaces per level; None for one line.

    Returns:
        Strict JSON (no NaN literals).

    Raises:
        InvalidInput: if the record holds something that JSON cannot hold.

    Example:
        >>> from temperance.records import Estimate, dumps, loads
        >>> loads(dumps(Estimate(0.25, (0.2, 0.3)))).interval
        (0.2, 0.3)
    """
    return json.dumps(to_dict(record), indent=indent, allow_nan=False, ensure_ascii=False)


def loads(text: str, cls: type | None = None) -> Any:
    """Read a record from JSON text.

    Args:
        text: what ``dumps`` wrote.
        cls: the record class that is expected; any, if absent.

    Returns:
        The record.

    Raises:
        InvalidInput: if the text is not JSON, or not a record of this kind and version.
    """
    try:
        data = json.loads(text)
    except ValueError as error:  # not JSON, or not UTF-8
        raise InvalidInput(
            "record", expected="JSON", found=f"{error}", fix="Check the file."
        ) from error
    if not isinstance(data, dict):
        raise InvalidInput(
            "record", expected="a JSON object", found=type(data).__name__, fix="Check the file."
        )
    return from_dict(data, cls)
