"""What a row of the ledger says: made from an outcome, and checked before it is kept."""

from __future__ import annotations

import hashlib
import json
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from typing import Any

from temperance.errors import InvalidInput
from temperance.study.ledger_lines import OUTCOMES, SCHEMA
from temperance.study.outcome import Outcome
from temperance.study.trial import Trial, trial_from_dict
from temperance.version import __version__

__all__ = ["check_row", "row_of", "task_key"]

_FIELDS = {
    "schema": int,
    "key": str,
    "outcome": str,
    "task": str,
    "trial": Mapping,
    "message": str,
    "metrics": Mapping,
    "history": Mapping,
    "seconds": float,
    "feature_dim": int,
    "versions": Mapping,
    "written": str,
}


def task_key(content: Mapping[str, Any]) -> str:
    """Give the digest of what a task is: its data, representation and size.

    Args:
        content: ``Trial.task_content``, or the same read from JSON. What is at the default of
            ``Trial`` does not count, so that a later field changes no key.

    Returns:
        20 hexadecimal digits.

    Example:
        >>> from temperance.study.ledger import task_key
        >>> from temperance.study.trial import Trial
        >>> a = task_key(Trial("digits", temperature=2).task_content)
        >>> a == task_key(Trial("digits", temperature=8, seed=1).task_content)
        True
    """
    default = {f.name: f.default for f in fields(Trial)}
    counted = {k: v for k, v in content.items() if k not in default or v != default[k]}
    text = json.dumps(counted, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def row_of(outcome: Outcome, metrics: Mapping[str, float], task_key: str) -> dict[str, Any]:
    """Make the ledger row of an outcome.

    Args:
        outcome: what a trial gave. Its curves are kept up to the last point at which all of them
            are finite.
        metrics: figures by name, as ``temperance.study.score`` gives them; empty unless ``done``.
        task_key: key of its task.

    Returns:
        A mapping of plain Python values.

    Raises:
        InvalidInput: for a metric that is no finite number, by its name; for metrics of a trial
            that is not ``done``, or an unknown outcome.

    Example:
        >>> from temperance.study.ledger import row_of, task_key
        >>> from temperance.study.outcome import Outcome
        >>> from temperance.study.trial import Trial
        >>> trial = Trial("digits")
        >>> outcome = Outcome(trial, "diverged", "the loss was inf in step 7")
        >>> row = row_of(outcome, {}, task_key(trial.task_content))
        >>> row["key"] == trial.key, row["outcome"]
        (True, 'diverged')
    """
    row = {
        "schema": SCHEMA,
        "key": outcome.trial.key,
        "outcome": outcome.outcome,
        "task": task_key,
        "trial": outcome.trial.to_dict(),
        "message": outcome.message,
        "metrics": {str(name): float(value) for name, value in metrics.items()},
        "seconds": float(outcome.seconds),
        "feature_dim": int(outcome.feature_dim),
        "versions": dict(_versions()),
        "written": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "history": _finite(outcome.history),
    }
    check_row(row)
    return row


def _finite(history: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Cut curves before the first point at which one of them is not finite."""
    plain = {str(name): _plain(curve) for name, curve in history.items()}
    points = min(
        (
            next((i for i, v in enumerate(c) if not math.isfinite(v)), len(c))
            for c in plain.values()
        ),
        default=0,
    )
    return {name: curve[:points] for name, curve in plain.items()}


def _plain(curve: Sequence[float]) -> list[float]:
    """Python's numbers; whole ones, such as steps, stay whole."""
    return [value if isinstance(value, int) else float(value) for value in curve]


@cache
def _versions() -> dict[str, str]:
    """What the figures were made with; torch is not imported for it."""
    return {
        "temperance": __version__,
        "torch": metadata.version("torch"),
        "numpy": metadata.version("numpy"),
        "python": platform.python_version(),
    }


def check_row(row: Mapping[str, Any]) -> None:
    """Refuse a row that later readers could not use or would misread.

    Args:
        row: what ``row_of`` gives, or the like.

    Raises:
        InvalidInput: if a field lacks or is of another kind, if the key is not that of the trial,
            or if there are metrics of a trial that is not done, or metrics that are not finite.
    """
    for name, kind in _FIELDS.items():
        value = row.get(name)
        good = isinstance(value, int | float if kind is float else kind)
        if not good or isinstance(value, bool):
            _refuse(name, f"a {kind.__name__.lower()}", repr(value))
    if row["schema"] != SCHEMA:
        _refuse("schema", str(SCHEMA), repr(row["schema"]))
    if row["outcome"] not in OUTCOMES:
        _refuse("outcome", " or ".join(OUTCOMES), repr(row["outcome"]))
    key = trial_from_dict(row["trial"]).key
    if row["key"] != key:
        _refuse("key", f"{key}, the key of its trial", repr(row["key"]))
    if row["metrics"] and row["outcome"] != "done":
        _refuse("metrics", "none unless the trial is done", ", ".join(row["metrics"]))
    for name, value in row["metrics"].items():
        if not isinstance(value, int | float) or not math.isfinite(value):
            _refuse(f"metrics.{name}", "a finite number", repr(value))
    if not math.isfinite(row["seconds"]):
        _refuse("seconds", "a finite number", repr(row["seconds"]))


def _refuse(name: str, expected: str, found: str) -> None:
    raise InvalidInput(
        f"ledger row: {name}",
        expected=expected,
        found=found,
        fix="What gave no finite number is recorded as diverged, without metrics."
        if name.startswith("metrics")
        else "Make rows with temperance.study.ledger.row_of.",
    )
