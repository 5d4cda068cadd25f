"""scikit-learn's own contract for our estimators, and what they do in pipelines."""

import pickle

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.datasets import load_digits, load_iris, make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.utils.estimator_checks import parametrize_with_checks

from temperance.errors import InvalidInput, NotFound
from temperance.evaluation import CALIBRATORS, fit_calibrator
from temperance.integrations.sklearn import (
    CalibratedModel,
    LogitTransformer,
    TemperatureCalibrator,
)

NOT_LOGITS = "its X has another number of columns than y has classes, so it cannot be logits"
FAILS_ON_LOGITS = dict.fromkeys(
    [
        "check_all_zero_sample_weights_error",
        "check_classifiers_classes",
        "check_classifiers_train",
        "check_dtype_object",
        "check_estimators_dtypes",
        "check_estimators_fit_returns_self",
        "check_estimators_nan_inf",
        "check_estimators_overwrite_params",
        "check_estimators_pickle",
        "check_n_features_in_after_fitting",
        "check_pipeline_consistency",
        "check_positive_only_tag_during_fit",
        "check_readonly_memmap_input",
        "check_sample_weight_equivalence_on_dense_data",
    ],
    NOT_LOGITS,
)
OUT_OF_FOLD = "fit_transform gives out-of-fold logits on purpose, as TargetEncoder does"
WEIGHTS = "priors and held-out rows go by rows; weights say how much these count, not how many"


def expected(estimator):
    if isinstance(estimator, TemperatureCalibrator):
        return FAILS_ON_LOGITS
    if isinstance(estimator, LogitTransformer):
        return dict.fromkeys(
            ["check_transformer_data_not_an_array", "check_transformer_general"], OUT_OF_FOLD
        )
    if estimator.method not in ("temperature", "ensemble-temperature"):
        return dict.fromkeys(
            [
                "check_sample_weight_equivalence_on_dense_data",
                "check_sample_weight_equivalence_on_sparse_data",
            ],
            WEIGHTS,
        )
    return {}


@parametrize_with_checks(
    [
        *(
            CalibratedModel(
                method=name, cv=2, options={"folds": 2} if "folds" in row.options else None
            )
            for name, row in CALIBRATORS.items()
        ),
        LogitTransformer(),
        TemperatureCalibrator(),
    ],
    expected_failed_checks=expected,
    xfail_strict=False,
)
def test_the_contract_of_scikit_learn(estimator, check):
    check(estimator)


# ------------------------------------------------------------------ logits in, probabilities out
def logits(n=600, c=3, seed=0):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, c)) * 2
    return z * 9, (z + rng.gumbel(size=z.shape)).argmax(axis=1)


Z, IDS = logits()
NAMES = np.array(["wolf", "cat", "dog"])


@pytest.mark.parametrize("method", CALIBRATORS)
def test_it_is_fit_calibrator(method):
    model = TemperatureCalibrator(method).fit(Z, IDS)
    direct = fit_calibrator(method, logits=Z, labels=IDS)
    assert model.calibrator_ == direct
    np.testing.assert_array_equal(model.predict_proba(Z), direct.probs(Z))
    np.testing.assert_array_equal(model.predict(Z), direct.probs(Z).argmax(axis=1))
    np.testing.assert_allclose(model.decision_function(Z), direct.log_probs(Z))
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(Z), model.predict_proba(Z))


def test_columns_are_named_by_classes_and_come_out_sorted():
    y = NAMES[IDS]  # column 0 is wolf
    model = TemperatureCalibrator(classes=NAMES).fit(Z, y)
    assert model.classes_.tolist() == ["cat", "dog", "wolf"]
    plain = fit_calibrator("temperature", logits=Z, labels=IDS)
    np.testing.assert_allclose(model.predict_proba(Z), plain.probs(Z)[:, [1, 2, 0]], rtol=1e-6)
    np.testing.assert_array_equal(model.predict(Z), NAMES[Z.argmax(axis=1)])
    assert model.score(Z, y) == np.mean(Z.argmax(axis=1) == IDS)
    assert log_loss(y, model.predict_proba(Z)) == pytest.approx(plain.nll_after, rel=1e-6)


@pytest.mark.parametrize("classes", [None, ["no", "yes"], ["yes", "no"]])
@pytest.mark.parametrize("columns", [1, 2])
def test_two_classes_as_one_column_or_two(classes, columns):
    z, ids = logits(c=2)
    order = ["no", "yes"] if classes is None else classes
    y = np.array(order)[ids]
    x = z if columns == 2 else (z[:, 1] - z[:, 0])[:, None]
    model = TemperatureCalibrator(classes=classes).fit(x, y)
    p = model.predict_proba(x)
    assert model.classes_.tolist() == ["no", "yes"]
    right = np.exp(fit_calibrator("temperature", logits=z, labels=ids).log_probs(z))
    column = [list(order).index("no"), list(order).index("yes")]
    np.testing.assert_allclose(p, right[:, column], rtol=1e-6)
    np.testing.assert_allclose(model.decision_function(x), np.log(p[:, 1] / p[:, 0]), rtol=1e-6)


def test_labels_that_lack_a_class_need_classes():
    y = np.where(IDS == 2, 1, IDS)
    with pytest.raises(InvalidInput) as error:
        TemperatureCalibrator().fit(Z, y)
    assert error.value.found == "3 column(s)"
    model = TemperatureCalibrator(classes=[0, 1, 2]).fit(Z, y)
    assert model.predict_proba(Z).shape == Z.shape
    with pytest.raises(InvalidInput) as error:
        TemperatureCalibrator(classes=[0, 1, 3]).fit(Z, IDS)
    assert "row" in error.value.found


def test_weights_go_in():
    w = np.where(IDS == 0, 5.0, 1.0)
    model = TemperatureCalibrator("vector").fit(Z, IDS, sample_weight=w)
    assert model.calibrator_ == fit_calibrator("vector", logits=Z, labels=IDS, weights=w)
    assert model.calibrator_ != TemperatureCalibrator("vector").fit(Z, IDS).calibrator_


def test_masks_go_in():
    z = Z.copy()
    z[np.arange(len(z)), (IDS + 1) % 3] = -np.inf
    p = TemperatureCalibrator("vector").fit(z, IDS).predict_proba(z)
    assert (p[np.isneginf(z)] == 0).all()


def test_what_is_wrong_is_said():
    with pytest.raises(NotFittedError):
        TemperatureCalibrator().predict(Z)
    with pytest.raises(NotFound):
        TemperatureCalibrator("platt").fit(Z, IDS)
    with pytest.raises(InvalidInput):
        TemperatureCalibrator(options={"prior": 1}).fit(Z, IDS)
    with pytest.raises(InvalidInput):
        TemperatureCalibrator().fit(Z[:5], np.zeros(5))
    z = Z.copy()
    z[4, 1] = np.nan
    with pytest.raises(InvalidInput) as error:
        TemperatureCalibrator().fit(z, IDS)
    assert "row 4" in error.value.found


# ------------------------------------------------------------------ pipelines
X, Y = load_iris(return_X_y=True)


@pytest.mark.parametrize(
    "model",
    [
        LogisticRegression(),
        LinearSVC(),
        SVC(),
        GaussianNB(),
        RandomForestClassifier(20, random_state=0),
        make_pipeline(StandardScaler(), LinearSVC()),
    ],
    ids=lambda m: type(m).__name__,
)
def test_any_classifier_can_go_in_front(model):
    y = np.array(["setosa", "versicolor", "virginica"])[Y]
    pipe = make_pipeline(StandardScaler(), LogitTransformer(model), TemperatureCalibrator())
    pipe.fit(X, y)
    p = pipe.predict_proba(X)
    np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-12)
    assert pipe.score(X, y) > 0.9
    assert log_loss(y, p) < 0.35


def test_the_calibrator_sees_no_logits_of_trained_rows():
    seen = []

    class Memory(ClassifierMixin, BaseEstimator):
        def fit(self, x, y):
            self.known_ = {tuple(row) for row in x}
            self.classes_ = np.unique(y)
            self.n_features_in_ = x.shape[1]
            return self

        def decision_function(self, x):
            seen.extend(tuple(row) in self.known_ for row in x)
            return x[:, :3]

    x = np.random.default_rng(0).normal(size=(len(Y), 4))
    LogitTransformer(Memory()).fit_transform(x, Y)
    assert seen == [False] * len(Y)


def test_out_of_fold_logits_are_those_of_cross_val_predict():
    z = LogitTransformer(GaussianNB(), cv=4).fit_transform(X, Y)
    expected = cross_val_predict(GaussianNB(), X, Y, cv=4, method="predict_proba")
    np.testing.assert_allclose(z, np.log(np.maximum(expected, 1e-7)), atol=1e-9)


def test_a_model_that_is_fitted_is_used_as_it_is():
    x, y = load_digits(return_X_y=True)
    fitted = LogisticRegression(C=1e4, max_iter=3000).fit(x[:600], y[:600])
    model = CalibratedModel(FrozenEstimator(fitted)).fit(x[600:1200], y[600:1200])
    direct = fit_calibrator(
        "temperature", logits=fitted.decision_function(x[600:1200]), labels=y[600:1200]
    )
    assert model.calibrator_ == direct
    new, new_y = x[1200:], y[1200:]
    np.testing.assert_array_equal(model.predict(new), fitted.predict(new))
    before, after = fitted.predict_proba(new), model.predict_proba(new)
    assert log_loss(new_y, after) < 0.7 * log_loss(new_y, before)


def test_methods_are_chosen_by_grid_search():
    x, y = make_classification(400, 6, n_informative=4, n_redundant=0, n_classes=3, random_state=0)
    search = GridSearchCV(
        CalibratedModel(GaussianNB(), cv=3),
        {"method": ["temperature", "vector", "isotonic"]},
        scoring="neg_log_loss",
        cv=3,
    ).fit(x, y)
    assert search.best_params_["method"] in ("temperature", "vector", "isotonic")
    assert (
        search.best_score_
        > cross_val_score(GaussianNB(), x, y, scoring="neg_log_loss", cv=3).mean()
    )


def test_probabilities_of_zero_get_a_floor():
    forest = RandomForestClassifier(5, random_state=0)
    z = LogitTransformer(forest, floor=1e-3).fit(X, Y).transform(X)
    assert z.min() == pytest.approx(np.log(1e-3))
    fit = CalibratedModel(forest).fit(X, Y)
    assert np.isfinite(fit.predict_log_proba(X)).all()


def test_what_cannot_be_turned_into_logits_is_refused():
    with pytest.raises(InvalidInput):
        LogitTransformer(SVC(decision_function_shape="ovo")).fit(
            *load_digits(return_X_y=True)
        ).transform(load_digits().data)

    class Mute(ClassifierMixin, BaseEstimator):
        def fit(self, x, y):
            self.classes_ = np.unique(y)
            self.fitted_ = True
            return self

    with pytest.raises(InvalidInput):
        LogitTransformer(Mute()).fit(X, Y).transform(X)
    with pytest.raises(NotFittedError):
        LogitTransformer().transform(X)
    with pytest.raises(NotFittedError):
        CalibratedModel().predict(X)


def test_folds_that_leave_a_class_out_are_refused():
    y = Y.copy()
    y[0] = 7
    splits = [(np.arange(50, 150), np.arange(50)), (np.arange(50), np.arange(50, 150))]
    with pytest.raises(InvalidInput) as error:
        CalibratedModel(GaussianNB(), cv=splits).fit(X, y)
    assert error.value.subject == "y"
    overlap = [(np.arange(150), np.arange(100)), (np.arange(150), np.arange(50, 150))]
    with pytest.raises(InvalidInput) as error:
        CalibratedModel(GaussianNB(), cv=overlap).fit(X, Y)
    assert error.value.subject == "cv"


def test_it_leaves_its_parameters_and_the_global_state_alone(rng_guard):
    base = GaussianNB()
    model = CalibratedModel(base, method="vector", options={"prior": 2.0})
    with rng_guard():
        model.fit(X, Y)
    assert not hasattr(base, "classes_")
    assert clone(model).get_params()["options"] == {"prior": 2.0}
    assert model.n_features_in_ == 4
