"""A profile of the inputs of a fit, with which new inputs are compared.

A profile keeps a few numbers of each sample, never the input: the model's confidence, its
prediction, and further signals of graded answers. Views of the fit are damaged inputs with known
labels, from which `recal.decisions.damage` learns to follow damage.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import (
    Floats,
    Indices,
    Vector,
    check_confidences,
    check_graded,
    check_labels,
    check_logits,
    is_graded,
)
from recal.clusters import check_clusters, effective_count
from recal.decisions.damage import DEVIATIONS, FEWEST_ROWS, Following, learn, row_numbers
from recal.decisions.following import WatchResult
from recal.errors import InputError
from recal.maps.arrays import class_log_odds, log_softmax, sigmoid
from recal.maps.arrays import log_odds as confidence_log_odds
from recal.schema import (
    LARGEST,
    Count,
    FloatArray,
    Instance,
    Integers,
    ListOf,
    Number,
    Record,
    Text,
)
from recal.views import Views

Units = tuple[Indices, Indices]
# More rows would make a file larger, but not a test more powerful.
MAX_ROWS = 20_000


class _Flags(FloatArray):
    dtype, codes = np.bool_, "b"


class Profile(Record):
    """What the inputs of a fit looked like; made by `profile`, saved alone or as a calibrator's
    ``profile_``.

    Parameters
    ----------
    n_classes : int
        1 for a profile of confidences, which has no classes.
    numbers : array of shape (n_samples, 2 + n_signals)
        Of each sample: the log-odds of the confidence, the predicted class (0 in a profile of
        confidences), and the signals; a missing signal is the lowest.
    signal_names : tuple of str
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
    """

    n_classes: Count
    numbers: Annotated[Vector, FloatArray("n", None)]
    signal_names: Annotated[tuple[str, ...], ListOf(Text(), keep=tuple)] = ()
    beta: Annotated[float, Number(0.0, ends="()")] = 1.0
    accuracy: Annotated[float, Instance(float)] = math.nan
    following: Following | None = None
    right: Annotated[NDArray[np.bool_], _Flags("n")] | None = None
    clusters: Annotated[NDArray[np.int64], Integers("n", low=0)] | None = None

    def check(self) -> None:
        if len(self.numbers) < 2:
            raise InputError("A profile needs 2 samples or more.")
        n_signals = self.numbers.shape[1] - 2
        if n_signals != len(self.signal_names):
            raise InputError(f"must name each of {n_signals} columns", argument="signal_names")
        if not np.isin(self.numbers[:, 1], np.arange(self.n_classes)).all():
            raise InputError(f"A profile's predictions must lie in 0..{self.n_classes - 1}.")

    @property
    def labelled(self) -> bool:
        """Whether the profile was made with labels, so that accuracy can be estimated later."""
        return not math.isnan(self.accuracy)

    @property
    def graded(self) -> bool:
        """Whether this is a profile of confidences, for the answers of any system, without classes."""
        return self.n_classes == 1

    def read(
        self, views: Views | ArrayLike, signals: Mapping[str, ArrayLike] | None = None
    ) -> tuple[Vector, Floats | None]:
        """Return the numbers of new inputs, and their logits; None for confidences."""
        if not self.graded:
            logits = views.logits if isinstance(views, Views) else Views(views).logits
            self.check_classes(logits.shape[1])
            return logit_numbers(logits), logits
        if isinstance(views, Views) or np.ndim(views) != 1:
            raise InputError(
                "This is a profile of confidences: pass the confidence of each answer, (n_samples,)."
            )
        for name in self.signal_names:
            if name not in (signals or {}):
                raise InputError(
                    f"This profile compares the signal {name!r}, which was not given",
                    argument="signals",
                )
        compared = {name: (signals or {})[name] for name in self.signal_names}
        return confidence_numbers(views, compared), None

    def units(self, clusters: ArrayLike | None, n_samples: int) -> Units:
        """Return numbers of the clusters of the fit and of new rows; of rows without clusters."""
        if self.clusters is None:
            if clusters is not None:
                raise InputError(
                    "This profile was made without clusters",
                    argument="clusters",
                    remedy="Make it with profile(views, y, clusters=clusters) (recal fit or recal "
                    "calibrate with --cluster COLUMN), or leave them out",
                )
            return np.arange(len(self.numbers)), np.arange(n_samples)
        if clusters is None:
            raise InputError(
                "This profile was made with clusters, so new inputs need them, too",
                argument="clusters",
                remedy="Pass clusters= (--cluster COLUMN), or np.arange(n) if every row is its own",
            )
        return self.clusters.astype(np.intp), check_clusters(clusters, n_samples)

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
        return WatchResult(len(logits), self.beta, reason=reason)

    def graded_condition(self, log_odds: Vector, units: Units, *, alarm: bool) -> WatchResult:
        """Estimate the accuracy of answers if only their confidence is known.

        Platt scaling at the fit turns log-odds into the probability of being right. Its mean over
        the new answers is the estimate; the interval covers the errors of the fit and of the new
        sample. After an alarm, confidences may have lost their meaning, and the accuracy is
        unknown. `units` are numbers of the clusters, or of the rows, at the fit and now.
        """
        n = len(log_odds)
        found = WatchResult(n, self.beta, whose="these answers")
        if self.right is None:
            return replace(found, reason="the profile was made without grades")
        if alarm:
            reason = "they differ from the fit, and confidence may no longer mean the same"
            return replace(found, reason=reason)
        coefficients, covariance = _fit_platt(self.numbers[:, 0], self.right)
        features = np.column_stack([log_odds, np.ones(n)])
        chance = sigmoid(features @ coefficients)
        accuracy = float(chance.mean())
        slope = (chance * (1 - chance)) @ features / n
        at_fit = sigmoid(self.numbers[:, 0] * coefficients[0] + coefficients[1])
        effects = _design_effects(self.right - at_fit, *units)
        own = float((chance * (1 - chance)).sum()) / n**2
        variance = effects[0] * (slope @ covariance @ slope) + effects[1] * own
        inside = min(max(accuracy, 0.5 / n), 1 - 0.5 / n)
        spread = DEVIATIONS * math.sqrt(variance) / (inside * (1 - inside))
        low, high = sigmoid(math.log(inside / (1 - inside)) + np.array([-spread, spread])).tolist()
        return replace(found, accuracy=accuracy, interval=(low, high), variance=0.0)

    def check_classes(self, n_classes: int) -> None:
        """Refuse inputs with a different number of classes."""
        if n_classes != self.n_classes:
            raise InputError(f"This profile has {self.n_classes} classes, got {n_classes}.")


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
        `watch` then shuffles whole clusters, and all rows are kept.
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
        return Profile(
            1,
            confidence_numbers(values, signals or {})[rows],
            tuple(map(str, signals or ())),
            accuracy=math.nan if right is None else float(right.mean()),
            right=right,
            clusters=together,
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
    logits, n_classes = inputs.logits, inputs.n_classes
    numbers = logit_numbers(logits)
    if labels is None:
        return Profile(n_classes, numbers, clusters=together)
    from recal.engine.series import ScaledLogits
    from recal.solvers.temperature import fit_betas

    beta = float(fit_betas(ScaledLogits(logits), labels).values[0])
    return Profile(
        n_classes,
        numbers,
        beta=beta,
        accuracy=float((numbers[:, 1] == labels).mean()),
        following=learn(inputs, labels, beta, rng),
        clusters=together,
    )


def _kept_rows(
    n_samples: int, clusters: ArrayLike | None, rng: np.random.Generator
) -> tuple[Any, NDArray[np.int64] | None]:
    """Return which rows are kept, and the number of their cluster; all rows of clusters are kept."""
    if clusters is not None:
        return slice(None), check_clusters(clusters, n_samples).astype(np.int64)
    if n_samples <= MAX_ROWS:
        return slice(None), None
    return np.sort(rng.choice(n_samples, MAX_ROWS, replace=False)), None


def _design_effects(values: Vector, at_fit: Indices, now: Indices) -> tuple[float, float]:
    """Return by how much clusters raise the variance of a mean: of these values at the fit, and of
    new rows, whose clusters may be larger or smaller.
    """
    sizes, new_sizes = (
        float((counts**2).sum() / counts.sum()) for counts in map(np.bincount, (at_fit, now))
    )
    if sizes == 1.0:
        return 1.0, 1.0
    effect = len(values) / effective_count(values, at_fit)
    return effect, 1.0 + (effect - 1.0) * (new_sizes - 1.0) / (sizes - 1.0)


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


def confidence_numbers(confidence: Any, signals: Mapping[str, ArrayLike]) -> Vector:
    """Return the numbers of answers without logits; a missing signal counts as the lowest of all."""
    array = check_confidences(confidence, len(np.asarray(confidence)))
    columns = [confidence_log_odds(array), np.zeros(len(array))]
    for name, column in signals.items():
        try:
            values = np.asarray(column, np.float64)
        except (TypeError, ValueError):
            raise InputError(f"The signal {name!r} holds values that are not numbers.") from None
        if values.shape != array.shape:
            problem = f"{name!r} must have {len(array)} rows, got the shape {values.shape}"
            raise InputError(problem, argument="signals")
        columns.append(np.where(np.isnan(values), -LARGEST, np.clip(values, -LARGEST, LARGEST)))
    return np.column_stack(columns)


def logit_numbers(logits: Floats) -> Vector:
    """Return the confidence and the prediction of each row of logits."""
    predictions = logits.argmax(axis=1)
    # Log-odds differ between rows even if confidence rounds to 1.
    odds = np.take_along_axis(class_log_odds(log_softmax(logits)), predictions[:, None], axis=1)
    return np.column_stack([odds[:, 0], predictions])
