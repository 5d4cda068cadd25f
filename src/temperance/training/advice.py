"""What a comparison says in words: the finding, and what to do next."""

from __future__ import annotations

import math

from temperance.records import Estimate
from temperance.training.table import ArmSummary, Comparison, Difference

__all__ = ["finding", "next_steps", "suggested_arm"]

_NEAR_ONE = (0.87, 1.15)  # post-hoc T that leaves the training T as it is


def suggested_arm(comparison: Comparison) -> ArmSummary | None:
    """Give the arm that trained with the suggested temperature, if there is one."""
    return next((a for a in comparison.arms if a.arm.suggested), None)


def finding(comparison: Comparison) -> list[str]:
    """Say what the suggested temperature did, in sentences, also where it lost."""
    arm = suggested_arm(comparison)
    base = next(a for a in comparison.arms if a.arm.name == comparison.baseline)
    if arm is None or not arm.metrics or not arm.differences:
        return ["No arm with the suggested temperature was compared with another."]
    lines = _compared(arm, base.title, Difference(base.title, arm.differences, arm.verdicts))
    if not (_converged(arm) and _converged(base)):
        return [lines[0], "A post-hoc T could not be fitted for both, so none is compared."]
    lines[1] += " This is what training with norm and T gave beyond what a post-hoc T repairs."
    alone = arm.against_norm
    if alone is not None and alone.other != comparison.baseline:
        title = next(a.title for a in comparison.arms if a.arm.name == alone.other)
        lines += [f"What T did alone: {line}" for line in _compared(arm, title, alone)[1:]]
    return lines


def _compared(arm: ArmSummary, title: str, found: Difference) -> list[str]:
    """Two sentences: figures as they are, and after a post-hoc T."""
    points = _difference(found.metrics["accuracy"], 100, 2, " points")
    raw = _difference(found.metrics["nll"], 1, 4, "")
    after = _difference(found.metrics["nll_posthoc"], 1, 4, "")
    verdicts = found.verdicts
    return [
        f"{arm.title} against {title}: accuracy {points} ({verdicts['accuracy']}); "
        f"NLL {raw} ({verdicts['nll']}).",
        f"Against {title} after a post-hoc T for both: accuracy {points} "
        f"({verdicts['accuracy']}), NLL {after} ({verdicts['nll_posthoc']}).",
    ]


def _converged(arm: ArmSummary) -> bool:
    return set(arm.posthoc_statuses) == {"converged"}


def next_steps(comparison: Comparison) -> list[str]:
    """Say what to do next, from the figures of the comparison."""
    steps = []
    if comparison.choice is not None:
        steps.append("Use the model: temperance predict FOLDER INPUT, or load model.safetensors.")
    steps += _about_temperature(comparison)
    steps += _about_posthoc(comparison)
    if not comparison.suggestion.in_domain:
        steps.append(
            "The task lies outside the rule's domain, so that the suggested T is a guess: "
            "compare two or three values with --arm NORM:T=VALUE."
        )
    seeds = int(comparison.plan["seeds"])
    if seeds < 3:
        why = "no difference can be shown" if seeds == 1 else "intervals are very wide"
        steps.append(f"Train three seeds or more: with {seeds}, {why}.")
    bad = [a.title for a in comparison.arms if set(a.outcomes) != {"done"}]
    if bad:
        steps.append(f"{', '.join(bad)} did not come to an end: a lower --lr or a higher T may.")
    return steps


def _about_posthoc(comparison: Comparison) -> list[str]:
    """Name the arms whose post-hoc T could not be fitted."""
    odd = {
        arm.title: next(s for s in arm.posthoc_statuses if s != "converged")
        for arm in comparison.arms
        if set(arm.posthoc_statuses) - {"converged"}
    }
    if not odd:
        return []
    shown = "; ".join(f"{title} ({status})" for title, status in odd.items())
    return [
        f"The post-hoc fit did not converge and T = 1 was used for: {shown}. With few held-out "
        "rows all may be right; a validation part of your own (val/) gives more."
    ]


def _about_temperature(comparison: Comparison) -> list[str]:
    """Read the post-hoc T: near 1 it says that the training T fits the budget."""
    arm = suggested_arm(comparison)
    if arm is None or not arm.posthoc_temperatures or not _converged(arm):
        return []
    logs = [math.log(t) for t in arm.posthoc_temperatures]
    posthoc = math.exp(sum(logs) / len(logs))
    if _NEAR_ONE[0] <= posthoc <= _NEAR_ONE[1]:
        return [f"The post-hoc T of {arm.title} is {posthoc:.2f}, near 1: its T fits this budget."]
    low = posthoc > 1
    other = arm.arm.temperature * (2 if low else 0.5)
    return [
        f"The post-hoc T of {arm.title} is {posthoc:.2f}: after training the model is still "
        f"{'over' if low else 'under'}-confident. Try --arm {arm.arm.prefix}:T={other:.3g} "
        "with this budget."
    ]


def _difference(estimate: Estimate, scale: float, digits: int, unit: str) -> str:
    text = f"{scale * estimate.value:+.{digits}f}{unit}"
    if estimate.interval is None:
        return text
    low, high = (scale * v for v in estimate.interval)
    return f"{text} [{low:+.{digits}f}, {high:+.{digits}f}]"
