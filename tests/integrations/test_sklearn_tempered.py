"""The tempered net as a scikit-learn classifier."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris
from sklearn.exceptions import NotFittedError
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import parametrize_with_checks

from temperance import fold
from temperance.errors import InvalidInput, NotFound, TemperanceError
from temperance.head import tempered_heads
from temperance.integrations.sklearn import CalibratedModel, TemperedClassifier
from temperance.training.loop import Budget

X, Y = load_iris(return_X_y=True)
NAMES = np.array(["setosa", "versicolor", "virginica"])[Y]
SMALL = {"feature_dim": 16, "budget": Budget(epochs=10)}


@parametrize_with_checks([TemperedClassifier(feature_dim=16, budget=Budget(epochs=12, lr=0.1))])
def test_the_contract_of_scikit_learn(estimator, check):
    check(estimator)


def test_it_learns_with_the_temperature_of_a_rule(rng_guard):
    with rng_guard():
        model = TemperedClassifier("sqrt-dim", **SMALL).fit(X, NAMES)
    assert model.temperature_ == 4.0
    assert model.suggestion_.rule == "sqrt-dim"
    (head,) = tempered_heads(model.module_).values()
    assert (head.norm_kind, float(head.temperature)) == ("batch", 4.0)
    assert model.score(X, NAMES) > 0.9
    p = model.predict_proba(X)
    np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-12)
    z = model.decision_function(X)
    np.testing.assert_allclose(p, torch.from_numpy(z).softmax(1), rtol=1e-9)
    assert len(model.train_loss_) == 10
    again = TemperedClassifier("sqrt-dim", **SMALL).fit(X, NAMES)
    np.testing.assert_array_equal(again.predict_proba(X), p)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict_proba(X), p)
    plain = fold(model.module_)
    rows = torch.from_numpy((X - model.mean_) / model.scale_)
    np.testing.assert_allclose(plain(rows).detach(), z, rtol=1e-9, atol=1e-9)


@pytest.mark.filterwarnings("ignore::temperance.errors.TemperanceWarning")
def test_a_rule_that_measures_gets_statistics_of_the_standardized_rows():
    model = TemperedClassifier("hasegawa-sakai-csg-cn", **SMALL).fit(X, Y)
    assert model.temperature_ == model.suggestion_.temperature
    shifted = TemperedClassifier("hasegawa-sakai-csg-cn", **SMALL).fit(1000 + 50 * X, Y)
    assert shifted.suggestion_.unclipped == pytest.approx(model.suggestion_.unclipped, rel=1e-3)


def test_a_grid_over_temperatures_and_a_calibration_behind_it():
    search = GridSearchCV(
        TemperedClassifier(**SMALL), {"temperature": [0.5, 1.0, 8.0]}, scoring="neg_log_loss", cv=2
    ).fit(X, NAMES)
    assert search.best_params_["temperature"] in (0.5, 1.0, 8.0)
    model = CalibratedModel(TemperedClassifier(8.0, **SMALL), cv=3).fit(X, NAMES)
    assert model.calibrator_.nll_after <= model.calibrator_.nll_before
    assert np.isfinite(log_loss(NAMES, model.predict_proba(X)))


def test_seeds():
    one, two = (
        TemperedClassifier(**SMALL, random_state=np.random.RandomState(s)).fit(X, Y) for s in (0, 1)
    )
    assert not np.array_equal(one.predict_proba(X), two.predict_proba(X))
    TemperedClassifier(net="probe", budget=Budget(epochs=1), random_state=None).fit(X, Y)


def test_constant_features_and_large_means():
    x = np.column_stack([np.full(len(X), 3.0), X + 1e6])
    model = TemperedClassifier(**SMALL).fit(x, Y)
    assert model.score(x, Y) > 0.85


@pytest.mark.parametrize(
    ("options", "error", "subject"),
    [
        ({"temperature": 0.0}, InvalidInput, "temperature"),
        ({"temperature": "no-rule"}, NotFound, None),
        ({"norm": "group"}, InvalidInput, "norm"),
        ({"net": "convnet"}, InvalidInput, "net convnet"),
        ({"random_state": -1}, InvalidInput, "random_state"),
        ({"budget": 20}, InvalidInput, "budget"),
        ({"budget": Budget(epochs=3, lr=1e9)}, TemperanceError, None),
    ],
)
def test_what_cannot_be_used_is_said(options, error, subject):
    with pytest.raises(error) as caught:
        TemperedClassifier(**options).fit(X, Y)
    if subject:
        assert caught.value.subject == subject


@pytest.mark.parametrize("unit", [1e-300, 1e200])
def test_features_whose_squares_no_float_holds(unit):
    model = TemperedClassifier(**SMALL).fit(unit * X, Y)
    plain = TemperedClassifier(**SMALL).fit(X, Y)
    np.testing.assert_allclose(model.predict_proba(unit * X), plain.predict_proba(X), rtol=1e-3)


def test_a_fit_that_fails_leaves_nothing_to_predict_with():
    model = TemperedClassifier(**SMALL).fit(X, NAMES)
    with pytest.raises(InvalidInput):
        model.set_params(temperature=-1.0).fit(X[:, :2], Y)
    with pytest.raises(NotFittedError):
        model.predict(X)


def test_one_class_is_refused():
    with pytest.raises(InvalidInput) as error:
        TemperedClassifier().fit(X, np.zeros(len(X)))
    assert error.value.found == "one class"
