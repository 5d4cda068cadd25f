"""Export for PyTorch itself: ``torch.export``, and TorchScript while it lives."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from temperance.errors import InvalidInput
from temperance.export.compare import compare
from temperance.export.deploy import Exportable, exportable
from temperance.export.metadata import ENTRY, metadata_of
from temperance.export.records import ExportOptions, ExportReport
from temperance.export.write import Written, captured, check_target, finish, quiet

__all__ = ["capture", "export_program", "export_torchscript"]


def export_program(
    model: nn.Module,
    path: str | os.PathLike[str],
    example: Any,
    *,
    options: ExportOptions | None = None,
) -> ExportReport:
    """Export a classifier with ``torch.export``, to a ``.pt2`` file for ``torch.export.load``.

    What is exported is a folded copy in evaluation mode; it is read back from the bytes that are
    written and compared with the live model before there is a file.

    Args:
        model: a model or an ensemble in evaluation mode; it is left as it is.
        path: the file; an older one is replaced.
        example: one batch, as ``split_batch`` reads it; labels are passed over.
        options: rarely changed settings.

    Returns:
        What was written, and the largest difference to the live model.

    Raises:
        InvalidInput: for a model in training mode, one that cannot be captured or gives something
            else than before, or a place that cannot be written. No file is left then.

    Example:
        >>> import tempfile, torch
        >>> from torch import nn
        >>> from temperance import insert
        >>> from temperance.export import export_program
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> _ = insert(model, 4.0, norm="none")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     report = export_program(model.eval(), f"{folder}/m.pt2", torch.randn(5, 4))
        >>> report.output_shape, report.folded, report.max_rel_error < 1e-5
        (('batch', 3), ('2',), True)
    """
    target = check_target(path)
    found = exportable(model, example, options or ExportOptions())
    buffer = io.BytesIO()
    text = json.dumps(metadata_of(found))
    with quiet():
        program = capture(found)
        for node in program.graph.nodes:  # lines of source, with paths of this machine
            node.meta.pop("stack_trace", None)
        torch.export.save(program, buffer, extra_files={ENTRY: text})
        again: Any = torch.export.load(io.BytesIO(buffer.getvalue())).module()
    difference = compare(found, lambda tensors: again(*tensors))
    return finish(target, Written("torch-export", buffer.getvalue()), found, difference)


def export_torchscript(
    model: nn.Module,
    path: str | os.PathLike[str],
    example: Any,
    *,
    options: ExportOptions | None = None,
) -> ExportReport:
    """Export a classifier as TorchScript, by tracing, for ``torch.jit.load`` and LibTorch.

    PyTorch has deprecated TorchScript: use it only where the server knows nothing else.

    Args:
        model: a model or an ensemble in evaluation mode; it is left as it is.
        path: the file; an older one is replaced.
        example: one batch, as ``split_batch`` reads it.
        options: rarely changed settings.

    Returns:
        What was written, and the largest difference to the live model.

    Raises:
        InvalidInput: as ``export_program``; or if this PyTorch has no TorchScript any more.

    Example:
        >>> import tempfile, torch
        >>> from torch import nn
        >>> from temperance.export import export_torchscript
        >>> model = nn.Linear(4, 3).eval()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     report = export_torchscript(model, f"{folder}/m.pt", torch.randn(5, 4))
        >>> report.batch_sizes
        (1, 3, 8, 5)
    """
    target = check_target(path)
    if not hasattr(torch, "jit") or not hasattr(torch.jit, "trace"):
        raise InvalidInput(
            "format torchscript",
            expected="a PyTorch with torch.jit.trace",
            found=torch.__version__,
            fix="Use torch-export or onnx.",
        )
    found = exportable(model, example, options or ExportOptions())
    buffer = io.BytesIO()
    text = json.dumps(metadata_of(found))
    with quiet(), torch.no_grad():
        with captured("torch.jit.trace"):
            traced = torch.jit.trace(found.module, _several(found), check_trace=False)
        torch.jit.save(traced, buffer, _extra_files={ENTRY: text})
        again = torch.jit.load(io.BytesIO(buffer.getvalue()))

    def run(tensors: Sequence[Tensor]) -> Tensor:
        with quiet(), torch.no_grad():
            output: Tensor = again(*tensors)
        return output

    difference = compare(found, run)
    note = "PyTorch has deprecated TorchScript"
    made = Written("torchscript", buffer.getvalue(), notes=(note,))
    return finish(target, made, found, difference)


def capture(found: Exportable) -> torch.export.ExportedProgram:
    """Capture a module with ``torch.export``, its named axes of any size.

    Args:
        found: what is exported.

    Returns:
        The program.

    Raises:
        InvalidInput: if it cannot be captured.
    """
    tensors = _several(found)
    rows = len(tensors[0]) if tensors[0].dim() else 0
    # The batch may have any size; other axes may end somewhere, as tokens at the last position.
    sizes = {
        axis: torch.export.Dim.DYNAMIC if axis else torch.export.Dim(name)
        for axis, name in found.options.axes.items()
    }
    shapes = tuple(
        {a: d for a, d in sizes.items() if a < t.dim() and (a or len(t) == rows)} for t in tensors
    )
    with torch.no_grad(), captured("torch.export"):
        return torch.export.export(
            found.module, tensors, dynamic_shapes={"tensors": shapes}, strict=False
        )


def _several(found: Exportable) -> tuple[Tensor, ...]:
    """The example with a number of rows that no other axis has, and that is neither 0 nor 1.

    Sizes that are equal in the example would be taken for one and the same, and 1 for a constant.
    """
    tensors = found.tensors
    if 0 not in found.options.axes or not tensors[0].dim():
        return tensors
    size = len(tensors[0])
    others = {n for t in tensors for n in t.shape[1:]}
    rows = next(n for n in range(3, 1000) if n not in others)
    index = torch.arange(rows) % size
    return tuple(t[index] if t.dim() and len(t) == size else t for t in tensors)
