"""A profile of the inputs of a fit, with which new inputs are compared.

A profile keeps a few numbers of each sample, never the input: the model's confidence, its
prediction, and how each view changes both. Views help in two ways. They show how stable a
prediction is. And a view is a damaged input with a known label, from which `learning` learns to
follow damage.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import (
    Floats,
    check_confidences,
    check_graded,
    check_labels,
    check_logits,
    is_graded,
)
from recal.decisions.class_shares import ByClass, learn_classes
from recal.decisions.damage import Following, RowNumbers, join_rows, row_numbers
from recal.decisions.damage_sets import FEWEST_ROWS, learn
from recal.decisions.follow import WatchResult, unknown
from recal.errors import InputError
from recal.maps.arrays import log_odds, log_softmax
from recal.maps.group_offsets import log_odds as confidence_log_odds
from recal.maps.group_offsets import sigmoid
from recal.schema import Count, Instance, ListOf, Number, Record, Text
from recal.schema import Floats as FloatArray
from recal.transforms import as_transform
from recal.views import Views

Vector = NDArray[np.float64]
# More rows would make a file larger, but not a test more powerful.
MAX_ROWS = 20_000
# Ridge on the two parameters of Platt scaling, towards no change.
_RIDGE = 0.01
_DEVIATIONS = 1.959964


class Reactions(NamedTuple):
    """The numbers of each sample that a watch compares."""

    log_odds: Vector  # log-odds of the model's confidence in its prediction
    answers: NDArray[np.integer]
    groups: NDArray[np.uint8]  # (n, n_views) of 1..4, as numbered in `Group`

    @property
    def changed(self) -> Vector:
        """The share of views that change the prediction: groups 1 and 2."""
        return (
            (self.groups <= 2).mean(axis=1) if self.groups.shape[1] else np.zeros(len(self.answers))
        )

    def joined(self, other: Reactions) -> Reactions:
        """Return these rows and those of another set."""
        return Reactions(*(np.concatenate([one, two]) for one, two in zip(self, other)))


class _Answers(FloatArray):
    dtype, codes = np.int32, "iu"


class _Groups(FloatArray):
    dtype, codes = np.uint8, "iu"


class _Flags(FloatArray):
    dtype, codes = np.bool_, "b"


class Profile(Record):
    """What the inputs of a fit looked like; made by `profile`, saved alone or as a calibrator's
    ``profile_``.

    Parameters
    ----------
    n_classes : int
        1 for a profile of confidences, which has no classes.
    transforms : tuple of str
        The views that are compared, by their specs.
    log_odds, answers, groups : arrays of n_samples rows
        See `Reactions`.
    beta : float
        1/T of temperature scaling on the samples of the fit.
    accuracy, cut : float
        The accuracy on the samples of the fit (NaN without labels), and the cut: the share of
        samples above this confidence equals the accuracy (ATC; Garg et al., 2022).
    following : Following, optional
        What was learned about damage from the views; None without labels or with fewer than 100
        samples.
    class_shares : array of shape (n_classes,), optional
        The share of each class in the samples of the fit.
    by_class : ByClass, optional
        Numbers about the samples of each class that `class_mix` needs.
    right : array of bool, shape (n_samples,), optional
        Which answers were right, in a profile of confidences.
    """

    n_classes: Count
    transforms: Annotated[tuple[str, ...], ListOf(Text(), keep=tuple)]
    log_odds: Annotated[Vector, FloatArray("n")]
    answers: Annotated[NDArray[np.integer], _Answers("n", low=0)]
    groups: Annotated[
        NDArray[np.uint8], _Groups("n", "V-1", low=1, high=4)
    ]  # V - 1, because there may be no views
    beta: Annotated[float, Number(0.0, ends="()")] = 1.0
    accuracy: Annotated[float, Instance(float)] = math.nan
    cut: Annotated[float, Instance(float)] = math.nan
    following: Following | None = None
    class_shares: Annotated[Vector, FloatArray("K")] | None = None
    by_class: ByClass | None = None
    right: Annotated[NDArray[np.bool_], _Flags("n")] | None = None

    def check(self) -> None:
        if len(self.log_odds) < 2:
            raise InputError("A profile needs 2 samples or more.")
        if self.groups.shape[1] != len(self.transforms):
            raise InputError(
                f"must have a column for each of {len(self.transforms)} views", argument="groups"
            )
        if self.answers.max() >= self.n_classes:
            raise InputError(f"A profile's answers must lie in 0..{self.n_classes - 1}.")
        offsets = None if self.by_class is None else self.by_class.offsets
        if any(
            one is not None and len(one) != self.n_classes for one in (self.class_shares, offsets)
        ):
            raise InputError(
                f"The class shares and offsets of a profile must be {self.n_classes} numbers."
            )

    @property
    def labelled(self) -> bool:
        """Whether the profile was made with labels, so that accuracy can be estimated later."""
        return not math.isnan(self.accuracy)

    @property
    def graded(self) -> bool:
        """Whether this is a profile of confidences, for the answers of any system, without classes."""
        return self.n_classes == 1

    def reactions(self, *, views: bool) -> Reactions:
        """Return the numbers that are compared, with or without the numbers of the views."""
        return Reactions(self.log_odds, self.answers, self.groups if views else self.groups[:, :0])

    def condition(self, logits: Floats) -> WatchResult:
        """Return accuracy and temperature of a batch of logits, or why they are unknown; no test is
        made.
        """
        return self.condition_of([self.numbers(check_logits(logits))])

    def numbers(self, logits: Floats) -> RowNumbers:
        """Return what `condition_of` needs from one piece of a batch, so that a large batch need
        not be in memory.
        """
        self.check_classes(logits.shape[1])
        return row_numbers(
            logits, self.beta, math.nan if self.following is None else self.following.cut
        )

    def condition_of(self, pieces: Sequence[RowNumbers]) -> WatchResult:
        """Return the same as `condition` for a batch that was read in pieces."""
        if self.following is not None:
            return self.following.condition_of(join_rows(pieces))
        few = f"the profile was made from fewer than {FEWEST_ROWS} samples"
        reason = few if self.labelled else "the profile was made without labels"
        return unknown(self.beta, reason, sum(map(len, pieces)))

    def graded_condition(self, log_odds: Vector, *, alarm: bool) -> WatchResult:
        """Estimate the accuracy of answers if only their confidence is known.

        Platt scaling at the fit turns log-odds into the probability of being right. Its mean over
        the new answers is the estimate; the interval covers the errors of the fit and of the new
        sample. After an alarm, confidences may have lost their meaning, and the accuracy is
        unknown.
        """
        n = len(log_odds)
        if self.right is None:
            return unknown(1.0, "the profile was made without grades", n)
        if alarm:
            return unknown(
                1.0,
                "the confidences differ from those of the fit and may no longer mean the same",
                n,
            )
        coefficients, covariance = _fit_platt(self.log_odds, self.right)
        features = np.column_stack([log_odds, np.ones(n)])
        chance = sigmoid(features @ coefficients)
        accuracy = float(chance.mean())
        slope = (chance * (1 - chance)) @ features / n
        variance = slope @ covariance @ slope + float((chance * (1 - chance)).sum()) / n**2
        inside = min(max(accuracy, 0.5 / n), 1 - 0.5 / n)
        spread = _DEVIATIONS * math.sqrt(variance) / (inside * (1 - inside))
        low, high = sigmoid(math.log(inside / (1 - inside)) + np.array([-spread, spread])).tolist()
        return WatchResult(n, True, "", 1.0, 1.0, accuracy, (low, high), 0.0)

    def check_classes(self, n_classes: int) -> None:
        """Refuse inputs with a different number of classes."""
        if n_classes != self.n_classes:
            raise InputError(f"This profile has {self.n_classes} classes, got {n_classes}.")

    def held_by(self, views: Views) -> bool:
        """Whether views contain every transformation that the profile compares."""
        return all(views.holds(spec) for spec in self.transforms)


def profile(
    views: Views | ArrayLike, y: ArrayLike | None = None, *, random_state: int | None = 0
) -> Profile:
    """Make the profile of the samples of a fit.

    Parameters
    ----------
    views : Views, or logits of shape (n_samples, n_classes)
        With views of three or more kinds of damage, `watch` can follow damage from logits alone. A
        1-D array of confidences, (n_samples,), makes a profile for the answers of any system.
    y : labels of shape (n_samples,), optional
        By default those of the views. Without labels, accuracy cannot be estimated later. With
        confidences, whether each answer is right.
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

    def some_rows(n_samples: int) -> Any:
        few = n_samples <= MAX_ROWS
        return slice(None) if few else np.sort(rng.choice(n_samples, MAX_ROWS, replace=False))

    if is_confidence(views):
        values = check_confidences(views, len(np.asarray(views)))  # type: ignore[arg-type]
        rows = some_rows(len(values))
        right = None if y is None else check_graded(values, y)[1][rows]
        accuracy = math.nan if right is None else float(right.mean())
        return Profile(1, (), *confidence_reactions(values[rows]), accuracy=accuracy, right=right)
    inputs = views if isinstance(views, Views) else Views(views)
    labels = (
        inputs.labels
        if y is None
        else check_labels(y, inputs.n_samples, inputs.n_classes, inputs.classes)
    )
    rows = some_rows(inputs.n_samples)
    inputs, labels = inputs[rows], None if labels is None else labels[rows]
    specs, logits, n_classes = tuple(map(str, inputs.transforms)), inputs.logits, inputs.n_classes
    numbers = reactions(inputs, specs)
    if labels is None:
        return Profile(n_classes, specs, *numbers)
    from recal.calibrators.solvers.temperature import fit_betas
    from recal.engine.scaled import ScaledLogits

    beta = float(fit_betas(ScaledLogits(logits), labels).values[0])
    accuracy = float((numbers.answers == labels).mean())
    cut = float(np.quantile(np.exp(log_softmax(logits, beta).max(axis=1)), 1 - accuracy))
    return Profile(
        n_classes,
        specs,
        *numbers,
        beta,
        accuracy,
        cut,
        following=learn(inputs, labels, beta, rng),
        class_shares=np.bincount(labels, minlength=n_classes) / len(labels),
        by_class=learn_classes(logits, labels, beta, cut),
    )


def _fit_platt(log_odds: Vector, right: NDArray[np.bool_]) -> tuple[Vector, NDArray[np.float64]]:
    """Return slope and intercept of Platt scaling and their covariance; a weak ridge keeps them
    finite.
    """
    features = np.column_stack([log_odds, np.ones(len(log_odds))])
    coefficients, ridge = np.array([1.0, 0.0]), _RIDGE * np.eye(2)
    for _ in range(50):
        chance = sigmoid(features @ coefficients)
        bend = (features * (chance * (1 - chance))[:, None]).T @ features + ridge
        step = np.linalg.solve(
            bend, features.T @ (chance - right) + ridge @ (coefficients - [1.0, 0.0])
        )
        coefficients = coefficients - np.clip(step, -1.0, 1.0)
        if np.abs(step).max() < 1e-8:
            break
    return coefficients, np.asarray(np.linalg.inv(bend), np.float64)


def is_confidence(values: object) -> bool:
    """Whether this is the confidence of each answer: 1-D, from 0 to 1.

    Other 1-D numbers are binary log-odds.
    """
    if isinstance(values, Views) or not is_graded(values):
        return False
    array = np.asarray(values)
    return array.dtype.kind in "iufb" and bool(((array >= 0) & (array <= 1)).all())


def confidence_reactions(confidence: ArrayLike) -> Reactions:
    """Return the numbers of each sample if only its confidence is known."""
    array = check_confidences(confidence, len(np.asarray(confidence)))
    return Reactions(
        confidence_log_odds(array),
        np.zeros(len(array), np.int32),
        np.zeros((len(array), 0), np.uint8),
    )


def reactions(views: Views, specs: tuple[str, ...]) -> Reactions:
    """Return confidence, prediction and groups of each sample, from the logits alone."""
    from recal.engine.grouping import group

    answers = views.logits.argmax(axis=1)
    # Log-odds differ between rows even if confidence rounds to 1.
    top = np.take_along_axis(log_odds(log_softmax(views.logits)), answers[:, None], axis=1)[:, 0]
    groups = [group(views.logits, views.transformed(as_transform(spec))) for spec in specs]
    table = (
        np.stack(groups, axis=1).astype(np.uint8)
        if groups
        else np.zeros((len(answers), 0), np.uint8)
    )
    return Reactions(top, answers.astype(np.int32), table)
