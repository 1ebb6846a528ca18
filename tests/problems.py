"""Synthetic classification problems shared by the tests: `from tests.problems import views`."""

from __future__ import annotations

import numpy as np

from recal import Views

ZOOMS = ("zoom:0.3", "zoom:0.5", "zoom:0.7")


def logits_and_labels(n=300, n_classes=4, seed=0, *, scale=3.0, tilt=0.0, dtype=np.float64):
    """Return logits that are too large by `scale` and labels drawn from the unscaled logits.

    `tilt` favours the later classes, so that methods with one parameter per class have something to correct.
    """
    rng = np.random.default_rng(seed)
    calibrated = 1.5 * rng.normal(size=(n, n_classes))
    labels = (calibrated + rng.gumbel(size=calibrated.shape)).argmax(axis=1)
    return (scale * (calibrated + tilt * np.arange(n_classes))).astype(dtype), labels


def views(n=300, n_classes=3, seed=0, *, transforms=ZOOMS, noise=0.6, classes=None):
    """Return labelled views: a noisy, over-confident model, and its logits for inputs with less information."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, n_classes, n)
    logits = 4 * (np.eye(n_classes)[labels] + rng.normal(0, noise, (n, n_classes)))
    transformed = {name: 0.5 * logits + rng.normal(0, 1, logits.shape) for name in transforms}
    names = labels if classes is None else np.array(classes)[labels]
    return Views(logits, transformed, names, classes=classes)


def lossy_views(n_samples, n_classes, n_views=4, sharpness=3.0, seed=0, dtype=np.float32):
    """Return (logits, views, labels) as plain arrays. A larger `sharpness` saturates the confidences."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, n_classes, n_samples)
    evidence = rng.normal(0, 1, (n_samples, n_classes))
    evidence[np.arange(n_samples), y] += 1.0 + np.log(n_classes) * 0.7
    transformed = [
        evidence * keep + rng.normal(0, 0.7, evidence.shape) * (1 - keep) for keep in np.linspace(0.4, 0.95, n_views)
    ]
    # Some wrong labels keep the groups from being separable; a separable group has no finite best temperature.
    wrong = rng.random(n_samples) < 0.15
    y[wrong] = rng.integers(0, n_classes, wrong.sum())
    return (sharpness * evidence).astype(dtype), [(sharpness * view).astype(dtype) for view in transformed], y


def nll(probs, labels):
    """Return the mean negative log-likelihood, computed plainly."""
    return float(-np.log(probs[np.arange(len(labels)), labels]).mean())


def graded_answers(n=500, seed=0, *, strength=1.0):
    """Return signals by name, whether each answer is right, groups, and the true probability of being right.

    The judge's score tells most and is missing in a fifth of the rows; the length tells nothing.
    """
    rng = np.random.default_rng(seed)
    skill = rng.normal(size=n)
    kind, groups = rng.choice(["essay", "list"], n), rng.choice(["law", "physics", "poetry"], n)
    log_odds = strength * (1.2 * skill + np.where(kind == "list", 0.7, -0.3) + np.where(groups == "law", -0.8, 0.4))
    truth = 1 / (1 + np.exp(-log_odds))
    stated = 1 / (1 + np.exp(-(2.0 + 0.7 * skill + rng.normal(size=n))))
    judge = np.where(rng.random(n) < 0.2, np.nan, skill + 0.6 * rng.normal(size=n))
    signals = {"stated": stated, "tokens": np.round(rng.lognormal(5, 1, n)) + 1, "judge": judge, "kind": kind}
    return signals, rng.random(n) < truth, groups, truth


def prompts(n=1500, n_classes=4, seed=0, *, n_views=5):
    """Return views that each tell one class from the others and little else, and labels: prompts of a language model.

    Weights by class use what each view knows; one number per view cannot.
    """
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, n_classes, n)
    logits = [1.2 * np.eye(n_classes)[labels] + 1.5 * rng.normal(size=(n, n_classes)) for _ in range(1 + n_views)]
    for number, view in enumerate(logits[1:]):
        known = number % n_classes
        view[:, known] += 2.5 * (labels == known)
        view += 1.5 * rng.normal(size=n_classes)
    return Views(logits[0], {f"prompt{number}": view for number, view in enumerate(logits[1:], 1)}), labels
