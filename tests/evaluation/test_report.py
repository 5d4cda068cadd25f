"""``evaluate``: figures, intervals, both forms, and the model left as it was."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from temperance.errors import InvalidInput
from temperance.evaluation import (
    EvaluateOptions,
    TemperatureFit,
    accuracy,
    brier,
    collect_logits,
    ece,
    evaluate,
    fit_temperature,
    nll,
)
from temperance.evaluation.intervals import bootstrap, percentile_interval, wilson
from temperance.labels import ClassMap
from temperance.records import dumps, from_dict, loads


def sample(n, c=5, *, seed=0):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, c)) * 2
    return z, (z + rng.gumbel(size=z.shape)).argmax(axis=1)


Z, Y = sample(1500)
FIT = fit_temperature(logits=Z[:500] * 3, labels=Y[:500])
REPORT = evaluate(logits=Z[500:] * 3, labels=Y[500:], posthoc=FIT)


# ------------------------------------------------------------------ figures
def test_the_figures_are_those_of_the_functions():
    z, y = Z[500:] * 3, Y[500:]
    after = z / FIT.temperature
    wanted = {
        "accuracy": accuracy(logits=z, labels=y),
        "nll": nll(logits=z, labels=y),
        "brier": brier(logits=z, labels=y),
        "ece": ece(logits=z, labels=y),
        "nll_posthoc": nll(logits=after, labels=y),
        "brier_posthoc": brier(logits=after, labels=y),
        "ece_posthoc": ece(logits=after, labels=y),
    }
    assert list(REPORT.metrics) == list(wanted)
    for name, value in wanted.items():
        estimate = REPORT.metrics[name]
        assert estimate.value == pytest.approx(value, rel=1e-10)
        assert estimate.interval[0] < estimate.value < estimate.interval[1]
        assert "1000 rows" in estimate.method
    assert REPORT.metrics["nll_posthoc"].value < REPORT.metrics["nll"].value
    assert (REPORT.n, REPORT.n_classes) == (1000, 5)
    assert REPORT.posthoc_temperature == FIT.temperature
    assert REPORT.posthoc_status == "converged"


def test_the_report_says_how_it_was_made_and_goes_through_json():
    settings = REPORT.settings
    assert settings["bins"] == 15
    assert settings["scheme"] == "width"
    assert settings["bootstrap"] == 1000
    assert settings["seed"] == 0
    assert settings["n_fit"] == 500
    assert settings["input"] == "logits"
    assert from_dict(settings["posthoc"], TemperatureFit) == FIT
    text = dumps(REPORT)
    assert dumps(loads(text)) == text
    assert sum(REPORT.reliability["count"]) == sum(REPORT.reliability["posthoc"]["count"]) == 1000


def test_without_a_fit_nothing_is_said_of_after():
    report = evaluate(logits=Z, labels=Y)
    assert list(report.metrics) == ["accuracy", "nll", "brier", "ece"]
    assert report.posthoc_temperature is report.posthoc_status is None
    assert "posthoc" not in report.reliability


def test_probabilities_with_a_fit_are_calibrated_by_their_logarithms():
    z = Z[500:] * 3
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    report = evaluate(probs=p, labels=Y[500:], posthoc=FIT)
    for name, estimate in REPORT.metrics.items():
        assert report.metrics[name].value == pytest.approx(estimate.value, rel=1e-9)
    assert report.settings["input"] == "probs"


def test_per_class_accuracy_by_name():
    y = np.where(Y == 3, 2, Y)
    names = ["a", "b", "c", "d", "e"]
    report = evaluate(logits=Z, labels=y, class_map=names)
    assert list(report.per_class) == names
    assert report.per_class["d"] is None
    for k, name in ((0, "a"), (2, "c")):
        wanted = (Z[y == k].argmax(axis=1) == k).mean()
        estimate = report.per_class[name]
        assert estimate.value == pytest.approx(wanted)
        assert estimate.interval == wilson((Z[y == k].argmax(axis=1) == k).sum(), (y == k).sum())
    assert list(evaluate(logits=Z, labels=Y).per_class) == list("01234")
    assert list(evaluate(logits=Z, labels=Y, class_map=ClassMap(names)).per_class) == names
    with pytest.raises(InvalidInput) as caught:
        evaluate(logits=Z, labels=Y, class_map=names[:4])
    assert caught.value.subject == "class_map"


def test_binary_and_ignored_rows():
    one = Z[:, 1] - Z[:, 0]
    y = np.where(Y > 1, -100, Y)
    report = evaluate(logits=one, labels=y, options=EvaluateOptions(ignore=(-100,)))
    assert report.n == (Y <= 1).sum()
    assert report.settings["ignored_rows"] == (Y > 1).sum()
    assert report.n_classes == 2


def test_infinite_figures_have_no_interval():
    report = evaluate(probs=[[1.0, 0.0], [0.5, 0.5], [0.2, 0.8]], labels=[1, 0, 1])
    assert report.metrics["nll"].value == math.inf
    assert report.metrics["nll"].interval is None
    assert report.metrics["brier"].interval is not None
    assert loads(dumps(report)).metrics["nll"].value == math.inf


def test_one_row_and_no_bootstrap():
    one = evaluate(logits=[[1.0, 0.0]], labels=[0])
    assert one.metrics["accuracy"].interval == wilson(1, 1)
    assert one.metrics["nll"].interval is None
    none = evaluate(logits=Z, labels=Y, options=EvaluateOptions(bootstrap=0))
    assert none.metrics["ece"].interval is None
    assert none.metrics["ece"].value == evaluate(logits=Z, labels=Y).metrics["ece"].value


@pytest.mark.parametrize(
    "options",
    [
        {"bins": 0},
        {"scheme": "x"},
        {"bootstrap": -1},
        {"bootstrap": 1},
        {"bootstrap": 10.5},
        {"bootstrap": "100"},
        {"bootstrap": None},
        {"seed": -1},
        {"seed": 0.5},
        {"seed": "0"},
    ],
)
def test_options_are_checked(options):
    with pytest.raises(InvalidInput):
        EvaluateOptions(**options)


# ------------------------------------------------------------------ intervals
def test_wilson_at_both_ends():
    assert wilson(0, 10)[0] == 0.0
    assert wilson(10, 10)[1] == 1.0
    np.testing.assert_allclose(wilson(0, 10)[1], 0.27754, atol=1e-5)  # z^2 / (n + z^2)
    np.testing.assert_allclose(wilson(5, 10), (0.23659, 0.76341), atol=1e-5)


def test_the_bootstrap_is_that_of_a_loop():
    rng = np.random.default_rng(0)
    values, index, gap = rng.normal(size=(7, 2)), rng.integers(0, 3, 7), rng.normal(size=7)
    means, eces = bootstrap(values, [(index, gap), (index * 0, gap)], replicates=40, seed=9)
    rng = np.random.default_rng(9)
    for drawn, mean, ece_ in zip(rng.integers(0, 7, (40, 7)), means, eces, strict=True):
        np.testing.assert_allclose(mean, values[drawn].mean(axis=0), atol=1e-12)
        wanted = sum(abs(gap[drawn][index[drawn] == b].sum()) for b in range(3)) / 7
        np.testing.assert_allclose(ece_, [wanted, abs(gap[drawn].sum()) / 7], atol=1e-12)


def test_the_bootstrap_does_not_depend_on_its_chunks(monkeypatch):
    whole = evaluate(logits=Z, labels=Y)
    assert evaluate(logits=Z, labels=Y) == whole
    other = evaluate(logits=Z, labels=Y, options=EvaluateOptions(seed=1))
    assert other.metrics["nll"].interval != whole.metrics["nll"].interval
    monkeypatch.setattr("temperance.evaluation.intervals._CHUNK", 4000)
    chunked = evaluate(logits=Z, labels=Y)
    for name, estimate in whole.metrics.items():
        np.testing.assert_allclose(chunked.metrics[name].interval, estimate.interval, rtol=1e-12)


def test_the_interval_of_the_ece_is_not_pushed_up():
    """Of a calibrated model: the draws all lie higher than the value on average."""
    plain_above, covered = 0, []
    wanted = np.mean([ece(logits=z, labels=y) for z, y in (sample(500, seed=s) for s in range(60))])
    for seed in range(60):
        z, y = sample(500, seed=seed)
        report = evaluate(logits=z, labels=y, options=EvaluateOptions(bootstrap=200))
        low, high = report.metrics["ece"].interval
        covered.append(low <= wanted <= high)
        assert low < report.metrics["ece"].value < high
        p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
        edges = np.linspace(0, 1, 16)
        gaps = (
            np.clip(np.searchsorted(edges, p.max(1)) - 1, 0, 14),
            p.max(1) - (p.argmax(1) == y),
        )
        _, drawn = bootstrap(np.empty((500, 0)), [gaps], replicates=200, seed=0)
        plain_above += drawn.mean() > report.metrics["ece"].value
    assert np.mean(covered) > 0.88
    assert plain_above == 60  # what the correction is for


def test_the_interval_holds_the_value():
    assert percentile_interval(5.0, np.array([1.0, 2.0, 3.0]))[1] == 5.0
    low, high = percentile_interval(2.0, np.array([3.0, 4.0, 5.0]), centred=True)
    assert (low, high) == pytest.approx((1.05, 2.95))


# ------------------------------------------------------------------ models
class Net(nn.Module):
    def __init__(self, form="tensor"):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.out = nn.Linear(4, 3)
        self.form = form

    def forward(self, x):
        z = self.out(self.drop(self.norm(x)))
        return {"tensor": z, "dict": {"logits": z}, "tuple": (z, z * 2)}[self.form]


def loader(n=50, *, seed=0, batch=16):
    g = torch.Generator().manual_seed(seed)
    x, y = torch.randn(n, 4, generator=g), torch.randint(0, 3, (n,), generator=g)
    return DataLoader(TensorDataset(x, y), batch_size=batch)


@pytest.mark.parametrize("form", ["tensor", "dict", "tuple"])
def test_both_forms_agree_and_the_model_is_left_as_it_was(form, rng_guard):
    model = Net(form).train()
    model.norm.eval()  # a frozen norm in a model that trains
    before = {k: v.clone() for k, v in model.state_dict().items()}
    options = EvaluateOptions(logits_key=0 if form == "tuple" else None, bootstrap=50)
    with rng_guard():
        report = evaluate(model, loader(), fit_loader=loader(seed=1), options=options)
    assert [m.training for m in model.modules()] == [True, False, True, True]
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(p.grad is None for p in model.parameters())
    logits, labels = collect_logits(model, loader(), key=options.logits_key)
    fit_logits, fit_labels = collect_logits(model, loader(seed=1), key=options.logits_key)
    fit = fit_temperature(logits=fit_logits, labels=fit_labels)
    assert report == evaluate(logits=logits, labels=labels, posthoc=fit, options=options)
    assert report.settings["n_fit"] == 50


def test_the_mode_is_restored_after_a_failure():
    model = Net().train()
    with pytest.raises(RuntimeError):
        evaluate(model, [(torch.zeros(3, 9), torch.zeros(3, dtype=torch.long))])
    assert model.training
    assert model.norm.training


def test_half_precision_models_and_list_labels():
    logits, labels = collect_logits(
        Net().to(torch.bfloat16), [(torch.ones(2, 4).bfloat16(), [0, 1])]
    )
    assert logits.dtype == np.float32
    assert labels.tolist() == [0, 1]


@pytest.mark.parametrize(
    "batches",
    [
        [],
        [torch.zeros(3, 4)],
        [(torch.zeros(3, 4), torch.zeros(2))],
        [(torch.zeros(3, 2, 4), torch.zeros(3))],
    ],
    ids=["none", "no labels", "lengths", "dense"],
)
def test_bad_loaders_are_refused(batches):
    with pytest.raises(InvalidInput):
        collect_logits(nn.Linear(4, 3), batches)


def test_wrong_forms_are_refused():
    rows = loader()
    for call in (
        lambda: evaluate(),
        lambda: evaluate(Net()),
        lambda: evaluate(logits=Z),
        lambda: evaluate(Net(), rows, logits=Z, labels=Y),
        lambda: evaluate(logits=Z, labels=Y, fit_loader=rows),
        lambda: evaluate(Net(), rows, fit_loader=rows),
        lambda: evaluate(Net(), rows, fit_loader=loader(), posthoc=FIT),
    ):
        with pytest.raises(InvalidInput):
            call()


def test_the_room_does_not_import_matplotlib():
    import subprocess
    import sys

    code = "import sys, temperance.evaluation; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0


@pytest.mark.parametrize("n", [100, 400])
def test_the_interval_of_the_ece_holds_0_for_a_calibrated_model(n):
    """Few rows make every ECE too large; its interval has to say that 0 is possible."""
    held = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        z = rng.normal(size=(n, 4)) * 2
        y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)  # drawn from softmax(z)
        options = EvaluateOptions(bootstrap=50)
        found = evaluate(logits=z, labels=y, options=options).metrics["ece"]
        held += found.interval[0] == 0.0
    assert held >= 18
