"""What a calibration method is: a frozen row of a table, with its fit and its formula.

A method is added with one ``CalibrationMethod`` and one row in ``CALIBRATORS``; the tests of the
table then run over it too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from temperance.errors import InvalidInput
from temperance.evaluation.fit_rows import Apply, FitRows, held_out_nll, too_few

__all__ = [
    "FOLDS",
    "NOT_FAVOURED",
    "SEED",
    "Arrays",
    "CalibrationMethod",
    "Choice",
    "Found",
    "Option",
    "choose",
    "plain",
]

Array = NDArray[np.float64]
Arrays = Mapping[str, Array]

#: Status of a fit that gives the plain temperature, because held-out rows do not favour more.
NOT_FAVOURED = "not favoured"


@dataclass(frozen=True)
class Option:
    """A number that a method can be given.

    Attributes:
        default: its value where none is given; None where it is then chosen by held-out rows.
        low: smallest value.
        high: largest value.
        whole: whether it is a whole number.
    """

    default: float | None
    low: float = 0.0
    high: float = math.inf
    whole: bool = False

    def read(self, name: str, value: Any) -> float | None:
        """Check a value; None is legal where the default is None."""
        if value is None and self.default is None:
            return None
        kinds = (int, np.integer) if self.whole else (int, float, np.integer, np.floating)
        good = isinstance(value, kinds) and not isinstance(value, bool)
        if not good or not self.low <= value <= self.high or math.isinf(value):
            kind = "a whole number" if self.whole else "a finite number"
            raise InvalidInput(
                f"option {name!r}",
                expected=f"{kind} from {self.low:g} to {self.high:g}"
                + (", or None to choose it by held-out rows" if self.default is None else ""),
                found=repr(value),
                fix=f"The default is {self.default}.",
            )
        return int(value) if self.whole else float(value)


FOLDS = Option(5, low=2, high=100, whole=True)  # five, as most papers on calibrators have it
SEED = Option(0, high=2**63 - 1, whole=True)


@dataclass(frozen=True, eq=False)
class Found:
    """What a fit found.

    Attributes:
        parameters: arrays by name.
        n_parameters: how many free numbers were fitted.
        status: as in ``Calibrator``.
        settings: what was chosen on the way.
        notes: what else should be known.
        plain: whether the parameters are ``{"temperature": T}`` although the method is another.
    """

    parameters: Arrays
    n_parameters: int
    status: str = "converged"
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    plain: bool = False


def plain(data: FitRows, *, status: str, note: str, settings: Mapping[str, Any]) -> Found:
    """The plain temperature, found in place of what the method would have fitted."""
    arrays = {"temperature": np.asarray(data.temperature)}
    return Found(arrays, 1, status, settings, (note,), plain=True)


@dataclass(frozen=True)
class Choice:
    """What held-out rows say.

    Attributes:
        best: place of the best candidate; None if the plain temperature is to be kept.
        settings: ``held_out_nll`` by name, and the ``gain`` of the best candidate over the plain
            temperature with its ``standard_error``, all in nats.
        why: the reason to keep the plain temperature, in words.
    """

    best: int | None
    settings: Mapping[str, Any]
    why: str = ""


def choose(
    data: FitRows,
    path: Callable[[FitRows], list[Apply]],
    options: Mapping[str, Any],
    names: list[str],
) -> Choice:
    """Choose a candidate by the NLL of held-out rows, if they favour it over one temperature.

    The best candidate must gain more than one standard error of the paired differences of the rows.

    Args:
        data: all rows.
        path: fits the candidates on some rows.
        options: with ``folds`` and ``seed``.
        names: of the candidates.

    Returns:
        The choice.
    """
    if too_few(data, options["folds"]):
        return Choice(None, {"held_out_nll": None}, "too few rows to choose by held-out ones")
    nll = held_out_nll(data, path, folds=options["folds"], seed=options["seed"])
    means = [float(data.w @ row) for row in nll]
    best = int(np.argmin(means[1:]))
    differences = nll[0] - nll[1 + best]
    gain = means[0] - means[1 + best]
    error = math.sqrt(float(np.square(data.w) @ np.square(differences - gain)))
    settings = {
        "held_out_nll": dict(zip(["temperature", *names], means, strict=True)),
        "gain": gain,
        "standard_error": error,
    }
    if gain > error:
        return Choice(best, settings)
    why = f"held-out rows gain {gain:.2g} nats, no more than one standard error, {error:.2g}"
    return Choice(None, settings, why)


@dataclass(frozen=True)
class CalibrationMethod:
    """A row of the table of calibrators.

    Attributes:
        name: what it is called.
        formula: the calibrated probabilities of logits z.
        n_parameters: how many numbers are fitted for C classes, as a formula.
        reference: authors, title, year and id.
        trust: what to trust it for, and what not.
        keeps_top: whether the most probable class, and so the accuracy, stays what it was.
        masks: whether -inf is legal for a class that a row cannot have.
        options: what it can be given, by name.
        shapes: shape of every parameter; ``"C"`` is the number of classes, ``"*"`` any length.
        fit: fits it.
        log_probs: log-probabilities ``[m, C]`` of shifted logits (see ``fit_rows.Apply``).
        valid: whether parameters of the right shape can be used.
    """

    name: str
    formula: str
    n_parameters: str
    reference: str
    trust: str
    keeps_top: bool
    masks: bool
    shapes: Mapping[str, tuple[str | int, ...]]
    fit: Callable[[FitRows, Mapping[str, Any]], Found]
    log_probs: Callable[[Arrays, Array], Array]
    valid: Callable[[Arrays], bool] = lambda arrays: True  # noqa: ARG005
    options: Mapping[str, Option] = field(default_factory=dict)

    def read_options(self, options: Mapping[str, Any] | None) -> dict[str, float | None]:
        """Fill in the defaults, and refuse what the method does not know."""
        given = {} if options is None else options
        if not isinstance(given, Mapping) or set(given) - set(self.options):
            unknown = (
                sorted(set(given) - set(self.options)) if isinstance(given, Mapping) else given
            )
            raise InvalidInput(
                "options",
                expected=f"for {self.name!r}: {', '.join(self.options) or 'none'}",
                found=repr(unknown),
                fix="Pass a mapping from names to numbers.",
            )
        return {k: o.read(k, given.get(k, o.default)) for k, o in self.options.items()}

    def read_parameters(self, parameters: Mapping[str, Any], n_classes: int) -> dict[str, Array]:
        """Parameters as arrays, checked: they may come from a file.

        Raises:
            InvalidInput: if one is missing, or has another shape, or is not finite.
        """
        if set(parameters) != set(self.shapes):
            raise self._refuse(", ".join(self.shapes), ", ".join(parameters) or "none")
        arrays = {}
        for name, wanted in self.shapes.items():
            try:
                found = np.asarray(parameters[name])
            except ValueError:
                found = np.asarray(None)
            if found.dtype.kind not in "fiu":  # neither texts nor booleans pass for numbers
                raise self._refuse(f"numbers in {name!r}", "something else")
            array = found.astype(np.float64)
            shape = tuple(n_classes if s == "C" else s for s in wanted)
            fits = len(shape) == array.ndim and all(
                s in ("*", a) for s, a in zip(shape, array.shape, strict=True)
            )
            if not fits or not np.isfinite(array).all():
                raise self._refuse(f"finite numbers in {name!r}, shape {list(shape)}", _of(array))
            arrays[name] = array
        if not self.valid(arrays):
            raise self._refuse("parameters in their range", "others")
        return arrays

    def _refuse(self, expected: str, found: str) -> InvalidInput:
        return InvalidInput(
            f"parameters of {self.name!r}",
            expected=expected,
            found=found,
            fix="Make calibrators with temperance.evaluation.fit_calibrator.",
        )


def _of(array: Array) -> str:
    return f"shape {list(array.shape)}" + ("" if np.isfinite(array).all() else ", not all finite")
