"""Models of timm and torchvision: found by name, built without a download, loaded from a file."""

from __future__ import annotations

import difflib
import importlib.util
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from temperance.errors import InvalidInput, NotFound, need
from temperance.models import (
    evaluating,
    find_head,
    load_state,
    logits_of,
    read_safetensors,
    strip_prefixes,
)

__all__ = ["ZooModel", "build_zoo", "find_zoo", "load_weights"]

# What every classification weight of torchvision was trained with (its ImageClassification preset).
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
Normalization = tuple[tuple[float, ...] | None, tuple[float, ...] | None]


@dataclass(frozen=True)
class ZooModel:
    """A model of a library.

    Attributes:
        library: ``"timm"`` or ``"torchvision"``.
        name: its name there.
    """

    library: Literal["timm", "torchvision"]
    name: str

    @property
    def full_name(self) -> str:
        """Name with the library in front."""
        return f"{self.library}:{self.name}"

    def normalization(self, module: nn.Module) -> Normalization:
        """Mean and std that the library's weights for this model expect, white = 1."""
        if self.library == "torchvision":
            return _IMAGENET
        config: Any = getattr(module, "pretrained_cfg", {})
        mean, std = config.get("mean"), config.get("std")
        return (tuple(mean), tuple(std)) if mean and std else (None, None)


def find_zoo(name: str, *, own: tuple[str, ...] = ()) -> ZooModel:
    """Find a model by name in the installed libraries.

    Args:
        name: ``timm:NAME``, ``torchvision:NAME``, or ``NAME`` where one library has it.
        own: names of our own nets, for the message.

    Returns:
        The model.

    Raises:
        NotFound: if no installed library has it (with the nearest names), or both.
        MissingPackage: if the library that the name says is not installed.
    """
    library, _, short = name.rpartition(":")
    if library in ("timm", "torchvision"):
        need(library, library)
        if short in _names(library):
            return _model(library, short)
        raise _unknown(name, (library,), own)
    installed = [n for n in ("timm", "torchvision") if importlib.util.find_spec(n)]
    having = [n for n in installed if name in _names(n)]
    if len(having) == 1:
        return _model(having[0], name)
    if having:
        raise NotFound(
            f"model {name}",
            found="timm and torchvision both have it",
            candidates=[f"{n}:{name}" for n in having],
            fix="Say which one.",
        )
    raise _unknown(name, tuple(installed), own)


def build_zoo(
    model: ZooModel, input_shape: tuple[int, ...], n_classes: int, *, pretrained: bool
) -> tuple[nn.Module, int]:
    """Build a model with new weights; nothing is downloaded.

    Args:
        model: which one.
        input_shape: ``(C, H, W)`` of the pictures.
        n_classes: outputs.
        pretrained: whether weights follow; these want three channels.

    Returns:
        The model in training mode, and the channels that its input must have.

    Raises:
        InvalidInput: for features, for pictures of other than 1 or 3 channels where the model is
            bound to 3, or if the model does not run on pictures of this size.
    """
    if len(input_shape) != 3:
        raise InvalidInput(
            model.full_name, expected="pictures", found="features", fix="Choose mlp or probe."
        )
    channels = input_shape[0] if model.library == "timm" and not pretrained else 3
    if input_shape[0] not in (1, channels):
        raise InvalidInput(
            model.full_name,
            expected="pictures of 1 or 3 channels",
            found=str(input_shape[0]),
            fix="Convert the pictures, or choose one of our nets.",
        )
    module = _create(model, (channels, *input_shape[1:]), n_classes)
    _check_runs(model, module, (channels, *input_shape[1:]), n_classes)
    return module.train(), channels


def load_weights(module: nn.Module, weights: str | Path, example: Tensor) -> tuple[str, ...]:
    """Load weights from a safetensors file; an output layer for other classes is left new.

    Args:
        module: the net, changed in place; unchanged if this raises.
        weights: the file.
        example: an input that the net takes, to find its output layer.

    Returns:
        What was loaded and what was left new, in words.

    Raises:
        NotFound: if there is no such file.
        InvalidInput: if it is no safetensors file, or any weight but the output layer's is missing
            or has another shape.
    """
    state = strip_prefixes(read_safetensors(weights))
    head = find_head(module, example)
    own = {k: tuple(v.shape) for k, v in module.state_dict().items()}
    in_head = [k for k in own if k.startswith(f"{head.name}.")]
    new = [k for k in in_head if k not in state or tuple(state[k].shape) != own[k]]
    if new:  # all of the layer or nothing of it
        new = in_head
    missing = [k for k in own if k not in state and k not in in_head and not k.endswith("_tracked")]
    if missing:
        shown = ", ".join(missing[:5])
        raise InvalidInput(
            str(weights),
            expected=f"all {len(own)} weights of the net but the output layer's",
            found=f"{len(missing)} missing ({shown}{', ...' if len(missing) > 5 else ''})",
            fix=_advice(state, own, in_head),
        )
    kept = {k: v for k, v in state.items() if k not in new}
    report = load_state(module, kept, allow_missing=bool(new))
    notices = [f"weights from {Path(weights).name}: {report}"]
    if new:
        weight = state.get(f"{head.name}.weight")
        found = "nothing" if weight is None else f"{len(weight)} outputs"
        if weight is not None and len(weight) == head.out_features:
            found = "a part of it, or another number of inputs"
        notices.append(
            f"the output layer {head.name} was left new: the file has {found}, the task has "
            f"{head.out_features} classes"
        )
    return tuple(notices)


# ------------------------------------------------------------------ helpers
def _advice(state: dict[str, Tensor], own: dict[str, tuple[int, ...]], in_head: list[str]) -> str:
    """What to do with a file that lacks names: it may be the same net by other hands."""
    body = Counter(shape for name, shape in own.items() if name not in in_head)
    if len(state) < len(own) or body - Counter(tuple(v.shape) for v in state.values()):
        return "Check that the file belongs to this net."
    return (
        "It has arrays of the same shapes under other names, perhaps the same net by other hands. "
        "If they come in the same order, write them under the names of this net: "
        "write_safetensors(new_path, dict(zip(net.state_dict(), state.values(), strict=True))), "
        "with state as torch.load gives it, since a safetensors file keeps no order."
    )


def _model(library: str, name: str) -> ZooModel:
    return ZooModel("timm" if library == "timm" else "torchvision", name)


def _names(library: str) -> list[str]:
    """Names of the classifiers of a library, with those of their weights (``resnet18.a1_in1k``)."""
    if library == "torchvision":
        models = need("torchvision.models", library)
        return list(models.list_models(module=models))
    timm = need("timm", library)
    return [*timm.list_models(), *timm.list_models(pretrained=True)]


def _unknown(name: str, libraries: tuple[str, ...], own: tuple[str, ...]) -> NotFound:
    known = {n: n for n in own}
    for library in libraries:
        known |= {n: f"{library}:{n}" for n in _names(library)}
    near = [known[n] for n in difflib.get_close_matches(name.rpartition(":")[2], known, n=5)]
    where = f"none of our nets{''.join(f', none of {n}' for n in libraries)}"
    return NotFound(
        f"model {name}",
        found=where,
        candidates=near or own,
        fix="Check the name; models of timm and torchvision need their package "
        "(pip install 'temperance[timm,torchvision]').",
    )


def _create(model: ZooModel, shape: tuple[int, ...], n_classes: int) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # notes of the libraries on their own defaults
        if model.library == "torchvision":
            models = need("torchvision.models", "torchvision")
            return models.get_model(model.name, weights=None, num_classes=n_classes)
        timm = need("timm", "timm")
        options = {"pretrained": False, "num_classes": n_classes, "in_chans": shape[0]}
        try:  # transformers are built for one size of pictures
            return timm.create_model(model.name, img_size=tuple(shape[1:]), **options)
        except TypeError:
            return timm.create_model(model.name, **options)
        except (ValueError, AssertionError) as error:
            raise _wrong_size(model, shape, str(error)) from error


def _check_runs(model: ZooModel, module: nn.Module, shape: tuple[int, ...], n_classes: int) -> None:
    """Run one empty batch: a size that does not fit is better found now than in training."""
    try:
        with evaluating(module), torch.no_grad():
            found = tuple(logits_of(module(torch.zeros(2, *shape))).shape)
    except (RuntimeError, ValueError, AssertionError) as error:
        raise _wrong_size(model, shape, str(error).strip().splitlines()[0][:200]) from error
    if found != (2, n_classes):
        raise InvalidInput(
            model.full_name,
            expected=f"logits [2, {n_classes}]",
            found=f"shape {list(found)}",
            fix="Choose a model that is a classifier.",
        )


def _wrong_size(model: ZooModel, shape: tuple[int, ...], error: str) -> InvalidInput:
    return InvalidInput(
        model.full_name,
        expected="pictures of a size that it takes",
        found=f"{shape[2]}x{shape[1]} ({error})",
        fix="Pass another image_size, such as 224.",
    )
