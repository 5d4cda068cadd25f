"""The skorch recipe on real nets, and what it refuses."""

import pickle
import runpy
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch import nn

from temperance import fold
from temperance.errors import InvalidInput, MissingPackage
from temperance.integrations import skorch as integration
from temperance.integrations.skorch import TemperatureCallback, TemperedModule

skorch = pytest.importorskip("skorch")
EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "skorch_example.py"


def build():
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


def rows(n=120):
    rng = np.random.default_rng(0)
    y = np.arange(n) % 3
    return (rng.normal(size=(n, 6)) + 2 * np.eye(6)[y]).astype("float32"), y


def net(callbacks=None, temperature=4.0, **more):
    given = {"criterion": nn.CrossEntropyLoss, "max_epochs": 2, "lr": 0.1, "verbose": 0} | more
    return skorch.NeuralNetClassifier(
        TemperedModule, module__module=build, module__temperature=temperature,
        callbacks=[TemperatureCallback()] if callbacks is None else callbacks, **given,
    )  # fmt: skip


def test_a_rule_measures_the_training_rows():
    x, y = rows()
    found = net(temperature="sqrt-dim", max_epochs=12, lr=0.5, batch_size=32).fit(x, y)
    callback = dict(found.callbacks_)["TemperatureCallback"]
    assert callback.placement_.temperature == 4.0  # sqrt(16)
    assert found.history[:, "temperature"] == [4.0] * 12
    assert found.score(x, y) > 0.6
    np.testing.assert_allclose(found.predict_proba(x).sum(axis=1), 1, rtol=1e-5)


def test_statistics_come_from_the_training_part_only():
    seen = []

    class Spy(TemperatureCallback):
        def on_epoch_begin(self, net, dataset_train=None, **more):
            super().on_epoch_begin(net, dataset_train=dataset_train, **more)
            x = torch.from_numpy(np.stack([row[0] for row in dataset_train]))
            with torch.no_grad():
                expected = net.module_.module[:2](x).mean(0)
            seen.append((len(x), net.module_.head.norm.running_mean.clone(), expected))

    x, y = rows()
    split = skorch.dataset.ValidSplit(0.2)  # another one at every call
    net([Spy()], lr=1e-9, max_epochs=1, train_split=split).fit(x, y)
    ((n, mean, expected),) = seen
    assert n == 96
    torch.testing.assert_close(mean, expected, rtol=1e-4, atol=1e-5)


def test_it_is_measured_anew_for_a_new_module_and_not_for_a_warm_start():
    x, y = rows()
    found = net()
    found.fit(x, y)
    first, callback = found.module_, dict(found.callbacks_)["TemperatureCallback"]
    placement, callback.placement_ = callback.placement_, None
    found.partial_fit(x, y)
    assert found.module_ is first
    assert callback.placement_ is None
    found.fit(x, y)
    assert found.module_ is not first
    assert dict(found.callbacks_)["TemperatureCallback"].placement_.feature_dim == 16
    assert placement.feature_dim == 16
    assert len(found.history) == 2


def test_loaded_parameters_are_not_measured_away(tmp_path):
    x, y = rows()
    found = net(temperature="sqrt-dim").fit(x, y)
    found.module_.head.set_temperature(7.0)
    found.save_params(f_params=tmp_path / "p.pt")
    again = net(temperature="sqrt-dim", lr=1e-9).initialize()
    again.load_params(f_params=tmp_path / "p.pt")
    again.partial_fit(x, y)
    assert again.history[-1, "temperature"] == 7.0


def test_a_temperature_of_numpy_needs_no_callback():
    x, y = rows()
    assert net([], temperature=np.float32(2.0)).fit(x, y).module_.head.temperature == 2.0


def test_it_can_be_cloned_and_pickled_and_folded():
    x, y = rows()
    found = clone(net(temperature=2.0)).fit(x, y)
    again = pickle.loads(pickle.dumps(found))
    np.testing.assert_array_equal(again.predict_proba(x), found.predict_proba(x))
    plain = fold(found.module_.module.eval(), torch.from_numpy(x[:4]))
    expected = torch.softmax(plain(torch.from_numpy(x)), -1).detach()
    np.testing.assert_allclose(found.predict_proba(x), expected, rtol=1e-4, atol=1e-6)


def test_a_network_is_copied_and_named_layers_are_found():
    network = build()
    module = TemperedModule(network, 4.0, "layer", head="2")
    assert isinstance(network[2], nn.Linear)
    assert module.head.norm_kind == "layer"
    assert module(torch.zeros(2, 6)).shape == (2, 3)


def test_a_rule_without_the_callback_is_refused():
    x, y = rows()
    with pytest.raises(InvalidInput) as error:
        net([], temperature="sqrt-dim").fit(x, y)
    assert "TemperatureCallback()" in error.value.fix


def test_the_default_criterion_of_skorch_is_refused():
    x, y = rows()
    with pytest.raises(InvalidInput) as error:
        net(criterion=nn.NLLLoss).fit(x, y)
    assert error.value.subject == "criterion"


def test_a_module_without_a_head_is_refused():
    x, y = rows()
    plain = skorch.NeuralNetClassifier(
        partial(build), criterion=nn.CrossEntropyLoss, callbacks=[TemperatureCallback()], verbose=0
    )
    with pytest.raises(InvalidInput) as error:
        plain.fit(x, y)
    assert error.value.subject == "module of the net"


def test_without_skorch_the_package_is_named(monkeypatch):
    monkeypatch.setattr(integration, "_Callback", object)
    with pytest.raises(MissingPackage) as error:
        TemperatureCallback()
    assert error.value.extra == "skorch"
    monkeypatch.setitem(sys.modules, "skorch.callbacks", None)
    assert integration._base() is object


def test_the_example_runs():
    found = runpy.run_path(str(EXAMPLE))["main"]()
    assert found["temperature of the rule"] == 8.0
    assert found["accuracy"] > 0.8
    assert found["best of the grid"] in (1.0, 4.0, 8.0)
