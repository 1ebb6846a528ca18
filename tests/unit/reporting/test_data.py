"""The numbers behind the figures, against numpy written out."""

import numpy as np
import pytest

from recal.metrics.row_scores import RowScores
from recal.reporting.figure_data import reliability


def rows_of(confidence, correct):
    confidence = np.asarray(confidence, dtype=float)
    return RowScores(confidence, np.asarray(correct, dtype=bool), 0 * confidence, 0 * confidence, 4)


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    confidence = np.round(rng.uniform(0.25, 1, 400), 2)
    return rows_of(confidence, rng.random(400) < 0.9 * confidence)


def test_reliability_bins_and_bands(rows):
    data = reliability(rows, 10)
    assert data.counts.sum() == 400
    for low, high, count, confidence, accuracy in zip(
        data.low, data.high, data.counts, data.confidence, data.accuracy
    ):
        inside = (rows.confidence > low) & (rows.confidence <= high)
        assert count == inside.sum()
        assert confidence == pytest.approx(rows.confidence[inside].mean())
        assert accuracy == pytest.approx(rows.correct[inside].mean())
    assert (data.band_low <= data.accuracy).all()
    assert (data.accuracy <= data.band_high).all()
