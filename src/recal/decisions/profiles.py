"""What inputs looked like when the calibration was fitted: all that a watch without labels compares with.

A profile keeps a few numbers of each sample (never the input): how sure the model was, what it answered, and how each
view changed that. With labels it also learns to estimate accuracy without them. Views help twice here. They say how
steady an answer is; and a view is a damaged input whose label is known, so that the estimate is learned not only on
inputs as they are but on each view in its turn, with the others as its views.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import check_labels
from recal.errors import InputError
from recal.transforms import as_transform
from recal.views import Views

Vector = NDArray[np.float64]
# More rows than this would make a file large and a test no sharper.
MAX_ROWS = 20_000
_BOOTSTRAP = 60
_EDGE = 1e-5


class Reactions(NamedTuple):
    """What a watch reads of each sample."""

    log_odds: Vector  # of the model's confidence in its answer
    answers: NDArray[np.intp]
    groups: NDArray[np.uint8]  # (n, n_views) of 1..4, as numbered in `Group`

    @property
    def changed(self) -> Vector:
        """The share of views that change the answer; groups 1 and 2."""
        return (self.groups <= 2).mean(axis=1) if self.groups.shape[1] else np.zeros(len(self.answers))


@dataclass(frozen=True, eq=False)
class Profile:
    """What inputs looked like at the fit; made by `profile`, saved alone or as a calibrator's ``profile_``.

    Parameters
    ----------
    n_classes : int
    transforms : tuple of str
        The views that are compared, by their specs.
    log_odds, answers, groups : arrays of n_samples rows
        See `Reactions`.
    beta : float
        The temperature's inverse, by which confidences are honest on the fitting samples.
    accuracy, confidence, cut : float
        Of the fitting samples: the share of right answers (NaN without labels), the mean honest confidence, and the
        confidence that a share of them equal to the accuracy lies above (ATC; Garg et al., 2022).
    estimators : array of shape (n_draws, n_features + 2)
        Each row estimates accuracy: weights, intercept, and what is added in the end. The first was fitted to all
        samples, the others to resamples, to know how sure it is. No rows without labels.
    """

    n_classes: int
    transforms: tuple[str, ...]
    log_odds: Vector
    answers: NDArray[np.integer]
    groups: NDArray[np.uint8]
    beta: float
    accuracy: float
    confidence: float
    cut: float
    estimators: Vector

    def __post_init__(self) -> None:
        n = len(self.log_odds)
        if not isinstance(self.transforms, tuple) or not all(isinstance(spec, str) for spec in self.transforms):
            raise InputError("must be a tuple of specs", argument="transforms", came=f"got {self.transforms!r}")
        shapes = {"log_odds": (n,), "answers": (n,), "groups": (n, len(self.transforms))}
        for name, shape in shapes.items():
            if np.shape(getattr(self, name)) != shape or n < 2:
                raise InputError(f"of a profile must have the shape {shape} of 2 rows or more", argument=name)
        width = 2 + 2 if self.transforms else 1 + 2
        if self.estimators.ndim != 2 or self.estimators.shape[1] != width:
            raise InputError(
                f"of a profile must have {width} columns", argument="estimators", came=f"got {self.estimators.shape}"
            )
        if not (np.isfinite(self.log_odds).all() and np.isfinite(self.estimators).all() and self.beta > 0):
            raise InputError("The numbers of a profile must be finite, and its beta positive.")
        if self.answers.min() < 0 or self.answers.max() >= self.n_classes or self.groups.max(initial=1) > 4:
            raise InputError(f"A profile's answers must lie in 0..{self.n_classes - 1} and its groups in 1..4.")

    @property
    def labelled(self) -> bool:
        """Whether accuracy was known, so that it can be estimated later."""
        return len(self.estimators) > 0

    @property
    def reactions(self) -> Reactions:
        return Reactions(self.log_odds, np.asarray(self.answers, np.intp), self.groups)

    def check_classes(self, n_classes: int) -> None:
        """Refuse inputs of another number of classes."""
        if n_classes != self.n_classes:
            raise InputError(f"This profile is of {self.n_classes} classes, got {n_classes}.")

    def held_by(self, views: Views) -> bool:
        """Whether views hold all that the profile compares."""
        return all(views.holds(spec) for spec in self.transforms)


def profile(views: Views | ArrayLike, y: ArrayLike | None = None, *, random_state: int | None = 0) -> Profile:
    """Take the profile of the samples that a calibration was fitted on.

    Parameters
    ----------
    views : Views, or logits of shape (n_samples, n_classes)
        With views, all of them are compared later: new inputs need them too.
    y : labels of shape (n_samples,), optional
        By default those of the views. Without labels, accuracy cannot be estimated later.
    random_state : int or None
        Seed of the resamples, and of the rows that are kept where there are more than 20,000.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.decisions import profile
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 3, 500)
    >>> found = profile(2 * np.eye(3)[y] + rng.normal(size=(500, 3)), y)
    >>> found.labelled, round(found.accuracy - found.confidence, 1)
    (True, 0.0)
    """
    seen = views if isinstance(views, Views) else Views(views)
    rng = np.random.default_rng(random_state)
    labels = seen.labels if y is None else check_labels(y, seen.n_samples, seen.n_classes, seen.classes)
    if seen.n_samples > MAX_ROWS:
        rows = np.sort(rng.choice(seen.n_samples, MAX_ROWS, replace=False))
        seen, labels = seen[rows], None if labels is None else labels[rows]
    specs = tuple(str(transform) for transform in seen.transforms)
    found = reactions(seen, specs)
    beta = 1.0 if labels is None else _honest_beta(seen, labels)
    log_probs = all_log_probs(seen, specs, beta)
    sure = np.exp(log_probs[0].max(axis=1))
    accuracy = math.nan if labels is None else float((found.answers == labels).mean())
    cut = math.nan if labels is None else float(np.quantile(sure, 1 - accuracy))
    width = (2 if specs else 1) + 2
    estimators = np.empty((0, width)) if labels is None else _estimators(log_probs, labels, rng)
    return Profile(
        n_classes=seen.n_classes,
        transforms=specs,
        log_odds=found.log_odds,
        answers=found.answers.astype(np.int32),
        groups=found.groups,
        beta=beta,
        accuracy=accuracy,
        confidence=float(sure.mean()),
        cut=cut,
        estimators=estimators,
    )


def reactions(views: Views, specs: tuple[str, ...]) -> Reactions:
    """Read each sample's confidence, answer and groups off the model's logits; no label and no fit is involved."""
    from recal.engine.grouping import group

    log_probs = log_softmax(views.logits)
    answers = log_probs.argmax(axis=1)
    groups = [group(views.logits, views.transformed(as_transform(spec))) for spec in specs]
    table = np.stack(groups, axis=1).astype(np.uint8) if groups else np.zeros((len(answers), 0), np.uint8)
    return Reactions(_log_odds_of_answer(log_probs, answers), answers, table)


def all_log_probs(views: Views, specs: tuple[str, ...], beta: float) -> Vector:
    """Log-probabilities of the inputs as they are and through each view, (1 + n_views, n, K)."""
    arrays = [views.logits, *(views.transformed(as_transform(spec)) for spec in specs)]
    return np.stack([log_softmax(array, beta) for array in arrays])


def features(log_probs: Vector, main: int = 0) -> Vector:
    """What accuracy is estimated from, of one member and with the others as its views.

    The log-odds of its confidence in its own answer and, where there are others, of their mean probability of it.
    """
    answers = log_probs[main].argmax(axis=1)
    rows = np.arange(len(answers))
    columns = [log_odds(np.exp(log_probs[main][rows, answers]))]
    others = [index for index in range(len(log_probs)) if index != main]
    if others:
        columns.append(log_odds(np.mean([np.exp(log_probs[index][rows, answers]) for index in others], axis=0)))
    return np.stack(columns, axis=1)


def log_odds(probs: Vector) -> Vector:
    """Log-odds, kept away from what rounding makes of certainty."""
    inside = np.clip(probs, _EDGE, 1 - _EDGE)
    return np.asarray(np.log(inside) - np.log1p(-inside))


def log_softmax(logits: NDArray[Any], beta: float = 1.0) -> Vector:
    """Log-probabilities in float64."""
    scaled = np.asarray(logits, np.float64) * beta
    scaled -= scaled.max(axis=1, keepdims=True)
    return np.asarray(scaled - np.log(np.exp(scaled).sum(axis=1, keepdims=True)))


def _log_odds_of_answer(log_probs: Vector, answers: NDArray[np.intp]) -> Vector:
    """Log-odds of the top probability, from the sum of the others: it tells rows apart where confidence rounds to 1."""
    others = log_probs.copy()
    rows = np.arange(len(answers))
    others[rows, answers] = -np.inf
    highest = others.max(axis=1)
    rest = highest + np.log(np.exp(others - highest[:, None]).sum(axis=1))
    return np.asarray(log_probs[rows, answers] - rest)


def _honest_beta(views: Views, labels: NDArray[np.intp]) -> float:
    from recal.calibrators.machinery.common_scale import fit_betas
    from recal.engine.scaled import ScaledLogits

    return float(fit_betas(ScaledLogits(views.logits), labels).values[0])


def _estimators(log_probs: Vector, labels: NDArray[np.intp], rng: np.random.Generator) -> Vector:
    """Fit the estimate of accuracy to all samples, and to resamples of them."""
    tables = [features(log_probs, main) for main in range(len(log_probs))]
    right = [member.argmax(axis=1) == labels for member in log_probs]
    n = len(labels)
    draws = [np.arange(n), *(rng.integers(n, size=n) for _ in range(_BOOTSTRAP))]
    return np.stack([_fit([table[rows] for table in tables], [one[rows] for one in right]) for rows in draws])


def _fit(tables: list[Vector], right: list[NDArray[np.bool_]]) -> Vector:
    """Logistic regression of right or wrong, then the shift that makes it exact on inputs as they are."""
    design = np.concatenate([np.column_stack([table, np.ones(len(table))]) for table in tables])
    outcome = np.concatenate(right).astype(np.float64)
    weights = np.zeros(design.shape[1])
    # Newton's method; a small ridge keeps separable samples finite. scikit-learn's takes 20 times as long, 60 times.
    ridge = 1e-2 * np.eye(len(weights))
    for _ in range(25):
        expected = sigmoid(design @ weights)
        slope = design.T @ (expected - outcome) + ridge @ weights
        curvature = (design * (expected * (1 - expected))[:, None]).T @ design + ridge
        step = np.linalg.solve(curvature, slope)
        weights = weights - step
        if np.abs(step).max() < 1e-8:
            break
    own = sigmoid(np.column_stack([tables[0], np.ones(len(tables[0]))]) @ weights).mean()
    return np.append(weights, right[0].mean() - own)


def sigmoid(values: Vector) -> Vector:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * values)))
