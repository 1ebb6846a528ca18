"""A fit says what is wrong with its samples, and nothing if nothing is."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from recal import TemperatureScaling
from recal.calibrators import VectorScaling
from recal.calibrators.samples import Samples, check_samples
from recal.errors import DependentRowsWarning, DoubtfulLabelsWarning, FewSamplesWarning, InputError
from recal.views import Views


def draw(n, k, strength=2.0, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, k, n)
    z = rng.normal(size=(n, k))
    z[np.arange(n), y] += strength
    return 2 * z, y


def said(logits, labels, classes=None):
    """Return the category and the text of the one warning, or nothing."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_samples(Samples(Views(logits), np.asarray(labels), classes=classes))
    assert len(caught) <= 1, "one warning at a time"
    return (caught[0].category, str(caught[0].message)) if caught else (None, "")


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize(("n", "k"), [(80, 2), (500, 3), (3000, 100), (50_000, 10)])
def test_labels_in_another_order_are_distinguished_from_few_samples(n, k, scale):
    z, y = draw(n, k)
    shuffled = np.random.default_rng(1).permutation(y)
    category, text = said(z * scale, shuffled)
    assert category is DoubtfulLabelsWarning
    assert f"{(z.argmax(1) == shuffled).mean():.3g}" in text


@pytest.mark.parametrize(
    ("n", "k", "strength"), [(300, 2, 0.4), (300, 3, 0.5), (5000, 100, 0.3), (40, 3, 2.0)]
)
def test_a_weak_model_is_not_suspected(n, k, strength):
    found = [said(*draw(n, k, strength, seed))[0] for seed in range(10)]
    assert DoubtfulLabelsWarning not in found


@pytest.mark.parametrize("predicted", [0.0, 0.01])
def test_a_rare_class_that_is_hardly_ever_predicted_is_not_suspected(predicted):
    """Accuracy is at chance, but predictions vary too little to tell."""
    rng = np.random.default_rng(0)
    y = (rng.random(1500) < 0.08).astype(int)
    score = rng.normal(size=1500) + 0.75 * y + np.where(rng.random(1500) < predicted, 9.0, -9.0)
    assert said(np.stack([np.zeros(1500), score], axis=1), y) == (None, "")


def test_two_swapped_columns_get_the_advice_to_name_them():
    z, y = draw(400, 2)
    category, text = said(z[:, ::-1], y, np.array(["no", "yes"]))
    assert category is DoubtfulLabelsWarning
    assert "--classes yes,no" in text


def test_one_class_only():
    z, _ = draw(200, 4)
    category, text = said(z, np.full(200, 3))
    assert category is DoubtfulLabelsWarning
    assert "200 labels" in text
    assert "column 3" in text


@pytest.mark.parametrize("wrong", [0, 1, 9, 10])
def test_fewer_than_ten_mistakes(wrong):
    z, _ = draw(500, 4)
    y = z.argmax(axis=1)
    y[:wrong] = z[:wrong].argmin(axis=1)
    category, text = said(z, y)
    assert category is (FewSamplesWarning if wrong < 10 else None)
    assert ("trained on" in text) == (wrong < 10)


@pytest.mark.parametrize("noise", [0.0, 1e-5])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e3])
def test_constant_predictions_are_an_error_of_their_own(noise, scale):
    """Wrong preprocessing, such as pixels up to 255 for a model that expects 1."""
    rng = np.random.default_rng(0)
    z = np.array([3.0, -1.0, 0.5]) + noise * rng.normal(size=(300, 3))
    with pytest.raises(InputError, match="prepared for the model"):
        TemperatureScaling().fit(scale * z, rng.integers(0, 3, 300))


def test_copies_are_noticed_by_every_fit_unless_they_are_named():
    z, y = draw(300, 3)
    again = np.repeat(np.arange(300), 3)
    with pytest.warns(DependentRowsWarning, match="900"):
        TemperatureScaling().fit(z[again], y[again])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TemperatureScaling().fit(z[again], y[again], clusters=again)


def test_a_good_fit_says_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        VectorScaling().fit(*draw(2000, 4))
