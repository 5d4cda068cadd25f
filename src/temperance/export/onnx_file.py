"""Export to ONNX, with any batch size, checked with ONNX Runtime; also with an int8 head."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from temperance.errors import InvalidInput, need
from temperance.export.compare import Runner, compare
from temperance.export.deploy import Exportable, exportable
from temperance.export.metadata import PREFIX, metadata_of
from temperance.export.program import capture
from temperance.export.records import ExportOptions, ExportReport
from temperance.export.write import Written, captured, check_target, finish, quiet

__all__ = ["INT8_TOLERANCE", "export_int8", "export_onnx"]

INT8_TOLERANCE = 0.1
"""Largest relative difference of an int8 head: about ten times what 8 bits for weights and features
cost (1/127 each), so that only what has gone wrong is refused; the report has the figure."""

_LARGEST = 2**31 - 2**20  # a protobuf message ends at 2 GiB; the graph itself needs some of it
_PACKAGES = ("torch", "onnx", "onnxscript", "onnxruntime")
_WEIGHTED = ("Gemm", "MatMul", "Conv")
_QUANTIZED = ("MatMulInteger", "ConvInteger")


def export_onnx(
    model: nn.Module,
    path: str | os.PathLike[str],
    example: Any,
    *,
    options: ExportOptions | None = None,
) -> ExportReport:
    """Export a classifier to ONNX; the file is float32 and takes batches of any size.

    What is exported is a folded copy in evaluation mode: one linear layer at the end, T inside it.
    ONNX Runtime reads the bytes that are written and is compared with the live model on batches of
    several sizes before there is a file. The metadata of the file hold version, temperatures and
    what the options add; ``read_metadata`` gives them.

    Args:
        model: a model or an ensemble in evaluation mode; it is left as it is.
        path: the file; an older one is replaced.
        example: one batch, as ``split_batch`` reads it; labels are passed over.
        options: rarely changed settings: probabilities instead of logits, a temperature after
            training, other axes of any size.

    Returns:
        What was written, and the largest difference to the live model.

    Raises:
        MissingPackage: without onnx, onnxscript and onnxruntime.
        InvalidInput: for a model in training mode, one that cannot be captured or gives something
            else than before, one above 2 GiB, or a place that cannot be written. No file is left
            then.

    Example:
        >>> import tempfile, torch
        >>> from torch import nn
        >>> from temperance import insert
        >>> from temperance.export import export_onnx
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> _ = insert(model, 4.0, norm="none")
        >>> with tempfile.TemporaryDirectory() as folder:  # doctest: +SKIP
        ...     report = export_onnx(model.eval(), f"{folder}/m.onnx", torch.randn(5, 4))
        >>> report.inputs, report.output_shape  # doctest: +SKIP
        ({'input': ('batch', 4)}, ('batch', 3))
    """
    target = check_target(path)
    _need_packages()
    found = exportable(model, example, options or ExportOptions(), dtype=torch.float32)
    content = _proto(found).SerializeToString()
    difference = compare(found, _runner(content, found))
    return finish(target, Written("onnx", content, _PACKAGES), found, difference)


def export_int8(
    model: nn.Module,
    path: str | os.PathLike[str],
    example: Any,
    *,
    everything: bool = False,
    options: ExportOptions | None = None,
) -> ExportReport:
    """Export to ONNX with the output layer in int8, quantized dynamically.

    Weights are stored as int8, one scale for each output; features get their scale anew in every
    batch. The rest of the network stays float32, unless ``everything`` asks for all matrix products
    with stored weights.

    Args:
        model: a model or an ensemble in evaluation mode; it is left as it is.
        path: the file; an older one is replaced.
        example: one batch, as ``split_batch`` reads it.
        everything: quantize all linear layers, as is usual for transformers.
        options: rarely changed settings.

    Returns:
        What was written, the largest difference to the live model, and the share of rows whose top
        class is the same.

    Raises:
        MissingPackage, InvalidInput: as ``export_onnx``; also if no layer can be quantized, or the
            difference is above ``INT8_TOLERANCE``.
    """
    target = check_target(path)
    _need_packages()
    found = exportable(model, example, options or ExportOptions(), dtype=torch.float32)
    proto = _proto(found)
    names = [node.name for node in _layers(proto, everything=everything)]
    content, count = _quantized(proto, names)
    difference = compare(found, _runner(content, found), tolerance=INT8_TOLERANCE)
    layers = "1 layer" if count == 1 else f"{count} layers"
    made = Written("int8", content, _PACKAGES, (f"{layers} in int8, the rest in float32",))
    return finish(target, made, found, difference)


# ------------------------------------------------------------------ the graph
def _need_packages() -> None:
    for package in _PACKAGES[1:]:
        need(package, "onnx")


def _proto(found: Exportable) -> Any:
    """The ONNX graph, with names for inputs, output and axes, and with metadata."""
    onnx = need("onnx", "onnx")
    metadata = metadata_of(found)
    size = sum(t.numel() * t.element_size() for t in found.module.state_dict().values())
    if size > _LARGEST:
        raise InvalidInput(
            "model",
            expected="up to 2 GiB of weights, which is what one ONNX file can hold",
            found=f"{size / 2**30:.1f} GiB",
            fix="Use the format torch-export.",
        )
    with quiet():
        program = capture(found)
        with captured("the ONNX exporter of PyTorch"):
            made = torch.onnx.export(
                program,
                (),
                input_names=list(found.form.names),
                output_names=[found.options.output],
                dynamo=True,
                verbose=False,
            )
    assert made is not None
    proto = made.model_proto
    _name_axes(proto, found)
    for node in proto.graph.node:  # where each was made, with paths of this machine
        del node.metadata_props[:]
        node.doc_string = ""
    proto.producer_name = "temperance"
    onnx.helper.set_model_props(proto, {PREFIX + k: json.dumps(v) for k, v in metadata.items()})
    return proto


def _name_axes(proto: Any, found: Exportable) -> None:
    """Call the axes of any size by their names instead of the exporter's symbols."""
    symbols: dict[str, str] = {}
    for value in proto.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.dim_param and axis in found.options.axes:
                symbols[dim.dim_param] = found.options.axes[axis]
    values = (*proto.graph.input, *proto.graph.output, *proto.graph.value_info)
    for value in values:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in symbols:
                dim.dim_param = symbols[dim.dim_param]


def _runner(content: bytes, found: Exportable) -> Runner:
    """Outputs of ONNX Runtime on the CPU, on one thread."""
    onnxruntime = need("onnxruntime", "onnx")
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    settings.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(
            content, settings, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # ONNX Runtime has a dozen, without a common parent of their own
        raise InvalidInput(
            "exported graph",
            expected="one that ONNX Runtime can load",
            found=str(error).splitlines()[0][:300],
            fix="Update onnxruntime, or use the format torch-export.",
        ) from error
    taken = {i.name for i in session.get_inputs()}

    def run(tensors: Sequence[Tensor]) -> Tensor:
        named = zip(found.form.names, tensors, strict=True)
        return torch.from_numpy(
            session.run(None, {n: t.numpy() for n, t in named if n in taken})[0]
        )

    return run


# ------------------------------------------------------------------ int8
def _layers(proto: Any, *, everything: bool) -> list[Any]:
    """Nodes to quantize: the last matrix products before the output, or all of them."""
    stored = {i.name for i in proto.graph.initializer}
    if everything:
        nodes = [n for n in proto.graph.node if n.op_type in ("Gemm", "MatMul")]
    else:
        nodes = list(_last(proto))
    return [n for n in nodes if len(n.input) > 1 and n.input[1] in stored]


def _last(proto: Any) -> Iterator[Any]:
    """From every output back to the first weighted nodes."""
    maker = {name: node for node in proto.graph.node for name in node.output}
    todo, seen = [o.name for o in proto.graph.output], set()
    while todo:
        node = maker.get(todo.pop())
        if node is None or node.name in seen:
            continue
        seen.add(node.name)
        if node.op_type in _WEIGHTED:
            yield node
        else:
            todo.extend(node.input)


def _quantized(proto: Any, names: list[str]) -> tuple[bytes, int]:
    """The file with these nodes in int8, and their number.

    ONNX Runtime writes files only, so to a folder of ours. What it does not know it leaves as it
    is without a word: the nodes are counted.
    """
    quantization = need("onnxruntime.quantization", "onnx")
    onnx = need("onnx", "onnx")
    convolution = any(n.op_type == "Conv" for n in proto.graph.node if n.name in names)
    kinds = quantization.QuantType
    with tempfile.TemporaryDirectory() as folder, quiet(), captured("ONNX Runtime's quantizer"):
        file = Path(folder) / "int8.onnx"
        quantization.quantize_dynamic(
            proto,
            file,
            # a Gemm is first made into a MatMul of this name, and an Add
            nodes_to_quantize=[*names, *(f"{n}_MatMul" for n in names)],
            per_channel=not convolution,
            weight_type=kinds.QUInt8 if convolution else kinds.QInt8,  # its kernel knows no other
            extra_options={"MatMulConstBOnly": True},
        )
        content = file.read_bytes()
    count = sum(n.op_type in _QUANTIZED for n in onnx.load_from_string(content).graph.node)
    if not names or count != len(names):
        raise InvalidInput(
            "model",
            expected="layers that ONNX Runtime can quantize: matrix products with stored weights",
            found=f"{count} of {len(names)} in its graph",
            fix="Use the format onnx.",
        )
    return content, count
