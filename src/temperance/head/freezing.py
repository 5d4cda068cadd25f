"""Freezing parts of a model so that they stay frozen, and seeing that they did."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from temperance.errors import InvalidInput, NotFound
from temperance.head.running import names_of, require_values
from temperance.head.surgery import tempered_heads
from temperance.models.checkpoints import strip_prefixes
from temperance.models.probe import unwrap

__all__ = ["Frozen", "check_frozen", "freeze", "is_frozen", "unfreeze"]

_SHOWN = 6
_WERE_TRAINED = "_trained_before_freeze"  # names of a module's own parameters


@dataclass(frozen=True)
class Frozen:
    """What was frozen, and the fingerprint of every tensor of it.

    Attributes:
        modules: names of the modules that stay in evaluation mode, each with all that is inside.
        trained: names of the modules that go on training, each with all that is inside.
        n_parameters: numbers in the frozen parameters.
        digests: SHA-256 of each frozen parameter and buffer, by name.
    """

    modules: tuple[str, ...]
    trained: tuple[str, ...]
    n_parameters: int
    digests: Mapping[str, str]


def freeze(model: nn.Module, *, trained: str | Sequence[str] | None = None) -> Frozen:
    """Freeze a model, in place, but for its new head or the parts that are named.

    Two things move in a backbone that "is frozen" by ``requires_grad`` alone: running statistics,
    and dropout. So every frozen module also goes into evaluation mode **and stays there** when
    ``model.train()`` is called, which would undo a plain ``backbone.eval()``. Modules that contain
    both kinds follow ``train()`` themselves; only their own parameters are frozen.

    The head's norm trains on: it sees batches as usual. A second call starts afresh. The mark
    survives ``copy.deepcopy``, ``torch.compile`` and parallel wrappers; it is no part of the state
    dict, so freeze again after building a model anew. Freeze before building the optimizer.

    Args:
        model: the model, after ``insert``.
        trained: dotted names of the modules that go on training, or patterns such as
            ``"layer4.*"``; None for the tempered heads.

    Returns:
        What was frozen, for ``check_frozen``.

    Raises:
        NotFound: if there is no tempered head and ``trained`` is None, or a name fits no module.
        InvalidInput: if nothing would be frozen, a parameter belongs to both sides (tied weights)
            or has no values yet, or DistributedDataParallel already counts on its gradients. The
            model is then unchanged.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from temperance import insert
        >>> from temperance.head import check_frozen, freeze
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
        >>> head = insert(model, 4.0)
        >>> frozen = freeze(model)
        >>> model.train()(5 + torch.randn(16, 4)).sum().backward()
        >>> check_frozen(model, frozen)  # nothing of the backbone moved
        >>> model[1].training, head.norm.training
        (False, True)
    """
    _refuse_reducer(model, "freeze", "waits for the gradient of every parameter")
    model = unwrap(model)
    names = _trained_names(model, trained)
    kept = {m for n in names for m in model.get_submodule(n).modules()}
    mixed = {m for m in model.modules() if m not in kept and not kept.isdisjoint(m.modules())}
    _check_sides(model, kept, mixed)
    state = _frozen_tensors(model, kept, mixed)
    require_values(state)
    digests = {name: _digest(tensor) for name, tensor in state.items()}
    _release(model)
    for module in model.modules():
        if module in kept:
            continue
        _freeze_parameters(module)
        if module not in mixed:
            module.__dict__["train"] = functools.partial(_stay_in_evaluation, module)
            module.training = False
    return Frozen(
        modules=tuple(_outermost(model, kept | mixed)),
        trained=names,
        n_parameters=sum(t.numel() for t in state.values() if isinstance(t, nn.Parameter)),
        digests=digests,
    )


def unfreeze(model: nn.Module) -> None:
    """Take back what ``freeze`` did, in place; the values stay as they are.

    Parameters that were trainable before are so again; modules follow the mode of the model. Add
    the parameters to the optimizer (``add_param_group``) or build it anew. DistributedDataParallel
    does not send their gradients around: unfreeze the model inside and wrap it anew.

    Args:
        model: a model that was frozen; any other one stays as it is.

    Raises:
        InvalidInput: if it is wrapped in DistributedDataParallel.

    Example:
        >>> from torch import nn
        >>> from temperance.head import freeze, unfreeze
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))
        >>> _ = freeze(model, trained="1")
        >>> unfreeze(model)
        >>> all(p.requires_grad for p in model.parameters()), model[0].training
        (True, True)
    """
    _refuse_reducer(model, "unfreeze", "sends no gradients of what was frozen when it was built")
    _release(unwrap(model))


def check_frozen(model: nn.Module, frozen: Frozen) -> None:
    """Check that every frozen parameter and buffer is bit for bit what it was.

    For after an epoch, and before features of the backbone are kept. After weights were loaded on
    purpose call ``freeze`` again.

    Args:
        model: the model, wrapped or not.
        frozen: what ``freeze`` gave.

    Raises:
        InvalidInput: if a tensor moved or is gone (named), or a frozen module is in training mode.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from temperance.head import check_frozen, freeze
        >>> model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))
        >>> frozen = freeze(model, trained="1")
        >>> model[0].running_mean += 0.5
        >>> try:
        ...     check_frozen(model, frozen)
        ... except ValueError as error:
        ...     print(error.found)
        1 that moved: 0.running_mean
    """
    model = unwrap(model)
    state, modules = _find(_named_tensors(model)), _find(dict(model.named_modules()))
    pairs = [(name, state(name), digest) for name, digest in frozen.digests.items()]
    moved = [name for name, tensor, old in pairs if tensor is None or _digest(tensor) != old]
    if moved:
        raise _not_frozen(f"{len(moved)} that moved: {_list(moved)}")
    training = [
        f"{name}.{inner}".strip(".")
        for name in frozen.modules
        for inner, module in getattr(modules(name), "named_modules", dict)()
        if module.training
    ]
    if training:
        raise _not_frozen(f"{len(training)} in training mode: {_list(training)}")


def is_frozen(module: nn.Module) -> bool:
    """Whether ``freeze`` holds a module in evaluation mode."""
    own = module.__dict__.get("train")
    return isinstance(own, functools.partial) and own.func is _stay_in_evaluation


# ------------------------------------------------------------------ freezing
def _stay_in_evaluation(module: nn.Module, mode: bool = True) -> nn.Module:
    """Stand in for ``module.train``. A partial of this and no closure, so that copies work."""
    module.training = False
    for child in module.children():
        if not is_frozen(child):  # put there since
            child.train(mode)
    return module


def _freeze_parameters(module: nn.Module) -> None:
    own = {n: p for n, p in module._parameters.items() if p is not None and p.requires_grad}
    module.__dict__[_WERE_TRAINED] = tuple(own)
    for parameter in own.values():
        parameter.requires_grad_(False)
        parameter.grad = None  # an optimizer that holds it would go on with the old one


def _release(model: nn.Module) -> None:
    for module in model.modules():
        for name in module.__dict__.pop(_WERE_TRAINED, ()):
            parameter = module._parameters.get(name)
            if parameter is not None:
                parameter.requires_grad_(True)
        if is_frozen(module):
            del module.__dict__["train"]
            module.training = model.training


# ------------------------------------------------------------------ names and tensors
def _trained_names(model: nn.Module, trained: str | Sequence[str] | None) -> tuple[str, ...]:
    if trained is None:
        heads = tuple(tempered_heads(model))
        if not heads:
            raise NotFound(
                "tempered head",
                found="the model has none",
                fix="Call insert first, or name the modules that go on training: trained=....",
            )
        return heads
    known = [name for name, _ in model.named_modules()]
    names: list[str] = []
    for pattern in names_of(trained, "trained"):
        fitting = [n for n in known if n and fnmatchcase(n, pattern)]
        if not fitting:
            raise NotFound(
                f"module {pattern!r}",
                found="no module has such a name",
                candidates=[n for n, _ in model.named_children()][:_SHOWN],
                fix="Take names from model.named_modules(); * stands for anything.",
            )
        names += [n for n in fitting if n not in names]
    return tuple(names)


def _check_sides(model: nn.Module, kept: set[nn.Module], mixed: set[nn.Module]) -> None:
    sides: dict[bool, dict[int, str]] = {True: {}, False: {}}
    for name, module in model.named_modules():
        for key, parameter in module._parameters.items():
            if parameter is not None:
                sides[module in kept][id(parameter)] = f"{name}.{key}".lstrip(".")
    tied = [sides[False][i] for i in sides[True] if i in sides[False]]
    if tied:
        found, fix = f"{_list(tied)} in both", "Untie them, or name both sides in trained."
    elif not sides[False] and all(m in kept or m in mixed for m in model.modules()):
        found, fix = "nothing to freeze", "Name fewer modules in trained."
    else:
        return
    expected = "some, with weights that no trained part has"
    raise InvalidInput("parts to freeze", expected=expected, found=found, fix=fix)


def _refuse_reducer(model: nn.Module, verb: str, trouble: str) -> None:
    parallel = nn.parallel.DistributedDataParallel
    if isinstance(model, nn.Module) and any(isinstance(m, parallel) for m in model.modules()):
        raise InvalidInput(
            f"model to {verb}",
            expected="a model that is not wrapped yet",
            found=f"DistributedDataParallel, which {trouble}",
            fix=f"Call {verb} on the model inside (.module), then wrap it anew.",
        )


def _outermost(model: nn.Module, others: set[nn.Module]) -> Iterator[str]:
    """Frozen modules that lie in no other frozen one."""
    inside: set[nn.Module] = set()
    for name, module in model.named_modules():
        if module not in others and module not in inside:
            inside.update(module.modules())
            yield name


def _frozen_tensors(
    model: nn.Module, kept: set[nn.Module], mixed: set[nn.Module]
) -> dict[str, Tensor]:
    """Parameters and buffers; of mixed modules no buffers, which they may well move."""
    own = {
        id(tensor)
        for module in model.modules()
        if module not in kept
        for table in (module._parameters, {} if module in mixed else module._buffers)
        for tensor in table.values()
        if tensor is not None
    }
    return {name: t for name, t in _named_tensors(model).items() if id(t) in own}


def _named_tensors(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _find(table: Mapping[str, Any]) -> Callable[[str], Any]:
    """Look a name up as it is, or without what wrappers put into it since or before."""
    plain: dict[str, Any] = {}
    for name, value in table.items():
        plain.setdefault(_plain(name), value)
    return lambda name: table.get(name, plain.get(_plain(name)))


def _plain(name: str) -> str:
    return next(iter(strip_prefixes({name: None})))


def _digest(tensor: Tensor) -> str:
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(flat.numpy().tobytes()).hexdigest()


# ------------------------------------------------------------------ messages
def _not_frozen(found: str) -> InvalidInput:
    return InvalidInput(
        "frozen parts",
        expected="parameters and buffers as freeze found them, in evaluation mode",
        found=found,
        fix="Something writes to them: look for an optimizer that holds them, weights that were "
        "loaded since, or code that sets modes by hand.",
    )


def _list(names: Sequence[Any]) -> str:
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(str, names[:_SHOWN])) + more
