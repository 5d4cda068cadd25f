"""Saving a Hugging Face model with its head folded, so that plain transformers loads it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from temperance.errors import InvalidInput
from temperance.head import fold, tempered_heads
from temperance.models import evaluating, unwrap
from temperance.models.probe import probe_logits

__all__ = ["SavedModel", "save_folded"]


@dataclass(frozen=True)
class SavedModel:
    """A folder that plain transformers loads.

    Attributes:
        folder: where it is.
        max_difference: largest difference of a logit between the live model, without autocast,
            and the one that was loaded again, on the example; None without one.
        max_logit: largest absolute logit there.
        rows: rows of the example.
    """

    folder: Path
    max_difference: float | None = None
    max_logit: float | None = None
    rows: int = 0


def save_folded(
    model: nn.Module,
    folder: str | os.PathLike[str],
    *,
    example: Any = None,
    processing_class: Any = None,
) -> SavedModel:
    """Save a trained model with its head folded, so that plain ``from_pretrained`` loads it.

    ``save_pretrained`` of the tempered model itself writes names that transformers does not know:
    ``from_pretrained`` would draw a new output layer, and only warn. The folder is written whole or
    not at all, then loaded again with the model's own class, which has to find every name. With
    several processes, call it in one of them.

    Args:
        model: a transformers model with a tempered head; it stays as it is.
        folder: a new or empty folder.
        example: one batch, to compare the logits of the live and the loaded model on.
        processing_class: tokenizer or image processor to save beside it.

    Returns:
        The folder and the differences.

    Raises:
        InvalidInput: if it is no transformers model, has adapters, has no tempered head, cannot be
            folded (see ``fold``), the folder is not empty, or names are missing after loading.

    Example:
        >>> from temperance.integrations.huggingface import save_folded
        >>> save_folded(trainer.model, "intent", processing_class=tokenizer)  # doctest: +SKIP
    """
    plain, target = unwrap(model), Path(folder)
    _check_savable(plain, target)
    with _without_autocast(plain), evaluating(plain), torch.no_grad():
        before = None if example is None else probe_logits(plain, example).float().cpu()
        folded: Any = fold(plain, example)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as work:
        made = Path(work) / "model"
        made.mkdir()
        folded.save_pretrained(made)
        if processing_class is not None:
            processing_class.save_pretrained(made)
        kind, device = type(folded), next(folded.parameters()).device
        del folded
        saved = _loaded_again(kind, made, example=example, before=before, device=device)
        if target.is_dir():
            target.rmdir()  # empty, as was checked
        shutil.move(made, target)
    return SavedModel(target, *saved)


def _loaded_again(
    kind: Any, folder: Path, *, example: Any, before: Any, device: Any
) -> tuple[float | None, float | None, int]:
    loaded, names = kind.from_pretrained(folder, output_loading_info=True, local_files_only=True)
    odd = [n for k in ("missing_keys", "unexpected_keys", "mismatched_keys") for n in names[k]]
    if odd:
        raise InvalidInput(
            "saved model",
            expected="the names that transformers knows",
            found=f"{len(odd)} that are missing or unknown: {', '.join(map(str, odd[:4]))}",
            fix="Only heads that transformers builds itself can be loaded by it.",
        )
    if before is None:
        return None, None, 0
    loaded.to(device)
    with evaluating(loaded), torch.no_grad():
        after = probe_logits(loaded, example).float().cpu()
    return float((after - before).abs().max()), float(before.abs().max()), len(before)


@contextmanager
def _without_autocast(model: nn.Module) -> Iterator[None]:
    """What Accelerate puts around ``forward`` for mixed precision is off; bfloat16 would differ."""
    accelerated = "_original_forward" in vars(model)  # its mark; it may have been put on twice
    around = vars(model).pop("forward", None) if accelerated else None
    try:
        yield
    finally:
        if around is not None:
            model.forward = around


def _check_savable(model: nn.Module, folder: Path) -> None:
    if not callable(getattr(model, "save_pretrained", None)):
        fix = "For other models: torch.save or safetensors of temperance.fold(model.eval())."
        raise _invalid("model", "a transformers model", f"a {type(model).__name__}", fix)
    if getattr(model, "peft_config", None):
        fix = "Call model.merge_and_unload() first, and save what it gives."
        raise _invalid("model", "a model without adapters", "adapters of PEFT", fix)
    if not tempered_heads(model):
        fix = "It can be saved as it is."
        raise _invalid("model", "a tempered head", "none", fix)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        fix = "Name a folder of its own: one that is not there, or empty."
        raise _invalid(f"folder {folder}", "a new or empty folder", "one with files in it", fix)


def _invalid(subject: str, expected: str, found: str, fix: str) -> InvalidInput:
    return InvalidInput(subject, expected=expected, found=found, fix=fix)
