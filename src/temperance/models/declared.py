"""Where timm, torchvision and transformers say that the output layer of their models is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from temperance.models.layer import is_layer
from temperance.models.probe import is_tempered, registered

__all__ = ["advertised_width", "declared_names", "last_of_sequential"]

# Where the classifiers of a library are, in the order in which they are looked up.
_DECLARED = {
    "torchvision.": ("fc", "heads.head", "head", "classifier"),
    "transformers.": (
        "score",
        "classifier",
        "classifier.out_proj",
        "classification_head.out_proj",
        "logits_proj",
        "head",
        "fc",
    ),
}


def last_of_sequential(model: nn.Module) -> str | None:
    """Name of the last child that has tensors, as long as all around it are plain Sequentials.

    Buffers count, since a BatchNorm without scale or a fixed matrix changes the logits, too. A
    subclass with a ``forward`` of its own may run its children in any order.
    """
    name, module = "", model
    while isinstance(module, nn.Sequential):
        if type(module).forward is not nn.Sequential.forward:
            return None
        children = [(n, m) for n, m in module._modules.items() if m is not None and _has_tensors(m)]
        if not children:
            return None
        name, module = f"{name}.{children[-1][0]}".lstrip("."), children[-1][1]
    return name if module is not model else None


def _has_tensors(module: nn.Module) -> bool:
    return any(True for tensors in (module.parameters(), module.buffers()) for _ in tensors)


def declared_names(model: nn.Module) -> tuple[str, ...]:
    """Names that the model's library declares, as far as they exist and are output layers."""
    config = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None)
    names: Any = config.get("classifier") if isinstance(config, Mapping) else None
    if names:
        names = (names,) if isinstance(names, str) else tuple(names)
        return tuple(n for n in names if _linear_at(model, n) is not None)
    for prefix, known in _DECLARED.items():
        if any(c.__module__.startswith(prefix) for c in type(model).__mro__):
            found = (_linear_at(model, n) for n in known)
            return tuple(n for n in found if n is not None)[:1]
    return ()


def advertised_width(model: nn.Module) -> tuple[str, int | None]:
    """Name and value of the number of features that a model states, if it states one.

    ``num_features`` of timm's models (which may be that of the features before a last hidden
    layer), ``config.hidden_size`` of transformers.
    """
    config = getattr(model, "config", None)
    for name, owner in (("num_features", model), ("hidden_size", config)):
        value: Any = getattr(owner, name, None)
        if isinstance(value, int) and not isinstance(value, bool):
            return name if owner is model else f"config.{name}", value
    return "", None


def _linear_at(model: nn.Module, name: str) -> str | None:
    """The name, or that of the last layer of a Sequential there, if it is linear."""
    module = registered(model, name)
    if isinstance(module, nn.Sequential):
        inner = last_of_sequential(module)
        return None if inner is None else _linear_at(model, f"{name}.{inner}")
    linear = module is not None and (is_layer(module) or is_tempered(module))
    return name if linear else None
