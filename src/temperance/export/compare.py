"""Is the exported graph the live model? A probe of several batch sizes, and the largest difference.

What is expected comes from the live model, which is not folded (and copied only from an
accelerator to the CPU); temperatures, softmax and the mean of members are done once more here, in
float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from temperance.ensemble import Ensemble
from temperance.errors import InvalidInput
from temperance.evaluation.member_temperature import apply_member_temperatures
from temperance.evaluation.posthoc import apply_temperature
from temperance.export.deploy import Exportable
from temperance.models import call_model, device_of, evaluating, logits_of, to_device

__all__ = ["SIZES", "TOLERANCE", "Difference", "Runner", "compare", "probe_batches"]

SIZES = (1, 3, 8)
"""Rows of the batches of a probe; that of the example comes behind them."""

TOLERANCE = {
    torch.float64: 1e-9,
    torch.float32: 1e-4,
    torch.float16: 1e-2,
    torch.bfloat16: 5e-2,
}
"""Largest relative difference by number format: its rounding, times what many layers add."""

Runner = Callable[[Sequence[Tensor]], Tensor]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Difference:
    """How far a graph is from the live model.

    Attributes:
        sizes: rows of every batch.
        free: axes of the output, other than the rows, whose size was not the same in all batches.
        max_abs_error: largest difference of an output.
        max_rel_error: the same, divided by the largest absolute output of the live model.
        agreement: share of the rows with the same most probable class.
        tolerance: what ``max_rel_error`` had to stay below.
    """

    sizes: tuple[int, ...]
    free: tuple[int, ...]
    max_abs_error: float
    max_rel_error: float
    agreement: float
    tolerance: float


def compare(found: Exportable, run: Runner, *, tolerance: float | None = None) -> Difference:
    """Run a graph and the live model on the probe.

    Args:
        found: what was exported.
        run: gives the outputs of the graph, read back, for tensors.
        tolerance: largest relative difference; that of the number format if absent. The tolerance
            of the options goes before both.

    Returns:
        The differences.

    Raises:
        InvalidInput: if the graph fails at some batch size, gives another shape, NaN or infinity,
            or is too far from the live model; or if that gives NaN or infinity.
    """
    batches, shapes = [], []
    largest, scale, same, rows = 0.0, 0.0, 0, 0
    for choices in zip(probe_batches(found), probe_batches(found, noise=False), strict=True):
        tensors, expected = _first_finite(found, choices)
        outputs = _graph(run, tensors, expected.shape)
        batches.append(tensors)
        shapes.append(expected.shape)
        largest = max(largest, float(np.abs(outputs - expected).max()))
        scale = max(scale, float(np.abs(expected).max()))
        equal = outputs.argmax(axis=-1) == expected.argmax(axis=-1)
        same, rows = same + int(equal.sum()), rows + equal.size
    relative = largest / scale if scale else math.inf if largest else 0.0
    allowed = found.options.tolerance or tolerance or _tolerance(found)
    sizes = tuple(len(tensors[0]) for tensors in batches)
    if not relative <= allowed:
        raise _not_the_same(
            f"the outputs of the live model up to {allowed:g} of the largest",
            f"a relative difference of {relative:.3g} ({same} of {rows} top classes agree)",
        )
    batch = _batch_axis(found)
    sides = enumerate(zip(*shapes, strict=True))
    free = tuple(i for i, side in sides if i != batch and len({*side}) > 1)
    return Difference(sizes, free, largest, relative, same / rows, allowed)


def _batch_axis(found: Exportable) -> int:
    return 1 if found.members and found.options.output == "logits" else 0


def probe_batches(found: Exportable, *, noise: bool = True) -> list[tuple[Tensor, ...]]:
    """Draw the batches that a graph is tried on.

    Numbers are those of the example with noise of its spread; ids, masks and the like are its rows,
    but for a mask without padding, of which every second row gets some: a trace of a branch for
    rows without padding would be wrong for others. Where other axes than the batch may have any
    size, one batch has half of them.

    Args:
        found: what was exported.
        noise: whether to add noise and padding; else all are rows of the example.

    Returns:
        One tuple of tensors per batch; where it has one size, of that.
    """
    tensors, axes = found.tensors, found.options.axes
    generator = torch.Generator().manual_seed(0)
    sizes = SIZES if 0 in axes else ()
    batches = [_drawn(tensors, n, generator, noise=noise) for n in sizes]
    others = [axis for axis in axes if axis != 0]
    if others:
        batches.append(tuple(_halved(t, others) for t in [tensors, *batches][-1]))
    return [*batches, tensors]


def _drawn(
    tensors: Sequence[Tensor], n: int, generator: torch.Generator, *, noise: bool
) -> tuple[Tensor, ...]:
    size = len(tensors[0])
    index = torch.randint(size, (n,), generator=generator)
    drawn = []
    for t in tensors:
        if t.dim() == 0 or len(t) != size:
            drawn.append(t)
        elif noise and t.is_floating_point():
            spread = float(t.double().std()) if t.numel() > 1 else 0.0
            more = torch.randn(n, *t.shape[1:], generator=generator).to(t.dtype)
            drawn.append(t[index] + (spread or 1.0) * more)
        elif noise and t.dim() > 1 and bool((t == 1).all()):
            padded = t[index]
            padded[1::2, (t.shape[1] + 1) // 2 :] = 0
            drawn.append(padded)
        else:
            drawn.append(t[index])
    return tuple(drawn)


def _halved(tensor: Tensor, axes: Sequence[int]) -> Tensor:
    for axis in axes:
        if axis < tensor.dim():
            tensor = tensor.narrow(axis, 0, (tensor.shape[axis] + 1) // 2)
    return tensor.contiguous()


# ------------------------------------------------------------------ both sides
def _first_finite(
    found: Exportable, choices: Sequence[tuple[Tensor, ...]]
) -> tuple[tuple[Tensor, ...], Floats]:
    """The first batch with finite outputs: noise may lead where a model is not defined."""
    for tensors in choices:
        with suppress(Exception) if tensors is not choices[-1] else nullcontext():
            expected = _live(found, tensors)
            if np.isfinite(expected).all():
                return tensors, expected
    raise InvalidInput(
        "example",
        expected="inputs with finite logits",
        found="NaN or infinity from the live model",
        fix="Pass a batch as it comes in practice.",
    )


def _live(found: Exportable, tensors: Sequence[Tensor]) -> Floats:
    """What the live model says, with everything behind its logits in float64."""
    model, posthoc = found.live, found.posthoc
    own = next((p.dtype for p in model.parameters() if p.is_floating_point()), None)
    cast = [t.to(own) if own is not None and t.is_floating_point() else t for t in tensors]
    inputs = to_device(found.form.rebuilt(tuple(cast)), device_of(model))
    with evaluating(model), torch.no_grad():
        if isinstance(model, Ensemble):
            args, kwargs = found.form.as_call(inputs)
            raw = torch.stack(list(model.run_each(*args, **kwargs)))
        else:
            raw = logits_of(call_model(model, inputs), key=found.options.output_key)
    z = raw.double().cpu().numpy()
    if not np.isfinite(z).all():
        return np.asarray(z)
    temperatures = posthoc.temperatures or (1.0,)
    if found.members is None:
        z = apply_temperature(z, temperatures[0])
        return z if found.options.output == "logits" else _softmax(z)
    if found.options.output == "logits":
        each = np.asarray(temperatures if posthoc.when == "before" else (1.0,))
        return z / each[:, None, None]
    return np.exp(apply_member_temperatures(z, temperatures, when=posthoc.when))


def _softmax(z: Floats) -> Floats:
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def _graph(run: Runner, tensors: Sequence[Tensor], shape: tuple[int, ...]) -> Floats:
    try:
        outputs = run(tensors).detach().double().cpu().numpy()
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0][:200]
        raise _not_the_same(
            f"outputs for a batch of {len(tensors[0])} rows", f"{type(error).__name__}: {first}"
        ) from error
    if outputs.shape != shape:
        raise _not_the_same(f"outputs of shape {list(shape)}", f"shape {list(outputs.shape)}")
    if not np.isfinite(outputs).all():  # no comparison with NaN is above a tolerance
        raise _not_the_same("finite outputs, as the live model has", "NaN or infinity")
    return np.asarray(outputs)


def _tolerance(found: Exportable) -> float:
    """That of the coarsest number format on either side."""
    sides = (*found.live.parameters(), *found.module.parameters())
    return max((TOLERANCE.get(p.dtype, 0.0) for p in sides), default=1e-4) or 1e-4


def _not_the_same(expected: str, found: str) -> InvalidInput:
    return InvalidInput(
        "exported graph",
        expected=expected,
        found=found,
        fix="The graph froze something that depends on the batch or on values. Nothing was "
        "written: try another format, or axes={} for a batch of one size.",
    )
