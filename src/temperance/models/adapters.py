"""Adapters of PEFT around a model or its layers, known without importing PEFT."""

from __future__ import annotations

from torch import nn

from temperance.errors import InvalidInput

__all__ = ["is_adapter", "original_copies", "refuse_adapted", "saved_by_adapters"]

_BEFORE = (
    "Insert before wrapping: insert(model, T), then get_peft_model(model, ...) "
    "with the layer's name in modules_to_save; its file then holds norm and T, too."
)


def is_adapter(module: nn.Module) -> bool:
    """Whether a module is one of PEFT's: around a model, a layer, or a copy that is trained."""
    return any(c.__module__.split(".")[0] == "peft" for c in type(module).__mro__)


def original_copies(model: nn.Module) -> set[nn.Module]:
    """Modules that stand by unused: the originals of what PEFT's ``modules_to_save`` trains."""
    originals = (getattr(m, "original_module", None) for m in model.modules() if is_adapter(m))
    return {part for m in originals if isinstance(m, nn.Module) for part in m.modules()}


def refuse_adapted(model: nn.Module, layer: nn.Module, *, fix: str = _BEFORE) -> None:
    """Raise InvalidInput for an output layer inside adapters, whose files would lack the head.

    Args:
        model: the whole model.
        layer: its output layer, or the head in the place of it.
        fix: what to do instead.
    """
    for name, wrapper in model.named_modules():
        if is_adapter(wrapper) and any(inner is layer for inner in wrapper.modules()):
            where = f"{name!r}, " if name else ""
            raise InvalidInput(
                "output layer",
                expected="a layer outside of adapters",
                found=f"one inside {where}a {type(wrapper).__name__} of PEFT",
                fix=fix,
            )


def saved_by_adapters(model: nn.Module, layer: nn.Module) -> bool:
    """Whether adapters around a layer, if there are any, train it whole and save it."""
    around = [m for m in model.modules() if is_adapter(m) and layer in set(m.modules())]
    copies = (getattr(m, "modules_to_save", None) for m in around)
    saved = (layer in set(c.modules()) for c in copies if isinstance(c, nn.ModuleDict))
    return not around or any(saved)
