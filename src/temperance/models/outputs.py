"""How a batch goes into a model, and where the logits are in what comes out: one reading for all.

Batches: a tensor; ``(inputs, labels)``; a mapping as Hugging Face loaders give it. Outputs: a
tensor; a tuple or list; a mapping; an object with ``.logits``. Whatever could mean two things is
refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from temperance.errors import InvalidInput, NotFound

__all__ = [
    "LABEL_KEYS",
    "call_model",
    "device_of",
    "logits_of",
    "map_tensors",
    "split_batch",
    "to_device",
]

LABEL_KEYS = ("labels", "label", "label_ids", "targets", "target")
_LOGIT_KEYS = ("logits", "out")  # transformers and torchvision's segmentation models


def logits_of(output: Any, *, key: str | int | None = None) -> Tensor:
    """Find the logits in what a model returned.

    A tensor is the logits (whatever ``key`` is: models with two heads often return a tuple in
    training and a tensor in evaluation). With ``key``, that entry or attribute is taken. Else:
    ``.logits``; a mapping's ``"logits"``, ``"out"`` or its only tensor; the only tensor of a tuple
    or list that is not a scalar (a scalar is taken for a loss).

    Args:
        output: what ``model(...)`` returned.
        key: which entry holds the logits: a name, or a position in a tuple or list.

    Returns:
        The logits, the same tensor object that the model returned.

    Raises:
        NotFound: if there is none, or more than one that it could be (``.candidates``: the keys).
        InvalidInput: if the chosen entry is no tensor of floating-point numbers.

    Example:
        >>> import torch
        >>> from temperance.models import logits_of
        >>> logits_of({"loss": torch.tensor(0.7), "logits": torch.zeros(2, 3)}).shape
        torch.Size([2, 3])
        >>> logits_of((torch.zeros(2, 3), torch.ones(2, 3)), key=1)[0, 0].item()
        1.0
    """
    if isinstance(output, Tensor):
        return _floating(output, "the output")
    entries = _entries(output)
    if key is not None:
        if isinstance(key, int) and isinstance(output, (tuple, list)):
            key = str(range(len(output))[key]) if -len(output) <= key < len(output) else str(key)
        if str(key) not in entries:
            raise _unclear(output, f"there is no entry {key!r}", tuple(entries))
        return _floating(entries[str(key)], f"entry {key!r} of the output")
    for name in _LOGIT_KEYS:
        if isinstance(entries.get(name), Tensor):
            return _floating(entries[name], f"entry {name!r} of the output")
    tensors = [k for k, v in entries.items() if isinstance(v, Tensor) and v.ndim > 0]
    if len(tensors) != 1:
        found = f"{len(tensors)} tensors" if tensors else "no tensor"
        raise _unclear(output, f"a {type(output).__name__} with {found}", tuple(tensors))
    return _floating(entries[tensors[0]], f"entry {tensors[0]!r} of the output")


def split_batch(batch: Any) -> tuple[Any, Any | None]:
    """Split a batch into what the model takes and the labels.

    Args:
        batch: a tensor (no labels); ``(inputs,)`` or ``(inputs, labels)``, where inputs may be a
            tuple of several arguments; or a mapping, whose labels are under one of ``LABEL_KEYS``.

    Returns:
        ``(inputs, labels)``; labels is None where there are none.

    Raises:
        InvalidInput: for any other form.

    Example:
        >>> from temperance.models import split_batch
        >>> split_batch({"input_ids": [[1, 2]], "labels": [0]})
        ({'input_ids': [[1, 2]]}, [0])
    """
    if isinstance(batch, Tensor):
        return batch, None
    if isinstance(batch, Mapping):
        names = [k for k in LABEL_KEYS if batch.get(k) is not None]
        if len(names) > 1:
            raise _bad_batch(f"a mapping with the label keys {', '.join(names)}")
        inputs = {k: v for k, v in batch.items() if k not in LABEL_KEYS}
        return inputs, batch[names[0]] if names else None
    if isinstance(batch, (tuple, list)) and 1 <= len(batch) <= 2:
        return batch[0], batch[1] if len(batch) == 2 else None
    size = f" of {len(batch)} entries" if isinstance(batch, (tuple, list)) else ""
    raise _bad_batch(f"a {type(batch).__name__}{size}")


def call_model(model: nn.Module, inputs: Any) -> Any:
    """Feed the inputs of a batch to a model.

    A mapping is passed by keyword, a tuple or list by position, all else as the one argument. The
    only entry of a mapping is passed by position where ``forward`` has no argument of its name.

    Args:
        model: any module.
        inputs: the first part of what ``split_batch`` returned.

    Returns:
        What the model returned; see ``logits_of``.

    Raises:
        InvalidInput: if ``inputs`` is an empty mapping or sequence.

    Example:
        >>> import torch
        >>> from temperance.models import call_model
        >>> call_model(torch.nn.Linear(3, 2), {"image": torch.zeros(5, 3)}).shape
        torch.Size([5, 2])
    """
    if isinstance(inputs, (Mapping, tuple, list)) and not len(inputs):
        raise _bad_batch("no inputs")
    if isinstance(inputs, Mapping):
        named = {str(k): v for k, v in inputs.items()}
        if len(named) == 1 and not _takes(model, next(iter(named))):
            return model(next(iter(named.values())))
        return model(**named)
    if isinstance(inputs, (tuple, list)):
        return model(*inputs)
    return model(inputs)


def to_device(value: Any, device: torch.device | str) -> Any:
    """Move every tensor in a batch to a device; everything else stays as it is.

    Args:
        value: a tensor, or mappings, tuples and lists of them at any depth.
        device: where to.

    Returns:
        The same structure; mappings become plain dicts.
    """
    return map_tensors(value, lambda tensor: tensor.to(device))


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Change every tensor in a batch; mappings become plain dicts, everything else stays."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {k: map_tensors(v, change) for k, v in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(v, change) for v in value))
    if isinstance(value, (tuple, list)):
        return type(value)(map_tensors(v, change) for v in value)
    return value


def device_of(model: nn.Module) -> torch.device:
    """Give the device of a model's first parameter or buffer; the CPU if it has none."""
    for tensors in (model.parameters(), model.buffers()):
        for tensor in tensors:
            return tensor.device
    return torch.device("cpu")


def _entries(output: Any) -> dict[str, Any]:
    """What can be chosen from, by name or position; named tuples have both."""
    if isinstance(output, Mapping):
        return {str(k): v for k, v in output.items()}
    if isinstance(output, (tuple, list)):
        names = getattr(output, "_fields", None)
        by_place = {str(i): v for i, v in enumerate(output)}
        if names and "logits" in names:
            return {**by_place, **dict(zip(names, output, strict=True))}
        return by_place
    logits = getattr(output, "logits", None)
    if logits is not None:
        return {**getattr(output, "__dict__", {}), "logits": logits}
    return dict(getattr(output, "__dict__", {}))


def _floating(value: Any, subject: str) -> Tensor:
    if isinstance(value, Tensor) and value.is_floating_point() and value.ndim > 0:
        return value
    found = (
        f"shape {list(value.shape)}, {value.dtype}"
        if isinstance(value, Tensor)
        else type(value).__name__
    )
    raise InvalidInput(
        subject,
        expected="logits: a floating-point tensor with a class axis",
        found=found,
        fix="Return the scores before any argmax, or name the entry that holds them.",
    )


def _takes(model: nn.Module, name: str) -> bool:
    """Whether forward has an argument of this name, or takes any keyword."""
    forward = getattr(model, "_orig_mod", getattr(model, "module", model)).forward
    parameters = inspect.signature(forward).parameters
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _unclear(output: Any, found: str, candidates: tuple[str, ...]) -> NotFound:
    shapes = [f"{k} {list(v.shape)}" for k, v in _entries(output).items() if isinstance(v, Tensor)]
    return NotFound(
        "logits in the model's output",
        found=found + (f" ({'; '.join(shapes)})" if shapes else ""),
        candidates=candidates,
        fix="Say which one with the key of the entry (a name, or a position in a tuple).",
    )


def _bad_batch(found: str) -> InvalidInput:
    return InvalidInput(
        "batch",
        expected="a tensor, (inputs, labels), or a mapping of named inputs",
        found=found,
        fix="Let the loader yield (inputs, labels); several inputs go in a tuple of their own.",
    )
