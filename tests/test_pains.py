"""Smallest inputs of the 36 known pains that no test of a single room has in just this form.

The table of all 36 and their tests: ``docs/design/013-the-36-pains.md``.
"""

import ast
import copy
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from temperance import (
    RULES,
    Features,
    Task,
    check_batches,
    collect,
    convert,
    fit_temperature,
    fold,
    insert,
    measure,
    parameter_groups,
    set_norm_statistics,
    suggest,
)
from temperance.ensemble import BASELINES, member_loss, predict_members, sigma_norms
from temperance.errors import InvalidInput, TemperanceWarning
from temperance.evaluation import apply_temperature, ece, msp, ood_metrics, pooled_log_probs
from temperance.export import export_program
from temperance.head import HeadOptions, TemperedHead
from temperance.labels import ClassMap, read_labels
from temperance.models import load_state
from temperance.study.ledger import read_rows
from temperance.study.plan import read_plan
from temperance.study.runner import Runner
from temperance.study.sweep import SweepOptions, sweep
from temperance.task import csg
from temperance.training.loop import plan_steps

PROJECT = Path(__file__).parent.parent
TABLE = PROJECT / "docs" / "design" / "013-the-36-pains.md"


# ------------------------------------------------------------------ batches and statistics
def test_01_the_last_batch_of_65_rows_is_known_before_the_first_step():
    x = torch.randn(65, 4)
    model = nn.Sequential(TemperedHead(nn.Linear(4, 3), 2.0)).train()
    plan = check_batches(65, 64)
    assert (plan.first_unsafe, plan.smallest_rows) == (2, 1)
    with pytest.raises(InvalidInput) as error:
        plan.require_safe()
    assert "batch 2 of 2" in error.value.found
    first, last = x.split(64)
    model(first)
    before = model[0].norm.running_mean.clone()
    with pytest.raises(InvalidInput) as error:  # one who did not ask is told the same
        model(last)
    assert "check_batches" in error.value.fix
    assert torch.equal(model[0].norm.running_mean, before)
    assert plan_steps(65, 64) == [65]  # what the training of the library does: merge
    assert model.eval()(last).shape == (1, 3)


def test_01_two_rows_train_but_tell_nothing_and_are_called_unsafe():
    head = TemperedHead(nn.Linear(4, 3), 2.0)
    z = head.normalize(torch.randn(2, 4) * 7 + 3).detach()
    torch.testing.assert_close(z.abs(), torch.ones(2, 4), atol=0.01, rtol=0)
    assert not check_batches(66, 64).safe


def test_07_ten_steps_from_a_mean_of_50_are_too_few_and_the_figures_say_so():
    x = torch.randn(640, 4) * 10 + 50
    model = nn.Sequential(TemperedHead(nn.Linear(4, 3), 2.0)).train()
    late = copy.deepcopy(model)

    def steps(net):
        for part in x.split(64):
            net(part)
        return net.eval()[0].normalize(x).mean(0).abs().max()

    assert float(steps(late).detach()) > 1  # and should be 0
    found = set_norm_statistics(late, x.split(64))
    assert found.mean_shift > 1  # how far off they were, in standard deviations
    assert float(late[0].normalize(x).mean(0).abs().max().detach()) < 1e-4
    set_norm_statistics(model, x.split(64))
    assert float(steps(model).detach()) < 0.1  # set first, ten steps leave them right


# ------------------------------------------------------------------ labels and classes
@pytest.mark.parametrize("kind", [np.int32, np.float64, np.uint8, np.int64, bool])
def test_03_labels_of_any_type_are_read_alike(kind):
    y = np.array([1, 0, 1, 1, 0])
    read = read_labels(y.astype(kind))
    assert read.ids.tolist() == y.tolist()
    assert read.ids.dtype == np.int64
    z = np.random.default_rng(0).normal(size=(5, 2))
    assert fit_temperature(logits=z, labels=y.astype(kind)) == fit_temperature(logits=z, labels=y)


def test_03_a_split_whose_labels_are_all_minus_1_is_refused_by_every_reader():
    y = np.full(6, -1)
    z = np.random.default_rng(0).normal(size=(6, 3))
    for call in (
        lambda: read_labels(y, ignore=(-1,)),
        lambda: fit_temperature(logits=z, labels=y, ignore=(-1,)),
        lambda: ece(logits=z, labels=y),
        lambda: Features.from_arrays(z, y, ignore=(-1,)),
        lambda: member_loss(torch.zeros(2, 6, 3), torch.from_numpy(y)),
    ):
        with pytest.raises(InvalidInput):
            call()


def test_04_natural_and_string_order_of_twelve_classes_give_the_same_names():
    natural = [str(i) for i in range(12)]
    maps = ClassMap(tuple(natural)), ClassMap(tuple(sorted(natural)))
    assert maps[0] != maps[1]
    val = [name for name in natural if name != "2"]
    for class_map in maps:
        read = read_labels(val, class_map=class_map)
        assert [class_map.names[i] for i in read.ids] == val
        assert read.counts[class_map.names.index("2")] == 0


def test_19_a_calibration_split_without_one_class_moves_t_little():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(3000, 10)) * 2
    y = (z + rng.gumbel(size=z.shape)).argmax(1)
    kept = y != 7
    fit = fit_temperature(logits=3 * z[kept], labels=y[kept])
    assert fit.status == "converged"
    assert fit.interval[0] < 3 * 1.05
    assert fit.temperature == pytest.approx(3, rel=0.15)


@pytest.mark.parametrize("counts", [[100, 10, 1], [3] * 200], ids=["100/10/1", "200 x 3"])
def test_19_rare_classes_are_measured_and_named(counts):
    y = np.repeat(np.arange(len(counts)), counts)
    x = np.random.default_rng(0).normal(size=(len(y), 6)) + 3 * np.sin(y[:, None] * [1.0] * 6)
    task = measure(Features.from_arrays(x, y), repeats=2)
    assert task.n_classes == task.n_nonempty == len(counts)
    found = task.statistics["csg"]
    assert math.isfinite(found.value)
    assert "classes with" in found.status  # those with one row, or with k rows or fewer
    assert suggest(task).temperature > 0


# ------------------------------------------------------------------ heads and models
class Adapter(nn.Module):
    """What a wrapper of adapters does: the original layer stays, a copy of it is trained."""

    def __init__(self, layer):
        super().__init__()
        self.original_module = layer
        self.modules_to_save = nn.ModuleDict({"default": copy.deepcopy(layer)})

    def forward(self, x):
        return self.modules_to_save["default"](x)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.score = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.score(torch.relu(self.body(x)))


def test_12_the_head_is_saved_as_one_unit_inside_a_wrapper_or_missed_loudly():
    model = Encoder()
    insert(model, 3.0, name="score")
    model.score = Adapter(model.score)
    trained = model.score.modules_to_save["default"]
    x = torch.randn(20, 4) + 2
    optimizer = torch.optim.SGD(parameter_groups(trained, 0.0), lr=0.1)
    nn.functional.cross_entropy(model(x), torch.arange(20) % 3).backward()
    optimizer.step()
    trained.set_temperature(2.5)
    prefix = "score.modules_to_save.default."
    saved = {k: v.clone() for k, v in model.state_dict().items() if k.startswith(prefix)}
    assert {k.removeprefix(prefix) for k in saved} == set(trained.state_dict())
    fresh = Encoder()
    fresh.body.load_state_dict(model.body.state_dict())
    insert(fresh, 1.0, name="score")
    fresh.score = Adapter(fresh.score)
    with pytest.raises(InvalidInput):  # a file of adapters is not the whole model
        load_state(fresh, saved)
    report = load_state(fresh, saved, allow_missing=True)
    assert set(report.loaded) == set(saved)
    assert torch.equal(fresh.eval()(x), model.eval()(x))
    with pytest.raises(InvalidInput):  # the head is not in the file at all
        load_state(fresh, {"lora.weight": torch.zeros(2)}, allow_missing=True)


class PooledHead(nn.Module):
    """A head that holds pooling, dropout and layer, called with a keyword of its own."""

    def __init__(self, classes):
        super().__init__()
        self.pool, self.drop = nn.AdaptiveAvgPool2d(1), nn.Dropout(0.2)
        self.fc = nn.Linear(6, classes)

    def forward(self, x, pre_logits=False):
        x = self.drop(self.pool(x).flatten(1))
        return x if pre_logits else self.fc(x)


class Backbone(nn.Module):
    def __init__(self, classes=3):
        super().__init__()
        self.num_classes = classes
        self.stem, self.head = nn.Conv2d(3, 6, 3), PooledHead(classes)

    def forward(self, x, features_only=False):
        out = self.head(self.stem(x), pre_logits=features_only)
        return out if features_only else out.reshape(len(x), self.num_classes)


def test_27_surgery_keeps_the_signature_pooling_type_and_number_of_classes():
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    model = Backbone().double()
    plain = model.eval()(x)
    head = insert(model, 4.0, norm="none", example=x)
    assert model.head.fc is head
    assert type(model.head.pool) is nn.AdaptiveAvgPool2d
    assert head.weight.dtype == torch.float64
    assert model.num_classes == head.out_features == 3
    torch.testing.assert_close(model(x), plain / 4)
    assert model(x, features_only=True).shape == (2, 6)


@pytest.mark.parametrize("end", [nn.Dropout(0.5), nn.LayerNorm(6)], ids=["dropout", "norm"])
def test_23_the_norm_stands_right_in_front_of_the_layer_and_both_features_can_be_had(end):
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), end, nn.Linear(6, 3))
    x, y = torch.randn(40, 4), torch.arange(40) % 3
    with torch.no_grad():
        before = model.eval()[:3](x)
    head = insert(model, 2.0, example=x)
    assert list(model)[3] is head
    assert list(model)[2] is end
    set_norm_statistics(model, [x])
    found = collect(model, [(x, y)])
    torch.testing.assert_close(torch.from_numpy(found.x), before)
    after = head.normalize(torch.from_numpy(found.x)).detach()
    torch.testing.assert_close(after.std(0), torch.ones(6), atol=1e-3, rtol=0)
    torch.testing.assert_close(model.eval()(x), head.linear(after) / 2)
    assert found.source == "Sequential, input of 3"
    affine = [n for n, _ in TemperedHead(nn.Linear(6, 3), 2.0).norm.named_parameters()]
    assert affine == ["weight", "bias"]  # the default; "batch-no-affine" has none
    assert not list(TemperedHead(nn.Linear(6, 3), 2.0, norm="batch-no-affine").norm.parameters())


def test_20_a_fixed_batch_of_four_and_another_eps_export_for_one_row(tmp_path):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    head = insert(model, 4.0, example=torch.randn(4, 4))
    head.norm.eps = 1e-3
    with torch.no_grad():
        head.norm.running_var.fill_(1e-3)  # where eps is half of it all
        head.norm.running_mean.normal_()
        head.norm.num_batches_tracked.fill_(1)
    example = torch.randn(4, 4)
    with pytest.raises(InvalidInput):
        export_program(model.train(), tmp_path / "m.pt2", example)
    export_program(model.eval(), tmp_path / "m.pt2", example)
    graph = torch.export.load(tmp_path / "m.pt2").module()
    one = torch.randn(1, 4)
    torch.testing.assert_close(graph(one), model(one), rtol=1e-5, atol=1e-5)
    assert not any("norm" in str(node.target) for node in graph.graph.nodes)


# ------------------------------------------------------------------ T in training
DIGITS_T = [1.0, 10.0, 40.0, 512.0]


def digits_net(temperature, *, compensation):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    options = HeadOptions(gradient_compensation=compensation)
    insert(model, temperature, example=torch.randn(4, 64), options=options)
    return model


@pytest.fixture(scope="module")
def digits():
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)


@pytest.mark.parametrize("temperature", DIGITS_T)
def test_26_the_first_step_shows_log_c_and_a_gradient_of_one_over_t(temperature, digits):
    x, y = digits
    gradients = {}
    for t in (1.0, temperature):
        for compensation in (False, True):
            model = digits_net(t, compensation=compensation)
            loss = nn.functional.cross_entropy(model(x[:256]), y[:256])
            loss.backward()
            gradients[t, compensation] = model[2].weight.grad.norm()
    if temperature >= 10:
        assert float(loss.detach()) == pytest.approx(math.log(10), rel=0.01)
    ratio = float(gradients[temperature, False] / gradients[1.0, False])
    assert ratio == pytest.approx(1 / temperature, rel=0.2)
    compensated = float(gradients[temperature, True] / gradients[1.0, True])
    assert compensated == pytest.approx(1, rel=0.2)


def test_26_a_large_t_learns_and_learns_better_with_the_compensation(digits):
    """T = 512: what looks like not learning is a small step, and the value at inference stays."""
    x, y = digits
    accuracy = {}
    for compensation in (False, True):
        model = digits_net(512.0, compensation=compensation)
        optimizer = torch.optim.SGD(parameter_groups(model, 0.0), lr=0.1, momentum=0.9)
        order = torch.Generator().manual_seed(0)
        for _ in range(3):
            for rows in torch.randperm(1440, generator=order).split(64):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
                optimizer.step()
        logits = model.eval()(x[1440:])
        accuracy[compensation] = float((logits.argmax(1) == y[1440:]).float().mean())
        assert float(model[2].temperature) == 512.0
        torch.testing.assert_close(fold(model)(x[1440:]), logits, rtol=1e-4, atol=1e-4)
    assert accuracy[True] > accuracy[False] + 0.05


@pytest.mark.parametrize("eps", [1e-8, 0.0099])
def test_26_a_t_below_the_floor_never_trains(eps):
    with pytest.raises(InvalidInput) as error:
        digits_net(eps, compensation=False)
    assert error.value.subject == "temperature"


# ------------------------------------------------------------------ the formula
@pytest.mark.parametrize("m", [16, 128, 512, 2048])
@pytest.mark.parametrize("c", [2, 3, 92, 1000])
def test_09_every_size_gets_a_t_its_terms_its_range_and_the_rivals(m, c):
    found = suggest(Task(feature_dim=m, n_classes=c, statistics={"csg": 0.5}))
    assert 0 < found.temperature < 512
    assert (found.inputs["feature_dim"], found.inputs["n_classes"]) == (m, c)
    assert sum(found.terms.values()) == pytest.approx(found.unclipped)
    assert found.in_domain == (not found.reasons)
    if not 10 <= c <= 200:
        assert not found.in_domain
    assert set(found.others) | {found.rule} == set(RULES)
    assert found.others["constant"].temperature == 1.0
    assert found.others["sqrt-dim"].temperature == pytest.approx(math.sqrt(m))
    if c > 3:
        scale = 1 / found.others["adacos"].temperature  # T is 1 / scale, and says so
        assert scale == pytest.approx(math.sqrt(2) * math.log(c - 1))


def blobs(rows, *, spread=2.0):
    rng = np.random.default_rng(3)
    y = np.repeat(np.arange(3), rows)
    return spread * np.eye(4)[y] + rng.normal(size=(len(y), 4)), y


@pytest.mark.parametrize("rows", [10, 20, 40, 80])
def test_35_a_csg_says_how_it_was_made_and_a_rule_asks(rows):
    x, y = blobs(rows)
    found = csg(Features.from_arrays(x, y, source="blobs"), 10, repeats=4, seed=7)
    wanted = {"k": 3, "n_samples": 10, "seed": 7, "embedding": "blobs", "distance": "euclidean"}
    assert {name: found.settings[name] for name in wanted} == wanted
    assert found.settings["rows_per_class"] == {"min": rows, "median": rows, "max": rows}
    assert found.settings["feature_dim"] == 4
    assert (found.settings["repeats"], found.interval is not None) == (4 if rows > 10 else 1, True)
    assert found == csg(Features.from_arrays(x, y, source="blobs"), 10, repeats=4, seed=7)
    twice = csg(Features.from_arrays(np.repeat(x, 2, axis=0), np.repeat(y, 2)))
    assert "duplicates" in twice.status
    for k in (10, 50):
        if k >= 3 * rows:
            with pytest.raises(InvalidInput):
                csg(Features.from_arrays(x, y), k=k)
            continue
        other = csg(Features.from_arrays(x, y), k=k)
        answer = suggest(Task(512, 10, statistics={"csg": other}))
        assert not answer.in_domain
        assert any("the rule assumes" in reason for reason in answer.reasons)


def test_36_raw_pixels_of_3072_dimensions_are_finite_in_any_type():
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    x = np.clip(rng.integers(0, 256, (60, 3072)) // 2 + 40 * y[:, None], 0, 255).astype(np.uint8)
    found = csg(Features.from_arrays(x, y))
    assert type(found.value) is float
    assert math.isfinite(found.value)
    names = np.array(["a", "b", "c"])[y]
    for other, labels in (
        (x.astype(np.float16), y),
        (x.astype(float), names),
        (torch.from_numpy(x), torch.from_numpy(y)),
    ):
        assert csg(Features.from_arrays(other, labels)).value == found.value
    with pytest.warns(TemperanceWarning, match="0, 2, 5"):
        gaps = Features.from_arrays(x, np.array([0, 2, 5])[y])
    assert csg(gaps).value == found.value
    bad = x.astype(float)
    bad[3, 5] = np.nan
    with pytest.raises(InvalidInput) as error:
        csg(Features.from_arrays(bad, y))
    assert "row 3" in error.value.found


@pytest.mark.parametrize(
    ("m", "c", "value", "unclipped"),
    [(512, 45, 1.0, -0.13), (512, 200, 2.4, -7.86), (512, 10, 0.01, -6.28)],
)
def test_36_where_the_formula_leaves_its_range_it_says_so(m, c, value, unclipped):
    found = suggest(Task(m, c, statistics={"csg": value}))
    assert found.unclipped == pytest.approx(unclipped, abs=0.05)
    assert found.temperature > 1
    assert found.fallback == "hasegawa-sakai"
    assert found.reasons
    assert set(found.terms) == {"sqrt(M)", "offset", "log(csg)", "log(C)"}


# ------------------------------------------------------------------ figures and the post-hoc T
@pytest.mark.parametrize("place", [0, 777])
def test_08_one_infinite_logit_is_refused_by_its_row(place):
    z = np.random.default_rng(0).normal(size=(2000, 10))
    z[place, 4] = np.inf
    with pytest.raises(InvalidInput) as error:
        fit_temperature(logits=z, labels=np.arange(2000) % 10)
    assert f"row {place}" in error.value.found


def test_10_confidences_at_both_ends_and_more_bins_than_rows():
    p = [[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]  # of class 1: 0, 1 and 0.5
    assert ece(probs=p, labels=[0, 1, 0]) == pytest.approx(0.5 / 3)
    assert ece(probs=[0.0, 1.0, 0.5], labels=[0, 1, 0]) == pytest.approx(0.5 / 3)
    ten = np.linspace(0, 1, 10)
    alone = [abs(max(q, 1 - q) - (q > 0.5)) for q in ten[:5]] + [1 - q for q in ten[5:]]
    assert 0 < ece(probs=ten, labels=[1] * 10, bins=15) <= np.mean(alone) + 1e-12
    for bad in ({"probs": [[np.nan, 1.0]], "labels": [0]}, {"probs": [], "labels": []}):
        with pytest.raises(InvalidInput):
            ece(**bad)


def test_22_logits_log_probabilities_and_probabilities_with_an_exact_zero():
    rng = np.random.default_rng(0)
    z = 3 * rng.normal(size=(2000, 5))
    y = (z / 3 + rng.gumbel(size=z.shape)).argmax(1)
    logs = z - np.log(np.exp(z).sum(1, keepdims=True))
    of_logits, of_logs = (fit_temperature(logits=v, labels=y) for v in (z, logs))
    assert of_logs.temperature == pytest.approx(of_logits.temperature, rel=1e-9)
    with pytest.raises(InvalidInput) as error:
        fit_temperature(logits=np.exp(logs), labels=y)
    assert "probabilities" in error.value.found
    zeros = np.where(np.arange(5) == (y[:, None] + 1) % 5, -np.inf, z)  # log(0), of other classes
    fit = fit_temperature(logits=zeros, labels=y)
    assert fit.status == "converged"
    assert (fit.probs(zeros)[np.isinf(zeros)] == 0).all()
    assert np.abs(of_logits.probs(z) - np.exp(logs)).max() > 0.05  # it does something


@pytest.mark.parametrize("ratio", [1, 5])
def test_24_confidence_09_inside_and_04_outside_is_told_the_right_way(ratio):
    inside, outside = [[0.9, 0.05, 0.05]] * (10 * ratio), [[0.4, 0.3, 0.3]] * 10
    found = ood_metrics(id_scores=msp(probs=inside), ood_scores=msp(probs=outside), bootstrap=0)
    assert (found.auroc.value, found.aupr_in.value, found.aupr_out.value) == (1.0, 1.0, 1.0)
    assert found.fpr95_in.value == found.fpr95_out.value == 0.0
    assert (found.ratio, found.note) == (1 / ratio, "")
    turned = ood_metrics(id_scores=msp(probs=outside), ood_scores=msp(probs=inside), bootstrap=0)
    assert turned.auroc.value == 0.0
    assert turned.note


def test_25_one_output_with_a_softmax_loss_is_refused_and_the_formula_takes_two_classes():
    with pytest.raises(InvalidInput):
        insert(nn.Sequential(nn.Linear(4, 1)), 2.0, example=torch.randn(3, 4))
    model = nn.Sequential(nn.Linear(4, 1))
    x = torch.randn(8, 4)
    task = measure(collect(model, [(x, torch.arange(8) % 2)]), repeats=1)
    assert task.n_classes == 2


def test_32_a_fit_on_training_rows_is_called_one_and_the_mode_does_not_matter():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(600, 20, generator=generator)
    y = ((x[:, 0] + torch.randn(600, generator=generator)) > 0).long()
    model = nn.Sequential(
        nn.Linear(20, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 2)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(120):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[:300]), y[:300]).backward()
        optimizer.step()
    train, held_out = [(x[:300], y[:300])], [(x[300:], y[300:])]
    told = fit_temperature(model.train(), train)
    assert model.training
    assert any("training data" in note for note in told.notes)
    other = fit_temperature(model, held_out)
    assert not any("training data" in note for note in other.notes)
    assert other.temperature > 2 * told.temperature
    assert fit_temperature(model.eval(), held_out) == other


def test_18_a_half_precision_logit_of_6e4_over_a_small_t_keeps_the_loss():
    z = torch.tensor([[6e4, 6e4, 6e4]], dtype=torch.float16)
    assert not torch.isfinite(z / 0.05).any()
    wide = torch.as_tensor(apply_temperature(z, 0.05))
    loss = nn.functional.cross_entropy(wide, torch.tensor([0]))
    assert float(loss) == pytest.approx(math.log(3))


# ------------------------------------------------------------------ sweeps
KILLED = """
import os, signal, sys
from temperance.study.probe import train_probes
from temperance.study.runner import Runner
from temperance.study.sweep import SweepOptions, sweep
from temperance.study.plan import read_plan

def train(data, trials):
    for outcome in train_probes(data, trials):
        train.rows += 1
        if train.rows == 8:
            os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
        yield outcome

train.rows = 0
options = SweepOptions(runner=Runner(measure=None, probe=train))
sweep(read_plan(sys.argv[1]), sys.argv[2], options=options)
"""


def test_13_twenty_runs_half_of_them_no_number_killed_after_seven_and_counted_once(tmp_path):
    plan, out = tmp_path / "plan.toml", tmp_path / "out"
    plan.write_text("""
        fixed.dataset = "iris"
        fixed.temperature = 1e-9
        fixed.steps = 12
        grid.lr = [1e-9, 1e30]
        grid.seed = {count = 10}
    """)
    script = [sys.executable, "-c", KILLED, str(plan), str(out)]
    assert subprocess.run(script, timeout=300, check=False).returncode not in (0, 1)
    kept = len(read_rows(out))
    assert 0 < kept <= 7
    options = SweepOptions(runner=Runner(measure=None))
    found = sweep(read_plan(plan), out, options=options)
    assert (found.trials, found.new) == (20, 20 - kept)
    assert found.outcomes == {"done": 10, "diverged": 10, "failed": 0, "missing": 0}
    rows = read_rows(out)
    assert len(rows) == len({row["key"] for row in rows}) == 20
    for row in rows:
        assert bool(row["metrics"]) == (row["outcome"] == "done")
        assert bool(row["message"]) == (row["outcome"] == "diverged")
    assert sweep(read_plan(plan), out, options=options).new == 0  # the second call counts nothing


# ------------------------------------------------------------------ ensembles
def identity_ensemble(members):
    """Logits that are the input, twice: every member passes its rows on."""
    model = nn.Sequential(nn.BatchNorm1d(1, eps=0.0), nn.Linear(1, 2, bias=False)).eval()
    nn.init.ones_(model[1].weight)
    return convert(model, members, spread=0.0).eval()


@pytest.mark.parametrize(("members", "batch"), [(3, 4), (3, 1), (1, 4), (1, 1)])
def test_29_the_member_means_of_an_identity_model_are_its_inputs(members, batch):
    x = torch.arange(float(batch))[:, None]
    z = identity_ensemble(members)(x)
    assert z.shape == (members, batch, 2)
    torch.testing.assert_close(z.mean(0)[:, 0], x[:, 0])
    torch.testing.assert_close(z[0], z[-1])


def test_29_mean_of_losses_and_loss_of_the_mean_are_two_named_numbers():
    z = torch.tensor([[[8.0, 0.0]], [[0.0, 8.0]]])
    y = torch.tensor([0])
    each, mean = member_loss(z, y), member_loss(z, y, of="mean")
    assert float(mean) == pytest.approx(math.log(2), rel=1e-3)
    assert float(each) == pytest.approx(4.0, rel=1e-3)
    pooled = pooled_log_probs(logits=z.numpy())  # of probabilities, not of logits
    assert -pooled[0, 0] == pytest.approx(float(mean), rel=1e-6)


@pytest.mark.parametrize("protocol", ["repeat", "split"])
def test_30_rows_and_gradients_of_one_step_under_each_protocol(protocol):
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    x, y = torch.randn(12, 4), torch.arange(12) % 3
    ensemble = convert(model, 3, protocol=protocol, example=x).train()
    assert convert(model, 3).protocol == "repeat"  # the paper's
    seen = []
    ensemble.backbone[2].register_forward_hook(lambda _m, _a, out: seen.append(len(out)))
    logits = ensemble(x)
    assert seen == [36 if protocol == "repeat" else 12]
    assert logits.shape == (3, 12 if protocol == "repeat" else 4, 3)
    member_loss(logits, ensemble.targets(y)).backward()
    (norm,) = sigma_norms(ensemble).values()
    slopes = norm.gamma.grad
    assert slopes.shape == (3, 6)
    assert (slopes.abs().sum(1) > 0).all()


def test_30_members_with_offsets_do_not_leak_into_each_others_statistics():
    model = nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 2))
    ensemble = convert(model, 4, spread=0.0, protocol="split", example=torch.randn(4, 1)).train()
    x = torch.randn(256, 1) + 3 * (torch.arange(256) % 4).float()[:, None]  # row i, member i % 4
    seen = []
    ensemble.backbone[0].register_forward_hook(lambda _m, _a, out: seen.append(out.detach()))
    ensemble(x)
    means = [float(seen[0][m::4].mean()) for m in range(4)]
    assert means == pytest.approx([0.0] * 4, abs=1e-5)  # one shared norm: -1.28 .. 1.28


@pytest.mark.parametrize("name", BASELINES)
def test_29_every_method_gives_members_first(name):
    row = BASELINES[name]
    x = torch.randn(5, 4)
    body = (nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2))
    model = nn.Sequential(*body, nn.Linear(16, 3))
    ensemble = row.build(model, 3, **({"example": x} if row.takes_example else {})).eval()
    for rows in (x, x[:1]):
        assert predict_members(ensemble, rows).shape == (3, len(rows), 3)


# ------------------------------------------------------------------ the table
def table_rows():
    """Number and named tests of every row of the table."""
    found = {}
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and cells[0].isdigit():
            found[int(cells[0])] = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", cells[-1])
    return found


def test_every_test_that_the_table_names_exists():
    rows = table_rows()
    assert sorted(rows) == list(range(1, 37))
    assert all(rows.values()), [number for number, tests in rows.items() if not tests]
    defined = {}
    for number, tests in rows.items():
        for file, name in tests:
            if file not in defined:
                tree = ast.parse((PROJECT / file).read_text(encoding="utf-8"))
                functions = (n for n in tree.body if isinstance(n, ast.FunctionDef))
                defined[file] = {f.name for f in functions}
            assert name in defined[file], f"row {number} names {name}, which is not in {file}"
