"""How an arm's T moves while it trains: what the loop minimizes and does before every step."""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from temperance.head import (
    LearnedTemperature,
    TemperedHead,
    adapt_scale,
    set_scheduled,
    tempered_heads,
)
from temperance.training.arms import Arm
from temperance.training.loop import Objective

__all__ = ["bounds_of", "objective_of", "stored_temperature"]


def bounds_of(arm: Arm) -> LearnedTemperature | None:
    """Give the bounds of an arm's learned T; None for a T that is not learned."""
    return LearnedTemperature() if arm.learned else None


def objective_of(arm: Arm, model: nn.Module) -> Objective:
    """Give what a training of this arm minimizes, with the step that moves its T.

    Args:
        arm: the arm.
        model: its model, with one tempered head.

    Returns:
        The objective for ``temperance.training.loop.start``.
    """
    if arm.adaptive:
        return Objective(loss=partial(_adapted, _only_head(model)), moves=True)
    ramp = arm.schedule
    if ramp is not None:

        def on_step(model: nn.Module, step: int, steps: int) -> None:
            set_scheduled(model, ramp, step, steps)

        return Objective(on_step=on_step, moves=True)
    return Objective(moves=arm.learned)


def stored_temperature(model: nn.Module) -> float:
    """Turn the T of a trained model into a fixed number, in place, and give it."""
    return _only_head(model).fix_temperature()


def _adapted(head: TemperedHead, logits: Tensor, y: Tensor, smoothing: float) -> Tensor:
    """Cross entropy at the scale that AdaCos measures in this batch."""
    logits = adapt_scale(head, logits, y)
    return nn.functional.cross_entropy(logits, y, label_smoothing=smoothing)


def _only_head(model: nn.Module) -> TemperedHead:
    (head,) = tempered_heads(model).values()
    return head
