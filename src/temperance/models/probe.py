"""Looking at a model, and running it, without changing it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from temperance.errors import InvalidInput
from temperance.models.outputs import call_model, device_of, logits_of, map_tensors, split_batch

__all__ = [
    "evaluating",
    "is_tempered",
    "probe_logits",
    "refuse_compiled",
    "registered",
    "replace_module",
    "unwrap",
]


def is_tempered(module: nn.Module) -> bool:
    """Whether a module is a TemperedHead (which lives in a later room, so it carries a mark)."""
    return bool(getattr(type(module), "is_tempered_head", False))


def unwrap(model: nn.Module) -> nn.Module:
    """Give the model inside ``torch.compile``, DataParallel and DistributedDataParallel."""
    _check_module(model)
    parallel = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    while True:
        if isinstance(model, parallel):
            model = model.module
        elif isinstance(model, torch._dynamo.OptimizedModule):
            model = model._orig_mod
        else:
            return model


def registered(model: nn.Module, name: str) -> nn.Module | None:
    """Give the module that is registered under a dotted name, whatever ``getattr`` would give."""
    module: nn.Module | None = model
    for part in name.split(".") if name else ():
        module = None if module is None else module._modules.get(part)
    return module


def refuse_compiled(model: nn.Module, layer: nn.Module) -> None:
    """Raise InvalidInput for a layer in a part that goes on with the old one.

    A compiled part may go on calling it; DistributedDataParallel goes on averaging the gradients of
    the parameters that it was built with.
    """
    for name, wrapper in model.named_modules():
        compiled = isinstance(wrapper, torch._dynamo.OptimizedModule)
        parallel = isinstance(wrapper, nn.parallel.DistributedDataParallel)
        if (compiled or parallel) and any(inner is layer for inner in wrapper.modules()):
            plain, verb = ("_orig_mod", "compile") if compiled else ("module", "wrap it")
            kind = "torch.compile" if compiled else "DistributedDataParallel"
            raise InvalidInput(
                "output layer",
                expected="a layer outside of compiled parts and parallel wrappers",
                found=f"one inside {name!r}, a result of {kind}",
                fix=f"Put the plain module (its .{plain}) back there, change the head, then "
                f"{verb}.",
            )


def replace_module(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put ``new`` in every place where ``old`` is registered."""
    places = [
        (parent, name)
        for parent in model.modules()
        for name, child in parent._modules.items()
        if child is old
    ]
    for parent, name in places:
        parent.register_module(name, new)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; afterwards modes, buffers and random states are as they were.

    Modes are set module by module, not with ``eval()``, which some models override. Compiled parts
    run uncompiled, since a compiled graph would not see hooks. DistributedDataParallel hands no
    buffers around, so that one process may run alone. Copies stand in for tensors that were made
    under ``torch.inference_mode``, which have no gradients and no versions. The random states are
    those of torch, and of Python and NumPy, from which a data set that is read inside may draw.

    Args:
        model: any module.

    Yields:
        Nothing.
    """
    with _ordinary_tensors(model), _unchanged(model):
        yield


@contextmanager
def _unchanged(model: nn.Module) -> Iterator[None]:
    modes = [(m, m.training) for m in model.modules()]
    buffers = [
        (m, name, b, b._version, b.clone())
        for m in model.modules()
        for name, b in m._buffers.items()
        if b is not None
    ]
    parallel = [m for m in model.modules() if isinstance(m, nn.parallel.DistributedDataParallel)]
    waiting = [(m, m.require_forward_param_sync) for m in parallel]
    indices = {p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"}
    states = random.getstate(), np.random.get_state()  # noqa: NPY002 - put back as it is
    with torch.random.fork_rng(devices=sorted(indices)), torch.compiler.set_stance("force_eager"):
        try:
            for module, _ in modes:
                module.training = False
            for wrapper, _ in waiting:
                wrapper.require_forward_param_sync = False
            yield
        finally:
            for wrapper, waits in waiting:
                wrapper.require_forward_param_sync = waits
            for module, mode in modes:
                module.training = mode
            with torch.no_grad():
                for module, name, buffer, version, value in buffers:
                    if buffer._version != version:
                        buffer.copy_(value)
                    module._buffers[name] = buffer
            random.setstate(states[0])
            np.random.set_state(states[1])  # noqa: NPY002


@contextmanager
def _ordinary_tensors(model: nn.Module) -> Iterator[None]:
    """Copies in the place of tensors that were made under ``torch.inference_mode``."""
    places: list[tuple[Any, str, Tensor]] = [
        (table, name, tensor)
        for module in model.modules()
        for table in (module._parameters, module._buffers)
        for name, tensor in table.items()
        if tensor is not None and not is_lazy(tensor) and tensor.is_inference()
    ]
    with torch.inference_mode(False):
        copies = {tensor: tensor.detach().clone() for _, _, tensor in places}
        for _, _, tensor in places:
            if isinstance(tensor, nn.Parameter) and not isinstance(copies[tensor], nn.Parameter):
                copies[tensor] = nn.Parameter(copies[tensor], tensor.requires_grad)
    try:
        for table, name, tensor in places:
            table[name] = copies[tensor]  # one copy for tied weights
        yield
    finally:
        for table, name, tensor in places:
            table[name] = tensor


def probe_logits(model: nn.Module, example: Any, *, key: str | int | None = None) -> Tensor:
    """Logits of a copy of one example batch; call it inside ``evaluating``."""
    device = device_of(model)
    inputs = map_tensors(split_batch(example)[0], lambda x: x.detach().clone().to(device))
    try:
        output = call_model(model, inputs)
    except Exception as error:
        error.add_note(f"raised by {type(model).__name__} on the example batch")
        raise
    logits = logits_of(output, key=key)
    if not logits.numel():
        raise InvalidInput(
            "example",
            expected="a batch of one row or more",
            found=f"logits of shape {list(logits.shape)}",
            fix="Take one batch of the data.",
        )
    return logits


def _check_module(model: Any) -> None:
    if not isinstance(model, nn.Module):
        found = f"a {type(model).__name__}"
        raise InvalidInput("model", expected="an nn.Module", found=found, fix=_fix_for(model))


def _fix_for(model: Any) -> str:
    """What to do with something that is no torch module, but perhaps holds or resembles one."""
    if isinstance(getattr(model, "module_", None), nn.Module):  # skorch
        return "Pass its .module_, the torch model inside."
    if hasattr(model, "predict_proba") or hasattr(model, "decision_function"):
        return (
            "A scikit-learn model has no output layer that could be trained at another "
            "temperature: scale its predictions afterwards "
            "(temperance.integrations.sklearn.CalibratedModel), or build the network in torch."
        )
    return "Pass the model."
