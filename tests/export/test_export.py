"""Exports that need no ONNX: what is captured, compared, refused, and written."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from temperance.ensemble import BASELINES, predict_members
from temperance.errors import InvalidInput, NotFound
from temperance.evaluation import fit_calibrator
from temperance.evaluation.member_temperature import apply_member_temperatures
from temperance.export import (
    FORMATS,
    ExportOptions,
    export_program,
    export_torchscript,
    find_format,
    read_metadata,
)
from temperance.export.compare import compare
from temperance.export.deploy import exportable
from temperance.head import TemperedHead

# torch.jit is deprecated as a whole; the tests read what they wrote.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning")


def run_script(path, *tensors):
    return torch.jit.load(path)(*tensors)


# ------------------------------------------------------------------ the graph is the model
def test_torch_export_gives_the_live_logits_at_any_batch_size(net, rows, tmp_path, rng_guard):
    model = net()
    before = copy.deepcopy(model.state_dict())
    with rng_guard():
        report = export_program(model, tmp_path / "m.pt2", rows)
    again = torch.export.load(tmp_path / "m.pt2").module()
    for n in (1, 2, 17):
        x = torch.randn(n, 8)
        torch.testing.assert_close(again(x), model(x), rtol=1e-5, atol=1e-6)
    assert report.inputs == {"input": ("batch", 8)}
    assert report.output_shape == ("batch", 5)
    assert report.batch_sizes == (1, 3, 8, 6)
    assert report.folded == ("4",)
    assert 0 <= report.max_rel_error < 1e-5
    assert report.agreement == 1.0
    assert report.bytes == (tmp_path / "m.pt2").stat().st_size
    assert read_metadata(tmp_path / "m.pt2")["output"] == "logits"
    assert isinstance(model[4], TemperedHead)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


@pytest.mark.parametrize("norm", ["batch", "layer", "none", "cosine"])
def test_torchscript_with_every_norm(net, rows, tmp_path, norm):
    model = net(norm)
    report = export_torchscript(model, tmp_path / "m.pt", rows)
    for n in (1, 4):
        x = torch.randn(n, 8)
        torch.testing.assert_close(run_script(tmp_path / "m.pt", x), model(x))
    assert report.folded == (() if norm == "layer" else ("4",))
    assert any("LayerNorm" in note for note in report.notes) == (norm == "layer")


def test_probabilities_and_a_temperature_after_training(net, rows, tmp_path):
    model = net()
    options = ExportOptions(output="probs", posthoc=2.5, metadata={"classes": list("abcde")})
    report = export_torchscript(model, tmp_path / "m.pt", rows, options=options)
    expected = (model(rows).double() / 2.5).softmax(dim=1).float()
    torch.testing.assert_close(run_script(tmp_path / "m.pt", rows), expected)
    assert report.posthoc_temperatures == (2.5,)
    facts = read_metadata(tmp_path / "m.pt")
    assert facts["posthoc_in_graph"] == {"temperatures": [2.5], "when": "after"}
    assert facts["classes"] == list("abcde")


def test_a_calibration_goes_in(net, rows, tmp_path):
    model = net()
    rng = np.random.default_rng(0)
    z = rng.normal(size=(500, 5)) * 2
    y = (z + np.array([0, 0, 0, 2, 2]) + rng.gumbel(size=z.shape)).argmax(axis=1)
    fitted = {m: fit_calibrator(m, logits=4 * z, labels=y) for m in ("temperature", "vector")}
    options = ExportOptions(output="probs", posthoc=fitted["temperature"])
    export_torchscript(model, tmp_path / "m.pt", rows, options=options)
    expected = fitted["temperature"].probs(model(rows).detach().numpy())
    np.testing.assert_allclose(run_script(tmp_path / "m.pt", rows), expected, rtol=1e-4, atol=1e-7)
    two = fit_calibrator("temperature", logits=z[:, :2], labels=y % 2)
    for bad, found in ((fitted["vector"], "the method 'vector'"), (two, "one for 2")):
        with pytest.raises(InvalidInput) as error:
            export_torchscript(model, tmp_path / "v.pt", rows, options=ExportOptions(posthoc=bad))
        assert error.value.found == found
    assert not (tmp_path / "v.pt").exists()


def test_an_ensemble_is_one_graph(ensemble, rows, tmp_path):
    report = export_torchscript(ensemble, tmp_path / "m.pt", rows)
    for n in (1, 5):
        x = torch.randn(n, 8)
        z = run_script(tmp_path / "m.pt", x)
        assert z.shape == (3, n, 5)
        torch.testing.assert_close(z, ensemble(x))
    assert report.output_shape == (3, "batch", 5)
    assert report.members == 3


@pytest.mark.parametrize("posthoc", [None, 1.7, (1.0, 2.0, 3.0)])
def test_mean_probabilities_of_an_ensemble(ensemble, rows, tmp_path, posthoc):
    options = ExportOptions(output="probs", posthoc=posthoc)
    report = export_torchscript(ensemble, tmp_path / "m.pt", rows, options=options)
    z = predict_members(ensemble, rows).double()
    if isinstance(posthoc, tuple):
        expected = (z / torch.tensor(posthoc)[:, None, None]).softmax(-1).mean(0)
    else:
        values = apply_member_temperatures(z, [posthoc or 1.0], when="after")
        expected = torch.from_numpy(values).exp()
    torch.testing.assert_close(run_script(tmp_path / "m.pt", rows).double(), expected, atol=1e-6,
                               rtol=1e-5)  # fmt: skip
    assert report.output_shape == ("batch", 5)


@pytest.mark.parametrize("name", BASELINES)
def test_rivals_of_the_ensemble_are_exported_too(name, rows, tmp_path):
    body = (nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3))
    plain = nn.Sequential(*body, nn.Linear(16, 5))
    row = BASELINES[name]
    members = row.build(plain, 2, **({"example": rows} if row.takes_example else {})).eval()
    report = export_torchscript(members, tmp_path / "m.pt", rows)
    x = torch.randn(5, 8)
    torch.testing.assert_close(run_script(tmp_path / "m.pt", x), members(x))
    assert report.output_shape == (2, "batch", 5)


class Text(nn.Module):
    """A model with named inputs and an output like those of transformers."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(20, 6), nn.Linear(6, 3)
        self.register_buffer("places", torch.randn(12, 6))  # no text is longer than these

    def forward(self, input_ids, attention_mask):
        kept = attention_mask.unsqueeze(-1).float()
        x = self.table(input_ids) + self.places[: input_ids.shape[1]]
        x = (x * kept).sum(1) / kept.sum(1)
        return {"logits": self.head(x), "hidden": x}


def test_named_inputs_with_two_axes_of_any_size(tmp_path):
    model = Text().eval()
    example = {"input_ids": torch.randint(20, (4, 9)), "attention_mask": torch.ones(4, 9).long(),
               "labels": torch.zeros(4).long()}  # fmt: skip
    options = ExportOptions(axes={0: "batch", 1: "tokens"})
    report = export_program(model, tmp_path / "m.pt2", example, options=options)
    assert report.inputs["attention_mask"] == ("batch", "tokens")
    again = torch.export.load(tmp_path / "m.pt2").module()
    ids = torch.randint(20, (7, 4))
    expected = model(ids, torch.ones(7, 4).long())["logits"]
    torch.testing.assert_close(again(ids, torch.ones(7, 4).long()), expected)


class Logarithm(nn.Module):
    """Defined for positive numbers only."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 5)

    def forward(self, x):
        return self.layer(x.log())


def test_noise_that_leads_outside_of_a_model_is_left_out(rows, tmp_path):
    report = export_torchscript(Logarithm().eval(), tmp_path / "m.pt", rows.abs() + 0.1)
    assert report.batch_sizes == (1, 3, 8, 6)
    assert report.max_rel_error < 1e-5


def test_a_layer_for_every_token_has_two_free_axes(tmp_path):
    model = nn.Sequential(nn.Embedding(20, 6), nn.Linear(6, 3)).eval()
    options = ExportOptions(axes={0: "batch", 1: "tokens"})
    report = export_torchscript(
        model, tmp_path / "m.pt", torch.randint(20, (4, 9)), options=options
    )
    assert report.output_shape == ("batch", "tokens", 3)


def test_an_axis_that_is_free_beside_a_batch_of_one_size(tmp_path):
    class Last(nn.Module):
        def forward(self, x):  # frozen by a trace, which takes 9 for a constant
            return x[:, int(x.shape[1]) - 1 :].reshape(4, -1).repeat(1, 3)

    example = torch.randn(4, 9, 2)
    options = ExportOptions(axes={1: "tokens"})
    with pytest.raises(InvalidInput) as error:
        export_torchscript(Last().eval(), tmp_path / "m.pt", example, options=options)
    assert error.value.subject == "exported graph"


def test_an_epsilon_of_its_own_is_kept(net, rows, tmp_path):
    model = net()
    model[4].norm.eps = model[1].eps = 0.5
    export_torchscript(model, tmp_path / "m.pt", rows)
    torch.testing.assert_close(run_script(tmp_path / "m.pt", rows), model(rows))


def test_half_precision_stays_where_the_format_has_it(net, rows, tmp_path):
    model = net().to(torch.bfloat16).eval()
    report = export_torchscript(model, tmp_path / "m.pt", rows.to(torch.bfloat16))
    assert report.tolerance == 5e-2
    z = run_script(tmp_path / "m.pt", rows.to(torch.bfloat16))
    torch.testing.assert_close(z, model(rows.to(torch.bfloat16)), rtol=0.05, atol=0.05)


def test_batches_of_one_size(net, rows, tmp_path):
    report = export_torchscript(net(), tmp_path / "m.pt", rows, options=ExportOptions(axes={}))
    assert report.inputs == {"input": (6, 8)}
    assert report.batch_sizes == (6,)


def test_wrappers_are_taken_off(net, rows, tmp_path):
    model = net()
    report = export_torchscript(nn.DataParallel(model).eval(), tmp_path / "m.pt", (rows, rows))
    assert report.folded == ("4",)


# ------------------------------------------------------------------ what is refused
def test_training_mode_is_refused_in_every_part(net, rows, tmp_path):
    model = net()
    for part, name in ((model, "training mode"), (model[3], "training mode in '3'")):
        model.eval()
        part.train()
        with pytest.raises(InvalidInput) as error:
            export_program(model, tmp_path / "m.pt2", rows)
        assert error.value.found == name
    assert not list(tmp_path.iterdir())


class Depends(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


class Frozen(nn.Module):
    """What a trace of it knows is the batch size of the example."""

    def forward(self, x):
        return x.reshape(int(x.shape[0]), -1) * len(x)


def test_what_cannot_be_captured_is_one_clear_error(rows, tmp_path):
    (tmp_path / "m.pt2").write_bytes(b"older")
    with pytest.raises(InvalidInput) as error:
        export_program(Depends().eval(), tmp_path / "m.pt2", rows)
    assert error.value.expected == "one that torch.export can capture"
    assert (tmp_path / "m.pt2").read_bytes() == b"older"
    assert len(list(tmp_path.iterdir())) == 1


class SkipsMask(Text):
    """Takes another way where nothing is padded, as some models do for speed."""

    def forward(self, input_ids, attention_mask):
        if attention_mask.all():
            return self.head(self.table(input_ids).mean(1))
        return super().forward(input_ids, attention_mask)["logits"]


def test_a_way_for_rows_without_padding_is_not_frozen(tmp_path):
    model = SkipsMask().eval()
    model.places.zero_()
    example = {"input_ids": torch.randint(20, (4, 9)), "attention_mask": torch.ones(4, 9).long()}
    with pytest.raises(InvalidInput) as error:
        export_torchscript(model, tmp_path / "m.pt", example)
    assert error.value.subject == "exported graph"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("answer", [float("nan"), float("inf")])
def test_a_graph_that_gives_no_numbers_is_another_function(net, rows, answer):
    found = exportable(net(), rows, ExportOptions())
    with pytest.raises(InvalidInput) as error:
        compare(found, lambda tensors: torch.full((len(tensors[0]), 5), answer))
    assert error.value.found == "NaN or infinity"


def test_a_model_that_gives_zeros_and_a_graph_that_does_not(rows):
    model = nn.Linear(8, 5).eval()
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    found = exportable(model, rows, ExportOptions())
    with pytest.raises(InvalidInput):
        compare(found, lambda tensors: torch.full((len(tensors[0]), 5), 1e-6))
    assert compare(found, lambda tensors: torch.zeros(len(tensors[0]), 5)).max_rel_error == 0


def test_a_model_on_an_accelerator_is_compared_as_a_copy_on_the_cpu(net, rows, monkeypatch):
    """Convolutions round to 10 bits there by default, which no tolerance of float32 allows."""
    model = net()
    assert exportable(model, rows, ExportOptions()).live is model
    monkeypatch.setattr("temperance.export.deploy.device_of", lambda _: torch.device("cuda"))
    found = exportable(model, rows, ExportOptions())
    assert found.live is not model
    assert isinstance(found.live[4], TemperedHead)


@pytest.mark.parametrize("options", [{}, {"output": "probs"}, {"posthoc": 2.0}])
def test_probabilities_are_not_taken_for_logits(rows, tmp_path, options):
    model = nn.Sequential(nn.Linear(8, 5), nn.Softmax(dim=1)).eval()
    with pytest.raises(InvalidInput) as error:
        export_torchscript(model, tmp_path / "m.pt", rows, options=ExportOptions(**options))
    assert error.value.found == "probabilities: all rows lie in [0, 1] and sum to 1"


def test_one_logit_has_no_softmax(rows, tmp_path):
    model = nn.Linear(8, 1).eval()
    with pytest.raises(InvalidInput) as error:
        export_torchscript(model, tmp_path / "m.pt", rows, options=ExportOptions(output="probs"))
    assert error.value.found == "one logit, whose softmax is 1"
    assert export_torchscript(model, tmp_path / "m.pt", rows).output_shape == ("batch", 1)


@pytest.mark.parametrize("model", [Depends(), Frozen()], ids=lambda m: type(m).__name__)
def test_a_graph_that_is_another_function_is_not_written(model, rows, tmp_path):
    with pytest.raises(InvalidInput) as error:
        export_torchscript(model.eval(), tmp_path / "m.pt", torch.cat([rows, -rows]))
    assert error.value.subject == "exported graph"
    assert not list(tmp_path.iterdir())


def test_places_that_cannot_be_written(net, rows, tmp_path):
    for path in (tmp_path, tmp_path / "nowhere" / "m.pt"):
        with pytest.raises(InvalidInput) as error:
            export_torchscript(net(), path, rows)
        assert "folder" in error.value.found


def test_a_full_disk_leaves_the_older_file(net, rows, tmp_path, monkeypatch):
    (tmp_path / "m.pt").write_bytes(b"older")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("temperance.files.os.replace", full)
    with pytest.raises(OSError, match="No space"):
        export_torchscript(net(), tmp_path / "m.pt", rows)
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"older"]


@pytest.mark.parametrize(
    ("options", "subject"),
    [
        ({"output": "classes"}, "output"),
        ({"axes": {0: "batch", 1: "batch"}}, "axes"),
        ({"axes": {-1: "last"}}, "axes"),
        ({"axes": {0: "the batch"}}, "axes"),
        ({"axes": {2: "no_such_axis"}}, "axes"),
        ({"axes": None}, "axes"),
        ({"tolerance": 0.0}, "tolerance"),
        ({"posthoc": (1.0, 2.0)}, "post-hoc temperature"),
        ({"posthoc": "T"}, "post-hoc temperature"),
        ({"posthoc": True}, "post-hoc temperature"),
        ({"posthoc": -1.0}, "temperature"),
        ({"metadata": {"x": float("nan")}}, "metadata"),
        ({"metadata": {"x": object()}}, "metadata"),
        ({"metadata": {1: "x"}}, "metadata"),
        ({"metadata": {"version": "mine"}}, "metadata"),
        ({"tolerance": 1e-30}, "exported graph"),
    ],
)
def test_options_that_cannot_be_used(net, rows, tmp_path, options, subject):
    with pytest.raises(InvalidInput) as error:
        export_torchscript(net(), tmp_path / "m.pt", rows, options=ExportOptions(**options))
    assert error.value.subject == subject
    assert not list(tmp_path.iterdir())


def test_one_temperature_of_an_ensemble_has_no_place_in_its_logits(ensemble, rows, tmp_path):
    with pytest.raises(InvalidInput) as error:
        export_torchscript(ensemble, tmp_path / "m.pt", rows, options=ExportOptions(posthoc=2.0))
    assert error.value.expected.startswith("the output 'probs'")


def test_examples_and_outputs_that_cannot_be_used(net, rows, tmp_path):
    for example in ({"input": "text"}, {"labels": rows}, rows[:0], torch.tensor(1.0)):
        with pytest.raises(InvalidInput) as error:
            export_torchscript(net(), tmp_path / "m.pt", example)
        assert error.value.subject == "example"
    dense = nn.Conv2d(3, 5, 1).eval()
    with pytest.raises(InvalidInput) as error:
        export_torchscript(
            dense, tmp_path / "m.pt", torch.randn(2, 3, 4, 4), options=ExportOptions(output="probs")
        )
    assert error.value.subject == "output of the model"
    with pytest.raises(InvalidInput) as error:
        export_torchscript(net(), tmp_path / "m.pt", rows * float("nan"))
    assert error.value.subject == "example"


def test_formats_and_foreign_files(tmp_path):
    assert [find_format(name).name for name in FORMATS] == list(FORMATS)
    with pytest.raises(NotFound) as error:
        find_format("coreml")
    assert error.value.candidates == tuple(FORMATS)
    with pytest.raises(NotFound):
        read_metadata(tmp_path / "none.onnx")
    torch.save(torch.zeros(2), tmp_path / "zip.pt")
    with pytest.raises(InvalidInput):
        read_metadata(tmp_path / "zip.pt")
