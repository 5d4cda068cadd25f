"""Running statistics of a whole model from one pass, for weights that no batch was trained with."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from temperance.errors import InvalidInput, NotFound, TemperanceWarning
from temperance.head.freezing import is_frozen
from temperance.head.running import (
    check_finite,
    momentum_of,
    names_of,
    pools_rows,
    require_running_norms,
    require_values,
    set_momentum,
    statistics_of,
)
from temperance.head.statistics import checked_max_batches
from temperance.models.outputs import call_model, device_of, map_tensors, split_batch, to_device
from temperance.models.probe import evaluating, unwrap

__all__ = ["RecomputedStatistics", "recompute_statistics"]

_CONSTANT = 2.0**-21  # four steps of float32, which may be all rounding


@dataclass(frozen=True)
class RecomputedStatistics:
    """What a pass over the data found, and how far the former statistics were from it.

    Attributes:
        norms: names of the layers whose statistics were set.
        n_rows: rows that were used.
        n_batches: batches that were used.
        skipped: batches of fewer than two rows, which were not.
        mean_shift: largest distance of a former running mean from the new one, in units of std.
        variance_ratio: largest factor between a former running variance and the new one, >= 1.
        n_dead: features that are constant in the data, over all norms.
    """

    norms: tuple[str, ...]
    n_rows: int
    n_batches: int
    skipped: int
    mean_shift: float
    variance_ratio: float
    n_dead: int


def recompute_statistics(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    norms: str | Sequence[str] | None = None,
    max_batches: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> RecomputedStatistics:
    """Set the running statistics of every norm to those of the data, in place.

    For averaged weights (EMA, SWA), whose statistics belong to other weights, and wherever the
    running statistics are not those of the weights: after very short trainings, large learning
    rates at the end, gradient accumulation. ``set_norm_statistics`` does it for the head alone.

    Each norm takes its input as in training, normalized by the batch, one layer after the other in
    one pass; everything else (dropout) is in evaluation mode. Mean and variance are those of all
    rows together, each with the same weight, so that the order of the rows and a smaller last batch
    do not matter to the first norm. Batches should have the size of the training's. A batch of one
    row has no variance, and is left out and counted. Frozen norms (``freeze``) stay as they are.
    Modes, momenta and the global random state are as before afterwards.

    Constant features (their std is below four steps of float32 at the mean) get variance 1, so that
    a later change of them is not blown up by 1 / sqrt(eps), 316.

    With SyncBatchNorm in several processes, all have to call this with equally many batches.

    Args:
        model: a model, an AveragedModel or an ensemble.
        loader: batches of training data, in any form that ``split_batch`` reads.
        norms: names of the layers, or patterns such as ``"layer4.*"``; None for all.
        max_batches: take no more than this many from the loader.
        progress: called with the number of batches done.

    Returns:
        The figures of the pass.

    Raises:
        NotFound: if there is no layer with running statistics, or a name fits none.
        InvalidInput: if no batch has two rows, none of the layers is called, statistics are not
            finite or too large for their type, or they are no tensors to write to. The model is
            then unchanged.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from torch.optim.swa_utils import AveragedModel
        >>> from temperance.head import recompute_statistics
        >>> averaged = AveragedModel(nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 3)))
        >>> batches = [{"x": torch.tensor([[40.0], [60.0]])}, torch.ones(1, 1)]
        >>> figures = recompute_statistics(averaged, batches)
        >>> figures.n_rows, figures.skipped, averaged.module[0].running_mean
        (2, 1, tensor([50.]))

    Reference:
        Izmailov et al. (2018), "Averaging Weights Leads to Wider Optima and Better Generalization",
        arXiv 1803.05407, section 3.2: a pass for the statistics of averaged weights.
    """
    limit = checked_max_batches(max_batches)
    model = unwrap(model)
    chosen = _chosen(model, norms)
    _check_writable(chosen)
    sums = {name: _Sums(norm) for name, norm in chosen.items()}
    rows, batches, skipped = _read(model, loader, sums, limit, progress)
    if batches == 0:
        raise InvalidInput(
            "loader",
            expected="batches of two rows or more",
            found=f"{skipped} of fewer" if skipped else "none",
            fix="Pass the training data; an iterator that was used up yields nothing.",
        )
    found = {name: s.result() for name, s in sums.items() if s.calls}
    _check_called(found, chosen)
    new = {n: (m.to(stats[0]), v.to(stats[1])) for n, (m, v, _) in found.items()
           for stats in (statistics_of(chosen[n]),)}  # fmt: skip
    check_finite(new, "Look at the data, and at the weights in front of that layer; keep norms in "
                 "float32, since float16 ends at 65504.")  # fmt: skip
    shift, ratio = _figures(chosen, found)
    for name, pair in new.items():
        _write(chosen[name], pair, sums[name].calls)
    dead = {name: int(d.sum()) for name, (_, _, d) in found.items() if bool(d.any())}
    _warn_dead(dead)
    return RecomputedStatistics(
        tuple(new), rows, batches, skipped, shift, ratio, sum(dead.values())
    )


# ------------------------------------------------------------------ one norm
class _Sums:
    """Mean and variance of what a norm saw, merged from the statistics of its calls.

    With momentum 1 the running statistics behind a call are those of that call's rows.

    Reference:
        Chan, Golub & LeVeque (1979), see ``temperance.head.moments``.
    """

    def __init__(self, norm: nn.Module) -> None:
        self.norm, self.calls, self.values = norm, 0, 0
        shape = statistics_of(norm)[0].shape
        self.mean = torch.zeros(shape, dtype=torch.float64)
        self.squares = torch.zeros(shape, dtype=torch.float64)

    def __call__(self, norm: nn.Module, args: Any, named: Mapping[str, Any], _output: Any) -> None:
        """Merge one call: a forward hook."""
        if not norm.training:  # an ensemble that looks where its rows become M
            return
        mean, variance = (t.detach().to("cpu", torch.float64) for t in statistics_of(norm))
        n = self._count(norm, [*args, *named.values()][0])
        pooled = pools_rows(norm)
        total, delta = self.values + n, mean - self.mean
        self.squares += variance * (n - 1 if pooled else n)
        self.squares += delta**2 * (self.values * n / total if pooled else 0)
        self.mean += delta * (n / total)
        self.values, self.calls = total, self.calls + 1

    def result(self) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, unbiased variance (1 for constant features), float64; which ones are constant."""
        variance = self.squares / max(self.values - (1 if pools_rows(self.norm) else 0), 1)
        dead = variance.sqrt() <= _CONSTANT * self.mean.abs()
        return self.mean, torch.where(dead, 1.0, variance), dead

    def _count(self, norm: nn.Module, x: Tensor) -> int:
        """How many numbers of a feature a statistic is over (of each member of an ensemble)."""
        own = getattr(norm, "members", 1)
        copies = 1 if getattr(norm, "expands", False) else own
        return x.numel() // (self.mean.shape[-1] * copies)


# ------------------------------------------------------------------ the pass
def _read(
    model: nn.Module,
    loader: Iterable[Any],
    sums: Mapping[str, _Sums],
    limit: int | None,
    progress: Callable[[int], None] | None,
) -> tuple[int, int, int]:
    rows = batches = skipped = 0
    device = device_of(model)
    with evaluating(model), torch.no_grad(), _listening(sums):
        for batch in itertools.islice(loader, limit):  # it may draw from the global random state
            inputs = split_batch(batch)[0]
            n = _rows_of(inputs)
            if n < 2:
                skipped += 1
            else:
                call_model(model, to_device(inputs, device))
                rows, batches = rows + n, batches + 1
            if progress is not None:
                progress(batches + skipped)
    return rows, batches, skipped


@contextmanager
def _listening(sums: Mapping[str, _Sums]) -> Iterator[None]:
    """Let the norms take the statistics of each batch as they come, and hear of them."""
    with ExitStack() as stack:
        for own in sums.values():
            # ``evaluating`` goes by versions, which batch_norm does not count up.
            stack.callback(own.norm._buffers.update, dict(own.norm._buffers))
            own.norm._buffers.update(
                {n: b.clone() for n, b in own.norm._buffers.items() if b is not None}
            )
            stack.callback(set_momentum, own.norm, momentum_of(own.norm))
            stack.callback(own.norm.register_forward_hook(own, with_kwargs=True).remove)
            set_momentum(own.norm, 1.0)
            own.norm.training = True  # put back by ``evaluating``
        yield


def _rows_of(inputs: Any) -> int:
    """Rows of a batch: the size of its first tensor with an axis."""
    sizes: list[int] = []

    def note(x: Tensor) -> Tensor:
        sizes.extend(x.shape[:1])
        return x

    map_tensors(inputs, note)
    return sizes[0] if sizes else 0


def _write(norm: nn.Module, new: tuple[Tensor, Tensor], calls: int) -> None:
    with torch.no_grad():
        for old, value in zip(statistics_of(norm), new, strict=True):
            old.copy_(value)
        counter = norm._buffers.get("num_batches_tracked")
        if counter is not None:
            counter.fill_(calls)


def _figures(
    norms: Mapping[str, nn.Module], found: Mapping[str, tuple[Tensor, Tensor, Tensor]]
) -> tuple[float, float]:
    shift, ratio = 0.0, 1.0
    for name, (mean, variance, dead) in found.items():
        old_mean, old_var = (t.detach().cpu().double() for t in statistics_of(norms[name]))
        live = ~dead
        if bool(live.any()):
            shift = max(shift, float(((old_mean - mean).abs() / variance.sqrt())[live].max()))
            quotient = (old_var / variance)[live]
            ratio = max(ratio, float(torch.maximum(quotient, 1 / quotient).max()))
    return shift, ratio


def _warn_dead(dead: Mapping[str, int]) -> None:
    if dead:
        names = ", ".join(f"{n} of {name}" for name, n in list(dead.items())[:6])
        warnings.warn(
            f"features that are constant in the data got variance 1: {names}"
            + (", ..." if len(dead) > 6 else ""),
            TemperanceWarning,
            stacklevel=3,
        )


def _check_writable(norms: Mapping[str, nn.Module]) -> None:
    """Before the pass, so that it is not lost, and nothing is half written."""
    for name, norm in norms.items():
        require_values({f"{name}.{n}": b for n, b in norm._buffers.items() if b is not None})
        made = any(b is not None and b.is_inference() for b in norm._buffers.values())
        if made and not torch.is_inference_mode_enabled():
            raise InvalidInput(
                f"statistics of {name!r}",
                expected="tensors to write to",
                found="some that were made under torch.inference_mode()",
                fix="Build or load the model outside of it.",
            )


def _check_called(found: Mapping[str, Any], norms: Mapping[str, nn.Module]) -> None:
    if not found:
        raise InvalidInput(
            "norms",
            expected="layers that the model calls",
            found=f"no call of {', '.join(list(norms)[:6])}",
            fix="Name other layers, or look whether the model uses these.",
        )


def _chosen(model: nn.Module, norms: str | Sequence[str] | None) -> dict[str, nn.Module]:
    known = require_running_norms(
        model, "Only BatchNorm and its like have statistics of the data; leave this call out."
    )
    if norms is not None:
        patterns = names_of(norms, "norms")
        for pattern in patterns:
            if not any(fnmatchcase(n, pattern) for n in known):
                raise NotFound(
                    f"norms {pattern!r}",
                    found="no layer with running statistics has such a name",
                    candidates=tuple(known)[:6],
                    fix="Take names from model.named_modules(); * stands for anything.",
                )
        known = {n: m for n, m in known.items() if any(fnmatchcase(n, p) for p in patterns)}
    live = {n: m for n, m in known.items() if not is_frozen(m)}
    if not live:
        raise NotFound(
            "norms whose statistics may move",
            found=f"all {len(known)} are frozen",
            fix="Call unfreeze first, or leave this call out: they are meant to stay.",
        )
    return live
