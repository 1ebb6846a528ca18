"""Calibrators and CalibratedClassifier among scikit-learn's tools: its own checks, and what its
users do.
"""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import sklearn
from sklearn.base import clone, is_classifier
from sklearn.datasets import load_iris, load_wine
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import recal
from recal import CalibratedClassifier, TemperatureScaling
from recal.calibrators import CALIBRATORS
from recal.errors import InputError
from tests.problems import seeded

pytestmark = [
    pytest.mark.filterwarnings("ignore::recal.errors.FewSamplesWarning"),
    pytest.mark.filterwarnings("ignore::recal.errors.DoubtfulLabelsWarning"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning"),
    pytest.mark.filterwarnings("ignore:Estimator .* does not inherit from:UserWarning"),
    # What scikit-learn's checks hand over on purpose: complex numbers and repeated rows.
    pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning"),
    pytest.mark.filterwarnings("ignore::recal.errors.DependentRowsWarning"),
]

COLUMNS = "labels are columns of the logits; this check has more classes, or counts them from 1"
NAMES = "labels that are words need classes=, since they do not say which column is whose"
TRAINS = "it trains a classifier on features; ours are the logits of a trained one"
EXEMPT = {
    "check_estimators_overwrite_params": COLUMNS,
    "check_estimators_fit_returns_self": COLUMNS,
    "check_readonly_memmap_input": COLUMNS,
    "check_sample_weights_pandas_series": COLUMNS,
    "check_sample_weights_not_an_array": COLUMNS,
    "check_sample_weights_shape": COLUMNS,
    "check_sample_weights_not_overwritten": COLUMNS,
    "check_classifier_data_not_an_array": COLUMNS,
    "check_classifiers_classes": NAMES,
    "check_classifiers_one_label": TRAINS,
    "check_classifiers_train": TRAINS,
    "check_dtype_object": "logits of dtype object are refused: they may hold strings",
    "check_estimators_nan_inf": "labels that are floats are refused without classes=",
    "check_fit2d_1feature": "one column holds the log-odds of two classes; this check has three",
    "check_supervised_y_2d": "a column of labels is taken as it is meant, without a warning",
}
SHAPE = "such inputs are passed to the model; recal checks the logits that it returns"
EXEMPT_CLASSIFIER = EXEMPT | {
    "check_dict_unchanged": "predict stores the cost of the last answers in passes_per_answer_",
    "check_complex_data": SHAPE,
    "check_estimators_empty_data_messages": SHAPE,
    "check_estimator_sparse_array": SHAPE,
    "check_estimator_sparse_matrix": SHAPE,
    "check_fit2d_predict1d": SHAPE,
}

_TOLERANCE = {
    "check_sample_weight_equivalence_on_dense_data": "the solver's tolerance exceeds 1e-7"
}
EXEMPT_ALSO = {"vs": _TOLERANCE}
# Samples left out decide: one that is repeated would stand on both sides of a split, one that
# weighs more does not.
CROSS_FITTED = ("ensemble", "auto")
# One method of each kind: they share the class that reads inputs, and a check fits many times.
SHORT = ("ts", "vs", "sms", "isotonic", "histogram", "spline", "stack")
CHECKED = [method for method in CALIBRATORS if method.short_name in SHORT]


def scores(inputs):
    """A trained model of its own kind: the first features are its logits."""
    rows = np.asarray(inputs, dtype=float).reshape(len(inputs), -1)
    return rows[:, :3] if rows.shape[1] > 2 else rows


@pytest.mark.skipif(
    tuple(map(int, sklearn.__version__.split(".")[:2])) < (1, 6),
    reason="check_estimator lists its results since 1.6",
)
@pytest.mark.parametrize(
    ("estimator", "exempt"),
    [
        (CalibratedClassifier(scores, TemperatureScaling()), EXEMPT_CLASSIFIER),
        *((method(), EXEMPT | EXEMPT_ALSO.get(method.short_name, {})) for method in CHECKED),
    ],
    ids=lambda value: type(value).__name__,
)
def test_scikit_learns_own_checks_pass_but_for_those_that_are_listed(estimator, exempt):
    results = check_estimator(estimator, on_fail=None, on_skip=None)
    wrong = (result for result in results if result["status"] == "failed")
    failed = {result["check_name"]: result["exception"] for result in wrong}
    skipped = {result["check_name"] for result in results if result["status"] == "skipped"}
    assert {name: failed[name] for name in failed if name not in exempt} == {}
    assert len(results) - len(failed) > 38
    unneeded = exempt.keys() - failed.keys() - skipped  # some checks are skipped without pandas
    assert not unneeded, "an exemption that is not needed any more"


@pytest.mark.parametrize("method", CALIBRATORS, ids=lambda method: method.short_name)
def test_every_calibrator_is_a_classifier(method):
    assert is_classifier(method())
    with pytest.raises(NotFittedError) as caught:
        method().predict([[1.0, 0.0]])
    assert isinstance(caught.value, recal.errors.NotFittedError)
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), NotFittedError)
    assert not hasattr(method(), "n_features_in_")


@pytest.fixture(scope="module")
def wine():
    """Return a trained model, its inputs and labels: numbers, and names that are not sorted as the
    numbers are.
    """
    features, y = load_wine(return_X_y=True)
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(features[::2], y[::2])
    return model, features[1::2], y[1::2]


def test_score_features_and_pipelines(wine):
    model, features, y = wine
    logits = model.decision_function(features)
    fitted = TemperatureScaling().fit(logits, y)
    assert fitted.n_features_in_ == 3
    assert fitted.score(logits, y) == np.mean(logits.argmax(axis=1) == y)
    assert fitted.score(logits, y, sample_weight=y == 1) == np.mean(
        logits.argmax(axis=1)[y == 1] == 1
    )
    with pytest.raises(InputError, match=r"2 features, .* expecting 3 features"):
        fitted.predict_proba(logits[:, :2])
    line = make_pipeline(
        FunctionTransformer(model.decision_function), TemperatureScaling()
    ).set_output(transform="default")
    np.testing.assert_array_equal(
        line.fit(features, y).predict_proba(features), fitted.predict_proba(logits)
    )
    assert cross_val_score(clone(line), features, y).mean() > 0.8


@pytest.mark.parametrize("kind", [bool, float, str, np.int8])
@pytest.mark.parametrize("given", [False, True], ids=["the model's own classes", "classes="])
def test_classes_of_any_kind(kind, given):
    features, y = load_iris(return_X_y=True)
    labels = (y == 1) if kind is bool else y.astype(kind)
    model = LogisticRegression(max_iter=1000).fit(features[::2], labels[::2])
    how = {"classes": list(model.classes_)} if given else {}
    classifier = CalibratedClassifier(model, TemperatureScaling()).fit(
        features[1::2], labels[1::2], **how
    )
    np.testing.assert_array_equal(classifier.classes_, model.classes_)
    np.testing.assert_array_equal(classifier.predict(features), model.predict(features))
    assert classifier.score(features, labels) == model.score(features, labels)


@pytest.mark.parametrize(
    "method", [m for m in CALIBRATORS if not m.needs_views], ids=lambda method: method.short_name
)
def test_weights_repeat_samples(method):
    rng = np.random.default_rng(1)
    logits = 2 * rng.normal(size=(90, 3))
    y = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(axis=1)
    whole = np.ones(90, np.intp) if method.short_name in CROSS_FITTED else rng.integers(0, 3, 90)
    order = np.repeat(np.arange(90), whole)
    weighed = seeded(method).fit(logits, y, sample_weight=whole).predict_proba(logits)
    repeated = seeded(method).fit(logits[order], y[order]).predict_proba(logits)
    np.testing.assert_allclose(weighed, repeated, atol=1e-6)
    if method.short_name in ("ts", "vs"):
        sevenths = seeded(method).fit(logits, y, sample_weight=whole / 7).predict_proba(logits)
        np.testing.assert_allclose(sevenths, repeated, atol=2e-5)
    if not method.takes_weights:
        with pytest.raises(InputError, match=r"whole numbers.*0\.5"):
            seeded(method).fit(logits, y, sample_weight=np.full(90, 0.5))


@pytest.mark.parametrize(
    "weights", [[1.0], [[1.0]] * 4, [0.0] * 4, [1, 1, 1, -1], [1, 1, 1, np.nan], ["a"] * 4]
)
def test_bad_weights_are_refused(weights):
    with pytest.raises(InputError, match="`sample_weight`"):
        TemperatureScaling().fit(
            [[1.0, 0.0], [0.0, 2.0], [3.0, 1.0], [0.0, 1.0]], [0, 1, 1, 0], sample_weight=weights
        )
