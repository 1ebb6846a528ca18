"""A profile of the inputs of a fit, with which new inputs are compared.

A profile keeps a few numbers of each sample, never the input: the model's confidence, its
prediction, and how each view changes both. Views help in two ways. They show how stable a
prediction is. And a view is a damaged input with a known label, from which
`recal.decisions.damage` learns to follow damage.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import (
    Floats,
    Vector,
    check_confidences,
    check_graded,
    check_labels,
    check_logits,
    is_graded,
)
from recal.clusters import check_clusters
from recal.decisions.damage import DEVIATIONS, FEWEST_ROWS, Following, learn, row_numbers
from recal.decisions.follow import WatchResult, unknown
from recal.errors import InputError
from recal.maps.arrays import class_log_odds, log_softmax, sigmoid
from recal.maps.arrays import log_odds as confidence_log_odds
from recal.schema import LARGEST, Count, Instance, Integers, ListOf, Number, Record, Text
from recal.schema import Floats as FloatArray
from recal.transforms import as_transform
from recal.views import Views

# More rows would make a file larger, but not a test more powerful.
MAX_ROWS = 20_000


class Reactions(NamedTuple):
    """The numbers of each sample that a watch compares."""

    log_odds: Vector  # log-odds of the model's confidence in its prediction
    answers: NDArray[np.integer]
    groups: NDArray[np.uint8]  # (n, n_views) of 1..4, as numbered in `Group`
    signals: Vector  # (n, n_signals), other numbers of each answer

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
    accuracy : float
        On the samples of the fit; NaN without labels.
    following : Following, optional
        What was learned about damage from the views; None without labels or with fewer than 100
        samples.
    right : array of bool, shape (n_samples,), optional
        Which answers were right, in a profile of confidences.
    clusters : array of int, shape (n_samples,), optional
        Which rows belong together.
    signal_names, signals : tuple of str, array of shape (n_samples, n_signals)
        Further numbers of each answer, in a profile of confidences; a missing one is the lowest.
    """

    n_classes: Count
    transforms: Annotated[tuple[str, ...], ListOf(Text(), keep=tuple)]
    log_odds: Annotated[Vector, FloatArray("n")]
    answers: Annotated[NDArray[np.integer], _Answers("n", low=0)]
    # V - 1, because there may be no views.
    groups: Annotated[NDArray[np.uint8], _Groups("n", "V-1", low=1, high=4)]
    beta: Annotated[float, Number(0.0, ends="()")] = 1.0
    accuracy: Annotated[float, Instance(float)] = math.nan
    following: Following | None = None
    right: Annotated[NDArray[np.bool_], _Flags("n")] | None = None
    clusters: Annotated[NDArray[np.int64], Integers("n", low=0)] | None = None
    signal_names: Annotated[tuple[str, ...], ListOf(Text(), keep=tuple)] = ()
    signals: Annotated[Vector, FloatArray("n", None)] | None = None

    def check(self) -> None:
        if len(self.log_odds) < 2:
            raise InputError("A profile needs 2 samples or more.")
        if self.groups.shape[1] != len(self.transforms):
            raise InputError(
                f"must have a column for each of {len(self.transforms)} views", argument="groups"
            )
        n_signals = 0 if self.signals is None else self.signals.shape[1]
        if n_signals != len(self.signal_names):
            raise InputError(f"must name each of {n_signals} columns", argument="signal_names")
        if self.answers.max() >= self.n_classes:
            raise InputError(f"A profile's answers must lie in 0..{self.n_classes - 1}.")

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
        groups = self.groups if views else self.groups[:, :0]
        signals = np.empty((len(self.answers), 0)) if self.signals is None else self.signals
        return Reactions(self.log_odds, self.answers, groups, signals)

    def units(
        self, clusters: ArrayLike | None, n_samples: int
    ) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return numbers of the clusters of the fit and of new rows; of rows without clusters."""
        if self.clusters is None:
            if clusters is not None:
                raise InputError(
                    "This profile was made without clusters",
                    argument="clusters",
                    remedy="Make it with profile(views, y, clusters=clusters), or leave them out",
                )
            return np.arange(len(self.answers)), np.arange(n_samples)
        if clusters is None:
            raise InputError(
                "This profile was made with clusters, so new inputs need them, too",
                argument="clusters",
                remedy="Pass clusters= (--cluster COLUMN), or np.arange(n) if every row is its own",
            )
        return self.clusters.astype(np.intp), check_clusters(clusters, n_samples)

    def signal_columns(self, signals: Mapping[str, ArrayLike] | None) -> Vector | None:
        """Return the signals of new answers in the order of the profile; None if it has none."""
        if not self.signal_names:
            return None
        absent = [name for name in self.signal_names if name not in (signals or {})]
        if signals is None or absent:
            raise InputError(
                f"This profile compares the signal {absent[0]!r}, which was not given",
                argument="signals",
            )
        return _signal_table({name: signals[name] for name in self.signal_names})

    def condition(self, logits: Floats) -> WatchResult:
        """Return accuracy and temperature of a batch of logits, or why they are unknown; no test is
        made.
        """
        logits = check_logits(logits)
        self.check_classes(logits.shape[1])
        if self.following is not None:
            return self.following.condition_of(row_numbers(logits, self.beta, self.following.cut))
        few = f"the profile was made from fewer than {FEWEST_ROWS} samples"
        reason = few if self.labelled else "the profile was made without labels"
        return unknown(self.beta, reason, len(logits))

    def graded_condition(self, log_odds: Vector, *, alarm: bool) -> WatchResult:
        """Estimate the accuracy of answers if only their confidence is known.

        Platt scaling at the fit turns log-odds into the probability of being right. Its mean over
        the new answers is the estimate; the interval covers the errors of the fit and of the new
        sample. After an alarm, confidences may have lost their meaning, and the accuracy is
        unknown.
        """
        n = len(log_odds)
        if self.right is None:
            nothing = unknown(1.0, "the profile was made without grades", n)
            return replace(nothing, whose="these answers")
        if alarm:
            reason = "they differ from the fit, and confidence may no longer mean the same"
            return replace(unknown(1.0, reason, n), whose="these answers")
        coefficients, covariance = _fit_platt(self.log_odds, self.right)
        features = np.column_stack([log_odds, np.ones(n)])
        chance = sigmoid(features @ coefficients)
        accuracy = float(chance.mean())
        slope = (chance * (1 - chance)) @ features / n
        variance = slope @ covariance @ slope + float((chance * (1 - chance)).sum()) / n**2
        inside = min(max(accuracy, 0.5 / n), 1 - 0.5 / n)
        spread = DEVIATIONS * math.sqrt(variance) / (inside * (1 - inside))
        low, high = sigmoid(math.log(inside / (1 - inside)) + np.array([-spread, spread])).tolist()
        return WatchResult(n, True, "", 1.0, 1.0, accuracy, (low, high), 0.0, whose="these answers")

    def check_classes(self, n_classes: int) -> None:
        """Refuse inputs with a different number of classes."""
        if n_classes != self.n_classes:
            raise InputError(f"This profile has {self.n_classes} classes, got {n_classes}.")

    def held_by(self, views: Views) -> bool:
        """Whether views contain every transformation that the profile compares."""
        return all(views.holds(spec) for spec in self.transforms)


def profile(
    views: Views | ArrayLike,
    y: ArrayLike | None = None,
    *,
    clusters: ArrayLike | None = None,
    signals: Mapping[str, ArrayLike] | None = None,
    random_state: int | None = 0,
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
    clusters : array-like of shape (n_samples,), optional
        Rows that belong together, such as frames of one recording; by default those of the views.
        `watch` then shuffles whole clusters.
    signals : mapping of name to column, optional
        With confidences: further numbers of each answer, which are compared, too.
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
        values = check_confidences(views, len(np.asarray(views)))  # type: ignore[arg-type]
        rows, together = _kept_rows(len(values), clusters, rng)
        right = None if y is None else check_graded(values, y)[1][rows]
        names = () if signals is None else tuple(map(str, signals))
        table = _signal_table(signals)[rows] if signals else None
        numbers = confidence_reactions(values[rows])
        return Profile(
            1,
            (),
            numbers.log_odds,
            numbers.answers,
            numbers.groups,
            accuracy=math.nan if right is None else float(right.mean()),
            right=right,
            clusters=together,
            signal_names=names,
            signals=table,
        )
    if signals is not None:
        raise InputError("belong to a profile of confidences", argument="signals")
    inputs = views if isinstance(views, Views) else Views(views)
    labels = inputs.labels
    if y is not None:
        labels = check_labels(y, inputs.n_samples, inputs.n_classes, inputs.classes)
    clusters = inputs.clusters if clusters is None else clusters
    rows, together = _kept_rows(inputs.n_samples, clusters, rng)
    inputs, labels = inputs[rows], None if labels is None else labels[rows]
    specs, logits, n_classes = tuple(map(str, inputs.transforms)), inputs.logits, inputs.n_classes
    numbers = reactions(inputs, specs)
    seen = (n_classes, specs, numbers.log_odds, numbers.answers, numbers.groups)
    if labels is None:
        return Profile(*seen, clusters=together)
    from recal.engine.series import ScaledLogits
    from recal.solvers.temperature import fit_betas

    beta = float(fit_betas(ScaledLogits(logits), labels).values[0])
    accuracy = float((numbers.answers == labels).mean())
    return Profile(
        *seen, beta, accuracy, clusters=together, following=learn(inputs, labels, beta, rng)
    )


def _kept_rows(
    n_samples: int, clusters: ArrayLike | None, rng: np.random.Generator
) -> tuple[Any, NDArray[np.int64] | None]:
    """Return at most `MAX_ROWS` rows, whole clusters at a time, and the number of their cluster."""
    if clusters is None:
        if n_samples <= MAX_ROWS:
            return slice(None), None
        return np.sort(rng.choice(n_samples, MAX_ROWS, replace=False)), None
    unit = check_clusters(clusters, n_samples).astype(np.int64)
    if n_samples <= MAX_ROWS:
        return slice(None), unit
    order = rng.permutation(int(unit.max()) + 1)
    total = np.cumsum(np.bincount(unit)[order])
    kept = order[: max(1, int(np.searchsorted(total, MAX_ROWS, side="right")))]
    rows = np.flatnonzero(np.isin(unit, kept))
    return rows, np.unique(unit[rows], return_inverse=True)[1].astype(np.int64)


def _signal_table(signals: Mapping[str, ArrayLike]) -> Vector:
    """Return the columns side by side; a missing number counts as the lowest of all."""
    columns = []
    for name, column in signals.items():
        try:
            columns.append(np.asarray(column, np.float64))
        except (TypeError, ValueError):
            raise InputError(f"The signal {name!r} holds values that are not numbers.") from None
    table = np.column_stack(columns)
    return np.where(np.isnan(table), -LARGEST, np.clip(table, -LARGEST, LARGEST))


def _fit_platt(log_odds: Vector, right: NDArray[np.bool_]) -> tuple[Vector, NDArray[np.float64]]:
    """Return slope and intercept of Platt scaling and their covariance.

    Half a right and half a wrong answer more, as in Jeffreys' prior, and a weak ridge towards "the
    confidence is right" keep them finite and uncertain where no answer is wrong.
    """
    from recal.calibrators.signal_models import ridge  # loads scipy, which few profiles need

    scores = np.append(log_odds, [log_odds.mean()] * 2)
    features, penalty = np.column_stack([scores, np.ones(len(scores))]), np.full(2, 0.01)
    counts = np.append(np.ones(len(right)), [0.5, 0.5])
    outcomes = np.append(right, [1.0, 0.0])
    change = ridge(features, outcomes, counts, penalty, offset=scores)
    coefficients = np.array([1.0, 0.0]) + change
    chance = sigmoid(features @ coefficients)
    bend = (features.T * (counts * chance * (1 - chance))) @ features + np.diag(penalty)
    return coefficients, np.asarray(np.linalg.inv(bend), np.float64)


def is_confidence(values: object) -> bool:
    """Whether this is the confidence of each answer: 1-D, from 0 to 1.

    Other 1-D numbers are binary log-odds.
    """
    if isinstance(values, Views) or not is_graded(values):
        return False
    array = np.asarray(values)
    return array.dtype.kind in "iufb" and bool(((array >= 0) & (array <= 1)).all())


def confidence_reactions(confidence: Any, signals: Vector | None = None) -> Reactions:
    """Return the numbers of each answer if there are no logits: its confidence and its signals."""
    array = check_confidences(confidence, len(np.asarray(confidence)))
    n = len(array)
    if signals is None:
        signals = np.empty((n, 0))
    if len(signals) != n:
        raise InputError(f"must have {n} rows, got {len(signals)}", argument="signals")
    none = np.zeros((n, 0), np.uint8)
    return Reactions(confidence_log_odds(array), np.zeros(n, np.int32), none, signals)


def as_batch(profile: Profile, views: Views | ArrayLike) -> Views | None:
    """Return new inputs as views, None for confidences; refuse anything but a profile, and other
    numbers of classes.
    """
    if not isinstance(profile, Profile):
        has_one = hasattr(profile, "profile_")
        raise InputError(
            f"must be a Profile, got {type(profile).__name__}",
            argument="profile",
            remedy="Pass its profile_" if has_one else "Make one with recal.profile(views, y)",
        )
    if profile.graded:
        if isinstance(views, Views) or np.ndim(views) != 1:
            raise InputError(
                "This is a profile of confidences: pass the confidence of each answer, (n_samples,)."
            )
        return None
    batch = views if isinstance(views, Views) else Views(views)
    profile.check_classes(batch.n_classes)
    return batch


def reactions(views: Views, specs: tuple[str, ...]) -> Reactions:
    """Return confidence, prediction and groups of each sample, from the logits alone."""
    from recal.engine.grouping import group

    answers = views.logits.argmax(axis=1)
    # Log-odds differ between rows even if confidence rounds to 1.
    top = np.take_along_axis(class_log_odds(log_softmax(views.logits)), answers[:, None], axis=1)[
        :, 0
    ]
    groups = [group(views.logits, views.transformed(as_transform(spec))) for spec in specs]
    table = np.zeros((len(answers), 0), np.uint8)
    if groups:
        table = np.stack(groups, axis=1).astype(np.uint8)
    return Reactions(top, answers.astype(np.int32), table, np.empty((len(answers), 0)))
