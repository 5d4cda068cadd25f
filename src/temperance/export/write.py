"""What all formats share: a place to write to, quiet exporters, and the report."""

from __future__ import annotations

import importlib
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from temperance.errors import InvalidInput
from temperance.export.compare import Difference
from temperance.export.deploy import Exportable
from temperance.export.records import ExportReport
from temperance.files import write_bytes
from temperance.version import __version__

__all__ = ["Written", "captured", "check_target", "finish", "quiet"]


def check_target(path: str | os.PathLike[str]) -> Path:
    """Refuse a place that cannot be written, before any work.

    Args:
        path: the file to write; an older one is replaced.

    Returns:
        The path.

    Raises:
        InvalidInput: if it is a folder, or its folder is not there or cannot be written.
    """
    file = Path(path)
    found = ""
    if file.is_dir():
        found = "a folder"
    elif not file.parent.is_dir():
        found = f"no folder {file.parent}"
    else:
        try:
            with tempfile.TemporaryFile(dir=file.parent):
                pass
        except OSError as error:
            found = error.strerror or str(error)
    if found:
        raise InvalidInput(
            f"file {file}",
            expected="a file in a folder that can be written",
            found=found,
            fix="Name another file; nothing was written.",
        )
    return file


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings and log lines of exporters, and with the random state as it was."""
    root = logging.getLogger()
    root.addFilter(_no_record)
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            yield
    finally:
        root.removeFilter(_no_record)


def _no_record(_: logging.LogRecord) -> bool:
    return False


@contextmanager
def captured(what: str) -> Iterator[None]:
    """Turn whatever an exporter raises into one clear error."""
    try:
        yield
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise InvalidInput(
            "model",
            expected=f"one that {what} can capture",
            found=f"{type(error).__name__}: {' '.join(lines[:2])[:300]}",
            fix="Take what depends on values or on the batch size (if, int(), len(), loops over "
            "rows) out of forward, pass axes={} for one size, or try another format.",
        ) from error


@dataclass(frozen=True)
class Written:
    """A file that is ready to be written.

    Attributes:
        format: its name.
        content: all of it.
        packages: that made it.
        notes: what else should be known of this format.
    """

    format: str
    content: bytes
    packages: tuple[str, ...] = ("torch",)
    notes: tuple[str, ...] = ()


def finish(path: Path, made: Written, found: Exportable, difference: Difference) -> ExportReport:
    """Write the file, whole or not at all, and say what it is.

    Args:
        path: where to.
        made: the file.
        found: what was exported.
        difference: to the live model.

    Returns:
        The report.
    """
    write_bytes(path, made.content)
    axes = found.options.axes
    names = zip(found.form.names, found.tensors, strict=True)
    batch = axes.get(0, len(found.tensors[0]))
    shape: list[int | str] = list(found.shape)
    shape = [batch, shape[-1]] if found.options.output == "probs" else shape
    shape[1 if found.members and found.options.output == "logits" else 0] = batch
    others = [name for axis, name in axes.items() if axis]
    for axis in difference.free:
        shape[axis] = others[0] if len(others) == 1 else "any"
    return ExportReport(
        format=made.format,
        path=str(path),
        bytes=len(made.content),
        inputs={n: tuple(axes.get(i, s) for i, s in enumerate(t.shape)) for n, t in names},
        output=found.options.output,
        output_shape=tuple(shape),
        members=found.members,
        batch_sizes=difference.sizes,
        max_abs_error=difference.max_abs_error,
        max_rel_error=difference.max_rel_error,
        agreement=difference.agreement,
        tolerance=difference.tolerance,
        folded=found.folded,
        posthoc_temperatures=found.posthoc.temperatures,
        notes=(*found.notes, *made.notes),
        versions={"temperance": __version__}
        | {name: str(importlib.import_module(name).__version__) for name in made.packages},
    )
