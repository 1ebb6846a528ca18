"""A profile of the inputs of a fit, and the comparison of new inputs with it.

`watch` needs no labels: it shuffles new inputs and those of the fit.
A profile keeps a few numbers of each sample, never the input: the model's confidence, its
prediction, and further signals of graded answers. Views of the fit are damaged inputs with known
labels, from which `recal.decisions.following` learns to follow damage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
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
from recal.copies import count_fitted, kept_hashes, warn_of_fitted
from recal.decisions.following import (
    DEVIATIONS,
    FEWEST_ROWS,
    Finding,
    Following,
    WatchResult,
    learn,
    row_numbers,
)
from recal.decisions.rule import check_share
from recal.errors import InputError
from recal.maps.arrays import class_log_odds, log_softmax, sigmoid
from recal.maps.arrays import log_odds as confidence_log_odds
from recal.progress import track
from recal.schema import LARGEST, Count, FloatArray, Instance, Integers, Number, Record, Texts
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
    signal_names: Texts = ()
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
        """Whether this is a profile of confidences, of any system's answers, without classes."""
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
                "This is a profile of confidences: pass the confidence of each answer, "
                "(n_samples,)."
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
    """Return which rows are kept (all, if they have clusters), and their clusters."""
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
    """Return the numbers of answers without logits; a missing signal counts as lowest."""
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


def watch(
    profile: Profile,
    views: Views | ArrayLike,
    *,
    clusters: ArrayLike | None = None,
    signals: Mapping[str, ArrayLike] | None = None,
    alpha: float = 0.01,
    permutations: int = 999,
    random_state: int | None = 0,
) -> WatchResult:
    """Compare a batch of new inputs with those of the fit, without labels.

    The test compares confidence, class mix and further signals. If new inputs are like those of the
    fit, the two can be shuffled. The p-value counts how many shuffles look at least as different in
    whichever quantity differs most (Westfall and Young's max-T). It is exact for any batch size, so
    the probability of a false alarm is at most `alpha`.

    If the profile was made from labelled views of three or more damaging kinds, the logits of 50 or
    more inputs also give the temperature that suits them and their accuracy. Inputs that are unlike
    every view are called unknown.

    Parameters
    ----------
    profile : Profile
        Made by `recal.profile`, or a calibrator's ``profile_``.
    views : Views, or logits of shape (n_samples, n_classes)
        For a profile of confidences: confidences of shape (n_samples,).
    clusters : array-like of shape (n_samples,), optional
        Rows that belong together, such as frames of one recording; by default those of the views.
        Needed if the profile has clusters. Whole clusters are shuffled.
    signals : mapping of name to column, optional
        Further numbers of each answer; needed if the profile has signals.
    alpha : float
        The allowed probability of a false alarm.
    permutations : int
        Number of shuffles; the smallest possible p-value is 1 / (permutations + 1).
    random_state : int or None
        Seed of the shuffles.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.decisions import profile, watch
    >>> rng = np.random.default_rng(0)
    >>> def logits(n, strength):
    ...     y = rng.integers(0, 3, n)
    ...     return strength * np.eye(3)[y] + rng.normal(size=(n, 3)), y
    >>> kept = profile(*logits(1000, 3))
    >>> watch(kept, logits(500, 3)[0]).alarm, watch(kept, logits(500, 1.5)[0]).alarm
    (False, True)
    """
    check_share(alpha, "alpha")
    if permutations < 1 / alpha - 1:
        raise InputError(
            f"{permutations} shuffles cannot show p <= {alpha:g}; take "
            f"{math.ceil(1 / alpha) - 1} or more."
        )
    if not isinstance(profile, Profile):
        raise InputError(
            f"must be a Profile, got {type(profile).__name__}",
            argument="profile",
            remedy="Pass its profile_"
            if hasattr(profile, "profile_")
            else "Make one with recal.profile(views, y)",
        )
    fit, (today, logits) = profile.numbers, profile.read(views, signals)
    if clusters is None and isinstance(views, Views):
        clusters = views.clusters
    # Rows of the fit are recognised by their log-odds, which agree to the last digit.
    warn_of_fitted(
        count_fitted(_digits(today), kept_hashes(_digits(fit)), len(fit)),
        len(today),
        "comparing them with the fit says nothing about new inputs",
        "Pass new inputs.",
    )
    # Logits say how confident the model was before any calibration.
    first = "confidence" if profile.graded else "confidence of the model"
    units = profile.units(clusters, len(today))
    rng = np.random.default_rng(random_state)
    p_value, findings = _max_t(fit, today, units, (first, *profile.signal_names), permutations, rng)
    alarm = p_value <= alpha
    if logits is None:
        found = profile.graded_condition(today[:, 0], units, alarm=alarm)
    else:
        found = profile.condition(logits)
    test: dict[str, Any] = {"alarm": alarm, "p_value": p_value, "alpha": alpha}
    return replace(found, **test, findings=findings, accuracy_at_fit=profile.accuracy)


def _digits(numbers: Vector) -> Vector:
    """Return log-odds as two numbers, since rows are hashed as float32, and predictions."""
    rough = numbers[:, 0].astype(np.float32).astype(np.float64)
    return np.column_stack([rough, numbers[:, 0] - rough, numbers[:, 1]])


def _max_t(
    fit: Vector,
    today: Vector,
    units: Units,
    names: tuple[str, ...],
    permutations: int,
    rng: np.random.Generator,
) -> tuple[float, tuple[Finding, ...]]:
    """Return the overall p-value, and the compared quantities with p-values that are corrected for
    each other.

    Units are the clusters of both sets of rows, or the rows themselves. The set with fewer units
    is drawn, so a shuffle of a million new inputs costs no more than one of the rows of the fit.
    """
    quantities = _quantities(fit, today, names)
    n_fit = len(fit)
    at_fit, now = (int(numbers.max()) + 1 for numbers in units)
    unit = np.r_[units[0], units[1] + at_fit]
    single = at_fit + now == len(unit)
    draws = np.empty((permutations + 1, len(quantities)))
    for draw in track(range(permutations + 1), "shuffle"):
        if draw == 0:
            chosen = np.arange(at_fit) if at_fit <= now else np.arange(at_fit, at_fit + now)
        else:
            chosen = rng.choice(at_fit + now, min(at_fit, now), replace=False, shuffle=False)
        rows = chosen if single else np.flatnonzero(np.isin(unit, chosen))
        draws[draw] = [statistic(rows) for statistic, _ in quantities.values()]
    # Sums in another order differ in the last bits; equal distances must count as equal.
    draws = draws.astype(np.float32).astype(np.float64)
    # Put statistics on one scale, made from all draws including today's, so that their maximum is
    # meaningful.
    spread = draws.std(axis=0)
    scaled = (draws - draws.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    largest = scaled.max(axis=1)
    findings = (
        Finding(
            name, _mean(numbers[:n_fit]), _mean(numbers[n_fit:]), float((largest >= own).mean())
        )
        for (name, (_, numbers)), own in zip(quantities.items(), scaled[0])
    )
    return float((largest >= largest[0]).mean()), tuple(findings)


def _mean(numbers: NDArray[Any]) -> float:
    """Return the mean of the numbers that are not missing; NaN if there are none."""
    present = numbers[~np.isnan(numbers)] if numbers.dtype.kind == "f" else numbers
    return float(present.mean()) if len(present) else math.nan


# How far the rows of one group are from all other rows; the same for either of the two groups.
Statistic = Callable[[NDArray[np.intp]], float]


def _quantities(
    fit: Vector, today: Vector, names: tuple[str, ...]
) -> dict[str, tuple[Statistic, NDArray[Any]]]:
    """Return the compared quantities: a statistic, and numbers of each row whose means are shown
    beside the p-value.
    """
    confidence, predictions, *signals = np.concatenate([fit, today]).T
    quantities: dict[str, tuple[Statistic, NDArray[Any]]] = {
        names[0]: (_distance(confidence), sigmoid(confidence))
    }
    if highest := int(predictions.max()):
        classes = predictions.astype(np.intp)
        at_fit, now = (
            np.bincount(part, minlength=highest + 1) / len(part)
            for part in np.split(classes, [len(fit)])
        )
        most = int(np.argmax(np.abs(now - at_fit)))
        quantities["class mix"] = _counts(classes), classes == most
    for name, column in zip(names[1:], signals):
        # The largest numbers stand for missing and infinite ones.
        finite = np.abs(column) < LARGEST
        quantities[name] = _distance(column), np.where(finite, column, np.nan)
    return quantities


def _distance(values: Vector) -> Statistic:
    """Return the Kolmogorov-Smirnov distance between values of some rows and the others."""
    place = np.unique(values, return_inverse=True)[1].astype(np.int32)
    # Rows below each distinct value, and all rows at the end.
    through = np.r_[0, np.cumsum(np.bincount(place))]
    total = len(values)

    def statistic(rows: NDArray[np.intp]) -> float:
        mine, size = np.sort(place[rows]), len(rows)
        last = np.flatnonzero(np.r_[mine[1:] != mine[:-1], True])
        # Between two of these values only the share of the others changes, so extremes are at the
        # ends.
        own = np.r_[last + 1, 0, last[:-1] + 1]
        all_rows = np.r_[through[mine[last] + 1], through[mine[last]]]
        return float(np.abs(own / size - (all_rows - own) / (total - size)).max())

    return statistic


def _counts(classes: NDArray[np.intp]) -> Statistic:
    """Return Pearson's chi-square of some rows' counts against those of all rows.

    The counts of two groups deviate by the same numbers, so the two statistics differ by a constant
    factor.
    """
    share = np.bincount(classes) / len(classes)
    used = share > 0

    def statistic(rows: NDArray[np.intp]) -> float:
        expected = share[used] * len(rows)
        counts = np.bincount(classes[rows], minlength=len(share))[used]
        return float(((counts - expected) ** 2 / expected).sum())

    return statistic
