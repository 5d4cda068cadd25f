"""The plan of a study: a small TOML file that stands for many trials.

::

    name = "temperature-and-dimension"

    [fixed]                                   # fields of Trial, one value each
    model = "cnn"
    steps = 1000

    [grid]                                    # fields of Trial, lists: every combination
    dataset = ["digits", "fashion-mnist"]
    feature_dim = [16, 64, 256]
    norm = ["none", "batch"]
    temperature = {from = 0.25, to = 64, points = 9}
    seed = {count = 3}                        # 0, 1, 2

    [resources]                               # of one unit of work, all optional
    cpus = 1
    gpus = 0
    retries = 2

In place of a list: ``{from, to, points}`` for numbers that are evenly spaced in their logarithm
(whole numbers are rounded, others to six digits, so that keys are the same on every machine),
``seed = {count, first}``, and ``temperature = {sqrt_M = [0.5, 1, 2]}`` for multiples of
``sqrt(feature_dim)``.

Several ``[[grids]]`` may follow. Each stands for a product of its own, over what it names and what
``[fixed]`` and ``[grid]`` name besides; a value in it may be single or a list. ``[grid]`` alone is
then no product any more, only what they share.
"""

from __future__ import annotations

import hashlib
import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any

from temperance.errors import InvalidInput, NotFound
from temperance.study.plan_values import Axis, Place, axis, one_value
from temperance.study.trial import Trial

__all__ = ["MAX_TRIALS", "Plan", "Resources", "parse_plan", "read_plan"]

MAX_TRIALS = 1_000_000  # half a gigabyte of trials; more is a mistake in a grid
_MAX_BYTES = 1_000_000
_TABLES = ("name", "fixed", "grid", "grids", "resources")
_FIELDS = tuple(f.name for f in fields(Trial))
_RESOURCES = ("cpus", "gpus", "retries")


@dataclass(frozen=True)
class Resources:
    """What one unit of work takes.

    Attributes:
        cpus: CPU cores, or a share of one; above 0.
        gpus: GPUs, or a share of one.
        retries: how often a unit whose worker died is tried again.
    """

    cpus: float = 1.0
    gpus: float = 0.0
    retries: int = 2


@dataclass(frozen=True)
class Plan:
    """What a study trains.

    Attributes:
        name: its name; that of the file where it gives none.
        trials: every trial once, grid by grid; within a grid in the order of the fields of
            ``Trial``, the last one varying fastest.
        resources: what one unit of work takes.
        digest: 20 hexadecimal digits of the text of the plan.
        source: where it was read from.
    """

    name: str
    trials: tuple[Trial, ...]
    resources: Resources = Resources()
    digest: str = ""
    source: str = ""


def read_plan(path: Path | str) -> Plan:
    """Read a plan from a TOML file.

    Args:
        path: the file.

    Returns:
        The plan with all its trials.

    Raises:
        NotFound: if there is no such file.
        InvalidInput: for what is wrong in it, with table and key.
    """
    path = Path(path)
    if not path.exists():
        raise NotFound(f"plan {path}", found="no such file", fix="Check the name.")
    if not path.is_file() or path.stat().st_size > _MAX_BYTES:
        what = f"{path.stat().st_size:,} bytes" if path.is_file() else "no file"
        raise InvalidInput(
            f"plan {path}", expected="a small TOML file", found=what, fix="Name the plan."
        )
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(
            f"plan {path}",
            expected="a text in UTF-8 that can be read",
            found=str(error),
            fix="Save it as UTF-8.",
        ) from error
    return parse_plan(text, source=str(path))


def parse_plan(text: str, *, source: str = "plan.toml") -> Plan:
    """Read a plan from the text of a TOML file.

    Args:
        text: the text.
        source: what to call it in errors; its stem is the name where the plan gives none.

    Returns:
        The plan with all its trials.

    Raises:
        InvalidInput: for what is wrong in it, with table and key.

    Example:
        >>> from temperance.study.plan import parse_plan
        >>> plan = parse_plan('''
        ... [fixed]
        ... dataset = "digits"
        ... [grid]
        ... temperature = {from = 1, to = 16, points = 3}
        ... seed = {count = 2}
        ... ''')
        >>> [(t.temperature, t.seed) for t in plan.trials]
        [(1.0, 0), (1.0, 1), (4.0, 0), (4.0, 1), (16.0, 0), (16.0, 1)]
    """
    top = Place(f"plan {source}")
    try:
        content = tomllib.loads(text.replace("\r\n", "\n"))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise top.error("TOML", str(error), "Correct that line.") from error
    top.check_names(content, _TABLES)
    name = content.get("name", Path(source).stem)
    if not isinstance(name, str) or not name.strip():
        raise top.at("name").error("a name", repr(name), 'Write name = "...".')
    trials: dict[Trial, None] = {}
    for place, axes in _grids(content, top):
        for trial in _trials(axes, place):
            trials[trial] = None
        _check_size(len(trials), top)
    digest = hashlib.sha256(text.encode()).hexdigest()[:20]
    return Plan(name, tuple(trials), _resources(content, top), digest, source)


def _grids(content: Mapping[str, Any], top: Place) -> Iterator[tuple[Place, dict[str, Axis]]]:
    """Every product of the plan: its place, and the values of each field."""
    fixed, grid = (_table(content, name, top) for name in ("fixed", "grid"))
    if both := sorted(set(fixed) & set(grid)):
        raise top.at(f"[fixed] and [grid] {both[0]}").error(
            "one of the two", "both", "Leave one of them out."
        )
    shared = {name: one_value(v, name, top.at(f"[fixed] {name}")) for name, v in fixed.items()}
    shared |= {name: axis(v, name, top.at(f"[grid] {name}")) for name, v in grid.items()}
    more = content.get("grids")
    if more is None:
        yield top.at("[grid]"), shared
        return
    if not isinstance(more, list) or not more or not all(isinstance(g, dict) for g in more):
        raise top.at("grids").error("tables", repr(more), "Begin each with [[grids]].")
    for number, own in enumerate(more, start=1):
        place = top.at(f"[[grids]] number {number}")
        place.check_names(own, _FIELDS)
        axes = {n: axis(v, n, place.at(n), single=True) for n, v in own.items()}
        yield place, {**shared, **axes}


def _table(content: Mapping[str, Any], name: str, top: Place) -> dict[str, Any]:
    found = content.get(name, {})
    place = top.at(f"[{name}]")
    if not isinstance(found, dict):
        raise place.error("a table", repr(found), f"Begin it with [{name}].")
    place.check_names(found, _FIELDS)
    return found


def _trials(axes: Mapping[str, Axis], place: Place) -> Iterator[Trial]:
    """All combinations, in the order of the fields of ``Trial``."""
    if "dataset" not in axes:
        raise place.error("a dataset", "none", 'Add dataset = ["digits"], for instance.')
    _check_size(math.prod(len(a.values) for a in axes.values()), place)
    names = [name for name in _FIELDS if name in axes]
    for values in product(*(axes[name].values for name in names)):
        chosen = dict(zip(names, values, strict=True))
        if axes.get("temperature", Axis(())).in_sqrt_dim:
            width = chosen.get("feature_dim")
            if width is None:
                raise place.error(
                    "a feature_dim, for temperatures in multiples of sqrt_M",
                    "none",
                    "Add feature_dim, or write the temperatures themselves.",
                )
            chosen["temperature"] = float(f"{chosen['temperature'] * math.sqrt(width):.6g}")
        yield Trial(**chosen)


def _check_size(count: int, place: Place) -> None:
    if count > MAX_TRIALS:
        raise place.error(
            f"at most {MAX_TRIALS:,} trials",
            f"{count:,}",
            "Shorten the lists, or split the plan into several files.",
        )


def _resources(content: Mapping[str, Any], top: Place) -> Resources:
    found = content.get("resources", {})
    place = top.at("[resources]")
    if not isinstance(found, dict):
        raise place.error("a table", repr(found), "Begin it with [resources].")
    place.check_names(found, _RESOURCES)
    for name, value in found.items():
        whole = isinstance(value, int) and not isinstance(value, bool)
        good = whole or (isinstance(value, float) and math.isfinite(value) and name != "retries")
        least = "above 0" if name == "cpus" else "of 0 or more"
        if not good or value < 0 or (name == "cpus" and value == 0):
            kind = "a whole number" if name == "retries" else "a number"
            raise place.at(name).error(f"{kind} {least}", repr(value), "Correct it.")
    default = Resources()
    return Resources(
        cpus=float(found.get("cpus", default.cpus)),
        gpus=float(found.get("gpus", default.gpus)),
        retries=found.get("retries", default.retries),
    )
