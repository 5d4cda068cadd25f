"""Giving a new BatchNorm the statistics of the training data, in one pass."""

from __future__ import annotations

import itertools
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from temperance.errors import InvalidInput, NotFound, TemperanceWarning
from temperance.head.moments import Moments
from temperance.head.surgery import shared_names, tempered_heads
from temperance.head.tempered import BatchNorm, TemperedHead
from temperance.models.outputs import call_model, device_of, split_batch, to_device
from temperance.models.probe import evaluating, unwrap

__all__ = ["NormStatistics", "set_norm_statistics"]


@dataclass(frozen=True)
class NormStatistics:
    """What a pass over the data found, and how far the norm was from it.

    Attributes:
        n_rows: rows of features (for token inputs: tokens).
        n_batches: batches read.
        dead: indices of the features that have one and the same value in all rows.
        mean_shift: largest distance of the former running mean from the mean, in units of std.
        variance_ratio: largest factor between the former running variance and the variance, >= 1.
    """

    n_rows: int
    n_batches: int
    dead: tuple[int, ...]
    mean_shift: float
    variance_ratio: float


def set_norm_statistics(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    keep_function: bool = False,
    max_batches: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> NormStatistics:
    """Set the running statistics of a tempered head's BatchNorm to those of the data, in place.

    The mean and the unbiased variance over all rows, in float64, each row with the same weight
    (not a moving average of batches, so one-row batches are fine). The model runs in evaluation
    mode and is put back afterwards; the global random state is restored.

    Constant ("dead") features, with exactly the same value in every row, have no scale: dividing by
    sqrt(0 + eps) would turn a later 1 into 316. They get variance 1, and the scale 0, which
    training leaves at 0 while they stay constant. With ``keep_function`` or without affine part
    they get variance 1 only; training then lets the variance decay again, so run this once more
    afterwards.

    Args:
        model: a model with one tempered head with BatchNorm.
        loader: batches of training data, in any form that ``split_batch`` reads.
        keep_function: for a freshly inserted head: choose scale ``sqrt(var + eps)`` and shift
            ``mean``, and multiply the linear layer by T, so that the model in evaluation mode
            computes what it did before ``insert``.
        max_batches: take no more than this many from the loader.
        progress: called with the number of batches done.

    Returns:
        The figures of the pass.

    Raises:
        NotFound: if there is no tempered head, or more than one.
        InvalidInput: if the head has no BatchNorm with running statistics; if there are fewer than
            two rows, or features that are not finite; if a new value is too large for its type;
            with ``keep_function``, if the head is not fresh, has no affine part, or shares its
            weights. The model is then unchanged.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from temperance import insert, set_norm_statistics
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
        >>> head = insert(model, 2.0)
        >>> set_norm_statistics(model, [torch.ones(1, 4), 3 * torch.ones(1, 4)]).n_rows
        2
        >>> head.norm.running_mean
        tensor([2., 2., 2., 2.])
    """
    max_batches = checked_max_batches(max_batches)
    model = unwrap(model)
    head = _only_head(model)
    norm = _batch_norm(head)
    if keep_function:
        _check_fresh(model, head, norm)
    moments = _read(model, head, loader, max_batches, progress)
    mean, variance = moments.result()
    dead = moments.constant()
    figures = _figures(moments, norm, mean, variance, dead)
    _write(head, norm, moments, dead=dead, keep_function=keep_function)
    _warn_dead(figures.dead)
    return figures


# ------------------------------------------------------------------ reading
def _read(
    model: nn.Module,
    head: TemperedHead,
    loader: Iterable[Any],
    max_batches: int | None,
    progress: Callable[[int], None] | None,
) -> Moments:
    moments = Moments(head.in_features)
    device = device_of(model)
    with evaluating(model), torch.no_grad(), _watching(head, moments):
        # Inside, since a DataLoader draws from the global random state.
        for batch in itertools.islice(loader, max_batches):
            before = moments.rows
            call_model(model, to_device(split_batch(batch)[0], device))
            if moments.rows == before:
                raise InvalidInput(
                    f"batch {moments.batches}",
                    expected="rows that reach the head",
                    found="none",
                    fix="Check that the model calls its head and that the batch is not empty.",
                )
            moments.batches += 1
            if progress is not None:
                progress(moments.batches)
    return moments


@contextmanager
def _watching(head: TemperedHead, moments: Moments) -> Iterator[None]:
    """Collect what goes into the head."""

    def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x = args[0] if args else kwargs["input"]
        rows = x.detach().movedim(head.feature_axis, -1).reshape(-1, head.in_features)
        _check_finite(rows, moments.batches)
        moments.add(rows)

    handle = head.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def _check_finite(rows: Tensor, batch: int) -> None:
    good = torch.isfinite(rows).all(dim=1)
    if bool(good.all()):
        return
    row = int((~good).nonzero()[0])
    raise InvalidInput(
        "features of the head",
        expected="finite numbers",
        found=f"NaN or infinity in batch {batch}, row {row} (both from 0)",
        fix="Look at that sample, and at the weights of the backbone.",
    )


# ------------------------------------------------------------------ writing
@torch.no_grad()
def _write(
    head: TemperedHead,
    norm: BatchNorm,
    moments: Moments,
    *,
    dead: Tensor,
    keep_function: bool,
) -> None:
    mean, variance = moments.result()
    running_mean, running_var = _running(norm)
    variance = torch.where(dead, 1.0, variance).to(running_var)
    new = {"mean": (running_mean, mean), "variance": (running_var, variance)}
    if keep_function:
        new["scale"] = (norm.weight, (variance.double() + norm.eps).sqrt())
        new["shift"] = (norm.bias, mean)
        for name, parameter in head.linear.named_parameters():
            new[f"{name} * T"] = (parameter, parameter.double() * head.temperature)
    new = {name: (old, value.to(old)) for name, (old, value) in new.items()}
    _check_representable(new, temperature=float(head.temperature))
    for old, value in new.values():
        old.copy_(value)
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked.fill_(moments.batches)
    if norm.affine and not keep_function:
        norm.weight[dead.to(norm.weight.device)] = 0.0


def _check_representable(new: dict[str, tuple[Tensor, Tensor]], *, temperature: float) -> None:
    """Before anything is written: float16 ends at 65504, and weights are multiplied by T."""
    for name, (old, value) in new.items():
        if old.is_inference() and not torch.is_inference_mode_enabled():
            fix = "Build the model outside of torch.inference_mode()."
            found = "one that was made under torch.inference_mode()"
            raise InvalidInput("head", expected="tensors to write to", found=found, fix=fix)
        if not bool(torch.isfinite(value).all()):
            dtype = str(value.dtype).removeprefix("torch.")
            raise InvalidInput(
                f"new {name} of the head",
                expected=f"numbers that {dtype} can hold",
                found=f"larger ones (T = {temperature:g})",
                fix="Keep the head in float32 (head.float()), or scale the features down.",
            )


def _figures(
    moments: Moments, norm: BatchNorm, mean: Tensor, variance: Tensor, dead: Tensor
) -> NormStatistics:
    old_mean, old_var = (t.detach().cpu().double() for t in _running(norm))
    live = ~dead & (variance > 0)
    shift, ratio = 0.0, 1.0
    if bool(live.any()):
        shift = float(((old_mean - mean).abs() / variance.sqrt())[live].max())
        quotient = (old_var / variance)[live]
        ratio = float(torch.maximum(quotient, 1 / quotient).max())
    indices = tuple(int(i) for i in dead.nonzero().flatten())
    return NormStatistics(moments.rows, moments.batches, indices, shift, ratio)


def _warn_dead(dead: tuple[int, ...]) -> None:
    if dead:
        shown = ", ".join(map(str, dead[:8])) + (", ..." if len(dead) > 8 else "")
        warnings.warn(
            f"{len(dead)} features of the head are constant in the data ({shown}); they got "
            "variance 1, so that a later change of them is not blown up.",
            TemperanceWarning,
            stacklevel=3,
        )


# ------------------------------------------------------------------ checks
def _running(norm: BatchNorm) -> tuple[Tensor, Tensor]:
    return cast(Tensor, norm.running_mean), cast(Tensor, norm.running_var)


def _only_head(model: nn.Module) -> TemperedHead:
    heads = tempered_heads(model)
    if len(heads) != 1:
        raise NotFound(
            "tempered head",
            found=f"{len(heads)} of them in the model",
            candidates=tuple(heads),
            fix="Call insert first."
            if not heads
            else "Set the statistics of single heads by hand.",
        )
    return next(iter(heads.values()))


def _batch_norm(head: TemperedHead) -> BatchNorm:
    if isinstance(head.norm, BatchNorm) and head.norm.running_mean is not None:
        return head.norm
    raise InvalidInput(
        "head",
        expected="a BatchNorm with running statistics",
        found=f"norm={head.norm_kind!r}",
        fix="Only BatchNorm has statistics of the data; leave this call out.",
    )


def checked_max_batches(value: int | None) -> int | None:
    if value is None:
        return None
    if not isinstance(value, bool) and hasattr(value, "__index__") and operator.index(value) > 0:
        return operator.index(value)
    expected = "a whole number of at least 1, or None for all batches"
    raise InvalidInput("max_batches", expected=expected, found=repr(value), fix="Set it.")


def _check_fresh(model: nn.Module, head: TemperedHead, norm: BatchNorm) -> None:
    mean, variance = _running(norm)
    fresh = bool((mean == 0).all()) and bool((variance == 1).all())
    if norm.affine:
        fresh = fresh and bool((norm.weight == 1).all()) and bool((norm.bias == 0).all())
    shared = shared_names(model, head)
    found = (
        "norm='batch-no-affine', which has no scale and shift" if not norm.affine
        else "a norm that was changed since" if not fresh
        else f"weights shared with {shared[0]}" if shared else None
    )  # fmt: skip
    if found is not None:
        raise InvalidInput(
            "keep_function",
            expected="a freshly inserted head with norm='batch' and weights of its own",
            found=found,
            fix="Call remove and insert, then this; or pass keep_function=False.",
        )
