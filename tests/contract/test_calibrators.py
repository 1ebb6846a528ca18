"""What every calibrator promises.

A class listed in CALIBRATORS is held to all of it without another line here.
"""

from __future__ import annotations

import inspect
import sys
from functools import cache
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

import recal
from recal.calibrators import CALIBRATORS
from recal.calibrators.base import Calibrator
from recal.calibrators.samples import Samples
from recal.clusters import stratified_folds
from recal.errors import InputError, NotFittedError
from recal.views import Views
from tests.problems import nll
from tests.problems import seeded as make

# Averaging over views learns nothing, and strong views make it worse than no calibration.
LEARNS_NOTHING = {"tta"}

# The smallest problems are meant to be too small; that a method says so is its own test.
pytestmark = pytest.mark.filterwarnings("ignore::recal.errors.FewSamplesWarning")

every = pytest.mark.parametrize("method", CALIBRATORS, ids=lambda method: method.short_name)


def make_views(logits: np.ndarray, labels: Any = None, classes: Any = None) -> Views:
    """Views of any logits: each transformation blurs them in its own way, deterministically, row by
    row.
    """
    logits = np.asarray(logits)
    waves = np.sin(3 * np.tanh(logits) + np.arange(logits.shape[1]))
    transformed = {
        "zoom:0.5": 0.6 * logits + waves,
        "zoom:0.8": 0.9 * logits + 0.3 * waves,
        "brightness:0.5": 0.8 * logits - 0.5 * waves,
    }
    order = "F" if logits.flags.f_contiguous and not logits.flags.c_contiguous else "C"
    frozen = {
        spec: np.asarray(values, dtype=logits.dtype, order=order)
        for spec, values in transformed.items()
    }
    for array in (logits, *frozen.values()):
        array.setflags(write=False)  # whoever writes into the caller's logits is caught
    return Views(logits, frozen, labels, classes=classes)


def draw(
    n: int, k: int, seed: int = 0, overconfidence: float = 2.0
) -> tuple[np.ndarray, np.ndarray]:
    """Logits that are overconfident by the given factor, and labels drawn from calibrated ones."""
    rng = np.random.default_rng(seed)
    calibrated = rng.normal(scale=1.5, size=(n, k)).astype(np.float32).astype(np.float64)
    labels = (calibrated + rng.gumbel(size=(n, k))).argmax(axis=1)
    return overconfidence * calibrated, labels


@cache
def problem(n: int = 90, k: int = 4, seed: int = 0) -> Views:
    logits, labels = draw(n, k, seed)
    return make_views(logits, labels)


@cache
def fitted(method: type[Calibrator], k: int = 4) -> Calibrator:
    return make(method).fit(problem(k=k))


def assert_probabilities(probs: np.ndarray, shape: tuple[int, int]) -> None:
    assert probs.shape == shape
    assert probs.dtype == np.float64
    assert np.isfinite(probs).all()
    assert probs.min() > 0.0, "a zero at the truth is an infinite loss"
    assert probs.max() < 1.0
    np.testing.assert_allclose(probs.sum(axis=1), 1.0, rtol=0, atol=1e-12)


SATURATED = np.array(
    [
        [3000.0, -2000.0, 0.0, 1.0],
        [-1000.0, -1000.0, -1000.0, -999.0],
        [0.0, 0.0, 1000.0, 999.9],
        [5000.0, 5000.0, -5000.0, 5001.0],
        [-1e4, 1e4, 0.0, -1e4],
        [40.0, 0.0, 0.0, 0.0],
        [1e30, -1e30, 0.0, 1e29],
    ]
)
NEAR_TIES = np.array(
    [
        [0.0, 1e-20, 0.0, -1.0],
        [1.0, np.nextafter(1.0, 2.0), 1.0, 0.0],
        [0.0, -5e-324, 5e-324, 0.0],
        [1000.0, 0.0, np.nextafter(1000.0, 2000.0), 0.0],
        [0.3, 0.3, 0.3, np.nextafter(0.3, 1.0)],
        [-7.0, -7.0, np.nextafter(-7.0, 0.0), -7.0],
        [2.0, -1.0, 2.0, 2.0],
        [0.0, 0.0, 0.0, 0.0],
        [-700.0, -700.0 + 1e-13, -700.0, -700.0],
    ]
)


@every
def test_declares_itself(method):
    assert isinstance(method.keeps_accuracy, bool)
    assert isinstance(method.needs_views, bool)
    assert getattr(recal.calibrators, method.__name__) is method
    assert ">>>" in (inspect.getdoc(method) or ""), "the docstring shows a runnable example"


@every
def test_init_only_stores(method):
    defaults = {name: p.default for name, p in inspect.signature(method).parameters.items()}
    assert inspect.Parameter.empty not in defaults.values(), "every parameter has a default"
    marks = {name: object() for name in defaults}
    stored = vars(method(**marks))
    assert stored.keys() == marks.keys()
    assert all(stored[name] is mark for name, mark in marks.items())


@every
def test_parameters_of_the_wrong_kind_are_refused_by_name(method):
    for name in inspect.signature(method).parameters:
        for rubbish in ("rubbish", float("nan"), 0.5j):
            with pytest.raises(InputError, match=rf"`{name}`"):
                make(method).set_params(**{name: rubbish}).fit(problem())


@every
@pytest.mark.parametrize("name", ["sample_weight", "clusters", "groups"])
def test_columns_of_another_length_are_refused_by_name(method, name):
    with pytest.raises(InputError, match=rf"`{name}`"):
        make(method).fit(problem(), **{name: [1]})


@every
def test_underflow_does_no_harm_where_numpy_raises(method):
    logits, labels = draw(60, 3)
    with np.errstate(all="raise"):
        model = method().fit(make_views(400.0 * logits, labels))
        probs = model.predict_proba(make_views(400.0 * logits[:5]))
    assert_probabilities(probs, (5, 3))


@every
@pytest.mark.parametrize("copies", [False, True], ids=["clusters", "copies"])
def test_no_fold_divides_a_cluster_or_the_copies_of_a_row(method, copies, monkeypatch):
    """Spies on the one function that draws folds, wherever it is imported."""
    drawn = []

    def spy(labels, *args, **options):
        drawn.append(stratified_folds(labels, *args, **options))
        return drawn[-1]

    for name, module in list(sys.modules.items()):
        home = not name.startswith("recal.") or name == stratified_folds.__module__
        if not home and getattr(module, "stratified_folds", None) is stratified_folds:
            monkeypatch.setattr(module, "stratified_folds", spy)
    views, together = problem(160, 3), np.repeat(np.arange(80), 2)
    if copies:
        how = {"sample_weight": np.full(80, 2)}
        views = views[:80]
    else:
        together = np.random.default_rng(0).permutation(together)
        # The offsets of groups draw folds once, too.
        how = {"clusters": [f"video {number}" for number in together], "groups": together % 4}
    make(method).fit(views, **how)
    cross_validates = ("ms-odir", "dir-odir", "stack", "ensemble", "auto")
    assert (len(drawn) > (not copies)) == (method.short_name in cross_validates)
    for folds in drawn:
        assert folds.max() > 0
        assert all(len(set(folds[together == one].tolist())) == 1 for one in range(80))


@every
def test_a_second_fit_forgets_the_first(method):
    model = make(method).fit(problem(n=40, k=3, seed=5)).fit(problem())
    np.testing.assert_array_equal(
        model.predict_proba(problem()), fitted(method).predict_proba(problem())
    )


@every
def test_answers_probabilities_and_its_own_prediction(method):
    fresh = problem(seed=1)
    probs = fitted(method).predict_proba(fresh)
    assert_probabilities(probs, (90, 4))
    np.testing.assert_array_equal(fitted(method).predict(fresh), probs.argmax(axis=1))


@every
def test_arrays_and_views_get_the_same(method):
    logits, labels = problem().logits, problem().labels
    if method.needs_views:
        with pytest.raises(InputError, match="needs Views"):
            make(method).fit(logits, labels)
        with pytest.raises(InputError, match="views do not hold"):
            fitted(method).predict_proba(Views(logits))
    else:
        model = make(method).fit(logits, labels)
        np.testing.assert_array_equal(
            model.predict_proba(logits), fitted(method).predict_proba(problem())
        )


@every
def test_improves_the_likelihood_of_overconfident_logits(method):
    if method.short_name in LEARNS_NOTHING:
        return
    logits, labels = draw(1500, 3, seed=2, overconfidence=3.0)
    views = make_views(logits, labels)
    fresh, truth = draw(1500, 3, seed=3, overconfidence=3.0)
    after = nll(make(method).fit(views).predict_proba(make_views(fresh)), truth)
    log_probs = fresh - np.logaddexp.reduce(fresh, axis=1, keepdims=True)
    before = float(-log_probs[np.arange(1500), truth].mean())
    assert after < 0.9 * before, (after, before)


@every
@pytest.mark.parametrize("rows", [SATURATED, NEAR_TIES], ids=["saturated", "near-ties"])
def test_extreme_logits_get_probabilities_and_keep_their_prediction(method, rows):
    views = make_views(np.concatenate([rows, problem(seed=4).logits]))
    probs = fitted(method).predict_proba(views)
    assert_probabilities(probs, views.logits.shape)
    if method.keeps_accuracy:
        np.testing.assert_array_equal(probs.argmax(axis=1), views.logits.argmax(axis=1))
        np.testing.assert_array_equal(fitted(method).predict(views), views.logits.argmax(axis=1))


@every
@pytest.mark.filterwarnings("ignore::recal.errors.ConvergenceWarning")
def test_classes_that_the_model_rules_out_do_no_harm(method):
    """Models mask a class that cannot be with a huge negative logit; -50 says the same."""
    logits, labels = draw(400, 4, seed=11)
    masked = np.random.default_rng(12).random(logits.shape) < 0.15
    masked[np.arange(400), labels] = False
    losses = []
    for value in (-50.0, -3e38):
        views = make_views(np.where(masked, value, logits), labels)
        losses.append(nll(make(method).fit(views[:300]).predict_proba(views[300:]), labels[300:]))
    assert abs(losses[1] - losses[0]) < 0.05


def small_problems() -> dict[str, tuple[np.ndarray, Any]]:
    """Logits and labels at the edge of what can be fitted."""
    logits = problem().logits
    extreme = np.concatenate([SATURATED[:6], NEAR_TIES, 300 * logits])
    return {
        "all right": (logits, logits.argmax(axis=1)),
        "all wrong": (logits, logits.argmin(axis=1)),
        "constant": (np.zeros((12, 3)), np.arange(12) % 3),
        "two classes": draw(90, 2),
        "one sample, right": (np.array([[0.5, -1.0, 2.0]]), [2]),
        "one sample, wrong": (np.array([[0.5, -1.0, 2.0]]), [0]),
        "one sample per class": (draw(5, 5, seed=6)[0], np.arange(5)),
        "more classes than samples": draw(6, 30, seed=7),
        "extreme": (extreme, np.concatenate([np.arange(15) % 4, problem().labels])),
    }


@every
@pytest.mark.filterwarnings("ignore::recal.errors.DoubtfulLabelsWarning")
@pytest.mark.parametrize("name", small_problems())
def test_small_and_extreme_problems_give_probabilities(method, name):
    logits, labels = small_problems()[name]
    views = make_views(logits, labels)
    assert_probabilities(make(method).fit(views).predict_proba(views), logits.shape)


@every
def test_a_missing_class_keeps_its_column(method):
    logits, labels = draw(120, 4, seed=8)
    kept = np.isin(labels, (0, 2))
    views, truth = make_views(logits[kept], labels[kept]), labels[kept]
    model = make(method).fit(views)
    np.testing.assert_array_equal(model.classes_, np.arange(4))
    assert_probabilities(model.predict_proba(problem()), (90, 4))
    probs = model.predict_proba(views)
    for k in (0, 2):  # a class's own samples get more of its column than others do
        assert probs[truth == k, k].mean() > probs[truth != k, k].mean() + 0.1


@every
def test_float32_and_float64_agree(method):
    logits, labels = problem().logits, problem().labels
    single, double = make_views(logits.astype(np.float32), labels), problem()
    # The views differ by their own rounding, so that only the originals' dtype is at stake.
    transformed = {t: double.transformed(t).astype(np.float32) for t in double.transforms}
    single = Views(single.logits, transformed, labels)
    double = Views(
        logits, {t: values.astype(np.float64) for t, values in transformed.items()}, labels
    )
    narrow = make(method).fit(single).predict_proba(single)
    wide = make(method).fit(double).predict_proba(double)
    np.testing.assert_allclose(narrow, wide, rtol=0, atol=1e-5)


@every
def test_string_labels(method):
    names = ["dog", "ant", "cat", "bee"]
    logits, labels = problem().logits, problem().labels
    model = make(method).fit(make_views(logits), [names[label] for label in labels], classes=names)
    assert model.classes_.tolist() == names, "the columns' order is the caller's"
    np.testing.assert_array_equal(
        model.predict_proba(problem()), fitted(method).predict_proba(problem())
    )
    assert model.predict(problem()).tolist() == [
        names[column] for column in fitted(method).predict(problem())
    ]
    with pytest.raises(InputError, match="'fox'"):
        make(method).fit(make_views(logits[:2]), ["dog", "fox"], classes=names)


@every
def test_wrong_inputs_are_refused_with_what_is_wrong(method):
    views, labels = problem(), problem().labels
    broken = views.logits.copy()
    broken[17, 2] = np.nan
    probs = np.full((90, 4), 0.25)
    for logits, message in ((broken, "row 17, column 2"), (probs, "these are probabilities")):
        wrap = Views if method.needs_views else np.asarray
        with pytest.raises(InputError, match=message):
            make(method).fit(wrap(logits), labels)
        with pytest.raises(InputError, match=message):
            fitted(method).predict_proba(wrap(logits))
    with pytest.raises(InputError, match=r"fitted on 4 classes, got 3"):
        fitted(method).predict_proba(problem(k=3))
    unlabelled = make_views(views.logits)
    for given, message in (
        (None, "Labels are needed"),
        (labels[:89], "89 labels"),
        ([0, 1, 2, 4, *[0] * 86], "row 3 has 4"),
    ):
        with pytest.raises(InputError, match=message):
            make(method).fit(unlabelled, given)
    with pytest.raises(NotFittedError, match=method.__name__):
        make(method).predict_proba(views)


@every
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_row_alone_gets_what_it_gets_in_a_batch(method, order, dtype):
    # 37 columns and 23 rows leave a remainder for every vector width.
    logits = np.concatenate([draw(20, 37, seed=9)[0], np.repeat(SATURATED[:3], 10, axis=1)[:, :37]])
    views = make_views(np.asarray(logits, dtype=dtype, order=order))
    batch = _fitted_wide(method).predict_proba(views)
    for i in range(len(views)):
        np.testing.assert_array_equal(
            _fitted_wide(method).predict_proba(views[i : i + 1]), batch[i : i + 1]
        )
    np.testing.assert_array_equal(_fitted_wide(method).predict_proba(views[::-2]), batch[::-2])


@cache
def _fitted_wide(method: type[Calibrator]) -> Calibrator:
    logits, labels = draw(150, 37, seed=10)
    return make(method).fit(make_views(logits, labels))


@every
def test_the_transformations_it_names_are_all_it_needs(method):
    needed = fitted(method).needed_transforms()
    views = problem()
    fewer = Views(views.logits, {transform: views.transformed(transform) for transform in needed})
    np.testing.assert_array_equal(
        fitted(method).predict_proba(fewer), fitted(method).predict_proba(views)
    )
    if not method.needs_views:
        assert needed == ()


GUARDED = [m for m in CALIBRATORS if "answers" in inspect.signature(m).parameters]
guarded = pytest.mark.parametrize("method", GUARDED, ids=lambda method: method.short_name)


def with_answers(method: type[Calibrator], answers: str) -> Calibrator:
    """Return the method with the option set, and without its permission to change nothing."""
    options = {"answers": answers, "random_state": 0, "no_harm": False}
    known = inspect.signature(method).parameters
    return method(**{name: value for name, value in options.items() if name in known})


@cache
def fitted_with(method: type[Calibrator], answers: str) -> Calibrator:
    return with_answers(method, answers).fit(problem())


@guarded
def test_keeps_every_answer_when_told_to(method):
    free, kept = fitted_with(method, "free"), fitted_with(method, "kept")
    assert (free.keeps_accuracy, kept.keeps_accuracy) == (False, True)
    for logits in (SATURATED, NEAR_TIES, draw(300, 4, seed=5)[0], -draw(50, 4, seed=6)[0]):
        views = make_views(logits)
        probs = kept.predict_proba(views)
        assert_probabilities(probs, logits.shape)
        np.testing.assert_array_equal(probs.argmax(axis=1), logits.argmax(axis=1))
        if not kept.map_.keeps_order:  # the guard separates rivals enough for float32
            np.testing.assert_array_equal(
                probs.astype(np.float32).argmax(axis=1), logits.argmax(axis=1)
            )
        np.testing.assert_array_equal(kept.predict(views), logits.argmax(axis=1))
        for row in (0, len(logits) - 1):
            np.testing.assert_array_equal(kept.predict_proba(views[row])[0], probs[row])


@every
def test_the_confidence_is_the_largest_probability_unless_an_answer_was_kept(method):
    logits, _ = draw(200, 4, seed=5)
    views = make_views(logits)
    probs, confidence = fitted(method).predict_both(views)
    np.testing.assert_array_equal(probs, fitted(method).predict_proba(views))
    np.testing.assert_array_equal(confidence, fitted(method).predict_confidence(views))
    assert confidence.min() > 0.0
    if method in GUARDED and method.keeps_accuracy:
        assert (confidence <= probs.max(axis=1) * (1 + 1e-5)).all()
    else:
        np.testing.assert_array_equal(confidence, probs.max(axis=1))


@guarded
def test_the_confidence_of_a_kept_answer_is_what_the_method_gave_it(method):
    """Auto and stack may choose otherwise if predictions are kept."""
    logits, _ = draw(200, 4, seed=5)
    views = make_views(logits)
    free, kept = fitted_with(method, "free"), fitted_with(method, "kept")
    own = free.predict_proba(views)[np.arange(200), logits.argmax(axis=1)]
    if method.short_name not in ("auto", "stack"):
        np.testing.assert_allclose(kept.predict_confidence(views), own, rtol=1e-9)


def test_a_method_of_ones_own_inherits_parameters_and_adds_some() -> None:
    class Mine(recal.calibrators.VectorScaling):
        """Somebody's own: its annotations are read in this module, those of the parent in the
        parent's.
        """

        strength: float = 2.0
        gain_: float

        def _fit(self, samples: Samples) -> dict[str, Any]:
            return super()._fit(samples) | {"gain_": self.strength}

    mine = clone(Mine(strength=3.0, penalty=0.1)).fit(problem())
    assert (mine.gain_, mine.keeps_accuracy) == (3.0, False)
    assert repr(mine) == "Mine(penalty=0.1, strength=3.0)"
    with pytest.raises(InputError, match="`strength` must be a finite number, got 'much'"):
        Mine(strength="much").fit(problem())  # type: ignore[arg-type]
