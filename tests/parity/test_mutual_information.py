"""I-Max against the best of all possible bins on small problems, and against its own promises."""

from itertools import combinations

import numpy as np
import pytest

from recal.calibrators import MutualInformationBinning
from recal.calibrators.binning import informative_edges


def information_of(scores, bins):
    """Return the mutual information of bin and label if P(hit) = 1 / (1 + exp(-score))."""
    p = 1 / (1 + np.exp(-scores))
    joint = np.array(
        [[(q * (bins == b)).sum() for b in np.unique(bins)] for q in (p, 1 - p)]
    ) / len(scores)
    outer = joint.sum(axis=1, keepdims=True) * joint.sum(axis=0, keepdims=True)
    return float((joint * np.log(joint / outer)).sum())


def best_information(scores, n_bins):
    ordered = np.sort(scores)
    cuts = combinations(range(1, len(ordered)), n_bins - 1)
    return max(
        information_of(ordered, np.searchsorted(cut, np.arange(len(ordered)), side="right"))
        for cut in cuts
    )


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("n_bins", [2, 3, 4])
def test_no_other_bins_keep_more(seed, n_bins):
    scores = np.random.default_rng(seed).normal(scale=3.0, size=16)
    edges = informative_edges(scores, n_bins)
    kept = information_of(scores, np.searchsorted(edges, scores, side="left"))
    assert kept == pytest.approx(best_information(scores, n_bins), abs=1e-12)


def test_bins_answer_with_their_share_of_hits():
    rng = np.random.default_rng(0)
    logits = rng.normal(scale=2.0, size=(500, 3))
    labels = (0.5 * logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    model = MutualInformationBinning(n_bins=5, penalty=0).fit(logits, labels)
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    bins = np.searchsorted(model.map_.edges, np.log(probs / (1 - probs)))
    hits = np.eye(3)[labels]
    raw = np.array([hits[bins == b].mean() for b in range(5)])[bins]
    np.testing.assert_allclose(
        model.predict_proba(logits), raw / raw.sum(axis=1, keepdims=True), rtol=0, atol=1e-8
    )  # ties within a bin are broken by 1e-9
    assert (np.diff(model.map_.values) > 0).all()
