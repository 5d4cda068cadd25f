"""The optimizers of a stack of probes: torch's fused steps, once for all trials of one pace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from temperance.study.batches import learning_rate
from temperance.study.probe_head import Heads
from temperance.study.trial import Trial

__all__ = ["Updates", "pace"]

_BETAS, _EPS = (0.9, 0.999), 1e-8  # the defaults of torch.optim.AdamW
_ALPHA = 0.99  # the default of torch.optim.RMSprop; its eps is that of AdamW
_BUFFERS = {"sgd": 1, "adamw": 2, "rmsprop": 1}  # what is remembered of every parameter


def pace(trial: Trial) -> tuple[float, float, float, str]:
    """Give what an optimizer needs to know of a trial: equal ones are updated together."""
    return trial.lr, trial.weight_decay, trial.momentum, trial.schedule


@dataclass(frozen=True, eq=False)
class _Part:
    """Trials of one pace: their place in the stack, and views of their share of it.

    Attributes:
        place: of the trials.
        trial: one of them.
        parameters: the weight, then all that is not decayed.
        states: what the optimizer remembers, one list for each of its buffers.
        counts: steps taken, as torch counts them; one for each parameter.
    """

    place: slice
    trial: Trial
    parameters: list[Tensor]
    states: list[list[Tensor]]
    counts: list[Tensor]


class Updates:
    """Applies slopes to the parameters of a stack, which are ``[R, ...]``.

    Optimizers work element by element, so that one step over stacked parameters does what R of them
    do. These are the steps that ``torch.optim.SGD(fused=True)`` and ``AdamW(fused=True)`` take:
    every number is read and written once. (torch has no fused ``RMSprop``; its step is written
    out.) Called without the optimizer object around them, which would take as long as a step of ten
    small heads.

    Args:
        heads: the heads, changed in place by every update.
        trials: their trials, those of one pace next to each other.
    """

    def __init__(self, heads: Heads, trials: Sequence[Trial]) -> None:
        self._steps, self._take = trials[0].steps, _STEPS[trials[0].optimizer]
        buffers = _BUFFERS[trials[0].optimizer]
        self._parts, start = [], 0
        for _, alike in groupby(trials, pace):
            members = list(alike)
            place = slice(start, start := start + len(members))
            parameters = [tensor[place] for tensor in heads.parameters]
            states = [[torch.zeros_like(p) for p in parameters] for _ in range(buffers)]
            counts = [torch.zeros(()) for _ in parameters]
            self._parts.append(_Part(place, members[0], parameters, states, counts))

    def apply(self, slopes: Sequence[Tensor], step: int) -> None:
        """Take one step.

        Args:
            slopes: one tensor for each of ``heads.parameters``.
            step: number of the step, from 0.
        """
        for part in self._parts:
            trial, own = part.trial, [tensor[part.place] for tensor in slopes]
            rate = learning_rate(step, self._steps, peak=trial.lr, schedule=trial.schedule)
            for which, decay in ((slice(0, 1), trial.weight_decay), (slice(1, None), 0.0)):
                self._take(part, own, which, lr=rate, decay=decay)

    def stop(self, index: int) -> None:
        """Set a trial's parameters and all that is remembered of it to 0.

        Args:
            index: of the trial. With slopes of 0 from here on it stays there.
        """
        for part in self._parts:
            if part.place.start <= index < part.place.stop:
                for tensors in (part.parameters, *part.states):
                    for tensor in tensors:
                        tensor[index - part.place.start] = 0.0


def _sgd(part: _Part, slopes: list[Tensor], which: slice, *, lr: float, decay: float) -> None:
    """``v = momentum * v + slope + decay * p``, ``p -= lr * v``; v starts at 0, as in torch."""
    torch._fused_sgd_(
        part.parameters[which],
        slopes[which],
        part.states[0][which] if part.trial.momentum else [],  # as torch demands
        weight_decay=decay,
        momentum=part.trial.momentum,
        lr=lr,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=False,
    )


def _adamw(part: _Part, slopes: list[Tensor], which: slice, *, lr: float, decay: float) -> None:
    """Loshchilov and Hutter, 2019, arXiv 1711.05101, algorithm 2."""
    counts = part.counts[which]
    torch._foreach_add_(counts, 1.0)
    torch._fused_adamw_(
        part.parameters[which],
        slopes[which],
        part.states[0][which],
        part.states[1][which],
        [],
        counts,
        lr=lr,
        beta1=_BETAS[0],
        beta2=_BETAS[1],
        weight_decay=decay,
        eps=_EPS,
        amsgrad=False,
        maximize=False,
    )


def _rmsprop(part: _Part, slopes: list[Tensor], which: slice, *, lr: float, decay: float) -> None:
    """``v = .99 * v + .01 * g**2``, ``p -= lr * g / (sqrt(v) + eps)``, ``g = slope + decay * p``.

    Hinton, 2012, lecture 6e of "Neural networks for machine learning", as torch writes it.
    """
    for p, slope, v in zip(
        part.parameters[which], slopes[which], part.states[0][which], strict=True
    ):
        g = slope.add(p, alpha=decay) if decay else slope
        v.mul_(_ALPHA).addcmul_(g, g, value=1 - _ALPHA)
        p.addcdiv_(g, v.sqrt().add_(_EPS), value=-lr)


_STEPS: dict[str, Callable[..., None]] = {"sgd": _sgd, "adamw": _adamw, "rmsprop": _rmsprop}
