"""From a plain model to an ensemble in one backbone."""

from __future__ import annotations

import copy
import math
import numbers
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from temperance.ensemble.measure import member_layers
from temperance.ensemble.member_linear import MemberLinear
from temperance.ensemble.members import Ensemble, check_protocol
from temperance.ensemble.norms import FoundNorm, find_norms
from temperance.ensemble.rows import Rows
from temperance.ensemble.sigma_norm import SigmaNorm
from temperance.ensemble.swap import (
    SPREAD,
    START,
    is_linear,
    member_linear_of,
    sigma_norm_of,
    stand_in,
)
from temperance.errors import InvalidInput
from temperance.models.find import Head, find_head
from temperance.models.probe import is_tempered, registered, replace_module, unwrap
from temperance.models.trace import trace_logits

__all__ = ["HEADS", "INITS", "convert"]

INITS = ("function", "paper")
HEADS = ("copy", "fresh")
_FARTHEST = 20  # sigmoid(-20) = 2e-9: the scale that makes up for it is still far from overflow


def convert(
    model: nn.Module,
    members: int,
    *,
    init: str = "function",
    start: float = START,
    spread: float = SPREAD,
    heads: str = "copy",
    norms: str | Sequence[str] | None = None,
    seed: int = 0,
    example: Any = None,
    protocol: str = "repeat",
) -> Ensemble:
    """Make an ensemble of M members in one backbone out of a model; the model stays as it is.

    Every norm becomes ``y_m = a * sigmoid(gamma_m) * norm_m(x) + b`` with a gamma and, for
    BatchNorm, running statistics for each member; the output layer becomes one for each member. All
    other weights are shared. A TemperedHead keeps its T.

    The ensemble is a copy, so that both are in memory until you let go of the model; parameters
    grow by M scales per feature and M - 1 output layers. Convert before ``torch.compile``, parallel
    wrappers, and building the optimizer, and after SyncBatchNorm's ``convert_sync_batchnorm``,
    which does not see the ensemble's layers.

    Args:
        model: the classifier, trained or not, of torchvision, timm, transformers or your own.
        members: M, at least 1. With 1 and ``init="function"`` the outputs are the model's.
        init: ``function``: ``a = weight / sigmoid(start)`` and ``b = bias``, of any sign, are kept
            and trained on, so that with ``spread=0`` every member computes what the model does;
            ``paper``: ``a = 1``, ``b = 0``, fixed; for training from scratch.
        start: where gamma starts, -20 to 20; the lower, the further the gates of the members lie
            apart for the same spread.
        spread: standard deviation of the normal noise that is added to gamma's start, 0 or more.
            With 0 the members start equal (with ``heads="copy"``) and stay equal in training. No
            effect for one member.
        heads: ``copy``: every member starts with the model's output layer; ``fresh``: each is drawn
            anew as ``nn.Linear`` draws it.
        norms: which norms become members' own, see ``find_norms``: None for all; ``"recognized"``;
            or patterns of names.
        seed: of the noise and the fresh heads; the global random state is not touched.
        example: one batch, with which the output layer and the place where the rows are copied are
            found and checked now. Without it, the model's library or structure must show the output
            layer, and the first forward finds the place.
        protocol: ``repeat`` or ``split``, see ``Ensemble``.

    Returns:
        The ensemble, on the same device, of the same type, in the same mode.

    Raises:
        InvalidInput: if an argument is out of range; if the model is wrapped, compiled, scripted,
            cannot be copied, or was converted before; for norms of unknown kinds or tied ones, see
            ``find_norms``; for an output layer that is no linear layer or convolution of size 1, or
            shares its weights; or if members together do not compute what each computes alone, see
            ``find_site``.
        NotFound: if there is no norm, or the output layer cannot be found, see ``find_head``.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from temperance.ensemble import convert
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
        >>> ensemble = convert(model.eval(), 4, example=torch.zeros(2, 4))
        >>> ensemble(torch.zeros(5, 4)).shape
        torch.Size([4, 5, 3])

    Reference:
        "Controllable diversity in normalization-based implicit ensembles via softmax-temperature
        modulation" (sigmaN-Ens), arXiv 2607.23860, whose form is ``init="paper"``. Keeping the
        function for any affine part is our own.
    """
    members, spread, seed = _checked(members, spread, seed)
    start = _checked_start(start)
    for subject, value, known in (("init", init, INITS), ("heads", heads, HEADS)):
        if value not in known:
            raise _invalid(subject, " or ".join(known), repr(value), "Choose one of them.")
    check_protocol(protocol)
    _refuse_special(model)
    found = find_norms(model, norms)
    backbone = _copied(model)
    output_layers = _output_layers(backbone, example)
    rows, generator = Rows(members), torch.Generator().manual_seed(seed)
    for norm in found:
        noise = _noise(norm, members, spread, generator)
        gates = {"start": start, "noise": noise}
        _swap_norm(backbone, norm, rows, keep=init == "function", gates=gates)
    for head in output_layers:
        linear = _linear_of(backbone, head)
        drawn = generator if heads == "fresh" else None
        replace_module(backbone, linear, member_linear_of(linear, rows, generator=drawn))
    ensemble = Ensemble(backbone, rows, protocol=protocol)
    ensemble.changed = _unfused(backbone)
    if example is not None:
        ensemble.place(example)
    return ensemble


# ------------------------------------------------------------------ the pieces
def _swap_norm(
    backbone: nn.Module, norm: FoundNorm, rows: Rows, *, keep: bool, gates: dict[str, Any]
) -> None:
    old = registered(backbone, norm.name)
    assert old is not None
    new = sigma_norm_of(old, norm.facts, rows, keep=keep, **gates)
    replace_module(backbone, old, new)


def _noise(
    norm: FoundNorm, members: int, spread: float, generator: torch.Generator
) -> Tensor | None:
    if members == 1 or spread == 0:
        return None
    return spread * torch.randn(members, norm.facts.num_features, generator=generator)


def _copied(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except Exception as error:
        raise _invalid(
            "model",
            "a model that copy.deepcopy can copy",
            f"{type(error).__name__}: {error}",
            "It may hold tensors that were computed: use torch.nn.utils.parametrizations in place "
            "of the old weight_norm and spectral_norm; call train() and eval() to empty caches.",
        ) from error


def _unfused(backbone: nn.Module) -> dict[str, dict[str, Any]]:
    """Keep torch's encoder layers from their fused path, which reads the norms' weights itself."""
    changed: dict[str, dict[str, Any]] = {}
    own = tuple(n for n, m in member_layers(backbone).items() if isinstance(m, SigmaNorm))
    for name, module in backbone.named_modules():
        setting = None
        if isinstance(module, nn.TransformerEncoderLayer):
            setting = "activation_relu_or_gelu", 0
        elif isinstance(module, nn.TransformerEncoder):
            setting = "use_nested_tensor", False
        inside = f"{name}." if name else ""
        if setting is not None and any(n.startswith(inside) for n in own):
            changed[name] = {setting[0]: getattr(module, setting[0])}
            setattr(module, *setting)
    return changed


# ------------------------------------------------------------------ checks
def _checked(members: Any, spread: Any, seed: Any) -> tuple[int, float, int]:
    numbers_of = []
    for subject, value, least in (("members", members, 1), ("seed", seed, 0)):
        try:
            number = least - 1 if isinstance(value, bool) else operator.index(value)
        except TypeError:
            number = least - 1
        if number < least:
            raise _invalid(subject, f"a whole number of {least} or more", repr(value), "Set it.")
        numbers_of.append(number)
    real = isinstance(spread, numbers.Real) and not isinstance(spread, bool)
    if not real or not 0 <= float(spread) < math.inf:
        raise _invalid("spread", "a finite number of 0 or more", repr(spread), "Set it.")
    return numbers_of[0], float(spread), numbers_of[1]


def _checked_start(value: Any) -> float:
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not real or not -_FARTHEST <= float(value) <= _FARTHEST:
        raise _invalid("start", f"a number of -{_FARTHEST} to {_FARTHEST}", repr(value), "Set it.")
    return float(value)


def _refuse_special(model: nn.Module) -> None:
    if unwrap(model) is not model:
        found, fix = f"a {type(model).__name__} around it", "Convert before wrapping."
        raise _invalid("model", "the plain model", found, fix)
    for name, module in model.named_modules():
        if isinstance(module, (Ensemble, SigmaNorm, MemberLinear)):
            fix = "Convert the plain model; temperance.ensemble.revert gives one."
            raise _invalid("model", "one that was not converted", f"{name or 'it'} was", fix)
        if isinstance(module, (torch._dynamo.OptimizedModule, torch.jit.ScriptModule)):
            fix = "Convert first, then compile or script."
            raise _invalid("model", "plain modules", f"{name!r}, compiled or scripted", fix)


def _output_layers(model: nn.Module, example: Any) -> list[Head]:
    """The layer that makes the logits; all of them where several do together (distillation)."""
    feeding: tuple[str, ...] = ()
    running = stand_in(model, model)
    if example is not None:
        trace = trace_logits(running, example)
        feeding = trace.feeding if not trace.late else ()
    if len(feeding) > 1:
        heads = [find_head(running, name=name) for name in feeding]
    else:
        heads = [find_head(running, example)]
    return [_checked_head(model, head) for head in heads]


def _checked_head(model: nn.Module, head: Head) -> Head:
    """Refuse what cannot be one layer for each member."""
    subject = f"output layer {head.name!r}"
    linear = _linear_of(model, head)
    if not is_linear(linear):
        expected = "a plain nn.Linear, or a convolution of size 1"
        found = f"a {type(linear).__name__} that computes something else"
        raise _invalid(subject, expected, found, "End the model in nn.Linear.")
    if head.name == "":
        raise _invalid(
            "model", "norms in front of its output layer", "the layer itself", "Wrap it."
        )
    own = {id(p) for p in linear.parameters(recurse=False)}
    tied = [
        f"{name}.{key}".lstrip(".")
        for name, module in model.named_modules()
        if module is not linear
        for key, parameter in module._parameters.items()
        if id(parameter) in own
    ]
    if tied:
        raise _invalid(
            subject,
            "weights of its own",
            f"weights shared with {tied[0]}",
            "Members' heads would no longer be tied: untie the weights first.",
        )
    return head


def _linear_of(model: nn.Module, head: Head) -> nn.Module:
    module: Any = registered(model, head.name)
    return module.linear if is_tempered(module) else module


def _invalid(subject: str, expected: str, found: str, fix: str) -> InvalidInput:
    return InvalidInput(subject, expected=expected, found=found, fix=fix)
