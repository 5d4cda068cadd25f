"""The figures of a trained cell: of the pooled members, before and after a post-hoc T."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from temperance.evaluation import member_uncertainty, ood_metrics, pooled_log_probs
from temperance.evaluation.calibration import accuracy, brier, ece, nll
from temperance.evaluation.member_temperature import fit_member_temperature

__all__ = ["figures", "judge", "ood_figures"]

Floats = NDArray[Any]


def figures(log_probs: Floats, labels: NDArray[Any]) -> dict[str, float]:
    """Accuracy, ECE (15 bins of equal width) as shares, NLL in nats, Brier score."""
    return {
        "accuracy": accuracy(logits=log_probs, labels=labels),
        "nll": nll(logits=log_probs, labels=labels),
        "ece": ece(logits=log_probs, labels=labels),
        "brier": brier(logits=log_probs, labels=labels),
    }


def judge(logits: Mapping[str, Floats], y: Mapping[str, NDArray[Any]]) -> dict[str, float]:
    """Judge the members together.

    Args:
        logits: ``[M, n, C]`` by name: ``fit`` and ``test``; the rest is not read.
        y: class ids by the same names.

    Returns:
        Figures of the test rows; ``_posthoc``: behind one T, fitted on the fit rows, for the mean
        of the members' probabilities. ``fit_*``: of the fit rows, for choices.
    """
    pooled = {name: pooled_log_probs(logits=logits[name]) for name in ("fit", "test")}
    found = fit_member_temperature(logits["fit"], y["fit"], when="after")
    behind = figures(found.log_probs(logits["test"]), y["test"])
    parts = member_uncertainty(logits=logits["test"])
    alone = [accuracy(logits=z, labels=y["test"]) for z in logits["test"]]
    return {
        **figures(pooled["test"], y["test"]),
        **{f"{name}_posthoc": value for name, value in behind.items()},
        **{f"fit_{name}": value for name, value in figures(pooled["fit"], y["fit"]).items()},
        "fit_nll_posthoc": found.nll_after,
        "temperature": found.fits[0].temperature,
        "member_accuracy": float(np.mean(alone)),
        "disagreement": float(np.mean(parts.disagreement)),
        "mutual_information": float(np.mean(parts.mutual_information)),
    }


def ood_figures(inside: Floats, outside: Floats) -> dict[str, float]:
    """AUROC of rows of other things by three scores of the members' logits ``[M, n, C]``."""
    pair = [member_uncertainty(logits=z) for z in (inside, outside)]
    top = [-pooled_log_probs(logits=z).max(axis=1) for z in (inside, outside)]
    scores = {
        "msp": top,
        "entropy": [p.total for p in pair],
        "mutual_information": [p.mutual_information for p in pair],
    }
    return {
        name: ood_metrics(id_scores=a, ood_scores=b, bootstrap=0).auroc.value
        for name, (a, b) in scores.items()
    }
