"""Fits of the models that `SignalCalibration` mixes: ridge regression, splines, boosted trees,
offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.maps.signals import (
    CATEGORY,
    CLIP,
    LOG_ODDS,
    LOGARITHM,
    PLAIN,
    LinearSignals,
    SignalModel,
    SignalScale,
    SplineSignals,
    TreeSignals,
)
from recal.schema import LARGEST

Vector = NDArray[np.float64]

# If at least this share of a signal's values lies in [0, 1], it is a probability; the others are
# extraction errors.
_IN_RANGE = 0.99
# Values are clipped at this many times the range of the central 98 % from the median.
_OUTER = 3.0
_SKEWED = 0.5
_KNOTS, _TREES, _LEAVES, _ROWS_PER_LEAF = 5, 60, 6, 30
# Ridge penalties (1/C) of standardised signals, of spline terms, and of Platt scaling, which hardly
# needs a penalty.
_RIDGE, _SPLINE_RIDGE, _PLATT_RIDGE = 1.0, 1.0 / 0.3, 0.01
_MOST_STEPS = 50


def fit_scale(signals: Vector, categories: Sequence[int] = ()) -> SignalScale:
    """Decide how each column is scaled: probabilities by log-odds, skewed positive values by
    logarithm.
    """
    n_signals = signals.shape[1]
    kind = np.full(n_signals, PLAIN, dtype=np.int64)
    shift, lower, upper = np.zeros(n_signals), np.zeros(n_signals), np.zeros(n_signals)
    centre, spread = np.zeros(n_signals), np.ones(n_signals)
    for place in range(n_signals):
        values = signals[:, place]
        values = values[~np.isnan(values)]
        if place in categories or not len(values):
            kind[place] = CATEGORY if place in categories else PLAIN
            continue
        if np.mean((values >= 0.0) & (values <= 1.0)) >= _IN_RANGE:
            kind[place] = LOG_ODDS
            share = np.clip(values, CLIP, 1.0 - CLIP)
            values = np.log(share) - np.log1p(-share)
        elif values.min() >= 0.0 and _skewness(values) > _SKEWED:
            offset = 0.0 if values.min() > 0.0 else float(values[values > 0.0].min()) / 2.0
            logarithms = np.log(values + offset)
            if abs(_skewness(logarithms)) < _skewness(values):
                kind[place], shift[place], values = LOGARITHM, offset, logarithms
        low, middle, high = np.quantile(values, [0.01, 0.5, 0.99])
        reach = _OUTER * (high - low) if high > low else np.inf
        values = np.clip(values, middle - reach, middle + reach)
        lower[place], upper[place] = values.min(), values.max()
        centre[place], spread[place] = values.mean(), max(float(values.std()), 1e-9)
    return SignalScale(kind, shift, lower, upper, centre, spread)


def _skewness(values: Vector) -> float:
    deviation = values - values.mean()
    return float((deviation**3).mean() / max(float(values.std()) ** 3, 1e-300))


def ridge_logistic(
    features: Vector, correct: Vector, counts: Vector, penalty: Vector
) -> tuple[float, Vector]:
    """Return intercept and weights of a logistic regression with a ridge penalty per feature
    (Newton's method).
    """
    design = np.column_stack([np.ones(len(features)), features])
    ridge = np.concatenate([[1e-6], np.broadcast_to(penalty, features.shape[1])])
    mean = float(np.clip(np.average(correct, weights=counts), 1e-3, 1.0 - 1e-3))
    weights = np.zeros(design.shape[1])
    weights[0] = np.log(mean / (1.0 - mean))

    def loss(candidate: Vector) -> float:
        log_odds = design @ candidate
        return float(
            counts @ (np.logaddexp(0.0, log_odds) - correct * log_odds) + 0.5 * ridge @ candidate**2
        )

    current = loss(weights)
    for _ in range(_MOST_STEPS):
        probability = 1.0 / (1.0 + np.exp(-np.clip(design @ weights, -700.0, 700.0)))
        slope = design.T @ (counts * (probability - correct)) + ridge * weights
        curvature = (design.T * (counts * probability * (1.0 - probability))) @ design
        curvature[np.diag_indices_from(curvature)] += ridge
        step, size = np.linalg.solve(curvature, slope), 1.0
        while size > 1e-8 and loss(weights - size * step) > current:
            size *= 0.5
        weights = weights - size * step
        previous, current = current, loss(weights)
        if previous - current < 1e-9 * len(correct):
            break
    return float(weights[0]), weights[1:]


def fit_linear(scaled: Vector, missing: Vector, correct: Vector, counts: Vector) -> LinearSignals:
    """Ridge logistic regression on all signals."""
    intercept, weights = ridge_logistic(
        np.hstack([scaled, missing]), correct, counts, np.array(_RIDGE)
    )
    n_signals = scaled.shape[1]
    return LinearSignals(intercept, weights[:n_signals], weights[n_signals:])


def fit_platt(scaled: Vector, missing: Vector, correct: Vector, counts: Vector) -> LinearSignals:
    """Platt scaling of the one signal that predicts best."""
    best: tuple[float, LinearSignals] | None = None
    for place in range(scaled.shape[1]):
        intercept, pair = ridge_logistic(
            np.column_stack([scaled[:, place], missing[:, place]]),
            correct,
            counts,
            np.array([_PLATT_RIDGE, _RIDGE]),
        )
        weights, missing_weights = np.zeros(scaled.shape[1]), np.zeros(scaled.shape[1])
        weights[place], missing_weights[place] = pair
        model = LinearSignals(intercept, weights, missing_weights)
        log_odds = model.log_odds(scaled, missing)
        loss = float(counts @ (np.logaddexp(0.0, log_odds) - correct * log_odds))
        if best is None or loss < best[0]:
            best = loss, model
    assert best is not None
    return best[1]


def fit_splines(scaled: Vector, missing: Vector, correct: Vector, counts: Vector) -> SplineSignals:
    """Ridge logistic regression on quadratic B-splines with knots at quantiles, stored as truncated
    powers.
    """
    n_signals = scaled.shape[1]
    knots = np.zeros((n_signals, _KNOTS))
    blocks: list[Vector] = []
    changes: list[tuple[int, NDArray[Any]]] = []
    for place in range(n_signals):
        values = scaled[missing[:, place] == 0.0, place]
        distinct = (
            np.unique(np.quantile(values, np.linspace(0.0, 1.0, _KNOTS)))
            if len(values)
            else np.zeros(1)
        )
        knots[place] = distinct[-1]
        knots[place, : len(distinct)] = distinct
        if len(distinct) < 2:
            continue
        inside = np.clip(scaled[:, place], distinct[0], distinct[-1])
        blocks.append(_b_splines(inside, distinct) * (1.0 - missing[:, [place]]))
        points = np.linspace(distinct[0], distinct[-1], 20 * _KNOTS)
        change = np.linalg.lstsq(
            _powers(points, knots[place]), _b_splines(points, distinct), rcond=None
        )[0]
        changes.append((place, change))
    features = np.hstack([*blocks, missing])
    intercept, solution = ridge_logistic(features, correct, counts, np.array(_SPLINE_RIDGE))
    weights, missing_weights, start = (
        np.zeros((n_signals, _KNOTS)),
        solution[len(solution) - n_signals :].copy(),
        0,
    )
    for place, change in changes:
        powers = change @ solution[start : start + change.shape[1]]
        start += change.shape[1]
        # The constant of a spline counts only if the signal is present.
        intercept += powers[0]
        missing_weights[place] -= powers[0]
        weights[place] = powers[1:]
    return SplineSignals(intercept, knots, weights, missing_weights)


def _b_splines(values: Vector, knots: Vector) -> Vector:
    """Return the quadratic B-splines at these values, (n_values, n_knots + 1)."""
    from scipy.interpolate import BSpline

    before, after = (
        (knots[1] - knots[0]) * np.array([2.0, 1.0]),
        (knots[-1] - knots[-2]) * np.array([1.0, 2.0]),
    )
    full = np.concatenate([knots[0] - before, knots, knots[-1] + after])
    return BSpline.design_matrix(values, full, 2).toarray()


def _powers(values: Vector, knots: Vector) -> Vector:
    """Return 1, t, t^2 and the truncated squares of the inner knots."""
    squares = np.maximum(values[:, None] - knots[None, 1:-1], 0.0) ** 2
    return np.column_stack([np.ones_like(values), values, values**2, squares])


def fit_trees(scaled: Vector, missing: Vector, correct: Vector, counts: Vector) -> TreeSignals:
    """Gradient boosting with small trees; scikit-learn fits them, and they are stored as arrays."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    features = np.where(missing > 0.5, np.nan, scaled)
    features[:, (missing > 0.5).all(axis=0)] = 0.0  # a column without any value cannot be binned
    boosting = HistGradientBoostingClassifier(
        max_iter=_TREES,
        max_leaf_nodes=_LEAVES,
        min_samples_leaf=_ROWS_PER_LEAF,
        early_stopping=False,
        random_state=0,
    ).fit(features, correct, sample_weight=counts)
    nodes = [rounds[0].nodes for rounds in boosting._predictors]
    return _as_arrays(nodes, float(boosting._baseline_prediction.item()), features.shape[1])


def _as_arrays(trees: list[Any], intercept: float, n_signals: int) -> TreeSignals:
    """Turn scikit-learn's node tables into the arrays of `TreeSignals`."""
    shape = len(trees), _LEAVES - 1
    signal, threshold, missing_left = np.zeros(shape, np.int64), np.zeros(shape), np.zeros(shape)
    path, value = np.zeros((*shape, _LEAVES)), np.zeros((len(trees), _LEAVES))
    for number, nodes in enumerate(trees):
        inner = {int(row): place for place, row in enumerate(np.flatnonzero(nodes["is_leaf"] == 0))}
        leaves = 0
        waiting: list[tuple[int, dict[int, float]]] = [(0, {})]
        while waiting:
            row, signs = waiting.pop()
            node = nodes[row]
            if node["is_leaf"]:
                for place, sign in signs.items():
                    path[number, place, leaves] = sign
                value[number, leaves] = node["value"]
                leaves += 1
                continue
            place = inner[row]
            signal[number, place] = node["feature_idx"]
            threshold[number, place] = min(float(node["num_threshold"]), LARGEST)
            missing_left[number, place] = node["missing_go_to_left"]
            waiting += [
                (int(node["left"]), {**signs, place: 1.0}),
                (int(node["right"]), {**signs, place: -1.0}),
            ]
        # An unused leaf has no path, so every row agrees with it: its value is 0 and changes
        # nothing.
    return TreeSignals(intercept, n_signals, signal, threshold, missing_left, path, value)


Fit = Callable[[Vector, Vector, Vector, Vector], SignalModel]
# From the least to the most flexible.
FITS: dict[str, Fit] = {
    "Platt scaling": fit_platt,
    "ridge": fit_linear,
    "splines": fit_splines,
    "trees": fit_trees,
}
