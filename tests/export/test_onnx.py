"""ONNX files, served by ONNX Runtime, are the live model."""

import sys

import numpy as np
import pytest
import torch
from torch import nn

from temperance.errors import InvalidInput, MissingPackage
from temperance.export import ExportOptions, export_int8, export_onnx, read_metadata

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
ort = pytest.importorskip("onnxruntime")


def serve(path, x):
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    (i,), (o,) = session.get_inputs(), session.get_outputs()
    return session.run([o.name], {i.name: x.numpy()})[0]


def kinds(path):
    return [node.op_type for node in onnx.load(path).graph.node]


def test_one_layer_is_left_of_the_head_and_any_batch_goes(net, rows, tmp_path, rng_guard):
    model, path = net(), tmp_path / "m.onnx"
    with rng_guard():
        report = export_onnx(
            model, path, (rows, torch.zeros(6)), options=ExportOptions(metadata={"classes": ["a"]})
        )
    for n in (1, 2, 33):
        x = 3 + 2 * torch.randn(n, 8)
        np.testing.assert_allclose(serve(path, x), model(x).detach(), rtol=1e-4, atol=1e-6)
    assert report.max_rel_error < 1e-5
    assert kinds(path) == ["Gemm", "Relu", "Gemm"]  # norms, T and dropout are gone
    graph = onnx.load(path).graph
    shape = [d.dim_param or d.dim_value for d in graph.input[0].type.tensor_type.shape.dim]
    assert shape == ["batch", 8]
    assert graph.output[0].name == "logits"
    facts = read_metadata(path)
    assert (facts["classes"], facts["members"]) == (["a"], None)
    assert str(tmp_path.parent).encode() not in path.read_bytes()
    assert b"site-packages" not in path.read_bytes()  # no lines of anybody's source


def test_an_ensemble_with_mean_probabilities(ensemble, rows, tmp_path):
    path = tmp_path / "m.onnx"
    report = export_onnx(ensemble, path, rows, options=ExportOptions(output="probs", posthoc=1.5))
    x = 3 + 2 * torch.randn(11, 8)
    mean = ensemble(x).double().softmax(-1).mean(0)
    expected = (mean.log() / 1.5).softmax(-1).detach()
    np.testing.assert_allclose(serve(path, x), expected, rtol=1e-4, atol=1e-6)
    assert (report.members, report.output_shape) == (3, ("batch", 5))


def test_an_ensemble_in_int8_gives_every_member(ensemble, rows, tmp_path):
    path = tmp_path / "m.onnx"
    report = export_int8(ensemble, path, rows)
    assert serve(path, torch.randn(1, 8)).shape == (3, 1, 5)
    assert kinds(path).count("MatMulInteger") == 3  # the members' output layers, nothing else
    assert 1e-7 < report.max_rel_error < 0.05


def test_int8_is_the_output_layer_or_everything(net, rows, tmp_path):
    model, path = net(), tmp_path / "m.onnx"
    report = export_int8(model, path, rows)
    assert kinds(path).count("MatMulInteger") == 1
    assert 1e-6 < report.max_rel_error < report.tolerance == 0.1
    assert report.agreement > 0.8
    weights = {i.name: i for i in onnx.load(path).graph.initializer}
    assert any(i.data_type == onnx.TensorProto.INT8 for i in weights.values())
    export_int8(model, path, rows, everything=True)
    assert kinds(path).count("MatMulInteger") == 2


def test_half_precision_is_written_as_float32(net, rows, tmp_path):
    model = net("none").to(torch.bfloat16).eval()
    report = export_onnx(model, tmp_path / "m.onnx", rows.to(torch.bfloat16))
    assert "bfloat16" in report.notes[0]
    assert serve(tmp_path / "m.onnx", rows).dtype == np.float32


def test_a_model_that_converts_by_itself_has_no_float32(rows, tmp_path):
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(8, 16).bfloat16(), nn.Linear(16, 5)

        def forward(self, x):
            return self.head(self.body(x.bfloat16()).float())

    with pytest.raises(InvalidInput) as error:
        export_onnx(Mixed().eval(), tmp_path / "m.onnx", rows)
    assert "torch-export" in error.value.fix
    assert not list(tmp_path.iterdir())


def test_a_layer_that_is_no_product_has_no_int8(tmp_path):
    class Mean(nn.Module):
        def forward(self, x):
            return x.reshape(len(x), 4, 2).mean(2)

    with pytest.raises(InvalidInput) as error:
        export_int8(Mean().eval(), tmp_path / "m.onnx", torch.randn(3, 8),
                    options=ExportOptions(axes={}))  # fmt: skip
    assert error.value.found == "0 of 0 in its graph"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_package_is_named(net, rows, tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackage) as error:
        export_onnx(net(), tmp_path / "m.onnx", rows)
    assert (error.value.package, error.value.extra) == (package, "onnx")


def test_files_of_others_are_no_exports_of_ours(tmp_path):
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    value = [onnx.helper.make_tensor_value_info(n, 1, [1]) for n in ("x", "y")]
    graph = onnx.helper.make_graph([node], "g", value[:1], value[1:])
    onnx.save(onnx.helper.make_model(graph), tmp_path / "other.onnx")
    (tmp_path / "text.onnx").write_text("no graph")
    for name in ("other.onnx", "text.onnx"):
        with pytest.raises(InvalidInput):
            read_metadata(tmp_path / name)


def test_weights_above_the_limit_of_one_file_are_refused(net, rows, tmp_path, monkeypatch):
    monkeypatch.setattr("temperance.export.onnx_file._LARGEST", 100)
    with pytest.raises(InvalidInput) as error:
        export_onnx(net(), tmp_path / "m.onnx", rows)
    assert "torch-export" in error.value.fix
