"""Putting a temperature into a model, and taking it out again."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from temperance.errors import InvalidInput, NotFound
from temperance.head.cosine import plain_layer
from temperance.head.temperature import LearnedTemperature, check_temperature
from temperance.head.tempered import TemperedHead, check_norm
from temperance.models.adapters import original_copies, refuse_adapted
from temperance.models.find import Head, find_head, find_heads
from temperance.models.layer import CONVS, OutputLayer, empty_like, layer_sizes
from temperance.models.probe import (
    evaluating,
    probe_logits,
    refuse_compiled,
    replace_module,
    unwrap,
)
from temperance.records import Suggestion

__all__ = ["HeadOptions", "insert", "insert_all", "remove", "tempered_heads"]


@dataclass(frozen=True)
class HeadOptions:
    """Rarely changed settings of ``insert``.

    Attributes:
        keep_weights: keep the weights of the old layer; else they are drawn anew, as PyTorch does.
        seed: seed of that draw; the global random state is not touched.
        gradient_compensation: see ``TemperedHead``; off by default.
        momentum: of BatchNorm's running statistics (0.1 is PyTorch's default).
        output_key: which entry of the model's output holds the logits, see ``logits_of``.
        learned: bounds within which T is learned in training; None for a fixed T.
    """

    keep_weights: bool = True
    seed: int = 0
    gradient_compensation: bool = False
    momentum: float = 0.1
    output_key: str | int | None = None
    learned: LearnedTemperature | None = None


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

    Only the final layer is replaced, ``nn.Linear`` or a convolution of size 1, in every place where
    it is registered: dropout, pooling and an existing final norm in front of it stay. The old layer
    lives on as ``.linear``, so that ``remove`` restores the model bit for bit. If anything raises,
    the model is untouched.

    Build the optimizer after this call (``parameter_groups``, ``check_optimizer``). A new BatchNorm
    starts without statistics; ``set_norm_statistics`` gives it those of the training data.

    Args:
        model: the classifier; insert before compiling, parallel wrappers and adapters.
        temperature: T, at least 0.01, or a Suggestion, which also brings its norm.
        norm: ``batch``, ``batch-no-affine``, ``layer``, ``none`` or ``cosine``; by default the
            suggestion's, or ``batch``.
        example: one batch to find the layer with, and to check afterwards that the new head makes
            the logits and gets a gradient. Recommended.
        name: dotted name of the layer, see ``find_head``.
        options: rarely changed settings.

    Returns:
        The head that was installed; its ``.notes`` are those of ``find_head``.

    Raises:
        InvalidInput: if T or the norm cannot be used, or the layer cannot carry a temperature (a
            larger convolution, one output, already tempered, an unknown kind of linear layer, or
            inside a compiled part or adapters of PEFT).
        NotFound: if the layer cannot be found, see ``find_head``; for several output layers, name
            one or use ``insert_all``.

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
    ((_, head),) = _install(model, (found,), number, norm, example=example, options=chosen).items()
    return head


def insert_all(
    model: nn.Module,
    temperature: float | Suggestion,
    *,
    norm: str | None = None,
    example: Any = None,
    options: HeadOptions | None = None,
) -> dict[str, TemperedHead]:
    """Replace all output layers that make the logits together, as ``insert`` does with one.

    For distilled models, whose logits are the mean of two heads: with the same T in both of them
    it is that T on the logits. For most models it is ``insert``.

    Args:
        model: the classifier, as in ``insert``.
        temperature: T or a Suggestion, the same for all.
        norm: as in ``insert``; each head gets a norm of its own.
        example: one batch. Without it, what the model's library declares is believed.
        options: rarely changed settings.

    Returns:
        The heads that were installed, by the dotted name of their layer. ``fold`` takes them all,
        ``remove`` one by name.

    Raises:
        InvalidInput: as ``insert``.
        NotFound: if the layers cannot be found, see ``find_heads``.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from temperance.head import insert_all
        >>> class TwoHeads(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.head, self.head_dist = nn.Linear(4, 3), nn.Linear(4, 3)
        ...     def forward(self, x):
        ...         return (self.head(x) + self.head_dist(x)) / 2
        >>> list(insert_all(TwoHeads(), 4.0, example=torch.zeros(2, 4)))
        ['head', 'head_dist']
    """
    chosen = options or HeadOptions()
    number, norm = _resolve(temperature, norm)
    _refuse_wrapped(model)
    found = find_heads(model, example, output_key=chosen.output_key)
    return _install(model, found, number, norm, example=example, options=chosen)


def remove(model: nn.Module, *, name: str | None = None) -> OutputLayer:
    """Put the plain output layer back, in place; norm and T are dropped.

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
        InvalidInput: if the model itself is the head, or is wrapped, or a part with it is compiled
            or inside adapters of PEFT.

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
    refuse_adapted(model, head, fix="Call merge_and_unload() first, then remove the head.")
    layer = cast(OutputLayer, plain_layer(head.linear))
    replace_module(model, head, layer)
    return layer


def tempered_heads(model: nn.Module) -> dict[str, TemperedHead]:
    """Every TemperedHead of a model, by dotted name; not the unused originals that PEFT keeps."""
    model = unwrap(model)
    unused = original_copies(model)
    return {
        n: m for n, m in model.named_modules() if isinstance(m, TemperedHead) and m not in unused
    }


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


def _install(
    model: nn.Module,
    found: tuple[Head, ...],
    temperature: float,
    norm: str,
    *,
    example: Any,
    options: HeadOptions,
) -> dict[str, TemperedHead]:
    """Make the new heads, put them in, and look whether they work; all or nothing."""
    olds = {head.name: _replaceable(model, head) for head in found}
    news = {}
    for number, head in enumerate(found):
        old = olds[head.name]
        linear = old if options.keep_weights else _redrawn(model, old, options.seed + number)
        news[head.name] = TemperedHead(
            linear,
            temperature,
            norm=norm,
            gradient_compensation=options.gradient_compensation,
            momentum=options.momentum,
            learned=options.learned,
        )
        news[head.name].notes = head.notes
    for name, old in olds.items():
        replace_module(model, old, news[name])
    try:
        if example is not None:
            for new in news.values():
                _check_installed(model, new, example, options.output_key)
    except BaseException:
        for name, old in olds.items():
            replace_module(model, news[name], old)
        raise
    return news


def _replaceable(model: nn.Module, head: Head) -> OutputLayer:
    if head.kind == "tempered":
        raise _bad_head(head, "a tempered head already", "Call remove first, or set_temperature.")
    refuse_adapted(model, head.module)
    if head.kind == "cosine":
        fix = "It has a T of its own: set 1 / T as its scale; or put an nn.Linear in its place and "
        fix += "insert with norm='cosine'."
        raise _bad_head(head, f"a {type(head.module).__name__} that computes cosines", fix)
    if head.kind == "conv":
        fix = "Only a convolution of size 1 (no stride, padding or groups) is a linear layer over "
        fix += "channels: end the model in one, or in pooling and an nn.Linear."
        raise _bad_head(head, f"a {type(head.module).__name__} of another size", fix)
    if head.module is model:
        raise _no_parent("insert", "Wrap it in nn.Sequential, or build TemperedHead(linear, T).")
    refuse_compiled(model, head.module)
    layer = cast(OutputLayer, head.module)
    if not _is_affine(layer):
        fix = "Quantized and adapter layers cannot be changed: insert before wrapping."
        raise _bad_head(head, f"a {type(layer).__name__} that computes something else", fix)
    return layer


def _is_affine(layer: OutputLayer) -> bool:
    """Whether a subclass still computes x W^T + b with its .weight and .bias."""
    plain = (c.forward for c in (nn.Linear, *CONVS))
    if type(layer).forward in plain:
        return True
    with evaluating(layer), torch.no_grad():
        try:
            weight = layer.weight.flatten(1)
            x = torch.linspace(-1, 1, 2 * weight.shape[1]).reshape(2, -1).to(weight)
            given = x.reshape(*x.shape, *(1,) * (layer.weight.ndim - 2))
            expected = nn.functional.linear(x, weight, layer.bias)
            torch.testing.assert_close(layer(given).flatten(1), expected, check_dtype=False)
        except (RuntimeError, TypeError, AssertionError):
            return False
    return True


def _redrawn(model: nn.Module, old: OutputLayer, seed: int) -> OutputLayer:
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
    new = empty_like(old, bias=old.bias is not None)
    generator = torch.Generator().manual_seed(seed)
    bound = 1 / math.sqrt(layer_sizes(old)[0])  # torch.nn.Linear.reset_parameters
    with torch.no_grad():
        for parameter in new.parameters():
            drawn = torch.empty(parameter.shape).uniform_(-bound, bound, generator=generator)
            parameter.copy_(drawn)
    new.train(old.training)
    for name, fresh in new.named_parameters():  # of a parametrized layer they are computed
        fresh.requires_grad_(getattr(old, name).requires_grad)
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
    expected = "an nn.Linear or a convolution of size 1"
    return InvalidInput(subject, expected=expected, found=found, fix=fix)


def _no_parent(verb: str, fix: str) -> InvalidInput:
    return InvalidInput(
        verb,
        expected="a model that contains its output layer",
        found="a model that is the layer itself, which cannot be replaced in place",
        fix=fix,
    )
