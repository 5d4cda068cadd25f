"""What an export is asked for, and what it says of itself afterwards."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from temperance.errors import InvalidInput
from temperance.evaluation.calibrators import Calibrator
from temperance.evaluation.temperature_fit import check_temperature

__all__ = ["BATCH", "OUTPUTS", "ExportOptions", "ExportReport", "Posthoc", "posthoc_of"]

OUTPUTS = ("logits", "probs")
BATCH: Mapping[int, str] = MappingProxyType({0: "batch"})
"""The default of ``ExportOptions.axes``: batches of any size."""


@dataclass(frozen=True)
class ExportOptions:
    """Rarely changed settings of an export.

    Attributes:
        output: ``logits``: ``[batch, classes]``, of an ensemble ``[members, batch, classes]``; or
            ``probs``: probabilities ``[batch, classes]``, of an ensemble the mean of its members'.
        posthoc: a temperature fitted after training that goes into the graph: a number, a sequence
            of them (one for each member, before averaging), or what ``temperance calibrate`` fitted
            by the method ``temperature``. Of an ensemble, one number divides the logarithm of the
            mean probabilities, and so needs ``output="probs"``.
        axes: names of the axes of the inputs that may have any size; ``{}`` for none,
            ``{0: "batch", 1: "tokens"}`` for texts.
        output_key: which entry of the model's output holds the logits, see ``logits_of``.
        metadata: plain values that are written into the file under their names.
        tolerance: largest difference to the live model, relative to its largest output; by default
            that of the number format (1e-4 for float32, 0.1 for int8).
    """

    output: str = "logits"
    posthoc: float | Sequence[float] | Calibrator | None = None
    axes: Mapping[int, str] = field(default_factory=lambda: BATCH)
    output_key: str | int | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    tolerance: float | None = None

    def __post_init__(self) -> None:
        if self.output not in OUTPUTS:
            raise InvalidInput(
                "output",
                expected=" or ".join(OUTPUTS),
                found=repr(self.output),
                fix="Choose one of them.",
            )
        if not _good_axes(self.axes):
            raise InvalidInput(
                "axes",
                expected="a different name for every axis, counted from 0",
                found=repr(self.axes),
                fix='Pass {0: "batch"}, or {} for inputs of one size.',
            )
        if self.tolerance is not None and not self.tolerance > 0:
            raise InvalidInput(
                "tolerance",
                expected="a number above 0",
                found=repr(self.tolerance),
                fix="Leave it out for the default of the number format.",
            )


@dataclass(frozen=True)
class ExportReport:
    """What was written, and how far it is from the live model.

    Attributes:
        format: ``onnx``, ``torch-export``, ``torchscript`` or ``int8``.
        path: the file.
        bytes: its size.
        inputs: name of every input with its shape; names stand for axes of any size.
        output: ``logits`` or ``probs``.
        output_shape: likewise.
        members: M of an ensemble; None of a single model.
        batch_sizes: rows of each batch of the probe.
        max_abs_error: largest difference of an output to the live model over the probe.
        max_rel_error: the same, divided by the largest absolute output of the live model.
        agreement: share of the rows (of an ensemble's logits, of rows and members) where both have
            the same most probable class, 0 to 1.
        tolerance: what ``max_rel_error`` had to stay below.
        folded: tempered heads that became plain layers, by name.
        posthoc_temperatures: those in the graph; empty if there are none.
        notes: what else should be known, in words.
        versions: of the packages that made the file.
    """

    format: str
    path: str
    bytes: int
    inputs: Mapping[str, tuple[int | str, ...]]
    output: str
    output_shape: tuple[int | str, ...]
    members: int | None
    batch_sizes: tuple[int, ...]
    max_abs_error: float
    max_rel_error: float
    agreement: float
    tolerance: float
    folded: tuple[str, ...] = ()
    posthoc_temperatures: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Posthoc:
    """Temperatures after training, as they go into a graph.

    Attributes:
        temperatures: one, or one for each member; none.
        when: ``after`` or ``before`` members are averaged.
    """

    temperatures: tuple[float, ...] = ()
    when: str = "after"


def posthoc_of(options: ExportOptions, *, members: int | None, n_classes: int) -> Posthoc:
    """Read the post-hoc temperatures of the options, for a model or an ensemble.

    Args:
        options: the options.
        members: M of an ensemble; None of a single model.
        n_classes: C.

    Returns:
        The temperatures.

    Raises:
        InvalidInput: if they are no temperatures, do not belong to the model, or cannot go into
            the output that is asked for.
    """
    value: Any = options.posthoc
    if value is None:
        return Posthoc()
    if isinstance(value, Calibrator):
        value = _of_calibrator(value, n_classes)
    single = isinstance(value, numbers.Real) and not isinstance(value, bool)
    values = [value] if single else value
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        raise _invalid(
            "a number, one for each member, or a calibration",
            type(value).__name__,
            "Pass one; of a TemperatureFit its .applied.",
        )
    for t in values:
        check_temperature(t)
    temperatures = tuple(float(t) for t in values)
    if not single and len(temperatures) != members:
        raise _invalid(
            "a single number" if members is None else f"one number, or one for each of {members}",
            f"{len(temperatures)} of them",
            "One for each member divides its logits; one alone their mean.",
        )
    if members is not None and single and options.output == "logits":
        raise _invalid(
            "the output 'probs' for one temperature of an ensemble",
            "the output 'logits'",
            "It divides the logarithm of the members' mean probabilities, not their logits.",
        )
    return Posthoc(temperatures, "after" if single else "before")


def _good_axes(axes: Any) -> bool:
    if not isinstance(axes, Mapping):
        return False
    names = list(axes.values())
    named = all(isinstance(n, str) and n.isidentifier() for n in names)
    counted = all(isinstance(k, int) and not isinstance(k, bool) and k >= 0 for k in axes)
    return named and counted and len({*names}) == len(names)


def _of_calibrator(calibrator: Calibrator, n_classes: int) -> float:
    if calibrator.n_classes != n_classes:
        raise _invalid(
            f"one for {n_classes} classes, as the model has",
            f"one for {calibrator.n_classes}",
            "Fit it on logits of this model.",
        )
    value = calibrator.parameters.get("temperature")
    plain = calibrator.plain or calibrator.method == "temperature"
    if not plain or not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise _invalid(
            "one temperature",
            f"the method {calibrator.method!r}",
            "Calibrate with --method temperature, or give the exported logits to the calibration.",
        )
    return float(value)


def _invalid(expected: str, found: str, fix: str) -> InvalidInput:
    return InvalidInput("post-hoc temperature", expected=expected, found=found, fix=fix)
