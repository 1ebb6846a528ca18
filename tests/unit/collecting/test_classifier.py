"""CalibratedClassifier behaves as a scikit-learn classifier, and computes no more than its
calibrator needs.
"""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from recal import CalibratedClassifier, DecisionRule, ReCal, TemperatureScaling, collect
from recal.calibrators import VectorScaling
from recal.collecting import apply
from recal.errors import InputError


@pytest.fixture(scope="module")
def data():
    """Images of three kinds of stripes in noise, and their kinds."""
    rng = np.random.default_rng(0)
    y = np.arange(400) % 3
    stripes = np.stack([np.sin(np.arange(8) * (kind + 1)) for kind in range(3)])
    images = 128 + 40 * stripes[y][:, None, :] + rng.normal(0, 60, (400, 8, 8))
    return images.clip(0, 255).astype(np.uint8), y


@pytest.fixture(scope="module")
def linear(data):
    images, y = data
    return LogisticRegression(C=1e-2, max_iter=2000).fit(images[:200].reshape(200, -1), y[:200])


class Counting:
    """A model that counts the batches it is asked for."""

    def __init__(self, model):
        self.model, self.calls = model, 0

    def __call__(self, batch):
        self.calls += 1
        return self.model.decision_function(batch.reshape(len(batch), -1))


def recal(**options):
    return ReCal(max_iter=5, random_state=0, **options)


@pytest.mark.filterwarnings("ignore:.*have the same effect:UserWarning")
def test_it_is_collect_fit_and_predict_in_one(data, linear):
    images, y = data
    classifier = CalibratedClassifier(linear, recal(), pool="zoom:0.5-0.9:4").fit(
        images[200:], y[200:]
    )
    by_hand = recal().fit(collect(linear, images[200:], "zoom:0.5-0.9:4", labels=y[200:]))
    expected = by_hand.predict_proba(collect(linear, images[:50], "zoom:0.5-0.9:4"))
    np.testing.assert_array_equal(classifier.predict_proba(images[:50]), expected)
    np.testing.assert_array_equal(
        classifier.predict(images), linear.predict(images.reshape(400, -1))
    )
    assert classifier.score(images, y) == linear.score(images.reshape(400, -1), y)


@pytest.mark.filterwarnings("ignore:.*have the same effect:UserWarning")
@pytest.mark.filterwarnings("ignore::recal.errors.FewSamplesWarning")
@pytest.mark.parametrize("answers", ["kept", "free"])
def test_confidence_predictions_and_rule_are_the_calibrator_s(data, linear, answers):
    images, y = data
    labels = np.where(np.arange(len(y)) % 4, y, 0)  # the first class is likelier than it was
    classifier = CalibratedClassifier(linear, VectorScaling(answers=answers)).fit(images, labels)
    calibrator, logits = classifier.calibrator_, collect(linear, images, None).logits
    confidence = classifier.predict_confidence(images)
    np.testing.assert_array_equal(confidence, calibrator.predict_confidence(logits))
    np.testing.assert_array_equal(classifier.predict(images), calibrator.predict(logits))
    changed = (classifier.predict(images) != logits.argmax(1)).any()
    assert changed == (answers == "free")
    calibrator.decision_ = DecisionRule((0.6,), risk=0.5, confidence=0.95)
    np.testing.assert_array_equal(classifier.accept(images), confidence >= 0.6)


def test_rows_of_numbers_are_asked_about_not_guessed():
    rows, y = np.random.default_rng(0).normal(size=(60, 50)), np.arange(60) % 2
    with pytest.raises(InputError, match=r"shape \(n, 50\).*auto:series"):
        CalibratedClassifier(lambda batch: batch[:, :2], recal()).fit(rows, y)
    table = CalibratedClassifier(LogisticRegression().fit(rows, y), recal()).fit(rows, y)
    assert table.pool_[0].medians == pytest.approx(np.median(rows, axis=0))


@pytest.mark.filterwarnings("ignore:.*have the same effect:UserWarning")
def test_only_what_the_plan_needs_is_computed(data, linear):
    images, y = data
    model = Counting(linear)
    classifier = CalibratedClassifier(
        model, ReCal(sequence=["zoom:0.5", "zoom:0.7"]), pool="zoom:0.5-0.9:10+zoom:0.5+zoom:0.7"
    )
    classifier.fit(images[200:], y[200:])
    tried = 2  # before the run: the first batch, and one transformation of it
    assert model.calls == tried + 1 + len(classifier.pool_)
    model.calls = 0
    needed = classifier.calibrator_.plan_.transforms
    classifier.predict_proba(images[:20])
    assert model.calls == 1 + len(needed) < 4
    model.calls = 0
    classifier.predict(images[:20])
    assert model.calls == 1


def test_a_calibrator_without_views_costs_no_transformation(data, linear):
    images, y = data
    model = Counting(linear)
    classifier = CalibratedClassifier(model, TemperatureScaling()).fit(images[200:], y[200:])
    tried = 1  # before the run: the first batch
    assert (model.calls, classifier.pool_) == (tried + 1, ())


def test_applying_brings_the_labels_along(data, linear):
    images, y = data
    calibrator = TemperatureScaling().fit(collect(linear, images, None, labels=y))
    applied = apply(calibrator, linear, images, labels=y, batch_size=30)
    np.testing.assert_array_equal(applied.labels, y)
    # The model's own matrix product may round otherwise in a batch of another size.
    np.testing.assert_allclose(
        applied.probs, calibrator.predict_proba(collect(linear, images, None)), atol=1e-12
    )
    with pytest.raises(InputError, match="fitted on 3 classes, got 2"):
        apply(calibrator, lambda batch: np.ones((len(batch), 2)) * [3, 5], images)


@pytest.mark.filterwarnings("ignore::recal.errors.DependentRowsWarning")
def test_clusters_reach_the_calibrator(data, linear, monkeypatch):
    images, y = data
    rows = np.repeat(np.arange(200, 300), 3)
    fits = []
    monkeypatch.setattr(
        TemperatureScaling, "fit", lambda self, X, **options: fits.append(options) or _fit(self, X)
    )
    clusters = [f"video {row}" for row in rows]
    CalibratedClassifier(linear, TemperatureScaling(), pool="none").fit(
        images[rows], y[rows], clusters=clusters
    )
    assert fits[0]["clusters"] == clusters


_fit = TemperatureScaling.fit
