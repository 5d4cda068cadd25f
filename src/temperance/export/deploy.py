"""The module that is exported: a folded copy in evaluation mode, tensors in, one tensor out."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from temperance.ensemble import Ensemble
from temperance.errors import InvalidInput
from temperance.evaluation.calibrators import Calibrator
from temperance.export.records import ExportOptions, Posthoc, posthoc_of
from temperance.head import TemperedHead, fold
from temperance.head.cosine import CosineLinear
from temperance.head.surgery import shared_names, tempered_heads
from temperance.models import call_model, device_of, logits_of, split_batch, unwrap

__all__ = ["Deployed", "Exportable", "Form", "exportable", "refuse_training"]

_LOOKS_LIKE_PROBS = 5e-3  # as in evaluation: logits whose rows all sum to 1 this closely


class Deployed(nn.Module):
    """A model as a graph needs it: tensors by position, logits or probabilities out.

    The members of an ensemble run one after the other: no shape in the graph then depends on how
    rows and members lie in one batch, so that any batch size is right in every format.

    Args:
        model: the folded copy.
        form: names of the inputs, and whether they go in by name, by position, or as the only one.
        options: of the export.
        posthoc: temperatures that divide logits.
    """

    def __init__(
        self, model: nn.Module, form: Form, *, options: ExportOptions, posthoc: Posthoc
    ) -> None:
        super().__init__()
        self.model, self.form = model, form
        self.output, self.key, self.when = options.output, options.output_key, posthoc.when
        self.members = getattr(model, "members", None)
        given = torch.tensor(posthoc.temperatures, dtype=torch.float64).float()
        self.register_buffer("posthoc", given if len(given) else None)
        self.eval()

    def forward(self, *tensors: Tensor) -> Tensor:
        """Give logits or probabilities, see ``ExportOptions.output``."""
        z = self._logits(self.form.rebuilt(tensors))
        z = z if z.dtype == torch.float64 else z.float()
        t = cast("Tensor | None", self.posthoc)
        if t is not None and self.when == "before":
            z = z / t.to(z.dtype)[:, None, None]
        elif t is not None and self.members is None:
            z = z / t[0].to(z.dtype)
        if self.output == "logits":
            return z
        if self.members is None:
            return z.softmax(dim=-1)
        pooled = z.log_softmax(dim=-1).logsumexp(dim=0) - math.log(self.members)
        if t is not None and self.when == "after":
            pooled = pooled / t[0].to(z.dtype)
        return pooled.softmax(dim=-1)

    def _logits(self, inputs: Any) -> Tensor:
        model = self.model
        if not isinstance(model, Ensemble):
            return logits_of(call_model(model, inputs), key=self.key)
        parts = []
        try:
            for m in range(model.members):
                model.rows.active = m
                output = call_model(model.backbone, inputs)
                parts.append(logits_of(output, key=model.output_key))
        finally:
            model.rows.active = None
        return torch.stack(parts)


@dataclass(frozen=True)
class Form:
    """How the tensors of an example go into a model.

    Attributes:
        names: of the tensors.
        kind: ``one``, ``named`` or ``placed``.
    """

    names: tuple[str, ...]
    kind: str

    def rebuilt(self, tensors: tuple[Tensor, ...]) -> Any:
        """The inputs, as ``call_model`` takes them."""
        if self.kind == "one":
            return tensors[0]
        return dict(zip(self.names, tensors, strict=True)) if self.kind == "named" else tensors

    def as_call(self, inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The same as arguments by position and by name."""
        if self.kind == "named":
            return (), dict(inputs)
        return ((inputs,), {}) if self.kind == "one" else (tuple(inputs), {})


@dataclass(frozen=True, eq=False)
class Exportable:
    """What goes into an exporter, and what is known of it.

    Attributes:
        live: the model that was given, without wrappers; it is not changed. Of a model on an
            accelerator a copy on the CPU, not folded: its products may be rounded to 10 bits there.
        module: the module to export, on the CPU.
        tensors: an example of its inputs, on the CPU.
        form: how they go in.
        options: of the export.
        posthoc: temperatures in the graph.
        members: M; None of a single model.
        shape: of the logits on the example.
        folded: heads that became plain layers.
        notes: what else should be known.
    """

    live: nn.Module
    module: Deployed
    tensors: tuple[Tensor, ...]
    form: Form
    options: ExportOptions
    posthoc: Posthoc
    members: int | None
    shape: tuple[int, ...]
    folded: tuple[str, ...]
    notes: tuple[str, ...]


def exportable(
    model: nn.Module, example: Any, options: ExportOptions, *, dtype: torch.dtype | None = None
) -> Exportable:
    """Make the module that is exported; the model itself is left as it is.

    Args:
        model: a model or an ensemble in evaluation mode; ``torch.compile`` and parallel wrappers
            around it are taken off.
        example: one batch in any form that ``split_batch`` reads.
        options: of the export.
        dtype: number format of the copy, where the format to write has only one.

    Returns:
        The module with all that is known of it.

    Raises:
        InvalidInput: for a model in training mode, or one that gives probabilities; for inputs that
            are no tensors; or whatever ``fold`` refuses.
    """
    live = unwrap(model)
    refuse_training(live)
    form, tensors = _tensors(example)
    _check_axes(tensors, options)
    tensors = tuple(_cast(t.detach().cpu().clone(), dtype) for t in tensors)
    live = live if device_of(live).type == "cpu" else copy.deepcopy(live).cpu()
    copied = copy.deepcopy(live)
    other = next((t.dtype for t in _all(copied) if _differs(t, dtype)), None)
    notes: tuple[str, ...] = ()
    if other is not None and dtype is not None:
        notes = (f"written in {_word(dtype)}; the model has {_word(other)}",)
        copied = copied.to(dtype)
    with _runs_in(None if other is None else dtype), torch.no_grad():
        copied, folded, kept = _fold(copied, form.rebuilt(tensors))
        bare = Deployed(copied, form, options=replace(options, output="logits"), posthoc=Posthoc())
        logits = bare(*tensors)
    shape = tuple(logits.shape)
    _check_shape(shape, bare.members, options)
    _refuse_probs(logits, bare.members)
    posthoc = posthoc_of(options, members=bare.members, n_classes=shape[-1])
    module = Deployed(copied, form, options=options, posthoc=posthoc).requires_grad_(False)
    return Exportable(
        live, module, tensors, form, options, posthoc, module.members, shape, folded, notes + kept
    )


def refuse_training(model: nn.Module) -> None:
    """Raise InvalidInput for a model with a part in training mode, which is another function."""
    modules = (("" if m is model else n, m) for n, m in model.named_modules())
    name = next((n for n, m in modules if m.training), None)
    if name is not None:
        raise InvalidInput(
            "model",
            expected="evaluation mode in every part",
            found=f"training mode in {name!r}" if name else "training mode",
            fix="Call model.eval() first: dropout and BatchNorm in training mode are another "
            "function, and a graph cannot switch later.",
        )


# ------------------------------------------------------------------ helpers
@contextmanager
def _runs_in(dtype: torch.dtype | None) -> Iterator[None]:
    """Say so where a model that was converted does not run: its forward converts by itself."""
    try:
        yield
    except RuntimeError as error:
        if dtype is None:
            raise
        raise InvalidInput(
            "model",
            expected=f"one that also runs in {_word(dtype)}, which is what the file is written in",
            found=(str(error).strip().splitlines() or [""])[0][:200],
            fix="Take conversions out of forward, or use the format torch-export.",
        ) from error


def _fold(model: nn.Module, inputs: Any) -> tuple[nn.Module, tuple[str, ...], tuple[str, ...]]:
    """Fold a copy in place; also the names of the folded heads, and what else there is to say."""
    heads = {} if hasattr(model, "members") else tempered_heads(model)
    why = next((w for n, h in heads.items() if (w := _unfoldable(model, n, h))), "")
    if not heads or why:
        return model, (), (why,) if why else ()
    if isinstance(model, TemperedHead):
        return fold(model), tuple(heads), ()
    return fold(model, (inputs,), inplace=True), tuple(heads), ()


def _unfoldable(model: nn.Module, name: str, head: TemperedHead) -> str:
    """Why a head goes into the graph as it is, although its T is a part of it; else empty."""
    if isinstance(head.norm, nn.LayerNorm):
        return f"head {name!r} is in the graph with its LayerNorm and T, which cannot be folded"
    if isinstance(head.linear, CosineLinear) and not isinstance(head.norm, nn.Identity):
        return f"head {name!r} is in the graph with its norm and T: a norm before cosines stays"
    if shared_names(model, head):
        return f"head {name!r} is in the graph with its norm and T: its weights are shared"
    return ""


def _tensors(example: Any) -> tuple[Form, tuple[Tensor, ...]]:
    inputs = split_batch(example)[0]
    if isinstance(inputs, Tensor):
        form, values = Form(("input",), "one"), (inputs,)
    elif isinstance(inputs, Mapping):
        kept = {str(k): v for k, v in inputs.items() if v is not None}
        form, values = Form(tuple(kept), "named"), tuple(kept.values())
    elif isinstance(inputs, tuple | list):
        form = Form(tuple(f"input_{i}" for i in range(len(inputs))), "placed")
        values = tuple(inputs)
    else:
        form, values = Form(("input",), "one"), (inputs,)
    bad = next((v for v in values if not isinstance(v, Tensor)), None)
    if bad is not None or not values:
        raise InvalidInput(
            "example",
            expected="tensors, or tensors by name or place",
            found="no inputs" if not values else f"a {type(bad).__name__}",
            fix="Pass one batch as the loader yields it; what is no tensor belongs into forward.",
        )
    if not values[0].dim() or any(not v.numel() for v in values):
        raise InvalidInput(
            "example",
            expected="rows along the first axis of the first input",
            found="none",
            fix="Pass a batch as it comes in practice.",
        )
    if any(bool(torch.isnan(v).any()) for v in values if v.is_floating_point()):
        raise InvalidInput(
            "example", expected="numbers", found="NaN", fix="Pass a batch as it comes in practice."
        )
    return form, values


def _check_axes(tensors: tuple[Tensor, ...], options: ExportOptions) -> None:
    most = max(t.dim() for t in tensors)
    bad = next((axis for axis in options.axes if axis >= most), None)
    if bad is not None:
        raise InvalidInput(
            "axes",
            expected=f"axes of the inputs, 0 to {most - 1}",
            found=str(bad),
            fix="Count them from 0, the rows.",
        )


def _refuse_probs(logits: Tensor, members: int | None) -> None:
    """A softmax in the model would be taken for logits, and divided by T or put into another."""
    if logits.dim() != (2 if members is None else 3) or logits.shape[-1] < 2:
        return
    inside = bool((logits >= 0).all()) and bool((logits <= 1).all())
    if inside and bool(((logits.sum(dim=-1) - 1).abs() <= _LOOKS_LIKE_PROBS).all()):
        raise InvalidInput(
            "output of the model",
            expected="numbers before the softmax",
            found="probabilities: all rows lie in [0, 1] and sum to 1",
            fix="Take the softmax out of the model; output='probs' puts one into the graph.",
        )


def _check_shape(shape: tuple[int, ...], members: int | None, options: ExportOptions) -> None:
    """Probabilities and calibrations need to know the axis of the classes."""
    wanted = 2 if members is None else 3
    strict = options.output == "probs" or isinstance(options.posthoc, Calibrator)
    if len(shape) < wanted or (strict and len(shape) != wanted):
        raise InvalidInput(
            "output of the model",
            expected="[batch, classes]" if members is None else "[members, batch, classes]",
            found=f"shape {list(shape)}",
            fix="Export plain logits: the axis of the classes is yours to choose."
            if len(shape) > wanted
            else "Pass a batch of rows to a model that classifies each.",
        )
    if options.output == "probs" and shape[-1] < 2:
        raise InvalidInput(
            "output of the model",
            expected="a logit for each of two classes or more",
            found="one logit, whose softmax is 1",
            fix="Export the logits: the sigmoid of it is the probability of the second class.",
        )


def _all(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


def _differs(tensor: Tensor, dtype: torch.dtype | None) -> bool:
    return dtype is not None and tensor.is_floating_point() and tensor.dtype != dtype


def _cast(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    return tensor.to(dtype) if _differs(tensor, dtype) else tensor


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
