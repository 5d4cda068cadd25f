"""Finding the output layer of a model: by what makes the logits, not by what it is called."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from temperance.errors import InvalidInput, NotFound, TemperanceWarning
from temperance.models.declared import declared_names, last_of_sequential
from temperance.models.probe import evaluating, is_tempered, probe_logits, registered, unwrap
from temperance.models.trace import Trace, trace_logits

__all__ = ["Head", "find_head"]

_SHOWN = 8  # candidates named where every linear layer is one
_CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True, eq=False)
class Head:
    """The output layer of a model.

    Attributes:
        name: dotted name inside the model (without the prefix of a wrapper); ``""`` if the model
            itself is the layer.
        module: the module.
        in_features: M, the true number of inputs of the layer, whatever the model advertises.
        out_features: number of outputs.
        kind: ``"linear"``; ``"tempered"`` (a TemperedHead); ``"conv1x1"`` or ``"conv"``, which can
            be found but not replaced.
        source: who says so: ``"user"``, ``"declared"`` (timm, torchvision, transformers),
            ``"observed"`` (a probe), or ``"structure"`` (the last of nested Sequentials; not run).
        verified: whether a probe showed that this layer, and no other, feeds the logits.
    """

    name: str
    module: nn.Module
    in_features: int
    out_features: int
    kind: str
    source: str
    verified: bool


def find_head(
    model: nn.Module,
    example: Any = None,
    *,
    name: str | None = None,
    output_key: str | int | None = None,
) -> Head:
    """Find the layer that makes the logits.

    With ``example`` one batch is run in evaluation mode and the layer whose output feeds the logits
    is what counts; ``name`` or the library's declaration must agree with it (a wrong ``name`` is
    an error, a wrong declaration a warning). Without it, ``name`` is believed, then what timm,
    torchvision or transformers declare, then the last layer of nested Sequentials. Any other model
    is refused, also with one linear layer, which may be a gate inside or not be called at all.

    The model is left exactly as it was: parameters, buffers, modes, hooks and random state.
    Wrappers (``torch.compile``, DataParallel, DistributedDataParallel) are looked through.

    Args:
        model: the classifier.
        example: one batch, in any form that ``split_batch`` reads; one row is enough.
        name: dotted name of the layer, if known.
        output_key: which entry of the output holds the logits, see ``logits_of``.

    Returns:
        The head. Where a name is given and several layers feed the logits, ``verified`` is False.

    Raises:
        NotFound: if there is none, or several are possible (``.candidates`` names them).
        InvalidInput: if the model has lazy or scripted parts, or its output holds no logits.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from temperance import find_head
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> head = find_head(model, torch.zeros(2, 4))
        >>> head.name, head.in_features, head.out_features, head.verified
        ('2', 8, 3, True)
    """
    model = unwrap(model)
    given = None if name is None else _by_name(model, name, source="user")
    if example is None:
        return given or _believed(model)
    trace = trace_logits(model, example, key=output_key)
    head = _checked_name(given, trace) if given else _observed(model, trace)
    if head.kind in ("linear", "tempered"):
        _check_width(head, trace.logits)
        _warn_if_scaled(model, head, example, output_key)
    return head


# ------------------------------------------------------------------ with a probe
def _observed(model: nn.Module, trace: Trace) -> Head:
    """The one layer that feeds the logits; a declaration is compared with it."""
    _require_one(trace)
    head = _by_name(model, trace.feeding[0], source="observed")
    declared = declared_names(model)
    if head.name in declared:
        return replace(head, source="declared", verified=True)
    if declared and head.kind != "tempered":
        warnings.warn(
            f"the model declares {' and '.join(declared)} as its output layer, but the logits come "
            f"from {head.name}, which is used.",
            TemperanceWarning,
            stacklevel=4,
        )
    return replace(head, verified=True)


def _require_one(trace: Trace) -> None:
    if len(trace.feeding) > 1:
        wrapped = any("lora_" in n or ".base_layer" in n for n in trace.feeding)
        raise NotFound(
            "output layer",
            found=f"{len(trace.feeding)} layers feed the logits together",
            candidates=trace.feeding,
            fix="Insert the head before wrapping the model in adapters."
            if wrapped
            else "Name the one you mean with name=.",
        )
    if not trace.feeding or trace.late:
        late = f"the parameter {trace.late[0]} acts last" if trace.late else "no layer feeds them"
        raise NotFound(
            "output layer",
            found=f"the logits do not come out of a linear layer ({late})",
            candidates=trace.feeding,
            fix="Let the model end in an nn.Linear that is called as a module.",
        )


def _checked_name(head: Head, trace: Trace) -> Head:
    if head.name in trace.feeding:
        return replace(head, verified=len(trace.feeding) == 1 and not trace.late)
    ran = "runs, but its output does not feed" if head.name in trace.called else "does not run for"
    raise NotFound(
        f"output layer {head.name!r}",
        found=f"it {ran} the logits directly",
        candidates=trace.feeding,
        fix="Name the layer that makes the logits, or leave name out.",
    )


def _check_width(head: Head, logits: Tensor) -> None:
    if logits.shape[-1] == head.out_features:
        return
    raise NotFound(
        f"output layer {head.name!r}",
        found=f"it has {head.out_features} outputs, the logits have shape {list(logits.shape)}",
        candidates=(head.name,),
        fix="The class axis has to be the last one and to come from the layer as it is; check the "
        "output key.",
    )


def _warn_if_scaled(model: nn.Module, head: Head, example: Any, key: str | int | None) -> None:
    """Halve the layer's output: a T in the layer must act as the same T on the logits."""
    full = _logits(model, example, key)
    handle = head.module.register_forward_hook(lambda _m, _a, out: out / 2)
    try:
        half = _logits(model, example, key)
    finally:
        handle.remove()
    if not (torch.isfinite(full).all() and torch.isfinite(half).all()):
        return
    rounding = 16 * torch.finfo(full.dtype).eps * max(1.0, float(full.abs().max()))
    allowed = max(1e-4, rounding)
    full, half = full.double(), half.double()
    sums = full.sum(-1)
    probs = bool((full >= 0).all()) and bool(((sums - 1).abs() <= allowed).all())
    roots = full.clamp(min=0).sqrt()  # the softmax of z / 2 is the root of that of z, normalized
    if probs and _close(half, roots / roots.sum(-1, keepdim=True), allowed):
        text = "the model returns probabilities (a softmax follows the output layer); a loss or a "
        text += "metric that wants logits would apply the softmax twice."
    elif not _close(half.softmax(-1), (full / 2).softmax(-1), allowed):
        text = f"what follows the output layer {head.name!r} is not free of scale: a temperature "
        text += "in the layer is not the same as that temperature on the model's logits."
    else:
        return
    warnings.warn(text, TemperanceWarning, stacklevel=4)


def _logits(model: nn.Module, example: Any, key: str | int | None) -> Tensor:
    with evaluating(model), torch.no_grad():  # the same random numbers in every call
        return probe_logits(model, example, key=key)


def _close(a: Tensor, b: Tensor, allowed: float) -> bool:
    return bool(((a - b).abs() <= allowed).all())


# ------------------------------------------------------------------ without a probe
def _believed(model: nn.Module) -> Head:
    declared = declared_names(model)
    if len(declared) == 1:
        return _by_name(model, declared[0], source="declared")
    linears = [n for n, m in _heads(model)]
    last = last_of_sequential(model)
    if not declared and last is not None and last in linears:
        return _by_name(model, last, source="structure")
    if linears == [""]:  # the model is the layer
        return _by_name(model, "", source="structure")
    count = f"{len(linears)} linear layer{'s' * (len(linears) > 1)}, and only a run shows the last"
    raise NotFound(
        "output layer",
        found=count if linears else "no linear layer",
        candidates=declared or tuple(linears[-_SHOWN:]),
        fix="Let the model end in an nn.Linear."
        if not linears
        else "Pass example= (one batch) so that the model shows it, or name=.",
    )


def _heads(model: nn.Module) -> list[tuple[str, nn.Module]]:
    inside = {m.linear for m in model.modules() if is_tempered(m)}
    return [
        (n, m)
        for n, m in model.named_modules()
        if is_tempered(m) or (isinstance(m, nn.Linear) and m not in inside)
    ]


def _by_name(model: nn.Module, name: str, *, source: str) -> Head:
    module = registered(model, name)
    if module is None:
        raise NotFound(
            f"module {name!r}",
            found="the model has no module of that name",
            candidates=[n for n, _ in _heads(model)][-_SHOWN:],
            fix="Take a name from model.named_modules().",
        )
    if isinstance(module, nn.Linear) or is_tempered(module):
        kind = "tempered" if is_tempered(module) else "linear"
        m, c = int(cast(Any, module).in_features), int(cast(Any, module).out_features)
        if m < 1:
            raise InvalidInput(
                f"layer {name!r}",
                expected="a layer with a shape",
                found="a lazy layer",
                fix="Run one batch through the model first.",
            )
        return Head(name, module, m, c, kind, source, verified=False)
    if isinstance(module, _CONVS):
        kind = "conv1x1" if set(module.kernel_size) == {1} else "conv"
        return Head(name, module, module.in_channels, module.out_channels, kind, source, False)
    raise NotFound(
        f"output layer {name!r}",
        found=f"it is a {type(module).__name__}, not an nn.Linear",
        candidates=[n for n, _ in _heads(model)][-_SHOWN:],
        fix="Only nn.Linear output layers can carry a temperature; name that layer itself.",
    )
