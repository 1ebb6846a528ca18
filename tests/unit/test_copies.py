"""Rows that were fitted on are recognised where something is made or measured on them; equal rows
by chance are not.
"""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from recal import TemperatureScaling, decide, prediction_sets
from recal.calibrators import HistogramBinning, IsotonicCalibration
from recal.copies import MOST_HASHES, MOST_PROB_HASHES, count_fitted, kept_hashes, matters
from recal.errors import SameRowsWarning
from recal.files.probabilities import read_probs, write_prob_file
from tests.problems import logits_and_labels

problem = partial(logits_and_labels, n_classes=3, spread=4.0)


@pytest.mark.parametrize("use", [decide, prediction_sets], ids=lambda use: use.__name__)
def test_the_rows_of_the_fit_are_recognised_and_others_are_not(use) -> None:
    logits, y = problem(400)
    new, truth = problem(400, seed=1)
    calibrator = TemperatureScaling().fit(logits, y)
    with pytest.warns(SameRowsWarning, match="fitted on all of these 400 samples"):
        use(calibrator.predict_proba(logits), y, calibrator=calibrator)
    mixed = calibrator.predict_proba(np.r_[logits[:100], new[:300]])
    with pytest.warns(SameRowsWarning, match="about 100 of these 400 samples"):
        use(mixed, np.r_[y[:100], truth[:300]], calibrator=calibrator)
    with warnings.catch_warnings():
        warnings.simplefilter("error", SameRowsWarning)
        use(calibrator.predict_proba(new), truth, calibrator=calibrator)


def test_a_decision_on_rows_of_the_fit_says_that_nothing_is_guaranteed() -> None:
    logits, y = problem(400)
    calibrator = TemperatureScaling().fit(logits, y)
    with pytest.warns(SameRowsWarning, match="--cross-fit"):
        found = decide(calibrator.predict_proba(logits), y, risk=0.1, calibrator=calibrator)
    assert found.n_fitted == 400
    assert "No guarantee: 400 of these samples were used in the fit." in str(found)


def test_a_large_fit_keeps_a_sample_of_its_hashes_and_still_counts() -> None:
    logits = np.random.default_rng(0).normal(size=(40_000, 2))
    kept = kept_hashes(logits)
    assert len(kept) == MOST_HASHES
    assert abs(count_fitted(logits[:20_000], kept, len(logits)) - 20_000) < 1_000


def test_equal_rows_by_chance_are_not_taken_for_the_same() -> None:
    """A forest of 100 trees gives 101 different answers: most rows of a new sample equal one of the
    fit's.
    """
    rng = np.random.default_rng(0)
    for scale in (1.0, 0.1, 30.0):  # from a few values to many that appear once or twice
        fit, new = (np.round(scale * rng.normal(size=(1000, 1)), 1) * [1, -1] for _ in range(2))
        assert count_fitted(new, kept_hashes(fit), 1000) == 0


def test_new_samples_with_equal_probabilities_are_not_taken_for_those_of_the_fit() -> None:
    """A binning method gives few different rows, whatever the logits."""
    logits, y = problem(1000)
    new, truth = problem(1000, seed=1)
    for method in (HistogramBinning(), IsotonicCalibration()):
        calibrator = method.fit(logits, y)
        with warnings.catch_warnings():
            warnings.simplefilter("error", SameRowsWarning)
            decide(calibrator.predict_proba(new), truth, calibrator=calibrator)
        with pytest.warns(SameRowsWarning, match="fitted on all of these 1,000 samples"):
            decide(calibrator.predict_proba(logits), y, calibrator=calibrator)


def test_a_large_fit_keeps_the_hashes_of_some_probabilities_and_still_counts() -> None:
    logits, y = problem(4000)
    calibrator = TemperatureScaling().fit(logits, y)
    assert len(calibrator.prob_hashes_) == MOST_PROB_HASHES
    probs = np.concatenate(
        [calibrator.predict_proba(batch) for batch in np.array_split(logits, 160)]
    )
    assert calibrator.fitted_rows(probs) == pytest.approx(4000, rel=0.05)
    assert calibrator.fitted_rows(calibrator.predict_proba(problem(4000, seed=1)[0])) == 0


def test_two_sets_that_hold_the_same_few_kinds_of_rows_equally_often_are_one() -> None:
    """A tree has a few leaves: no row is alone, and the same file is still the same."""
    fit = np.random.default_rng(0).integers(0, 30, 2000)[:, None] * [1.0, -1.0]
    other = np.random.default_rng(1).integers(0, 30, 2000)[:, None] * [1.0, -1.0]
    assert count_fitted(fit[::-1], kept_hashes(fit), 2000) == 2000
    assert count_fitted(other, kept_hashes(fit), 2000) == 0


def test_one_equal_row_such_as_a_blank_image_is_no_reason_to_refuse() -> None:
    fit, new = problem(500)[0], problem(500, seed=1)[0]
    fit[7] = new[3] = 0.0
    assert count_fitted(new, kept_hashes(fit), 500) == 0
    assert not matters(4, 500)
    assert matters(5, 500)


def test_files_of_probabilities_hold_the_number_of_fitted_rows(tmp_path: Path) -> None:
    probs = np.array([[0.9, 0.1], [0.2, 0.8]])
    path = tmp_path / "probs.npz"
    write_prob_file(path, probs, confidence=np.array([0.4, 0.8]), fitted_rows=2)
    found = read_probs(path)
    assert found.fitted_rows == 2
    assert found.confidence is not None
    np.testing.assert_array_equal(found.confidence, [0.4, 0.8])
