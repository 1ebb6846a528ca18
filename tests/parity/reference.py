"""The method written as slowly and plainly as it can be: dense float64 logits that are really
multiplied, scipy's root finder, loops over samples and bins. It shares no code with the package."""

from __future__ import annotations

import numpy as np
from scipy.optimize import brentq
from scipy.special import logsumexp, softmax


def confidence32(logits, column):
    """One sample's float32 softmax at `column`, as the released code computes it."""
    weights = np.exp(logits - logits.max()).astype(np.float32)
    return weights[column] / weights.sum(dtype=np.float32)


def group(z, zt, confidence_at="original", *, released=False):
    """Return the groups by recal's rule, or by that of the released code, which compares float32
    confidences.
    """
    numbers = []
    for row, view_row in zip(z, zt):
        top, view_top = int(row.argmax()), int(view_row.argmax())
        at = top if confidence_at == "original" else view_top
        kept = top == view_top
        if released:
            rose = confidence32(view_row, at) > confidence32(row, top)
        else:
            rose = softmax(view_row)[at] - softmax(row)[top] > 2.0**-24
        numbers.append(2 * kept + (not rose) + 1)
    return np.array(numbers)


def rescaled(z, factors, floor):
    """Return scaled logits; with a floor, log-probabilities that never fall below its logarithm."""
    if floor is None:
        return factors * z
    logs = factors * z
    return np.maximum(logs - logsumexp(logs, axis=1, keepdims=True), np.log(floor))


def beta(z, y, weights=None, bounds=(1e-3, 100.0)):
    """The beta that minimises NLL, found as the root of its derivative; the bound where there is no
    root.
    """

    def slope(log_beta):
        p = softmax(np.exp(log_beta) * z, axis=1)
        return float(np.average((p * z).sum(1) - z[np.arange(len(y)), y], weights=weights))

    low, high = np.log(bounds)
    if slope(low) >= 0:
        return bounds[0]
    if slope(high) <= 0:
        return bounds[1]
    return float(np.exp(brentq(slope, low, high, xtol=1e-13, rtol=1e-14)))


def has_mistake(z, y):
    return any(row[label] < row.max() for row, label in zip(z, y))


def doubting_beta(z, y):
    """The same where every answer is right: each sample once more, n times lighter, with the second
    class as truth.
    """
    if has_mistake(z, y):
        return beta(z, y)
    second = []
    for row in z:
        rest = row.copy()
        rest[row.argmax()] = -np.inf
        second.append(int(rest.argmax()))
    weights = np.concatenate([np.ones(len(y)), np.full(len(y), 1.0 / len(y))])
    return beta(np.concatenate([z, z]), np.concatenate([y, second]), weights)


def ece(z, y, n_bins=15):
    p = softmax(z, axis=1)
    confidence, right = p.max(1), p.argmax(1) == y
    total = 0.0
    for b in range(n_bins):
        inside = (confidence > b / n_bins) & (confidence <= (b + 1) / n_bins)
        if inside.any():
            total += abs(right[inside].sum() - confidence[inside].sum())
    return total / len(y)


def fit(z, views, y, sequence, *, tol=1e-6, shrink="beta", guard=None, start="raw", finish=None,
        separable="pooled", floor=None, **rule):  # fmt: skip
    """Return (steps, start, finish): steps are pairs of a view's index and four betas."""
    z, views = (
        rescaled(z.astype(np.float64), 1.0, floor),
        [rescaled(view.astype(np.float64), 1.0, floor) for view in views],
    )
    pooled = separable == "pooled"
    of_all = doubting_beta if pooled else beta
    start_beta = of_all(z, y) if start == "temperature" else 1.0
    z = z * start_beta
    views = [view * start_beta for view in views]
    previous, steps = 1.0, []
    for t in sequence:
        groups = group(z, views[t], **rule)
        betas = []
        for k in (1, 2, 3, 4):
            share, own = np.mean(groups == k), groups == k
            raw = 1.0
            if pooled and share and not has_mistake(z[own], y[own]):
                raw = of_all(z, y)
                if (
                    raw > 1.0
                ):  # no surer than one more, wrong, sample of the group's own would allow
                    raw = max(1.0, min(raw, doubting_beta(z[own], y[own])))
            elif share:
                raw = beta(z[own], y[own])
            betas.append(
                (1 - share) + share * raw if shrink == "beta" else 1 / ((1 - share) + share / raw)
            )
        factors = np.array(betas)[groups - 1][:, None]
        rejected = False
        if guard == "ece":
            after = rescaled(z, factors, floor)
            if ece(after, y) > ece(z, y):
                betas, rejected = [1.0] * 4, True
            else:
                for k in (1, 2, 3, 4):
                    own = groups == k
                    if own.any() and ece(after[own], y[own]) > ece(z[own], y[own]):
                        betas[k - 1] = 1.0
            factors = np.array(betas)[groups - 1][:, None]
        z, views[t] = rescaled(z, factors, floor), rescaled(views[t], factors, floor)
        steps.append((t, betas))
        now = ece(z, y)
        if not rejected and abs(now - previous) < tol:
            break
        previous = now
    finish_beta = of_all(z, y) if finish == "temperature" else 1.0
    return steps, start_beta, finish_beta


def replay(z, views, steps, start, finish, *, floor=None, **rule):
    z = rescaled(z.astype(np.float64) * start, 1.0, floor)
    views = [rescaled(view.astype(np.float64) * start, 1.0, floor) for view in views]
    for t, betas in steps:
        factors = np.array(betas)[group(z, views[t], **rule) - 1][:, None]
        z, views[t] = rescaled(z, factors, floor), rescaled(views[t], factors, floor)
    return softmax(z * finish, axis=1)
