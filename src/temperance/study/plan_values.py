"""The values of one field in a plan: a single one, a list, or a range that is written short."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from temperance.errors import InvalidInput
from temperance.study.trial import Trial

__all__ = ["Axis", "Place", "axis", "one_value"]

_WHOLE = ("feature_dim", "steps", "batch_size", "train_rows")
_RANGED = ("temperature", "lr", "weight_decay", *_WHOLE)
_MOST = 100_000  # values of one field


@dataclass(frozen=True)
class Place:
    """Where in a plan something stands, for sentences about it."""

    text: str

    def at(self, part: str) -> Place:
        """Give the place of a part of it."""
        return Place(f"{self.text}{' ' if part.startswith('[') else ': '}{part}")

    def error(self, expected: str, found: str, fix: str) -> InvalidInput:
        """Make the error that names this place."""
        return InvalidInput(self.text, expected=expected, found=found, fix=fix)

    def check_names(self, found: Mapping[str, Any], known: Sequence[str]) -> None:
        """Refuse names that are not known."""
        for name in found:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                fix = f"Did you mean {near[0]}?" if near else "Correct the name."
                raise self.error(f"names among {', '.join(known)}", repr(name), fix)


@dataclass(frozen=True)
class Axis:
    """The values of one field.

    Attributes:
        values: at least one, each fit for the field.
        in_sqrt_dim: whether they are multiples of the square root of ``feature_dim``.
    """

    values: tuple[Any, ...]
    in_sqrt_dim: bool = False


def one_value(value: Any, name: str, place: Place) -> Axis:
    """Read a field that has one value.

    Args:
        value: what the plan says.
        name: the field of ``Trial``.
        place: where it says that.

    Returns:
        The one value.

    Raises:
        InvalidInput: for a list, a range, or a value that the field cannot have.
    """
    if isinstance(value, list | dict):
        raise place.error("one value", _shown(value), "Move it to [grid] to have several.")
    return Axis((_fit(value, name, place),))


def axis(value: Any, name: str, place: Place, *, single: bool = False) -> Axis:
    """Read a field that has several values.

    Args:
        value: what the plan says: a list, or a table that stands for one.
        name: the field of ``Trial``.
        place: where it says that.
        single: whether a single value is fine as well.

    Returns:
        The values, each once, in their order.

    Raises:
        InvalidInput: for an empty list, an unknown form of range, or a value that the field cannot
            have.
    """
    in_sqrt_dim = False
    if isinstance(value, dict):
        value, in_sqrt_dim, place = _expanded(value, name, place)
    elif not isinstance(value, list):
        if not single:
            raise place.error("a list", _shown(value), "Write [ ] around it, or use [fixed].")
        value = [value]
    if not value:
        raise place.error("at least one value", "an empty list", "Fill it, or leave the key out.")
    _check_count(len(value), place)
    fit = [_fit(v, name, Place(f"{place.text}[{at}]")) for at, v in enumerate(value)]
    return Axis(tuple(dict.fromkeys(fit)), in_sqrt_dim)


def _fit(value: Any, name: str, place: Place) -> Any:
    """Check a value with the trial's own rules, and give it in the trial's own form."""
    if name == "features" and isinstance(value, str):
        value = "|".join(step.strip() for step in value.split("|"))  # one key for one thing
    try:
        trial = Trial(**{"dataset": "any", name: value})
    except InvalidInput as error:
        raise place.error(error.expected, error.found, "Correct it.") from error
    return getattr(trial, name)


def _expanded(found: dict[str, Any], name: str, place: Place) -> tuple[list[Any], bool, Place]:
    """Write out a table that stands for a list."""
    if set(found) == {"sqrt_M"} and name == "temperature":
        listed, inner = found["sqrt_M"], Place(f"{place.text}.sqrt_M")
        if not isinstance(listed, list):
            raise inner.error("a list of multiples", _shown(listed), "Write sqrt_M = [0.5, 1, 2].")
        return listed, True, inner
    if set(found) == {"from", "to", "points"} and name in _RANGED:
        return _range(found, place, whole=name in _WHOLE), False, place
    if "count" in found and set(found) <= {"count", "first"} and name == "seed":
        return _count(found, place), False, place
    forms = [
        text
        for text, fields in (
            ("{from, to, points}", _RANGED),
            ("{count} or {count, first}", ("seed",)),
            ("{sqrt_M}", ("temperature",)),
        )
        if name in fields
    ]
    raise place.error(" or ".join(["a list", *forms]), _shown(found), "Write one of these forms.")


def _range(found: dict[str, Any], place: Place, *, whole: bool) -> list[float]:
    """Numbers that are evenly spaced in their logarithm, both ends included."""
    low, high = (_positive(found[e], Place(f"{place.text}.{e}")) for e in ("from", "to"))
    points = _integer(found["points"], Place(f"{place.text}.points"), least=2)
    _check_count(points, place)
    if low >= high:
        raise place.error("from below to", f"{low:g} and {high:g}", "Swap or correct them.")
    step = (math.log(high) - math.log(low)) / (points - 1)
    inner = [math.exp(math.log(low) + step * at) for at in range(1, points - 1)]
    rounded: Callable[[float], float] = round if whole else (lambda x: float(f"{x:.6g}"))
    return [found["from"], *map(rounded, inner), found["to"]]


def _count(found: dict[str, Any], place: Place) -> list[int]:
    count = _integer(found["count"], Place(f"{place.text}.count"), least=1)
    first = _integer(found.get("first", 0), Place(f"{place.text}.first"), least=0)
    _check_count(count, place)
    return list(range(first, first + count))


def _positive(value: Any, place: Place) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value < math.inf:
        raise place.error("a positive number", _shown(value), "Correct it.")
    return float(value)


def _integer(value: Any, place: Place, *, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise place.error(f"a whole number of {least} or more", _shown(value), "Correct it.")
    return value


def _check_count(count: int, place: Place) -> None:
    if count > _MOST:
        raise place.error(f"at most {_MOST:,} values", f"{count:,}", "Shorten it.")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
