"""A fit says what is really the matter with its samples, and nothing where nothing is."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from recal import TemperatureScaling
from recal.calibrators import VectorScaling
from recal.calibrators.sample_checks import warn_of_suspicions
from recal.errors import DoubtfulLabelsWarning, FewSamplesWarning


def draw(n, k, strength=2.0, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, k, n)
    z = rng.normal(size=(n, k))
    z[np.arange(n), y] += strength
    return 2 * z, y


def said(logits, labels):
    """Return the one thing that is said, or nothing."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_suspicions(logits, np.asarray(labels))
    assert len(caught) <= 1, "one warning at a time"
    return (caught[0].category, str(caught[0].message)) if caught else (None, "")


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize(("n", "k"), [(60, 2), (500, 3), (3000, 100), (50_000, 10)])
def test_labels_in_another_order_are_told_apart_from_few_samples(n, k, scale):
    z, y = draw(n, k)
    category, text = said(z * scale, np.random.default_rng(1).permutation(y))
    assert category is DoubtfulLabelsWarning
    assert "same order?" in text
    assert (
        f"{(z.argmax(1) == np.random.default_rng(1).permutation(y)).mean():.2f}"[:3] in text
        or n > 20_000
    )


def test_the_warning_points_at_the_callers_line():
    z, y = draw(300, 3)
    with pytest.warns(DoubtfulLabelsWarning, match="at chance") as caught:
        TemperatureScaling().fit(z, np.roll(y, 1))
    assert caught[0].filename == __file__


def test_shuffled_labels_are_warned_of_at_most_once_in_a_while_too_late():
    """Chance alone may hide a shuffle, but rarely."""
    z, y = draw(400, 5)
    found = [
        said(z, np.random.default_rng(seed).permutation(y))[0] is DoubtfulLabelsWarning
        for seed in range(60)
    ]
    assert np.mean(found) > 0.9


@pytest.mark.parametrize(
    ("n", "k", "strength"), [(300, 2, 0.4), (300, 3, 0.5), (5000, 100, 0.3), (40, 3, 2.0)]
)
def test_a_weak_model_is_not_suspected(n, k, strength):
    for seed in range(10):
        category, _ = said(*draw(n, k, strength, seed))
        assert category in (None, FewSamplesWarning)


def test_a_rare_class_that_is_never_predicted_but_ranked_is_not_suspected():
    rng = np.random.default_rng(0)
    y = (rng.random(4000) < 0.02).astype(int)
    score = rng.normal(size=4000) + 1.5 * y - 6.0
    z = np.stack([np.zeros(4000), score], axis=1)
    assert (z.argmax(axis=1) == 0).all()
    assert said(z, y) == (None, "")


def test_a_rare_class_whose_only_signal_is_the_order_of_its_scores_is_not_suspected():
    """Accuracy at chance, probabilities of both classes nearly alike, an AUC of 0.7."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        y = (rng.random(1500) < 0.08).astype(int)
        score = 1e-3 * (rng.normal(size=1500) + 0.75 * y) + np.where(
            rng.random(1500) < 0.01, 5.0, -3.0
        )
        assert said(np.stack([np.zeros(1500), score], axis=1), y)[0] is None


def test_a_change_that_only_the_search_found_is_no_other_split():
    """A weak model: somewhere among its rows there is a stretch without a hit beyond chance."""
    found = [said(*draw(1000, 3, 0.35, seed))[0] is DoubtfulLabelsWarning for seed in range(30)]
    assert sum(found) == 0


def test_one_class_only():
    z, _ = draw(200, 4)
    category, text = said(z, np.full(200, 3))
    assert category is DoubtfulLabelsWarning
    assert "All 200 labels are of one class, column 3" in text


@pytest.mark.parametrize("wrong", [0, 1, 9, 10])
def test_fewer_than_ten_mistakes(wrong):
    z, _ = draw(500, 4)
    y = z.argmax(axis=1)
    y[:wrong] = z[:wrong].argmin(axis=1)
    category, text = said(z, y)
    assert category is (FewSamplesWarning if wrong < 10 else None)
    assert {0: "All 500 predictions are right", 10: ""}.get(
        wrong, f"{wrong} of 500 predictions are wrong"
    ) in text
    assert ("trained on" in text) == (wrong < 10)


@pytest.mark.parametrize("part", [slice(600, None), slice(0, 250)])
def test_rows_that_look_like_another_split(part):
    z, y = draw(1000, 5)
    y[part] = np.random.default_rng(2).permutation(y[part])
    category, text = said(z, y)
    assert category is DoubtfulLabelsWarning
    first, last = (
        int(number) for number in text.split(" look like")[0].removeprefix("Rows ").split(" to ")
    )
    expected = range(1000)[part]
    assert abs(first - expected[0]) <= 15
    assert abs(last - expected[-1]) <= 15


def test_samples_sorted_by_class_with_hard_classes_are_not_another_split():
    rng = np.random.default_rng(3)
    y = np.repeat(np.arange(10), 100)
    z = rng.normal(size=(1000, 10))
    z[np.arange(1000), y] += 4.0
    z[y == 9, 9] = -10.0  # never recognised
    for hard in (7, 8):  # told apart from all others, not from each other
        z[y == hard, 7:9] = rng.normal(size=(100, 2)) + 6.0
    assert said(z, y) == (None, "")


def test_a_good_fit_says_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        VectorScaling().fit(*draw(2000, 4))
