"""Finding the output layer of a model: by what makes the logits, not by what it is called."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any, cast

from torch import Tensor, nn

from temperance.errors import InvalidInput, NotFound, TemperanceWarning
from temperance.models.adapters import is_adapter
from temperance.models.cosine import cosine_facts
from temperance.models.declared import advertised_width, declared_names, last_of_sequential
from temperance.models.layer import is_layer, layer_kind, layer_sizes
from temperance.models.probe import is_tempered, registered, unwrap
from temperance.models.scale import after_layers
from temperance.models.trace import Trace, trace_logits

__all__ = ["Head", "find_head", "find_heads"]

_SHOWN = 8  # candidates named where every linear layer is one


@dataclass(frozen=True, eq=False)
class Head:
    """The output layer of a model.

    Attributes:
        name: dotted name inside the model (without the prefix of a wrapper); ``""`` if the model
            itself is the layer.
        module: the module.
        in_features: M, the true number of inputs of the layer, whatever the model advertises.
        out_features: number of outputs.
        kind: ``"linear"``; ``"conv1x1"``, a linear layer over channels; ``"tempered"`` (a
            TemperedHead around one of them); ``"conv"``, which can be found but not replaced.
        source: who says so: ``"user"``, ``"declared"`` (timm, torchvision, transformers),
            ``"observed"`` (a probe), or ``"structure"`` (the last of nested Sequentials; not run).
        verified: whether a probe showed that this layer, and no other, feeds the logits.
        notes: what is good to know and no reason to worry, such as an advertised number of
            features that is not M.
    """

    name: str
    module: nn.Module
    in_features: int
    out_features: int
    kind: str
    source: str
    verified: bool
    notes: tuple[str, ...] = ()


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
    return _one(model, trace, given, example=example, key=output_key)


def find_heads(
    model: nn.Module, example: Any = None, *, output_key: str | int | None = None
) -> tuple[Head, ...]:
    """Find all layers that make the logits together, as in distilled models with two heads.

    Args:
        model: the classifier; left exactly as it was.
        example: one batch. Without it, what the model's library declares is believed.
        output_key: which entry of the output holds the logits, see ``logits_of``.

    Returns:
        The heads, one for most models, in the order of the model's modules. Several are returned
        only if the same T in all of them is that T on the logits.

    Raises:
        NotFound: as ``find_head``; or if several layers feed the logits in a way in which T in all
            of them is not T on the logits, such as a product.
        InvalidInput: as ``find_head``.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from temperance.models import find_heads
        >>> class TwoHeads(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.head, self.head_dist = nn.Linear(4, 3), nn.Linear(4, 3)
        ...     def forward(self, x):
        ...         return (self.head(x) + self.head_dist(x)) / 2
        >>> [head.name for head in find_heads(TwoHeads(), torch.zeros(2, 4))]
        ['head', 'head_dist']
    """
    model = unwrap(model)
    if example is None:
        names = declared_names(model)
        heads: dict[nn.Module, Head] = {}  # a layer may be registered under several names
        for name in names:
            head = _by_name(model, name, source="declared")
            heads.setdefault(head.module, head)
        if heads:
            return tuple(heads.values())
        return (find_head(model),)
    trace = trace_logits(model, example, key=output_key)
    if len(trace.feeding) < 2 or trace.late or _adapters(model, trace):
        return (_one(model, trace, None, example=example, key=output_key),)
    declared = declared_names(model)
    found = [
        _by_name(model, n, source="declared" if n in declared else "observed")
        for n in trace.feeding
    ]
    for head in found:
        _check_width(head, trace.logits)
    if after_layers(model, [h.module for h in found], example, key=output_key):
        raise _not_together(trace)
    return tuple(replace(head, verified=True) for head in found)


# ------------------------------------------------------------------ with a probe
def _one(
    model: nn.Module, trace: Trace, given: Head | None, *, example: Any, key: str | int | None
) -> Head:
    """The one layer that a run shows, or that is named and the run agrees with."""
    head = _checked_name(given, trace) if given else _observed(model, trace)
    if head.kind != "conv":
        _check_width(head, trace.logits)
        _warn_if_scaled(model, head, example, key)
    return head


def _observed(model: nn.Module, trace: Trace) -> Head:
    """The one layer that feeds the logits; a declaration is compared with it."""
    _require_one(model, trace)
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


def _require_one(model: nn.Module, trace: Trace) -> None:
    if len(trace.feeding) > 1:
        raise NotFound(
            "output layer",
            found=f"{len(trace.feeding)} layers feed the logits together",
            candidates=trace.feeding,
            fix="Insert the head before wrapping the model in adapters, and keep its layer out of "
            "their target modules (modules_to_save trains and saves it whole)."
            if _adapters(model, trace)
            else "Name the one you mean with name=; insert_all and find_heads take them all.",
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


def _adapters(model: nn.Module, trace: Trace) -> bool:
    """Whether what feeds the logits are the parts of an adapter, around one layer."""
    parents = (registered(model, n.rpartition(".")[0]) for n in trace.feeding)
    inside = any(m is not None and is_adapter(m) for m in parents)
    return inside or any(".lora_" in n or ".base_layer" in n for n in trace.feeding)


def _not_together(trace: Trace) -> NotFound:
    return NotFound(
        "output layers",
        found=f"{len(trace.feeding)} layers feed the logits, and a temperature in all of them is "
        "not that temperature on the logits",
        candidates=trace.feeding,
        fix="Name the one you mean with name=, or let the model add or average its heads.",
    )


def _warn_if_scaled(model: nn.Module, head: Head, example: Any, key: str | int | None) -> None:
    """A T in the layer must act as the same T on the logits."""
    after = after_layers(model, [head.module], example, key=key)
    if not after:
        return
    if after == "softmax":
        text = "the model returns probabilities (a softmax follows the output layer); a loss or a "
        text += "metric that wants logits would apply the softmax twice."
    else:
        text = f"what follows the output layer {head.name!r} is not free of scale: a temperature "
        text += "in the layer is not the same as that temperature on the model's logits."
    warnings.warn(text, TemperanceWarning, stacklevel=4)


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
    module = registered(model, name) if isinstance(name, str) else None
    if module is None:
        raise NotFound(
            f"module {name!r}",
            found="the model has no module of that name",
            candidates=[n for n, _ in _heads(model)][-_SHOWN:],
            fix="Take a name from model.named_modules().",
        )
    if is_layer(module) or is_tempered(module):
        tempered = is_tempered(module)
        m, c = layer_sizes(module)
        if m < 1:
            raise InvalidInput(
                f"layer {name!r}",
                expected="a layer with a shape",
                found="a lazy layer",
                fix="Run one batch through the model first.",
            )
        kind = "tempered" if tempered else layer_kind(cast(Any, module))
        if kind == "linear" and type(module).forward is not nn.Linear.forward:
            cosine = _cosine(module, name, source)
            if cosine is not None:
                return cosine
        notes = _notes(model, m)
        return Head(name, module, m, c, kind, source, verified=False, notes=notes)
    cosine = _cosine(module, name, source)
    if cosine is not None:
        return cosine
    raise NotFound(
        f"output layer {name!r}",
        found=f"it is a {type(module).__name__}, not an nn.Linear",
        candidates=[n for n, _ in _heads(model)][-_SHOWN:],
        fix="Only nn.Linear and convolutions of size 1 can carry a temperature; name that layer "
        "itself.",
    )


def _cosine(module: nn.Module, name: str, source: str) -> Head | None:
    """A layer that computes scaled cosines, whatever its class."""
    facts = cosine_facts(module)
    if facts is None:
        return None
    scale = f"its logits are {facts.scale:.4g} * cosine, which is T = {1 / facts.scale:.4g}."
    m, c = facts.in_features, facts.out_features
    return Head(name, module, m, c, "cosine", source, verified=False, notes=(scale,))


def _notes(model: nn.Module, in_features: int) -> tuple[str, ...]:
    """A number of features that the model states and the layer does not have."""
    name, width = advertised_width(model)
    if width in (None, in_features):
        return ()
    text = f"the model advertises {name} = {width}; its output layer takes M = {in_features}"
    return (f"{text}, which is used.",)
