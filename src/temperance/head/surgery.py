"""Putting a temperature into a model, and taking it out again."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from temperance.errors import InvalidInput, NotFound
from temperance.head.tempered import TemperedHead, check_norm, check_temperature
from temperance.models.find import Head, find_head
from temperance.models.probe import (
    evaluating,
    probe_logits,
    refuse_compiled,
    replace_module,
    unwrap,
)
from temperance.records import Suggestion

__all__ = ["HeadOptions", "insert", "remove", "tempered_heads"]


@dataclass(frozen=True)
class HeadOptions:
    """Rarely changed settings of ``insert``.

    Attributes:
        keep_weights: keep the weights of the old layer; else they are drawn anew, as PyTorch does.
        seed: seed of that draw; the global random state is not touched.
        gradient_compensation: see ``TemperedHead``; off by default.
        momentum: of BatchNorm's running statistics (0.1 is PyTorch's default).
        output_key: which entry of the model's output holds the logits, see ``logits_of``.
    """

    keep_weights: bool = True
    seed: int = 0
    gradient_compensation: bool = False
    momentum: float = 0.1
    output_key: str | int | None = None


def insert(
    model: nn.Module,
    temperature: float | Suggestion,
    *,
    norm: str | None = None,
    example: Any = None,
    name: str | None = None,
    options: HeadOptions | None = None,
) -> TemperedHead:
    """Replace a model's output layer, in place, by norm, the same layer, and division by T.

    Only the final linear layer is replaced, in every place where it is registered: dropout, pooling
    and an existing final norm in front of it stay. The old layer lives on as ``.linear``, so that
    ``remove`` restores the model bit for bit. If anything raises, the model is untouched.

    Build the optimizer after this call (``parameter_groups``, ``check_optimizer``). A new BatchNorm
    starts without statistics; ``set_norm_statistics`` gives it those of the training data.

    Args:
        model: the classifier; insert before compiling, parallel wrappers and adapters.
        temperature: T, at least 0.01, or a Suggestion, which also brings its norm.
        norm: ``batch``, ``batch-no-affine``, ``layer`` or ``none``; by default the suggestion's, or
            ``batch``.
        example: one batch to find the layer with, and to check afterwards that the new head makes
            the logits and gets a gradient. Recommended.
        name: dotted name of the layer, see ``find_head``.
        options: rarely changed settings.

    Returns:
        The head that was installed.

    Raises:
        InvalidInput: if T or the norm cannot be used, or the layer cannot carry a temperature (a
            convolution, one output, already tempered, an unknown kind of linear layer, or inside a
            compiled part).
        NotFound: if the layer cannot be found, see ``find_head``.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from temperance import insert, remove
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> insert(model, 4.0, example=torch.zeros(2, 4)).in_features
        8
        >>> remove(model)
        Linear(in_features=8, out_features=3, bias=True)
    """
    chosen = options or HeadOptions()
    number, norm = _resolve(temperature, norm)
    _refuse_wrapped(model)
    found = find_head(model, example, name=name, output_key=chosen.output_key)
    old = _replaceable(model, found)
    refuse_compiled(model, old)
    linear = old if chosen.keep_weights else _redrawn(model, old, chosen.seed)
    new = TemperedHead(
        linear,
        number,
        norm=norm,
        gradient_compensation=chosen.gradient_compensation,
        momentum=chosen.momentum,
    )
    replace_module(model, old, new)
    try:
        if example is not None:
            _check_installed(model, new, example, chosen.output_key)
    except BaseException:
        replace_module(model, new, old)
        raise
    return new


def remove(model: nn.Module, *, name: str | None = None) -> nn.Linear:
    """Put the plain linear layer back, in place; norm and T are dropped.

    Directly after ``insert`` (with kept weights) this restores the model bit for bit. After
    training it leaves the trained layer without the norm and T that it was trained with: to keep
    the function, use ``fold``.

    Args:
        model: a model with a TemperedHead.
        name: which one, if there are several.

    Returns:
        The layer, now in its old places.

    Raises:
        NotFound: if there is no tempered head, or more than one and no name.
        InvalidInput: if the model itself is the head, or is wrapped, or a part with it is compiled.

    Example:
        >>> from torch import nn
        >>> from temperance import insert, remove
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> layer = model[2]
        >>> head = insert(model, 4.0)
        >>> remove(model) is layer is model[2]
        True
    """
    _refuse_wrapped(model)
    heads = tempered_heads(model)
    if name is not None:
        heads = {n: h for n, h in heads.items() if n == name}
    if len(heads) != 1:
        raise NotFound(
            "tempered head",
            found=f"{len(heads)} of them in the model",
            candidates=tuple(tempered_heads(model)),
            fix="Say which one with name=." if heads else "Call insert first, or check the name.",
        )
    ((place, head),) = heads.items()
    if place == "":
        raise _no_parent("remove", "Take its .linear.")
    refuse_compiled(model, head)
    replace_module(model, head, head.linear)
    return head.linear


def tempered_heads(model: nn.Module) -> dict[str, TemperedHead]:
    """Every TemperedHead of a model, by dotted name."""
    return {n: m for n, m in unwrap(model).named_modules() if isinstance(m, TemperedHead)}


def shared_names(model: nn.Module, head: TemperedHead) -> tuple[str, ...]:
    """Names outside a head under which one of its parameters is registered, too (tied weights)."""
    own, inside = set(head.parameters()), set(head.modules())
    return tuple(
        f"{name}.{key}".lstrip(".")
        for name, module in model.named_modules()
        if module not in inside
        for key, parameter in module.named_parameters(recurse=False)
        if parameter in own
    )


# ------------------------------------------------------------------ helpers
def _resolve(temperature: float | Suggestion, norm: str | None) -> tuple[float, str]:
    if isinstance(temperature, Suggestion):
        norm = norm or temperature.norm
        temperature = temperature.temperature
    return check_temperature(temperature), check_norm(norm or "batch")


def _refuse_wrapped(model: nn.Module) -> None:
    if unwrap(model) is not model:
        raise InvalidInput(
            "model",
            expected="the plain model",
            found=f"a {type(model).__name__} around it",
            fix="Change the head before wrapping; a wrapper keeps the old parameters.",
        )


def _replaceable(model: nn.Module, head: Head) -> nn.Linear:
    if head.kind == "tempered":
        raise _bad_head(head, "a tempered head already", "Call remove first, or set_temperature.")
    if head.kind != "linear":
        fix = "Convolutional heads are not supported: end the model in pooling and an nn.Linear."
        raise _bad_head(head, f"a {type(head.module).__name__} ({head.kind})", fix)
    if head.module is model:
        raise _no_parent("insert", "Wrap it in nn.Sequential, or build TemperedHead(linear, T).")
    linear = cast(nn.Linear, head.module)
    if not _is_affine(linear):
        fix = "Quantized and adapter layers cannot be changed: insert before wrapping."
        raise _bad_head(head, f"a {type(linear).__name__} that computes something else", fix)
    return linear


def _is_affine(linear: nn.Linear) -> bool:
    """Whether a subclass still computes x W^T + b with its .weight and .bias."""
    if type(linear).forward is nn.Linear.forward:
        return True
    with evaluating(linear), torch.no_grad():
        try:
            x = torch.linspace(-1, 1, 2 * linear.in_features).reshape(2, -1).to(linear.weight)
            expected = nn.functional.linear(x, linear.weight, linear.bias)
            torch.testing.assert_close(linear(x), expected, check_dtype=False)
        except (RuntimeError, TypeError, AssertionError):
            return False
    return True


def _redrawn(model: nn.Module, old: nn.Linear, seed: int) -> nn.Linear:
    """A fresh layer like the old one, initialized as nn.Linear does it, from its own generator."""
    shared = [n for n, p in model.named_parameters(remove_duplicate=False) if p is old.weight]
    owners = {n.rpartition(".")[0] for n in shared}
    if any(model.get_submodule(o) is not old for o in owners):
        raise InvalidInput(
            "keep_weights",
            expected="a layer with weights of its own",
            found=f"weights shared under the names {', '.join(shared)}",
            fix="Keep the weights, or untie them first.",
        )
    has_bias = old.bias is not None
    new = torch.nn.utils.skip_init(nn.Linear, old.in_features, old.out_features, bias=has_bias)
    generator = torch.Generator().manual_seed(seed)
    bound = 1 / math.sqrt(old.in_features)  # torch.nn.Linear.reset_parameters
    with torch.no_grad():
        for parameter in new.parameters():
            parameter.uniform_(-bound, bound, generator=generator)
    new.to(old.weight.device, old.weight.dtype).train(old.training)
    for fresh, former in zip(new.parameters(), old.parameters(), strict=True):
        fresh.requires_grad_(former.requires_grad)
    return new


def _check_installed(
    model: nn.Module, head: TemperedHead, example: Any, key: str | int | None
) -> None:
    """Run the model and see that the new head makes the logits and is reached by a gradient."""
    calls: list[int] = []
    handle = head.register_forward_hook(lambda *_: calls.append(1))
    grads: tuple[Tensor | None, ...] = ()
    try:
        with evaluating(model), torch.inference_mode(False), torch.enable_grad():
            new = [p for p in head.parameters() if p.requires_grad]
            logits = probe_logits(model, example, key=key)
            if new and logits.requires_grad:
                grads = torch.autograd.grad(logits.float().sum(), new, allow_unused=True)
    finally:
        handle.remove()
    if calls and logits.shape[-1] == head.out_features and all(g is not None for g in grads):
        return
    raise InvalidInput(
        "model with the new head",
        expected=f"logits with {head.out_features} columns that give the head a gradient",
        found=f"logits of shape {list(logits.shape)}, and a head that is not used",
        fix="The model holds its output layer in a second place that is no registered module.",
    )


def _bad_head(head: Head, found: str, fix: str) -> InvalidInput:
    subject = f"output layer {head.name!r}"
    return InvalidInput(subject, expected="an nn.Linear", found=found, fix=fix)


def _no_parent(verb: str, fix: str) -> InvalidInput:
    return InvalidInput(
        verb,
        expected="a model that contains its output layer",
        found="a model that is the layer itself, which cannot be replaced in place",
        fix=fix,
    )
