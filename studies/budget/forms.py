"""The forms of a law: which numbers of a setting log T* is a linear function of."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["ALL_TERMS", "FORMS", "design"]

Array = NDArray[np.float64]
Rows = dict[str, Any]

_BENDS = {f"bounded at {far:g}, n, M, B": float(np.log(far)) for far in (0.1, 1, 10, 100)}
"""Forms in which progress counts up to a bound, in multiples of its median: which one is best?"""

_ALL = (
    "constant",
    "M",
    "progress",
    "progress, n",
    "progress, epochs",
    "progress, n, M, B",
    "progress, n, difficulty",
    "steps, lr, n",
    "steps, lr, n, M, B",
    *_BENDS,
    "training",
    "full",
)
FORMS = {"sgd": _ALL, "adamw": _ALL, "rmsprop": _ALL}


def mean_lr(rows: Rows) -> Array:
    """Mean learning rate over all steps: half of the peak for cosine."""
    return rows["lr"] * np.where(rows["schedule"] == "cosine", 0.5, 1.0)


def progress(rows: Rows) -> Array:
    """How far an optimizer can go: mean rate * steps / (1 - momentum)."""
    return mean_lr(rows) * rows["steps"] / (1 - rows["momentum"])


def _difficulty(rows: Rows, like: Rows) -> Array:
    """1-NN error of the task; where it was not measured, the mean of the others."""
    own, other = rows["nn_error"], like["nn_error"]
    mean = float(np.nanmean(other)) if np.isfinite(other).any() else 0.0
    return np.where(np.isfinite(own), own, mean)


def _terms(rows: Rows, like: Rows) -> dict[str, Array]:
    """All terms by name. Logarithms are natural and around middle values, dummies 0 or 1."""
    decay = np.maximum(rows["weight_decay"], 1e-12)
    far = progress(rows)
    middle = float(np.exp(np.median(np.log(progress(like)))))
    return {
        "constant": np.ones(len(far)),
        "log M": np.log(rows["features"] / 128),
        "log n": np.log(rows["rows"] / 1000),
        "log C": np.log(rows["classes"] / 10),
        "log steps": np.log(rows["steps"] / 300),
        "log lr": np.log(rows["lr"] / np.exp(np.median(np.log(like["lr"])))),
        "log batch": np.log(rows["batch"] / 64),
        "log 1/(1-momentum)": -np.log(1 - rows["momentum"]),
        "cosine": (rows["schedule"] == "cosine") * 1.0,
        "decays": (rows["weight_decay"] > 0) * 1.0,
        "log decay": np.where(rows["weight_decay"] > 0, np.log(decay / 3e-4), 0.0),
        "layer norm": (rows["norm"] == "layer") * 1.0,
        "no norm": (rows["norm"] == "none") * 1.0,
        "label noise": rows["label_noise"] * 1.0,
        "1-NN error": _difficulty(rows, like),
        "one hidden layer": (rows["model"] == "mlp1") * 1.0,
        "convolutions": np.isin(rows["model"], ("convnet", "resnet")) * 1.0,
        "log progress": np.log(far / middle),
        "log epochs": np.log(rows["steps"] * rows["batch"] / rows["rows"] / 10),
    }


_TRAINING = (
    "log M",
    "log n",
    "log C",
    "log steps",
    "log lr",
    "log batch",
    "log 1/(1-momentum)",
    "cosine",
    "layer norm",
    "no norm",
)
_CHOSEN = {
    "constant": (),
    "M": ("log M",),
    "progress": ("log progress",),
    "progress, n": ("log progress", "log n"),
    "progress, epochs": ("log progress", "log epochs"),
    "progress, n, M, B": ("log progress", "log n", "log M", "log batch"),
    "progress, n, difficulty": ("log progress", "log n", "log C", "1-NN error", "label noise"),
    "steps, lr, n": ("log steps", "log lr", "log n"),
    "steps, lr, n, M, B": ("log steps", "log lr", "log n", "log M", "log batch"),
    "training": _TRAINING,
    "full": (
        *_TRAINING,
        "decays",
        "log decay",
        "label noise",
        "1-NN error",
        "one hidden layer",
        "convolutions",
    ),
}
ALL_TERMS = _CHOSEN["full"]
"""Every term that a form can have, but the constant and the progress made of several of them."""


def design(rows: Rows, form: str, *, like: Rows | None = None) -> tuple[Array, list[str]]:
    """Make the columns of a form.

    Args:
        rows: facts of settings by name.
        form: one of ``FORMS``.
        like: the rows that it is fitted on, which say what the middle is; ``rows`` if absent.

    Returns:
        ``[n, p]`` and the names of the columns.
    """
    like = rows if like is None else like
    terms = _terms(rows, like)
    if form in _BENDS:
        names = ["constant", "log bounded progress", "log n", "log M", "log batch"]
        bounded = -np.log1p(np.exp(_BENDS[form] - terms["log progress"]))
        columns = [terms["constant"], bounded, *(terms[n] for n in names[2:])]
        return np.column_stack(columns), names
    names = ["constant", *_CHOSEN[form]]
    if form in ("training", "full"):  # what does not vary in the rows of the fit says nothing
        own = _terms(like, like)
        names = ["constant", *(n for n in _CHOSEN[form] if np.ptp(own[n]) > 0)]
    return np.column_stack([terms[n] for n in names]), names
