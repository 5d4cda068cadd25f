"""Which modules of a model make its logits, seen by running it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from temperance.errors import InvalidInput
from temperance.models.layer import is_layer
from temperance.models.probe import evaluating, is_tempered, probe_logits

__all__ = ["Trace", "trace_logits"]


@dataclass(frozen=True, eq=False)
class Trace:
    """Which modules with weights feed the logits directly.

    Attributes:
        logits: what the model returned for the example, detached.
        feeding: names of the modules whose output reaches the logits through no other such module.
        called: names of all modules with weights that ran.
        late: names of weights (two dimensions or more) that no module call accounts for and that
            act between ``feeding`` and the logits.
    """

    logits: Tensor
    feeding: tuple[str, ...]
    called: tuple[str, ...]
    late: tuple[str, ...]


def trace_logits(model: nn.Module, example: Any, *, key: str | int | None = None) -> Trace:
    """Run one batch and find the modules whose output feeds the logits directly.

    Every module with weights hands on a detached copy of its output. The gradient of the logits
    then ends at the first such module on every way back: the output layer, or all of them if
    several contribute. Names, order of calls and auxiliary outputs play no part.

    Args:
        model: any module; it is left exactly as it was.
        example: a batch in any form that ``split_batch`` reads.
        key: which entry of the output holds the logits.

    Returns:
        The trace. Where the model returns logits without a gradient, ``feeding`` are the modules
        whose output has the very values of the logits.

    Raises:
        InvalidInput: if the model has lazy parameters that no batch has shaped yet.
    """
    _refuse_untraceable(model)
    leaves: dict[str, list[Tensor]] = {}
    handles = []
    try:
        for name, module in list(_weighted_leaves(model)):
            handles.append(module.register_forward_hook(_cutter(name, leaves)))
        with evaluating(model), torch.inference_mode(False), torch.enable_grad(), _thawed(model):
            logits = probe_logits(model, example, key=key)
            feeding, late = _reached(model, logits, leaves)
    finally:
        for handle in handles:
            handle.remove()
    return Trace(logits.detach(), feeding, tuple(leaves), late)


@contextmanager
def _thawed(model: nn.Module) -> Iterator[None]:
    """Every parameter takes part in the gradient."""
    frozen = [p for p in model.parameters() if not p.requires_grad and p.is_floating_point()]
    try:
        for parameter in frozen:
            parameter.requires_grad_(True)
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)


def _weighted_leaves(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    inside: set[nn.Module] = set()
    for name, module in model.named_modules():
        if module in inside:
            continue
        if is_tempered(module):
            inside.update(module.modules())
            yield name, module
        elif not any(True for _ in module.children()) and any(
            p.ndim >= 2 for p in module.parameters(recurse=False)
        ):
            yield name, module
        elif hasattr(module, "parametrizations") and is_layer(module):
            inside.update(module.modules())  # weight_norm and the like: still one layer
            yield name, module


def _cutter(name: str, leaves: dict[str, list[Tensor]]) -> Any:
    def hook(_module: nn.Module, _args: Any, output: Any) -> Tensor | None:
        if not isinstance(output, Tensor) or not output.is_floating_point():
            return None
        leaf = output.detach().requires_grad_()
        leaves.setdefault(name, []).append(leaf)
        return leaf.clone()  # a leaf itself could not be changed in place by what follows

    return hook


def _reached(
    model: nn.Module, logits: Tensor, leaves: dict[str, list[Tensor]]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if not logits.requires_grad:
        same = [n for n, outs in leaves.items() if any(_same_values(o, logits) for o in outs)]
        return tuple(same), ()
    flat = [(name, leaf) for name, outs in leaves.items() for leaf in outs]
    weights: list[tuple[str, Tensor]] = [
        (n, p) for n, p in model.named_parameters() if p.requires_grad and p.ndim >= 2
    ]
    grads = torch.autograd.grad(
        logits.float().sum(), [t for _, t in flat + weights], allow_unused=True
    )
    hit = [n for (n, _), g in zip(flat + weights, grads, strict=True) if g is not None]
    reached = tuple(dict.fromkeys(n for n in hit if n in leaves))
    return reached, tuple(n for n in hit if n not in leaves)


def _same_values(output: Tensor, logits: Tensor) -> bool:
    return output.numel() == logits.numel() and torch.equal(
        output.flatten(), logits.detach().to(output.dtype).flatten()
    )


def _refuse_untraceable(model: nn.Module) -> None:
    scripted = [n or "the model" for n, m in model.named_modules() if _is_script(m)]
    if scripted:
        raise InvalidInput(
            scripted[0],
            expected="an nn.Module",
            found="a scripted module, which takes no hooks",
            fix="Change the head first, script afterwards.",
        )
    lazy = [n for n, p in model.named_parameters() if is_lazy(p)]
    if lazy:
        raise InvalidInput(
            f"parameter {lazy[0]}",
            expected="a parameter with a shape",
            found="a lazy one that no batch has shaped yet",
            fix="Run one batch through the model first.",
        )


def _is_script(module: nn.Module) -> bool:
    return isinstance(module, torch.jit.ScriptModule)
