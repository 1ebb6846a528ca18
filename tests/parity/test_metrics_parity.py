"""Every metric against a slow reference that is written from the definition, row by row."""

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from recal import metrics


def make(n, k, seed, sharpness=2.0, digits=None):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, k)) * 1.5
    truth = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    y = (truth.cumsum(1) > rng.random((n, 1))).argmax(1)
    probs = np.exp(sharpness * logits)
    probs /= probs.sum(1, keepdims=True)
    if digits is not None:
        # Many equal confidences; what is left goes to the last class, or stays where it is the top.
        top = np.clip(np.round(probs.max(1, keepdims=True), digits), 0.5, 1.0)
        probs = np.where(probs == probs.max(1, keepdims=True), top, (1 - top) / (k - 1))
    return probs, y


MADE = {"one": make(1, 2, 0), "binary": make(50, 2, 1), "hundred": make(200, 100, 4)}
MADE |= {"ties": make(300, 5, 3, digits=1), "underconfident": make(400, 3, 5, 0.5)}
problems = pytest.mark.parametrize("problem", MADE.values(), ids=MADE)


def tops(probs, y):
    return [(max(row), float(np.argmax(row) == label)) for row, label in zip(probs, y)]


def bins_of(pairs, n_bins):
    found = [[] for _ in range(n_bins)]
    for confidence, outcome in pairs:
        b = next((b for b in range(n_bins) if b / n_bins < confidence <= (b + 1) / n_bins), 0)
        found[b].append((confidence, outcome))
    return [np.array(rows) for rows in found if rows]


def binned(pairs, n_bins):
    cells = bins_of(pairs, n_bins)
    total = sum(map(len, cells))
    return [
        (len(c) / total, abs(c[:, 0].mean() - c[:, 1].mean()), c[:, 1].mean(), len(c))
        for c in cells
    ]


@problems
@pytest.mark.parametrize("n_bins", [1, 10, 15])
def test_binned_errors(problem, n_bins):
    cells = binned(tops(*problem), n_bins)
    assert metrics.ece(*problem, n_bins=n_bins) == pytest.approx(
        sum(w * g for w, g, _, _ in cells), abs=1e-12
    )
    assert metrics.mce(*problem, n_bins=n_bins) == pytest.approx(
        max(g for _, g, _, _ in cells), abs=1e-12
    )
    square = sum(w * (g**2 - a * (1 - a) / (m - 1)) for w, g, a, m in cells if m > 1)
    assert metrics.debiased_ece(*problem, n_bins=n_bins) == pytest.approx(
        max(square, 0) ** 0.5, abs=1e-12
    )


@problems
def test_classwise_error(problem):
    probs, y = problem
    per_class = []
    for k in range(probs.shape[1]):
        bins = binned([(p, float(label == k)) for p, label in zip(probs[:, k], y)], 15)
        per_class.append(sum(w * g for w, g, _, _ in bins))
    assert metrics.classwise_ece(probs, y) == pytest.approx(np.mean(per_class), abs=1e-12)


def test_adaptive_error_without_ties_splits_as_numpy_does():
    probs, y = make(304, 5, 8)
    pairs = np.array(sorted(tops(probs, y)))
    expected = sum(
        abs((part[:, 0] - part[:, 1]).sum()) for part in np.array_split(pairs, 15)
    ) / len(pairs)
    assert metrics.adaptive_ece(probs, y) == pytest.approx(expected, abs=1e-12)


@problems
def test_scores(problem):
    probs, y = problem
    truth = np.eye(probs.shape[1])[y]
    assert metrics.brier(probs, y) == pytest.approx(((probs - truth) ** 2).mean(), abs=1e-12)
    assert metrics.error_rate(probs, y) == pytest.approx(np.mean(probs.argmax(1) != y), abs=1e-12)
    with np.errstate(divide="ignore"):
        assert metrics.nll(probs, y) == pytest.approx(
            -np.log(probs[np.arange(len(y)), y]).mean(), rel=1e-12
        )


@problems
def test_kolmogorov_smirnov_error(problem):
    pairs = tops(*problem)
    distances = [abs(sum(c - o for c, o in pairs if c <= level)) / len(pairs) for level, _ in pairs]
    assert metrics.ks_error(*problem) == pytest.approx(max(distances), abs=1e-12)


@problems
def test_area_under_risk_coverage_is_the_mean_over_random_orders_of_ties(problem):
    pairs = np.array(tops(*problem))
    rng = np.random.default_rng(0)
    areas = []
    for _ in range(300):
        shuffled = pairs[rng.permutation(len(pairs))]
        wrong = 1 - shuffled[np.argsort(-shuffled[:, 0], kind="stable"), 1]
        areas.append((wrong.cumsum() / np.arange(1, len(wrong) + 1)).mean())
    error = 5 * np.std(areas) / 300**0.5 + 1e-12
    assert metrics.aurc(*problem) == pytest.approx(np.mean(areas), abs=error)


@problems
def test_area_under_roc_counts_pairs(problem):
    pairs = tops(*problem)
    right, wrong = ([c for c, o in pairs if o == outcome] for outcome in (1, 0))
    wins = [(r > w) + 0.5 * (r == w) for r in right for w in wrong]
    expected = np.mean(wins) if wins else np.nan
    assert metrics.auroc(*problem) == pytest.approx(expected, abs=1e-12, nan_ok=True)


def slow_smooth_error(pairs, bandwidth, points=20_001):
    """The integral of |sum of residual x reflected Gaussian density|, images summed one by one."""
    at = (np.arange(points) + 0.5) / points
    field = np.zeros(points)
    for confidence, outcome in pairs:
        density = np.zeros(points)
        for image in range(-8, 9):
            density += norm.pdf(at, 2 * image + confidence, bandwidth) + norm.pdf(
                at, 2 * image - confidence, bandwidth
            )
        field += (confidence - outcome) * density / len(pairs)
    return np.abs(field).mean()


@pytest.mark.parametrize(
    "problem", [make(1, 2, 0), make(40, 2, 1), make(60, 5, 3, digits=1)], ids=["1", "40", "60"]
)
def test_smooth_error_solves_its_fixed_point(problem):
    pairs = tops(*problem)
    solved = brentq(lambda s: slow_smooth_error(pairs, s, 2001) - s, 1e-3, 1.0, xtol=1e-7)
    assert metrics.smooth_ece(*problem) == pytest.approx(solved, abs=2e-6)
