"""BBQ against the published formula, written histogram by histogram and bin by bin."""

from math import ceil, exp, lgamma

import numpy as np
import pytest

from recal.calibrators import BayesianBinning

SPREAD, PRIOR = 10.0, 2.0


def histogram(scores, hits, size, widths=False):
    """Log-score, edges and bin values of one histogram (equations 2 to 5 of the publication)."""
    n = len(scores)
    ordered = sorted(scores)
    cuts = [j * n // size for j in range(1, size)]
    edges = [0.0, *((ordered[c - 1] + ordered[c]) / 2 for c in cuts), 1.0]
    edges = [j / size for j in range(size + 1)] if widths else edges
    log_score, values = 0.0, []
    for b in range(size):
        last = b == size - 1
        inside = [
            i
            for i in range(n)
            if (scores[i] > edges[b] or b == 0) and (scores[i] <= edges[b + 1] or last)
        ]
        total, positive = len(inside), sum(bool(hits[i]) for i in inside)
        middle = min(max((edges[b] + edges[b + 1]) / 2, 1e-12), 1 - 1e-12)
        alpha, beta = PRIOR / size * middle, PRIOR / size * (1 - middle)
        log_score += lgamma(PRIOR / size) - lgamma(total + PRIOR / size)
        log_score += lgamma(positive + alpha) - lgamma(alpha)
        log_score += lgamma(total - positive + beta) - lgamma(beta)
        values.append((positive + alpha) / (alpha + beta + total))
    return log_score, edges, values


def averaged(scores, hits, fresh):
    n = len(scores)
    sizes = range(max(1, int(n ** (1 / 3) / SPREAD)), min(ceil(n ** (1 / 3) * SPREAD), n) + 1)
    models = [histogram(scores, hits, size) for size in sizes]
    models += [histogram(scores, hits, size, widths=True) for size in sizes if size > 1]
    best = max(model[0] for model in models)
    weights = [exp(model[0] - best) for model in models]
    answer = []
    for score in fresh:
        total = 0.0
        for weight, (_, edges, values) in zip(weights, models):
            bin_ = sum(score > edge for edge in edges[1:-1])
            total += weight * values[bin_]
        answer.append(total / sum(weights))
    return np.array(answer)


@pytest.mark.parametrize("decimals", [None, 1], ids=["distinct", "with ties"])
def test_the_answer_is_the_published_average(decimals):
    rng = np.random.default_rng(0)
    logits = rng.normal(scale=2.0, size=(150, 3))
    labels = (0.5 * logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    if decimals is not None:
        logits = logits.round(decimals)
    fresh = rng.normal(scale=2.0, size=(40, 3))
    probs, fresh_probs = (np.exp(z) / np.exp(z).sum(axis=1, keepdims=True) for z in (logits, fresh))
    raw = np.stack(
        [averaged(probs[:, k], labels == k, fresh_probs[:, k]) for k in range(3)], axis=1
    )
    model = BayesianBinning(penalty=0).fit(logits, labels)
    np.testing.assert_allclose(
        model.predict_proba(fresh), raw / raw.sum(axis=1, keepdims=True), rtol=0, atol=2e-6
    )  # histograms with a negligible weight are left out
