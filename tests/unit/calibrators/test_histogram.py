from functools import partial
from itertools import pairwise

import numpy as np
import pytest

from recal.calibrators import HistogramBinning
from recal.maps.arrays import softmax
from tests.problems import logits_and_labels

problem = partial(logits_and_labels, n_classes=3, spread=1.0, scale=2.0)


def reference(probs, labels, fresh, edges_of, n_classes, smoothing):
    """Bin by bin, sample by sample."""
    raw = np.empty_like(fresh)
    for k in range(n_classes):
        edges = [-np.inf, *edges_of(probs[:, k]), np.inf]
        for low, high in pairwise(edges):
            inside = (probs[:, k] > low) & (probs[:, k] <= high)
            if inside.any():
                value = ((labels[inside] == k).sum() + smoothing / n_classes) / (
                    inside.sum() + smoothing
                )
            else:
                value = (max(low, 0) + min(high, 1)) / 2
            raw[(fresh[:, k] > low) & (fresh[:, k] <= high), k] = value
    return raw / raw.sum(axis=1, keepdims=True)


def quantile_edges(n_bins):
    def edges(scores):
        chunks = np.array_split(
            np.sort(scores), n_bins
        )  # 300 samples in 6 or 10 bins: equal chunks
        return [(before[-1] + after[0]) / 2 for before, after in pairwise(chunks)]

    return edges


def test_values_are_the_bins_smoothed_shares():
    logits, labels = problem()
    fresh, _ = problem(seed=1)
    model = HistogramBinning(n_bins=10, penalty=2.0).fit(logits, labels)
    expected = reference(softmax(logits), labels, softmax(fresh), quantile_edges(10), 3, 2.0)
    np.testing.assert_allclose(model.predict_proba(fresh), expected, rtol=0, atol=1e-12)


@pytest.mark.filterwarnings("ignore::recal.errors.FewSamplesWarning")
def test_a_bin_holds_its_upper_edge_and_an_empty_one_has_its_middle():
    logits = np.log([[0.4, 0.6], [0.4, 0.6], [0.4, 0.6]])
    model = HistogramBinning(n_bins=2, penalty=0).fit(logits, [0, 1, 1])
    np.testing.assert_allclose(model.map_.values, [[1 / 3, 0.7], [2 / 3, 0.8]])


def test_the_number_of_bins_follows_the_classes():
    logits, labels = problem(n=1000, n_classes=8)
    assert HistogramBinning().fit(logits, labels).map_.values.shape == (8, 24)
    assert HistogramBinning().fit(logits[:100], labels[:100]).map_.values.shape == (8, 10)
