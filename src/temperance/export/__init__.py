"""From a trained classifier to a file that a server runs: ONNX, torch.export, TorchScript, int8."""

from temperance.export.compare import SIZES, TOLERANCE
from temperance.export.folder import export_folder
from temperance.export.formats import FORMATS, Format, find_format
from temperance.export.metadata import read_metadata
from temperance.export.onnx_file import INT8_TOLERANCE, export_int8, export_onnx
from temperance.export.program import export_program, export_torchscript
from temperance.export.records import OUTPUTS, ExportOptions, ExportReport

__all__ = [
    "FORMATS",
    "INT8_TOLERANCE",
    "OUTPUTS",
    "SIZES",
    "TOLERANCE",
    "ExportOptions",
    "ExportReport",
    "Format",
    "export_folder",
    "export_int8",
    "export_onnx",
    "export_program",
    "export_torchscript",
    "find_format",
    "read_metadata",
]
