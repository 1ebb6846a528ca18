"""MAPIE's scores, limits and sets (1.6.0, computed once on this problem) beside ours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from recal.decisions import sets as module
from recal.decisions.sets import PredictionSets, prediction_sets
from tests.problems import probs_and_labels

THEIRS = np.load(Path(__file__).parent / "data" / "mapie_sets.npz")


PROBS, Y = probs_and_labels(600, 6, spread=2, sharpness=1)
NEW, _ = probs_and_labels(300, 6, seed=1, spread=2, sharpness=1)
ROWS = np.arange(len(PROBS))
COVERAGES = list(enumerate(THEIRS["coverages"].tolist()))


@pytest.mark.parametrize(("index", "coverage"), COVERAGES)
def test_lac(index, coverage):
    sets = prediction_sets(PROBS, Y, coverage)
    np.testing.assert_allclose(sets.scores(PROBS)[ROWS, Y], THEIRS["lac_scores"], atol=1e-12)
    np.testing.assert_allclose(sets.limits, THEIRS["lac_limits"][index], atol=1e-6)
    np.testing.assert_array_equal(sets.predict(NEW), THEIRS["lac_sets"][:, :, index])


@pytest.fixture
def count(monkeypatch):
    """Return a function that sets the part of a class's own probability that counts."""
    return lambda part: monkeypatch.setattr(
        module, "content_uniforms", lambda rows: np.broadcast_to(part, len(rows))
    )


def parts_of(probs, y, theirs):
    """Return the parts of each class's own probability that count in their scores."""
    rows = np.arange(len(probs))
    whole = PredictionSets("aps", 0.9, (1.0,)).scores(probs)[rows, y]
    u = np.clip(1 - (whole - theirs) / probs[rows, y], 0, 1)
    assert 0.45 < u.mean() < 0.55
    return u


@pytest.mark.parametrize(("index", "coverage"), COVERAGES)
def test_aps(index, coverage, count):
    """With their random numbers, read back from their scores: the part of a class's own probability
    that counts.
    """
    count(1.0)
    count(parts_of(PROBS, Y, THEIRS["aps_scores"]))
    sets = prediction_sets(PROBS, Y, coverage, "aps")
    np.testing.assert_allclose(sets.limits, THEIRS["aps_limits"][index], atol=1e-6)
    # Their sets with and without the last label are ours where none or all of the last probability
    # counts.
    count(0.0)
    np.testing.assert_array_equal(sets.predict(NEW), THEIRS["aps_sets_more"][:, :, index])
    count(1.0)
    fewer = sets.predict(NEW)
    fewer[np.arange(300), NEW.argmax(1)] = True  # theirs are never empty
    np.testing.assert_array_equal(fewer, THEIRS["aps_sets_fewer"][:, :, index])


def test_raps(count):
    """They keep some samples apart to choose penalty and free ranks; on the others, with their
    choice, we agree.
    """
    penalty, free = float(THEIRS["raps_penalty"]), int(THEIRS["raps_free"][0])
    probs, y = PROBS[THEIRS["raps_rows"]], Y[THEIRS["raps_rows"]]
    # Their stored scores hold the random part and not yet the penalty.
    count(1.0)
    count(parts_of(probs, y, THEIRS["raps_scores"]))
    sets = prediction_sets(probs, y, 0.9, "raps", penalty=penalty, free_ranks=free)
    np.testing.assert_allclose(sets.limits, THEIRS["raps_limit"], atol=1e-6)
    count(1.0)
    fewer = sets.predict(NEW)
    fewer[np.arange(300), NEW.argmax(1)] = True
    np.testing.assert_array_equal(fewer, THEIRS["raps_sets_fewer"])
