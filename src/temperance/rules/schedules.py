"""What a learning rate scheduler will do, found on a copy of it; the scheduler is not stepped."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from temperance.errors import InvalidInput
from temperance.rules.rate_sequence import name_of_shares, plain_value, rates_in
from temperance.rules.training import ratio_of_schedule

if TYPE_CHECKING:
    from torch.optim import Optimizer

__all__ = ["Rates", "rates_of"]

_SAME = 0.02  # relative difference of two means that makes no difference to a temperature
_AS_STATED = 1e-3  # relative difference of a peak and of the same peak, written down elsewhere
_INTERVALS = ("step", "epoch")

Curve = Sequence[tuple[float, float]]  # learning rate and momentum, step by step
_FIX = (
    'Pass scheduler="cosine" or "constant", or the mean learning rate divided by its peak as a '
    "number."
)


@dataclass(frozen=True)
class Rates:
    """The learning rates of a training, as far as a rule can know them.

    Attributes:
        peaks: largest learning rate of each parameter group over all steps.
        main: place of the group with the largest peak; a group of a single number, as a learned T
            is, counts only where there is no other.
        mean_ratio: mean divided by peak, of the main group.
        name: ``cosine`` or ``constant`` where the curve is near to one (a tenth of the peak, on
            average); else what it was made of.
        momentum: of the main group where a scheduler moves it; None where it stays. That which
            makes ``mean rate / (1 - momentum)`` the mean of rate / (1 - momentum) over all steps.
    """

    peaks: tuple[float, ...]
    main: int
    mean_ratio: float
    name: str
    momentum: float | None = None


def rates_of(optimizer: Optimizer, scheduler: Any, *, steps: int, per_epoch: int) -> Rates:
    """Find the learning rates of a training before it starts.

    Args:
        optimizer: as it will be trained with; it is read only.
        scheduler: None; a name in ``SCHEDULES``; mean divided by peak, a number; the rates of all
            steps (or epochs), a sequence whose largest is that of the optimizer; a torch scheduler
            that was not stepped yet, or accelerate's wrapper of one; or ``{"scheduler": ...,
            "interval": "step" or "epoch"}``, as Lightning has it.
        steps: optimizer steps.
        per_epoch: optimizer steps of an epoch.

    Returns:
        The rates.

    Raises:
        InvalidInput: if there is a scheduler that was not passed, or one of another optimizer, one
            that was stepped, one whose interval is not known and matters, or one that cannot be
            foreseen; for rates that are not one for each step or have another peak.

    Example:
        >>> import torch
        >>> from temperance.rules.schedules import rates_of
        >>> optimizer = torch.optim.SGD([torch.zeros(2)], lr=0.1)
        >>> scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)
        >>> rates = rates_of(optimizer, scheduler, steps=100, per_epoch=10)
        >>> rates.peaks, round(rates.mean_ratio, 3), rates.name
        ((0.1,), 0.505, 'cosine')
    """
    groups = optimizer.param_groups
    if scheduler is None:
        if any("initial_lr" in group for group in groups):
            raise _cannot("None, and an optimizer that has a scheduler", "the scheduler", "Pass it")
        peaks = tuple(float(group["lr"]) for group in groups)
        return Rates(peaks, _main(groups, peaks), 1.0, "constant")
    scheduler = plain_value(scheduler)
    if isinstance(scheduler, str | int | float) and not isinstance(scheduler, bool):
        peaks = tuple(_stated_peak(group) for group in groups)
        main = _main(groups, peaks)
        if isinstance(scheduler, str):
            return Rates(peaks, main, ratio_of_schedule(scheduler, steps), scheduler)
        return Rates(peaks, main, float(scheduler), "as given")
    found, interval = _read(scheduler)
    if (written := rates_in(found)) is not None:
        return _written(written, groups, interval, steps=steps, per_epoch=per_epoch)
    inner = getattr(found, "scheduler", found)  # wrapped, as accelerate does
    _check(inner, optimizer)
    calls = _calls_of(found)
    curves = _foreseen(inner, interval, steps=steps, per_epoch=per_epoch, calls=calls)
    return _summary(curves, groups, type(inner).__name__)


def _stated_peak(group: Mapping[str, Any]) -> float:
    """Peak of a group whose scheduler was not passed; OneCycleLR starts far below its own."""
    return float(group.get("max_lr", group.get("initial_lr", group["lr"])))


def _main(groups: Sequence[Mapping[str, Any]], peaks: Sequence[float]) -> int:
    sizes = [sum(p.numel() for p in group["params"]) for group in groups]
    layers = [place for place, size in enumerate(sizes) if size > 1] or range(len(sizes))
    return max(layers, key=lambda place: peaks[place])


def _written(
    rates: tuple[float, ...],
    groups: Sequence[Mapping[str, Any]],
    interval: str | None,
    *,
    steps: int,
    per_epoch: int,
) -> Rates:
    """Rates that were written down: of the main group, others keep the peak that they state."""
    counts = {"step": steps, "epoch": math.ceil(steps / per_epoch)}
    kinds = _INTERVALS if interval is None else (interval,)
    kind = next((kind for kind in kinds if len(rates) == counts[kind]), None)
    if kind is None:
        wanted = ", or ".join(f"{counts[kind]} rates, one for each {kind}" for kind in kinds)
        raise _cannot(f"{len(rates)} rates", wanted)
    each = 1 if kind == "step" else per_epoch
    curve = [rate for rate in rates for _ in range(each)][:steps]
    peaks, peak = [_stated_peak(group) for group in groups], max(curve)
    main = _main(groups, peaks)
    if not math.isclose(peak, peaks[main], rel_tol=_AS_STATED):
        raise _cannot(
            f"rates of up to {peak:.4g} and an optimizer with {peaks[main]:.4g}",
            "rates whose largest is the learning rate of the optimizer",
            "Give rates, not shares of a rate, and make the optimizer with the largest",
        )
    shares = [rate / peak for rate in curve]
    mean = sum(shares) / len(shares)
    return Rates(tuple(peaks), main, mean, name_of_shares(shares, "as given"))


def _read(scheduler: Any) -> tuple[Any, str | None]:
    """The scheduler, and whether it is stepped by step or by epoch, where that is said."""
    interval = None
    if isinstance(scheduler, Mapping):
        interval = scheduler.get("interval", "epoch")  # Lightning's default
        if interval not in _INTERVALS or scheduler.get("frequency", 1) != 1:
            found = f"{interval!r} and frequency {scheduler.get('frequency', 1)!r}"
            raise _cannot(found, 'interval "step" or "epoch", frequency 1', "Change it")
        scheduler = scheduler.get("scheduler")
    return scheduler, interval


def _check(scheduler: Any, optimizer: Optimizer) -> None:
    from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

    if not isinstance(scheduler, LRScheduler) or isinstance(scheduler, ReduceLROnPlateau):
        raise _cannot(f"a {type(scheduler).__name__}", "a torch scheduler that can be foreseen")
    if scheduler.optimizer.param_groups is not optimizer.param_groups:
        raise _cannot("one of another optimizer", "the scheduler of this optimizer", "Pass that")
    parts = getattr(scheduler, "_schedulers", ())  # a ChainedScheduler counts only in its parts
    if (last := max(getattr(part, "last_epoch", 0) for part in (scheduler, *parts))) > 0:
        found = f"one that was stepped {last} times"
        raise _cannot(found, "a scheduler that was not stepped yet", "Ask before the training")


def _cannot(found: str, expected: str, fix: str = "") -> InvalidInput:
    advice = f"{fix}; or:" if fix else ""
    return InvalidInput(
        "scheduler of the learning rate",
        expected=expected,
        found=found,
        fix=f"{advice} {_FIX}".strip(),
    )


# ------------------------------------------------------------------ looking ahead
@dataclass(frozen=True)
class _Calls:
    """How a scheduler is stepped: once in a call, or once for each process, as accelerate does."""

    times: int = 1
    guarded: bool = False  # accelerate leaves steps beyond total_steps out
    passed: int = 0  # batches before that of a step, which it counts as steps of the scheduler

    def step(self, scheduler: Any) -> None:
        if self.passed:
            scheduler._step_count += self.passed
        for _ in range(self.times):
            last = getattr(scheduler, "total_steps", None) if self.guarded else None
            if last is None or scheduler._step_count <= last:
                scheduler.step()


def _calls_of(scheduler: Any) -> _Calls:
    """What a call of accelerate's wrapper does: it counts the batches of every process.

    Batches whose gradients are summed up count, too, though they step nothing: a scheduler with
    ``total_steps`` stands still when these are counted. With ``split_batches`` the processes share
    a batch, and a call is one step. Its wrappers for other engines, DeepSpeed's for one, leave the
    steps to these.
    """
    if type(scheduler).__name__ != "AcceleratedScheduler" or not scheduler.step_with_optimizer:
        return _Calls()
    if scheduler.split_batches:
        return _Calls()
    state = scheduler.gradient_state
    passed = state.num_steps - 1 if state.adjust_scheduler else 0
    from accelerate.state import AcceleratorState

    return _Calls(int(AcceleratorState().num_processes), guarded=True, passed=passed)


def _foreseen(
    scheduler: Any, interval: str | None, *, steps: int, per_epoch: int, calls: _Calls
) -> list[Curve]:
    """Rate and momentum of each group at every step (or at every epoch, for as many steps)."""
    epochs = math.ceil(steps / per_epoch)
    if interval is None and epochs != steps:
        stated = [getattr(scheduler, name, None) for name in ("total_steps", "T_max")]
        lengths = {steps * calls.times: "step", epochs * calls.times: "epoch"}
        interval = lengths.get(next((s for s in stated if s), 0))
    if interval is not None or epochs == steps:
        count, each = (steps, 1) if interval == "step" else (epochs, per_epoch)
        return [_repeated(c, each, steps) for c in _simulated(scheduler, count, calls)]
    by_step = _simulated(scheduler, steps, calls)
    by_epoch = [_repeated(c, per_epoch, steps) for c in _simulated(scheduler, epochs, calls)]
    groups = scheduler.optimizer.param_groups
    both = [_summary(curves, groups, "") for curves in (by_step, by_epoch)]
    peaks = [found.peaks[found.main] for found in both]
    means = [found.mean_ratio * peak for found, peak in zip(both, peaks, strict=True)]
    if not (math.isclose(*means, rel_tol=_SAME) and math.isclose(*peaks, rel_tol=_SAME)):
        raise InvalidInput(
            "scheduler of the learning rate",
            expected="to know whether it is stepped in each step or in each epoch",
            found=f"mean rates of {means[0]:.3g} by steps and {means[1]:.3g} by epochs",
            fix='Pass {"scheduler": scheduler, "interval": "step"}, or "epoch".',
        )
    return by_step


def _repeated(curve: Curve, each: int, steps: int) -> Curve:
    return curve if each == 1 else [rate for rate in curve for _ in range(each)][:steps]


class _Groups:
    """Stands for an optimizer whose scheduler is stepped: parameter groups without parameters."""

    def __init__(self, optimizer: Any) -> None:
        self.param_groups = [
            {k: copy.deepcopy(v) for k, v in group.items() if k not in ("params", "param_names")}
            for group in optimizer.param_groups
        ]
        self.defaults, self._opt_called = dict(optimizer.defaults), True

    def step(self) -> None:
        """Nothing to step."""

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]


def _simulated(scheduler: Any, count: int, calls: _Calls) -> list[Curve]:
    """Rate and momentum of each group at ``count`` steps of a copy of the scheduler."""
    groups = _Groups(scheduler.optimizer)
    try:
        ahead = copy.deepcopy(scheduler, {id(scheduler.optimizer): groups})
        with _quiet():
            rows = []
            for place in range(count):
                rows.append([_now(group) for group in groups.param_groups])
                if place + 1 < count:
                    calls.step(ahead)
    except Exception as error:  # of any scheduler's own code
        found = f"a {type(scheduler).__name__} that raises {type(error).__name__}: {error}"
        raise _cannot(f"{found:.300}", f"a scheduler for {count} steps of it") from error
    return list(zip(*rows, strict=True))


def _now(group: Mapping[str, Any]) -> tuple[float, float]:
    return float(group["lr"]), float(group.get("momentum", 0.0))


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the order of steps; there is nothing to step
        yield


# ------------------------------------------------------------------ in few numbers
def _summary(curves: Sequence[Curve], groups: Sequence[Mapping[str, Any]], name: str) -> Rates:
    peaks = tuple(max(rate for rate, _ in curve) for curve in curves)
    main = _main(groups, peaks)
    peak, curve = peaks[main], curves[main]
    if not (peak > 0 and math.isfinite(peak)):
        raise _cannot(f"a largest rate of {peak:g}", "a learning rate above 0 in some step")
    shares = [rate / peak for rate, _ in curve]
    mean = sum(shares) / len(shares)
    return Rates(peaks, main, mean, name_of_shares(shares, name), _moving_momentum(curve))


def _moving_momentum(curve: Curve) -> float | None:
    """The one momentum that goes as far as those of all steps; None where it does not move."""
    momenta = [momentum for _, momentum in curve]
    if max(momenta) - min(momenta) <= 1e-9 or max(momenta) >= 1:
        return None
    return 1 - sum(rate for rate, _ in curve) / sum(rate / (1 - m) for rate, m in curve)
