"""The weights of a tempered model for a plain one: the heads first, then what is in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from temperance.head import insert
from temperance.models import LoadReport, load_state, strip_prefixes
from temperance.models.probe import is_tempered, registered

__all__ = ["heads_in", "heads_of_state", "load_tempered"]


def heads_in(state: Mapping[str, Any]) -> dict[str, str]:
    """Name the tempered heads of a state dict, with their norms.

    Args:
        state: tensors by name, without prefixes of wrappers.

    Returns:
        Norm by dotted name.
    """
    heads = [k.rpartition(".")[0] for k in state if k.rpartition(".")[2] == "temperature"]
    return {name: _norm_of(state, name) for name in heads if f"{name}.linear.weight" in state}


def heads_of_state(model: nn.Module, state: Mapping[str, Any], *, prefix: str = "") -> list[str]:
    """Put in the heads that a state dict was saved with, where the model has plain layers.

    T and norm are read from the names and values of the state; they are loaded with the rest.

    Args:
        model: the classifier, changed in place.
        state: tensors by name; names may have prefixes of wrappers.
        prefix: what the names of the model begin with in the state.

    Returns:
        The dotted names of the layers that have a head now and had none before.
    """
    plain = {k.removeprefix(prefix): v for k, v in strip_prefixes(state).items()}
    placed = []
    for name, kind in heads_in(plain).items():
        layer = registered(model, name)
        if layer is not None and not is_tempered(layer):
            insert(model, float(plain[f"{name}.temperature"]), norm=kind, name=name)
            placed.append(name)
    return placed


def load_tempered(model: nn.Module, state: Mapping[str, Any]) -> LoadReport:
    """Load the weights of a tempered model into a plain one; it gets the same heads first.

    Args:
        model: a model of the same architecture, with or without the head; changed in place.
        state: tensors by name, for instance ``torch.load(path)["state_dict"]`` of Lightning.

    Returns:
        What was loaded; every name of the model is, or an error says which is missing.

    Raises:
        InvalidInput: as ``temperance.models.load_state``.

    Example:
        >>> from torch import nn
        >>> from temperance import insert
        >>> from temperance.integrations.tempered_state import load_tempered
        >>> trained = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> _ = insert(trained, 4.0)
        >>> fresh = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> print(load_tempered(fresh, trained.state_dict()), float(fresh[2].temperature))
        10 loaded, 0 new, 0 ignored 4.0
    """
    heads_of_state(model, state)
    return load_state(model, state)


def _norm_of(names: Mapping[str, Any], head: str) -> str:
    """The norm by its names in a state dict."""
    scale = f"{head}.norm.weight" in names
    if f"{head}.norm.running_mean" in names:
        return "batch" if scale else "batch-no-affine"
    if f"{head}.linear.eps" in names:
        return "cosine"
    return "layer" if scale else "none"
