"""The formats of an export, in one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from temperance.errors import NotFound
from temperance.export.onnx_file import export_int8, export_onnx
from temperance.export.program import export_program, export_torchscript
from temperance.export.records import ExportReport

__all__ = ["FORMATS", "Format", "find_format"]


@dataclass(frozen=True)
class Format:
    """One format.

    Attributes:
        name: as it is asked for.
        file: the usual name of its file.
        export: the function ``(model, path, example, *, options)``.
        read_with: what reads the file.
    """

    name: str
    file: str
    export: Callable[..., ExportReport]
    read_with: str


_TABLE = (
    Format("onnx", "model.onnx", export_onnx, "onnxruntime.InferenceSession"),
    Format("torch-export", "model.pt2", export_program, "torch.export.load"),
    Format("torchscript", "model.torchscript.pt", export_torchscript, "torch.jit.load"),
    Format("int8", "model.int8.onnx", export_int8, "onnxruntime.InferenceSession"),
)
FORMATS: Mapping[str, Format] = MappingProxyType({row.name: row for row in _TABLE})
"""The formats, by name."""


def find_format(name: str) -> Format:
    """Give the format of a name.

    Raises:
        NotFound: if there is none.

    Example:
        >>> from temperance.export import find_format
        >>> find_format("onnx").file
        'model.onnx'
    """
    if name not in FORMATS:
        raise NotFound(
            "export format",
            found=f"there is no format {name!r}",
            candidates=tuple(FORMATS),
            fix="Name one of them.",
        )
    return FORMATS[name]
