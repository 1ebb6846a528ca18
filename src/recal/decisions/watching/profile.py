"""A profile of the inputs of a fit: what new inputs are compared with.

A profile keeps a few numbers of each sample, never the input: the model's confidence, its prediction, and how each view
changes both. Views help twice. They show how stable a prediction is. And a view is a damaged input with a known label,
from which `learning` learns to follow damage.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import Floats, check_confidences, check_graded, check_labels, check_logits, is_graded
from recal.decisions.watching.class_mix import ByClass, learn_classes
from recal.decisions.watching.following import Following
from recal.decisions.watching.learning import FEWEST_ROWS, learn
from recal.decisions.watching.result import WatchResult, unknown
from recal.decisions.watching.statistics import RowNumbers, join_rows, row_numbers
from recal.errors import InputError
from recal.maps.group_offsets import log_odds as confidence_log_odds
from recal.transforms import as_transform
from recal.views import Views

Vector = NDArray[np.float64]
# More rows make a file larger and a test no more powerful.
MAX_ROWS = 20_000


class Reactions(NamedTuple):
    """The numbers of each sample that a watch compares."""

    log_odds: Vector  # of the model's confidence in its prediction
    answers: NDArray[np.intp]
    groups: NDArray[np.uint8]  # (n, n_views) of 1..4, as numbered in `Group`

    @property
    def changed(self) -> Vector:
        """The share of views that change the prediction: groups 1 and 2."""
        return (self.groups <= 2).mean(axis=1) if self.groups.shape[1] else np.zeros(len(self.answers))

    @property
    def without_views(self) -> Reactions:
        return self._replace(groups=self.groups[:, :0])


@dataclass(frozen=True, eq=False)
class Profile:
    """What the inputs of a fit looked like; made by `profile`, saved alone or as a calibrator's ``profile_``.

    Parameters
    ----------
    n_classes : int
        1 for a profile of confidences, which knows no classes.
    transforms : tuple of str
        The views that are compared, by their specs.
    log_odds, answers, groups : arrays of n_samples rows
        See `Reactions`.
    beta : float
        1/T of temperature scaling on the samples of the fit.
    accuracy, cut : float
        Of the samples of the fit: the accuracy (NaN without labels), and the confidence above which a share of them
        equal to the accuracy lies (ATC; Garg et al., 2022).
    following : Following, optional
        What the views teach about damage; None without labels or with fewer than 100 samples.
    class_shares : array of shape (n_classes,), optional
        The share of each class in the samples of the fit.
    by_class : ByClass, optional
        What `class_mix` needs to know about the samples of each class.
    right : array of bool, shape (n_samples,), optional
        Which answers were right, in a profile of confidences.
    """

    n_classes: int
    transforms: tuple[str, ...]
    log_odds: Vector
    answers: NDArray[np.integer]
    groups: NDArray[np.uint8]
    beta: float
    accuracy: float
    cut: float
    following: Following | None = None
    class_shares: Vector | None = None
    by_class: ByClass | None = None
    right: NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        n = len(self.log_odds)
        if not isinstance(self.transforms, tuple) or not all(isinstance(spec, str) for spec in self.transforms):
            raise InputError("must be a tuple of specs", argument="transforms", came=f"got {self.transforms!r}")
        shapes = {"log_odds": (n,), "answers": (n,), "groups": (n, len(self.transforms))}
        for name, shape in shapes.items():
            if np.shape(getattr(self, name)) != shape or n < 2:
                raise InputError(f"of a profile must have the shape {shape} of 2 rows or more", argument=name)
        shares = self.class_shares
        if shares is not None and (shares.shape != (self.n_classes,) or not np.isfinite(shares).all()):
            raise InputError(f"The class shares of a profile must be {self.n_classes} finite numbers.")
        if self.right is not None and (self.right.shape != (n,) or self.right.dtype != np.bool_):
            raise InputError("of a profile must say of each row whether it is right", argument="right")
        if self.by_class is not None:
            self.by_class.check(self.n_classes)
        if not isinstance(self.following, Following | None):
            raise InputError(f"`following` must be a Following, got a {type(self.following).__name__}.")
        for name in ("beta", "accuracy", "cut"):
            if not isinstance(getattr(self, name), float | int):
                raise InputError("of a profile must be a number", argument=name, came=f"got {getattr(self, name)!r}")
        if not (np.isfinite(self.log_odds).all() and self.beta > 0):
            raise InputError("The numbers of a profile must be finite, and its beta positive.")
        if self.answers.min() < 0 or self.answers.max() >= self.n_classes or self.groups.max(initial=1) > 4:
            raise InputError(f"A profile's answers must lie in 0..{self.n_classes - 1} and its groups in 1..4.")

    @property
    def labelled(self) -> bool:
        """Whether the profile was made with labels, so that accuracy can be estimated later."""
        return not math.isnan(self.accuracy)

    @property
    def graded(self) -> bool:
        """Whether this is a profile of confidences: of any system's answers, without classes."""
        return self.n_classes == 1

    @property
    def reactions(self) -> Reactions:
        return Reactions(self.log_odds, np.asarray(self.answers, np.intp), self.groups)

    def condition(self, logits: Floats) -> WatchResult:
        """Return accuracy and temperature of a batch of logits, or why they are unknown; no test is made."""
        return self.condition_of([self.numbers(check_logits(logits))])

    def numbers(self, logits: Floats) -> RowNumbers:
        """Return what `condition_of` needs of one piece of a batch, so that a large batch need not be in memory."""
        self.check_classes(logits.shape[1])
        return row_numbers(logits, self.beta, math.nan if self.following is None else self.following.cut)

    def condition_of(self, pieces: Sequence[RowNumbers]) -> WatchResult:
        """Return the same as `condition` for a batch that was read in pieces."""
        if self.following is not None:
            return self.following.condition_of(join_rows(pieces))
        few = f"the profile was made from fewer than {FEWEST_ROWS} samples"
        reason = few if self.labelled else "the profile was made without labels"
        return unknown(self.beta, reason, sum(len(piece.answers) for piece in pieces))

    def check_classes(self, n_classes: int) -> None:
        """Refuse inputs with another number of classes."""
        if n_classes != self.n_classes:
            raise InputError(f"This profile has {self.n_classes} classes, got {n_classes}.")

    def held_by(self, views: Views) -> bool:
        """Whether views contain every transformation that the profile compares."""
        return all(views.holds(spec) for spec in self.transforms)


def profile(views: Views | ArrayLike, y: ArrayLike | None = None, *, random_state: int | None = 0) -> Profile:
    """Make the profile of the samples of a fit.

    Parameters
    ----------
    views : Views, or logits of shape (n_samples, n_classes)
        With views of three or more kinds of damage, `watch` can follow damage from logits alone. A 1-D array of
        confidences, (n_samples,), makes a profile for the answers of any system.
    y : labels of shape (n_samples,), optional
        By default those of the views. Without labels, accuracy cannot be estimated later. With confidences, whether
        each answer is right.
    random_state : int or None
        Seed of the resamples, and of the rows that are kept if there are more than 20,000.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.decisions import profile
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 3, 500)
    >>> kept = profile(2 * np.eye(3)[y] + rng.normal(size=(500, 3)), y)
    >>> kept.labelled, kept.accuracy > 0.8
    (True, True)
    """
    rng = np.random.default_rng(random_state)
    if is_confidence(views):
        return _confidence_profile(views, y, rng)  # type: ignore[arg-type]
    seen = views if isinstance(views, Views) else Views(views)
    labels = seen.labels if y is None else check_labels(y, seen.n_samples, seen.n_classes, seen.classes)
    if seen.n_samples > MAX_ROWS:
        chosen = np.sort(rng.choice(seen.n_samples, MAX_ROWS, replace=False))
        seen, labels = seen[chosen], None if labels is None else labels[chosen]
    specs = tuple(str(transform) for transform in seen.transforms)
    rows = reactions(seen, specs)
    beta = 1.0 if labels is None else _best_beta(seen, labels)
    accuracy = cut = math.nan
    shares = None
    if labels is not None:
        accuracy = float((rows.answers == labels).mean())
        cut = float(np.quantile(np.exp(log_softmax(seen.logits, beta).max(axis=1)), 1 - accuracy))
        shares = np.bincount(labels, minlength=seen.n_classes) / len(labels)
    return Profile(
        n_classes=seen.n_classes,
        transforms=specs,
        log_odds=rows.log_odds,
        answers=rows.answers.astype(np.int32),
        groups=rows.groups,
        beta=beta,
        accuracy=accuracy,
        cut=cut,
        following=None if labels is None else learn(seen, labels, beta, rng),
        class_shares=shares,
        by_class=None if labels is None else learn_classes(seen.logits, labels, beta, cut),
    )


def is_confidence(values: object) -> bool:
    """Whether this is the confidence of each answer: 1-D, from 0 to 1. Other 1-D numbers are binary log-odds."""
    if isinstance(values, Views) or not is_graded(values):
        return False
    array = np.asarray(values)
    return array.dtype.kind in "iufb" and bool(((array >= 0) & (array <= 1)).all())


def _confidence_profile(confidence: ArrayLike, correct: ArrayLike | None, rng: np.random.Generator) -> Profile:
    n = len(np.asarray(confidence))
    if correct is None:
        values, right = check_confidences(confidence, n), None
    else:
        values, right = check_graded(confidence, correct)
    if n > MAX_ROWS:
        chosen = np.sort(rng.choice(n, MAX_ROWS, replace=False))
        values, right = values[chosen], None if right is None else right[chosen]
    rows = confidence_reactions(values)
    return Profile(
        n_classes=1,
        transforms=(),
        log_odds=rows.log_odds,
        answers=rows.answers.astype(np.int32),
        groups=rows.groups,
        beta=1.0,
        accuracy=math.nan if right is None else float(right.mean()),
        cut=math.nan,
        right=right,
    )


def confidence_reactions(confidence: ArrayLike) -> Reactions:
    """Return the numbers of each sample of which only the confidence is known."""
    array = check_confidences(confidence, len(np.asarray(confidence)))
    return Reactions(confidence_log_odds(array), np.zeros(len(array), np.intp), np.zeros((len(array), 0), np.uint8))


def reactions(views: Views, specs: tuple[str, ...]) -> Reactions:
    """Return confidence, prediction and groups of each sample, from the logits alone."""
    from recal.engine.grouping import group

    log_probs = log_softmax(views.logits)
    answers = log_probs.argmax(axis=1)
    groups = [group(views.logits, views.transformed(as_transform(spec))) for spec in specs]
    table = np.stack(groups, axis=1).astype(np.uint8) if groups else np.zeros((len(answers), 0), np.uint8)
    return Reactions(_log_odds_of_answer(log_probs, answers), answers, table)


def log_softmax(logits: NDArray[Any], beta: float = 1.0) -> Vector:
    """Log-probabilities in float64."""
    scaled = np.asarray(logits, np.float64) * beta
    scaled -= scaled.max(axis=1, keepdims=True)
    return np.asarray(scaled - np.log(np.exp(scaled).sum(axis=1, keepdims=True)))


def _log_odds_of_answer(log_probs: Vector, answers: NDArray[np.intp]) -> Vector:
    """Return the log-odds of the top probability; they differ between rows even if confidence rounds to 1."""
    others = log_probs.copy()
    rows = np.arange(len(answers))
    others[rows, answers] = -np.inf
    highest = others.max(axis=1)
    rest = highest + np.log(np.exp(others - highest[:, None]).sum(axis=1))
    return np.asarray(log_probs[rows, answers] - rest)


def _best_beta(views: Views, labels: NDArray[np.intp]) -> float:
    from recal.calibrators.solvers.temperature import fit_betas
    from recal.engine.scaled import ScaledLogits

    return float(fit_betas(ScaledLogits(views.logits), labels).values[0])


def sigmoid(values: Vector) -> Vector:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * values)))
