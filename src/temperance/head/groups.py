"""Which parameters to decay, and whether an optimizer holds the new head."""

from __future__ import annotations

import numbers
import warnings
from typing import Any

from torch import nn
from torch.optim import Optimizer

from temperance.errors import InvalidInput, NotFound, TemperanceWarning
from temperance.head.surgery import tempered_heads
from temperance.head.tempered import TemperedHead
from temperance.models.adapters import saved_by_adapters
from temperance.models.probe import unwrap

__all__ = ["check_optimizer", "parameter_groups"]


def parameter_groups(
    model: nn.Module, weight_decay: float, *, temperature_lr: float | None = None
) -> list[dict[str, Any]]:
    """Split the trainable parameters for an optimizer: decay weights, nothing else.

    No decay for parameters of normalization layers (any module whose class name contains "norm"),
    parameters called ``bias``, parameters with fewer than two dimensions (scales, shifts, a learned
    temperature), and names that the model's own ``no_weight_decay()`` lists, as timm's models do.
    Shared parameters come once; they are decayed only if no use of them says otherwise.

    Args:
        model: the model, after ``insert``.
        weight_decay: the decay of the weights, 0 or more.
        temperature_lr: learning rate of learned temperatures; None for that of the optimizer.

    Returns:
        One to three groups for any torch optimizer: with decay, then without, then the learned
        temperatures if they have a rate of their own. Together they hold every parameter that
        requires a gradient exactly once.

    Raises:
        InvalidInput: if the decay is negative or not finite, nothing is trainable, or there is a
            ``temperature_lr`` that is not above 0, or no learned temperature for it.

    Example:
        >>> from torch import nn, optim
        >>> from temperance import insert, parameter_groups
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> _ = insert(model, 4.0)
        >>> groups = parameter_groups(model, 0.05)
        >>> [(len(g["params"]), g["weight_decay"]) for g in groups]
        [(2, 0.05), (4, 0.0)]
        >>> optimizer = optim.AdamW(groups, lr=1e-3)
    """
    _check_decay(weight_decay)
    model = unwrap(model)
    excluded = _own_exclusions(model)
    decay: dict[nn.Parameter, bool] = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        for name, parameter in module.named_parameters(recurse=False):
            full = f"{prefix}.{name}".lstrip(".")
            if parameter.requires_grad:
                wanted = full not in excluded and _is_weight(module, name, parameter)
                decay[parameter] = decay.get(parameter, True) and wanted
    if not decay:
        raise InvalidInput(
            "model",
            expected="trainable parameters",
            found="none that requires a gradient",
            fix="Unfreeze some, or insert a head first.",
        )
    groups = [
        {"params": [p for p, wanted in decay.items() if wanted], "weight_decay": weight_decay},
        {"params": [p for p, wanted in decay.items() if not wanted], "weight_decay": 0.0},
    ]
    if temperature_lr is not None:
        groups = _apart(groups, _learned(model), temperature_lr)
    return [g for g in groups if g["params"]]


def check_optimizer(optimizer: Optimizer, model: nn.Module) -> None:
    """Check that an optimizer holds every trainable parameter of the tempered heads.

    An optimizer that was built before ``insert`` trains parameters that are no longer, or not all,
    in the model, and says nothing. A head inside adapters of PEFT that neither train nor save it
    (it is not in ``modules_to_save``) gives a warning.

    Args:
        optimizer: the optimizer of the training.
        model: the model, after ``insert``.

    Raises:
        InvalidInput: if parameters are missing, which are named; or if it decays a learned T.
        NotFound: if the model has no tempered head.

    Example:
        >>> from torch import nn, optim
        >>> from temperance import insert
        >>> from temperance.head import check_optimizer
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> _ = insert(model, 4.0)
        >>> check_optimizer(optim.SGD(model.parameters(), lr=0.1), model)
    """
    heads = tempered_heads(model)
    if not heads:
        raise NotFound(
            "tempered head",
            found="the model has none",
            fix="Call insert first, then build the optimizer.",
        )
    held = {p for group in optimizer.param_groups for p in group["params"]}
    missing = [
        f"{name}.{key}".lstrip(".")
        for name, head in heads.items()
        for key, parameter in head.named_parameters()
        if parameter.requires_grad and parameter not in held
    ]
    if missing:
        raise InvalidInput(
            "optimizer",
            expected="all trainable parameters of the new head",
            found=f"{len(missing)} missing: {', '.join(missing)}",
            fix="Build the optimizer after insert, or add them with add_param_group.",
        )
    learned = _learned(model)
    decayed = [
        group["weight_decay"]
        for group in optimizer.param_groups
        if group.get("weight_decay") and learned.intersection(group["params"])
    ]
    if decayed:
        raise InvalidInput(
            "optimizer",
            expected="no weight decay on a learned temperature",
            found=f"{decayed[0]:g}, which pulls T towards 1",
            fix="Build it over parameter_groups(model, weight_decay).",
        )
    _warn_unsaved(unwrap(model), heads)


def _warn_unsaved(model: nn.Module, heads: dict[str, TemperedHead]) -> None:
    unsaved = [name for name, head in heads.items() if not saved_by_adapters(model, head)]
    if unsaved:
        warnings.warn(
            f"the head {unsaved[0]!r} is inside adapters of PEFT that neither train nor save it: "
            "its norm and T would be missing in their file. Put the layer's name into "
            "modules_to_save.",
            TemperanceWarning,
            stacklevel=3,
        )


def _learned(model: nn.Module) -> set[nn.Parameter]:
    logs = (head.log_temperature for head in tempered_heads(model).values())
    return {log for log in logs if log is not None and log.requires_grad}


def _apart(
    groups: list[dict[str, Any]], learned: set[nn.Parameter], lr: Any
) -> list[dict[str, Any]]:
    """The learned temperatures as a group of their own, with their rate."""
    real = isinstance(lr, numbers.Real) and not isinstance(lr, bool)
    if not learned or not real or not 0 < float(lr) < float("inf"):
        raise InvalidInput(
            "temperature_lr",
            expected="a finite number above 0, and a model with a learned temperature",
            found=repr(lr) if learned else "no learned temperature",
            fix="Insert with HeadOptions(learned=LearnedTemperature()), or leave it out.",
        )
    rest = [{**g, "params": [p for p in g["params"] if p not in learned]} for g in groups]
    ordered = [p for g in groups for p in g["params"] if p in learned]
    return [*rest, {"params": ordered, "weight_decay": 0.0, "lr": float(lr)}]


def _check_decay(value: Any) -> None:
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not number or not 0 <= float(value) < float("inf"):
        raise InvalidInput(
            "weight_decay", expected="a number of 0 or more", found=repr(value), fix="Set it."
        )


def _is_weight(module: nn.Module, name: str, parameter: nn.Parameter) -> bool:
    norm = any("norm" in c.__name__.lower() for c in type(module).__mro__)
    return parameter.ndim >= 2 and not norm and name.rpartition(".")[2] != "bias"


def _own_exclusions(model: nn.Module) -> set[str]:
    own = getattr(model, "no_weight_decay", None)
    names = own() if callable(own) else ()
    return {str(n) for n in names} if isinstance(names, (set, list, tuple, frozenset)) else set()
