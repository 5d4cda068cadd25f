"""The coefficients of the law of the budget: their records, and the JSON file that holds them.

The file (schema 1)::

    {"kind": "temperance budget law", "schema": 1,
     "version": "2026.1",                    which fit this is
     "default": false,                       whether suggest takes it by itself
     "target": "nll_posthoc",                whose best T the rule gives, a key of targets
     "temperatures": [0.25, 128],            smallest and largest T of the runs
     "source": "...", "fit": {"datasets": [...], ...},
     "targets": {"nll_posthoc": {"sgd": FAMILY, "adam": FAMILY, ...}, "nll": ..., "accuracy": ...}}

with one FAMILY for each family of optimizers (``rules.training.FAMILIES``), and one for trainings
whose rate at T = 1 was tuned (``"sgd, tuned"``), where there is one::

    {"intercept": -1.2, "terms": {"log(M)": 0.1, "log(steps)": 0.9},
     "covariance": [[...], ...],             of intercept and terms, in this order
     "residual_sd": 0.4,                     of log best T around the law, on settings not fitted
     "degrees_of_freedom": 25,               of the t distribution behind the interval
     "n_settings": 300,
     "domain": {"M": [16, 2048], "steps": [30, 6000], ..., "optimizer": ["sgd"], "norm": ["batch"]}}
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from temperance.errors import InvalidInput, NotFound
from temperance.files import write_bytes
from temperance.rules.budget_terms import FACTS, check_term, statistics_in
from temperance.rules.fitted_domain import FittedDomain, is_number
from temperance.rules.training import FAMILIES

__all__ = [
    "PACKAGED",
    "TARGETS",
    "TUNED",
    "Coefficients",
    "Family",
    "coefficients_of",
    "load_coefficients",
    "save_coefficients",
]

PACKAGED = "budget.json"
"""Name of the file with the coefficients that come with the library, beside this module."""

TUNED = ", tuned"
"""End of the name of the law of a family for trainings whose rate at T = 1 is known."""

TARGETS = ("nll_posthoc", "nll", "accuracy")
"""Whose best T a law can give, all on validation rows."""

_KIND, _SCHEMA = "temperance budget law", 1
_TEXTS = ("optimizer", "norm", "schedule")  # facts of the domain that are no numbers
_SYMMETRIC = 1e-6  # difference of two entries of a covariance that were written as rounded


@dataclass(frozen=True)
class Family:
    """The law of one family of optimizers: ``log T = intercept + sum of coefficient * term``.

    Attributes:
        intercept: log T where all terms are 0.
        terms: pairs of term and coefficient (``budget_terms.TERMS``), ``k`` of them.
        covariance: of the estimates of intercept and coefficients, ``[k + 1, k + 1]``.
        residual_sd: standard deviation of log best T around the law.
        degrees_of_freedom: of the t distribution of the prediction interval, 1 or more.
        n_settings: settings of the fit.
        domain: ranges of numbers, or the texts that occurred, by fact.
    """

    intercept: float
    terms: tuple[tuple[str, float], ...]
    covariance: tuple[tuple[float, ...], ...]
    residual_sd: float
    degrees_of_freedom: float
    n_settings: int
    domain: tuple[tuple[str, tuple[Any, ...]], ...]

    def __post_init__(self) -> None:
        for term, _ in self.terms:
            check_term(term)
        size = 1 + len(self.terms)
        numbers = (self.intercept, *(value for _, value in self.terms))
        _check("terms", len({t for t, _ in self.terms}) == len(self.terms), "every term once")
        _check("terms", all(map(is_number, numbers)), "finite numbers")
        square = len(self.covariance) == size and all(len(r) == size for r in self.covariance)
        _check("covariance", square, f"{size} rows and columns, of the intercept and each term")
        _check("covariance", _is_covariance(self.covariance), "a symmetric table, no variance < 0")
        _check("residual_sd", _is_at_least(self.residual_sd, 0), "0 or more")
        _check("degrees_of_freedom", _is_at_least(self.degrees_of_freedom, 1), "1 or more")
        _check("n_settings", _is_at_least(self.n_settings, 1), "1 or more")
        known = (*FACTS, *_TEXTS, *statistics_in(tuple(term for term, _ in self.terms)))
        for name, seen in self.domain:
            _check(f"domain, {name}", name in known, f"facts among {', '.join(known)}")
            _check(f"domain, {name}", _is_seen(name, seen), "two ascending numbers, or texts")
        lacking = [name for name in ("M", "C", "n") if name not in dict(self.domain)]
        _check("domain", not lacking, "a range of M, of C and of n")


@dataclass(frozen=True)
class Coefficients:
    """The law of the budget for every family, by target.

    Attributes:
        version: which fit this is.
        default: whether ``suggest`` takes the rule by itself, where it knows the training.
        target: whose best T the rule gives unless it is told otherwise.
        temperatures: smallest and largest T of the runs.
        source: where the numbers come from, in words.
        targets: pairs of a name in ``TARGETS`` and pairs of family and its law.
        fit: how it was fitted; ``datasets`` are those that it must not be judged on.
    """

    version: str
    default: bool
    target: str
    temperatures: tuple[float, float]
    source: str
    targets: tuple[tuple[str, tuple[tuple[str, Family], ...]], ...]
    fit: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        _check("version", isinstance(self.version, str) and self.version != "", "a text")
        _check("source", isinstance(self.source, str) and self.source != "", "a text")
        _check("default", isinstance(self.default, bool), "true or false")
        names = [name for name, _ in self.targets]
        _check("targets", set(names) <= set(TARGETS), f"names among {', '.join(TARGETS)}")
        _check("target", self.target in names, f"one of {', '.join(names) or 'some targets'}")
        for name, families in self.targets:
            there = {family.removesuffix(TUNED) for family, _ in families}
            known = families and there <= set(FAMILIES)
            _check(f"targets, {name}", bool(known), f"families among {', '.join(FAMILIES)}")
        tried = self.temperatures
        ends = len(tried) == 2 and all(map(is_number, tried)) and 0 < tried[0] < tried[1]
        _check("temperatures", ends, "two ascending positive numbers")
        sets = self.fit.get("datasets")
        known = isinstance(sets, list | tuple) and all(isinstance(name, str) for name in sets)
        _check("fit, datasets", bool(known), "the names of the data sets of the fit")

    def families(self, target: str) -> dict[str, Family]:
        """Give the laws of a target by family."""
        for name, families in self.targets:
            if name == target:
                return dict(families)
        raise NotFound(
            "target of the law",
            found=f"no {target!r:.60}",
            candidates=[name for name, _ in self.targets],
            fix="Name one.",
        )

    def domain_of(self, family: Family) -> FittedDomain:
        """Give the domain of one law in the form that fitted rules have."""
        seen = dict(family.domain)
        sizes = {name: _whole_ends(seen.pop(name)) for name in ("M", "C", "n")}
        used = statistics_in(tuple(term for term, _ in family.terms))
        statistics = tuple((name, _ends(seen.pop(name))) for name in used if name in seen)
        return FittedDomain(
            feature_dim=sizes["M"],
            n_classes=sizes["C"],
            n_samples=sizes["n"],
            statistics=statistics,
            training=tuple(seen.items()),
            source=self.source,
            temperatures=self.temperatures,
        )


# ------------------------------------------------------------------ reading and writing
def load_coefficients(path: str | os.PathLike[str] | None = None) -> Coefficients:
    """Read coefficients of the law of the budget.

    Args:
        path: a file of ``save_coefficients``; None for the one that comes with the library.

    Returns:
        The coefficients.

    Raises:
        NotFound: if there is no such file.
        InvalidInput: if it is something else, of another schema, or holds what cannot be used.
    """
    file = resources.files("temperance.rules") / PACKAGED if path is None else Path(path)
    if not file.is_file():
        raise NotFound(
            f"coefficients of the budget rule, {file}",
            found="there is no such file",
            fix="Name a file of save_coefficients."
            if path is not None
            else "Install the library again.",
        )
    try:
        content = json.loads(file.read_text(encoding="utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise _bad(f"{error}", str(file)) from error
    return coefficients_of(content, where=str(file))


def save_coefficients(
    content: Mapping[str, Any] | Coefficients, path: str | os.PathLike[str]
) -> Coefficients:
    """Check coefficients and write them as JSON, whole or not at all.

    Args:
        content: what the file is to hold, without ``kind`` and ``schema``; or the record.
        path: the file.

    Returns:
        The coefficients, as they are read again.

    Raises:
        InvalidInput: if they cannot be used.
        NotFound: for a term that is not known.
        OSError: if the file cannot be written.

    Example:
        >>> import pathlib, tempfile
        >>> from temperance.rules.budget_file import load_coefficients, save_coefficients
        >>> law = {"intercept": 0.0, "terms": {"log(steps)": 0.5},
        ...        "covariance": [[0.1, 0.0], [0.0, 0.01]], "residual_sd": 0.3,
        ...        "degrees_of_freedom": 20, "n_settings": 100,
        ...        "domain": {"M": [16, 512], "C": [2, 100], "n": [300, 6000]}}
        >>> content = {"version": "mine", "default": False, "target": "nll", "source": "my runs",
        ...            "temperatures": [0.25, 128], "fit": {"datasets": ["letter"]},
        ...            "targets": {"nll": {"sgd": law}}}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder) / "budget.json"
        ...     save_coefficients(content, file) == load_coefficients(file)
        True
    """
    plain = _plain(content) if isinstance(content, Coefficients) else dict(content)
    whole = {"kind": _KIND, "schema": _SCHEMA, **plain}
    try:
        text = json.dumps(whole, indent=1, allow_nan=False, ensure_ascii=False)
    except (ValueError, TypeError) as error:
        raise _bad(f"{error}", "coefficients of the budget rule") from error
    found = coefficients_of(json.loads(text))
    write_bytes(Path(path), (text + "\n").encode())
    return found


def coefficients_of(
    content: Mapping[str, Any], *, where: str = "coefficients of the budget rule"
) -> Coefficients:
    """Make coefficients of the content of a file.

    Args:
        content: the parsed JSON.
        where: what to call it in an error.

    Returns:
        The coefficients.

    Raises:
        InvalidInput: if something is missing, unknown or out of range.
        NotFound: for a term that is not known.
    """
    if not isinstance(content, Mapping) or content.get("kind") != _KIND:
        raise _bad("JSON of another kind", where)
    if content.get("schema") != _SCHEMA or isinstance(content["schema"], bool):
        raise _bad(f"schema version {content.get('schema')!r:.20} instead of {_SCHEMA}", where)
    parts = {k: v for k, v in content.items() if k not in ("kind", "schema")}
    try:
        targets = tuple(
            (name, tuple((family, _family(law)) for family, law in families.items()))
            for name, families in parts.pop("targets").items()
        )
        temperatures = tuple(parts.pop("temperatures"))
        return Coefficients(targets=targets, temperatures=temperatures, **parts)
    except InvalidInput as error:
        raise _bad(f"{error.found} in {error.subject}", where, error.expected) from error
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise _bad(f"{type(error).__name__}: {error}", where) from error


def _family(law: Mapping[str, Any]) -> Family:
    parts = dict(law)
    return Family(
        terms=tuple(parts.pop("terms").items()),
        covariance=tuple(map(tuple, parts.pop("covariance"))),
        # A text alone would fall apart into its letters.
        domain=tuple(
            (name, (seen,) if isinstance(seen, str) else tuple(seen))
            for name, seen in parts.pop("domain").items()
        ),
        **parts,
    )


def _plain(coefficients: Coefficients) -> dict[str, Any]:
    parts = dict(vars(coefficients))
    parts["targets"] = {
        name: {
            family: {**vars(law), "terms": dict(law.terms), "domain": dict(law.domain)}
            for family, law in families
        }
        for name, families in coefficients.targets
    }
    return parts


# ------------------------------------------------------------------ checks
def _check(name: str, good: bool, expected: str) -> None:
    if not good:
        raise InvalidInput(name, expected=expected, found="something else", fix="Check the file.")


def _bad(found: str, where: str, expected: str = "JSON of save_coefficients") -> InvalidInput:
    return InvalidInput(where, expected=expected, found=found, fix="Check the file.")


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text}, which is no JSON")


def _is_at_least(value: Any, least: float) -> bool:
    return is_number(value) and bool(value >= least)


def _is_covariance(rows: tuple[tuple[float, ...], ...]) -> bool:
    if not all(is_number(value) for row in rows for value in row):
        return False
    if any(row[place] < 0 for place, row in enumerate(rows)):
        return False
    return all(
        math.isclose(rows[i][j], rows[j][i], rel_tol=_SYMMETRIC, abs_tol=1e-12)
        and abs(rows[i][j]) <= math.sqrt(rows[i][i] * rows[j][j]) * (1 + _SYMMETRIC) + 1e-12
        for i in range(len(rows))
        for j in range(i)
    )


def _is_seen(name: str, seen: tuple[Any, ...]) -> bool:
    if name in _TEXTS:
        return bool(seen) and all(isinstance(text, str) for text in seen)
    whole = name in ("M", "C", "n")
    numbers = len(seen) == 2 and all(map(is_number, seen)) and seen[0] <= seen[1]
    return numbers and (not whole or all(float(end).is_integer() for end in seen))


def _ends(seen: tuple[Any, ...]) -> tuple[float, float]:
    return seen[0], seen[1]


def _whole_ends(seen: tuple[Any, ...]) -> tuple[int, int]:
    return int(seen[0]), int(seen[1])
