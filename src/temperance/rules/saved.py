"""Rules with coefficients of your own runs, as a JSON file."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from temperance.errors import InvalidInput, NotFound
from temperance.files import write_bytes
from temperance.records import Task
from temperance.rules.fitted import FittedRule
from temperance.rules.fitted_domain import FittedDomain, is_number
from temperance.rules.statistics import StatisticsRule
from temperance.rules.suggestion import find_rule
from temperance.version import __version__

__all__ = ["load_rule", "save_rule"]

_SCHEMA = 1
_KIND = "temperance rule"


def save_rule(rule: FittedRule, path: str | os.PathLike[str]) -> None:
    """Write a fitted rule as JSON, whole or not at all.

    Args:
        rule: the rule with its domain and its fit.
        path: the file; an older one is replaced.

    Raises:
        InvalidInput: if the fit holds something that JSON cannot hold.
        OSError: if the file cannot be written.

    Example:
        >>> import tempfile, pathlib
        >>> from temperance.rules import FittedDomain, FittedRule, SqrtDim, load_rule, save_rule
        >>> rule = FittedRule(SqrtDim(0.25), FittedDomain((16, 512), (2, 10)), norm="batch")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_rule(rule, pathlib.Path(folder) / "rule.json")
        ...     load_rule(pathlib.Path(folder) / "rule.json") == rule
        True
    """
    content = {
        "kind": _KIND,
        "schema": _SCHEMA,
        "rule": rule.rule.name,
        "norm": rule.norm,
        "coefficients": rule.coefficients,
        "fallback": rule.fallback,
        "domain": asdict(rule.domain),
        "fit": dict(rule.fit),
        "versions": {"temperance": __version__},
    }
    try:
        text = json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False)
    except (ValueError, TypeError) as error:
        raise InvalidInput(
            f"rule {rule.name}",
            expected="numbers and texts that JSON can hold",
            found=str(error),
            fix="Leave infinite numbers and objects out of its fit.",
        ) from error
    write_bytes(Path(path), (text + "\n").encode())


def load_rule(path: str | os.PathLike[str]) -> FittedRule:
    """Read a rule that ``save_rule`` or ``temperance fit --out`` wrote.

    Args:
        path: the JSON file.

    Returns:
        The rule, ready for ``suggest``.

    Raises:
        NotFound: if there is no such file, or it names a rule that is not known here.
        InvalidInput: if the file is something else, of another schema version, or has
            coefficients that the rule cannot take.
    """
    file = Path(path)
    if not file.is_file():
        raise NotFound(
            f"rule file {file}",
            found="there is no such file",
            fix="Name a file of temperance fit --out, or a rule of temperance rules.",
        )
    content = _read(file)
    try:
        rule = FittedRule(
            rule=_rule(file, content["rule"], content["coefficients"]),
            domain=FittedDomain(**{k: _tuples(v) for k, v in content["domain"].items()}),
            norm=content["norm"],
            fallback=content["fallback"],
            fit=content["fit"],
        )
    except InvalidInput as error:  # name the file, where the record does not
        if str(file) in error.subject:
            raise
        raise InvalidInput(
            f"rule file {file}, {error.subject}",
            expected=error.expected,
            found=error.found,
            fix="Check the file, or fit again.",
        ) from error
    except (KeyError, TypeError, AttributeError) as error:
        raise _bad_file(file, f"{type(error).__name__}: {error}") from error
    if rule.fit and "datasets" not in rule.fit:  # without, it could be judged on its own fit
        raise _bad_file(file, "a fit that does not name its datasets")
    return rule


def _read(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8-sig"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise _bad_file(file, f"{error}") from error
    if not isinstance(content, dict) or content.get("kind") != _KIND:
        raise _bad_file(file, "JSON of another kind")
    schema = content.get("schema")
    if schema != _SCHEMA or isinstance(schema, bool):
        raise InvalidInput(
            f"rule file {file}",
            expected=f"schema version {_SCHEMA}",
            found=repr(schema),
            fix="Read it with the release that wrote it, or fit again.",
        )
    return content


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text}, which is no JSON")


def _bad_file(file: Path, found: str) -> InvalidInput:
    return InvalidInput(
        f"rule file {file}",
        expected="JSON of temperance fit --out",
        found=found,
        fix="Check the file, or fit again.",
    )


def _rule(file: Path, name: str, coefficients: Mapping[str, Any]) -> Any:
    for key, value in coefficients.items():
        if not is_number(value):
            raise InvalidInput(
                f"rule file {file}, coefficient {key}",
                expected="a finite number",
                found=f"{value!r:.60}",
                fix="Check the file, or fit again.",
            )
    if name == StatisticsRule.name:
        terms = tuple((k, v) for k, v in coefficients.items() if k != "offset")
        return StatisticsRule(coefficients["offset"], terms)
    if not isinstance(name, str) or name.endswith(".json"):
        raise _bad_file(file, f"the rule {name!r:.60}")
    base: Any = find_rule(name, Task(1, 2))
    if not is_dataclass(base) or isinstance(base, type):
        raise _bad_file(file, f"the rule {name}, which has no coefficients")
    if unknown := sorted(set(coefficients) ^ {f.name for f in fields(base)}):
        raise _bad_file(file, f"coefficients that do not fit {name}: {', '.join(unknown)}")
    rule = replace(base, **coefficients)
    low, high = getattr(rule, "eps", 0.0), getattr(rule, "upper", math.inf)
    if not 0 <= low < high:
        raise _bad_file(file, f"clips that leave no T: eps {low:g}, upper {high:g}")
    return rule


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
