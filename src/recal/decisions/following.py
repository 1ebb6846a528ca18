"""Following damage: estimate temperature and accuracy of a batch from its logits.

Views of a fit are damaged sets with known labels. They show which temperature and accuracy belong
to which statistics of the logits. A Gaussian process interpolates between them. Far from every set
it predicts "no change", with variance 1.

Nine statistics distinguish kinds and strengths of damage. Mean confidence alone is not enough: a
blurred and a dark set with the same mean confidence can differ in accuracy. The shape of the
confidence distribution, the size of the logits and the mix of predicted classes distinguish them.

The losses of every row are tabulated once over a grid of temperatures. The best temperature of any
set of rows is then the minimum of a sum of curves, so hundreds of sets cost little more than one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import Floats, Labels, Vector, check_probs
from recal.decisions.rule import DecisionRule
from recal.engine import row_blocks
from recal.errors import InputError
from recal.files.paths import plain_values
from recal.maps.arrays import log_odds, log_softmax, sigmoid
from recal.maps.guard import bounded, lift_answers
from recal.metrics.intervals import Interval
from recal.schema import SMALLEST, Count, FloatArray, Integers, Number, Record, Texts
from recal.transforms import as_transform
from recal.views import Views

# Noise of the process, in units of the prior variance.
NOISE = 0.05
# Batch sizes for which small sets of the fit's samples show what chance does to the statistics.
SIZES = (50, 100, 200, 400, 800)
# With fewer inputs, or fewer kinds of damaging views, the temperature of the fit stays.
SMALLEST_BATCH = 50
FEWEST_KINDS = 3
FEWEST_ROWS = 100
# At this variance or above, a batch is unlike every set of the fit, and its accuracy is unknown.
# Its temperature still follows, because the process predicts less change if it knows less.
UNKNOWN_FROM = 0.3
DEVIATIONS = 1.959964  # of a normal 95 % interval
_CLASS_MIXES = ":"  # marks the sets with other class mixes; a kind of view never contains a colon
# Grid of log(beta / beta of the fit), down to 5 % of the fit's beta: damaged inputs need less
# confidence.
_GRID = np.arange(-20, 9) * 0.15
# The columns of `row_numbers` that hold the predicted class, and those of `labelled_rows` after it.
_ANSWER, _RIGHT, _LOSSES = 9, 10, 11


@dataclass(frozen=True)
class Finding:
    """One quantity that was compared: its value at the fit and today, and how surprising the
    difference is.

    `p_value` is already corrected for the other quantities that were compared.
    """

    name: str
    at_fit: float
    today: float
    p_value: float


@dataclass(frozen=True)
class WatchResult:
    """What the logits of new inputs say about them; made by `watch` and by `apply --follow`.

    Attributes
    ----------
    n_samples : int
    beta, ratio : float
        The inverse temperature that suits these inputs, and its ratio to the beta of the fit.
        `to_the_power(probs, ratio)` applies it to the probabilities of any calibrator. If too
        little is known, beta is the beta of the fit and the ratio is 1.
    reason : str
        Why the accuracy is unknown; empty if it is known.
    accuracy, interval : float, (low, high)
        The estimated accuracy and its 95 % interval; NaN, and from 0 to 1, if unknown. Of the
        model's own predictions if logits were watched, of the answers if confidences were.
    variance : float
        How far the inputs are from everything seen at the fit: 0 (very similar) to 1 (unlike
        anything).
    kinds_disagree : bool
        Whether the kinds of damage at the fit disagree about the temperature, so that the
        temperature of the fit stays.
    unlike : bool
        Whether the inputs are unlike every view of the fit. Do not rely on any decision rule for
        them.
    alarm : bool or None
        Whether the inputs differ from those of the fit. The probability of a false alarm is at most
        `alpha`. None if no test was made.
    p_value, alpha : float
        P-value and level of the test; NaN if none was made.
    findings : tuple of Finding
        Everything that was compared.
    accuracy_at_fit : float
    """

    n_samples: int
    beta: float
    ratio: float = 1.0
    reason: str = ""
    accuracy: float = math.nan
    interval: Interval = (0.0, 1.0)
    variance: float = 1.0
    unlike: bool = False
    kinds_disagree: bool = False
    alarm: bool | None = None
    p_value: float = math.nan
    alpha: float = math.nan
    findings: tuple[Finding, ...] = ()
    accuracy_at_fit: float = math.nan
    whose: str = "the model's own predictions"

    @property
    def known(self) -> bool:
        """Whether the inputs resemble those of the fit, or a view of them, closely enough to
        estimate their accuracy.
        """
        return not self.reason

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        findings = [vars(finding) for finding in self.findings]
        return dict(plain_values({**vars(self), "known": self.known, "findings": findings}))

    @property
    def test_message(self) -> str:
        """One sentence about the test; empty if none was made."""
        if self.alarm is None:
            return ""
        differ = "differ from" if self.alarm else "do not differ detectably from"
        return f"{self.n_samples:,} new inputs {differ} those of the fit (p = {self.p_value:.3g})."

    @property
    def accuracy_message(self) -> str:
        """One sentence about the accuracy."""
        if not self.known:
            return f"The accuracy of {self.whose} is unknown: {self.reason}."
        at_fit = (
            "" if math.isnan(self.accuracy_at_fit) else f"; at the fit {self.accuracy_at_fit:.1%}"
        )
        low, high = self.interval
        return (
            f"Estimated accuracy of {self.whose}: {self.accuracy:.1%} (95 % interval {low:.1%} to "
            f"{high:.1%}){at_fit}."
        )

    @property
    def temperature_message(self) -> str:
        """One sentence about the temperature."""
        if self.kinds_disagree:
            return (
                "The temperature of the fit stays, because the views of the fit disagree about "
                "these inputs."
            )
        if abs(self.ratio - 1) < 0.005:
            return "The temperature of the fit stays."
        return f"The temperature is multiplied by {1 / self.ratio:.2f}."

    def __str__(self) -> str:
        sentences = (self.test_message, self.temperature_message, self.accuracy_message)
        return " ".join(sentence for sentence in sentences if sentence)


def row_numbers(logits: Floats, beta: float, cut: float) -> Vector:
    """Return what each row of logits contributes to the nine statistics, (n_samples, 10).

    The columns: confidence at `beta`; whether the entropy lies below `cut` (ATC; Garg et al.,
    2022); whether the confidence exceeds .99, .9 and .6; the largest centred logit; the spread of
    the logits; the logarithm of their squared norm, and its square; the predicted class.
    """
    n, n_classes = logits.shape
    values = np.empty((n, 10))
    for part in row_blocks(n, n_classes, 2_000_000):
        plain = np.asarray(logits[part], np.float64)
        centred = plain - plain.mean(axis=1, keepdims=True)
        confidence, entropy = _certainty(plain, beta)
        squares = np.einsum("ij,ij->i", centred, centred)
        norm = np.log(squares + 1e-12)
        shares = [confidence, entropy < cut, *(confidence > level for level in (0.99, 0.9, 0.6))]
        sizes = [centred.max(axis=1), np.sqrt(squares / n_classes), norm, norm**2]
        values[part] = np.column_stack([*shares, *sizes, plain.argmax(axis=1)])
    return values


def _certainty(logits: Floats, beta: float) -> tuple[Vector, Vector]:
    """Return the largest probability of each row at `beta`, and the entropy in nats."""
    log_probs = log_softmax(logits, beta)
    return np.exp(log_probs.max(axis=1)), -(np.exp(log_probs) * log_probs).sum(axis=1)


def statistics(rows: Vector, weights: Vector | None = None) -> Vector:
    """Return the nine statistics of rows from `row_numbers`, (9,); `weights` says how often each
    row counts.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.decisions.following import row_numbers, statistics
    >>> logits = 3 * np.random.default_rng(0).normal(size=(500, 4))
    >>> statistics(row_numbers(logits, beta=1.0, cut=0.5)).shape
    (9,)
    """
    means = np.average(rows, axis=0, weights=weights)
    shares = np.clip(means[:5], 0.005, 0.995)  # a few hundred samples cannot resolve more
    spread = np.sqrt(max(means[8] - means[7] ** 2, 0.0))
    sizes = np.log(np.maximum(means[5:7], 1e-12))
    counts = np.bincount(rows[:, _ANSWER].astype(np.intp), weights)
    mix = counts[counts > 0] / counts.sum()
    # The entropy of the predicted classes, with Miller and Madow's correction for small sets.
    entropy = -(mix * np.log(mix)).sum() + (len(mix) - 1) / (2 * counts.sum())
    return np.r_[np.log(shares) - np.log1p(-shares), sizes, entropy, spread]


class Process:
    """Gaussian process regression with one kernel for all outputs, exp(-d^2 / 8).

    Distances are in units of the spread of each statistic over the sets of a fit.

    Parameters
    ----------
    places : array of shape (n_sets, n_statistics)
    changes : array of shape (n_sets, n_outputs)
        The values to learn, as differences from the undamaged set.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.decisions.following import Process
    >>> process = Process(np.array([[0.0], [1.0]]), np.array([[0.0], [-1.0]]))
    >>> near, far = process(np.array([[1.0], [50.0]]))[1]
    >>> bool(near < 0.1), float(far)
    (True, 1.0)
    """

    def __init__(self, places: Vector, changes: Vector) -> None:
        self.places = places
        kernel = _kernel(places, places)
        kernel[np.diag_indices_from(kernel)] += NOISE
        self._root = np.linalg.cholesky(kernel)
        self._weights = np.linalg.solve(kernel, changes)

    def __call__(self, places: Vector) -> tuple[Vector, Vector]:
        """Return the expected changes, (n, n_outputs), and the variance at each place, (n,), in [0,
        1].
        """
        kernel = _kernel(places, self.places)
        explained = np.linalg.solve(self._root, kernel.T)
        return kernel @ self._weights, np.clip(1.0 - (explained**2).sum(axis=0), 0.0, 1.0)


class TwoReadings:
    """Two processes over the same sets; one of them does not see the mix of predicted classes.

    Damage makes a model predict few classes. So do undamaged inputs of few classes. The prediction
    closer to "no change" is used.
    """

    def __init__(self, places: Vector, changes: Vector) -> None:
        self._all = Process(places, changes)
        self._blind = Process(_without_class_mix(places), changes)

    def __call__(self, places: Vector) -> tuple[Vector, Vector]:
        changes, variance = self._all(places)
        blind = self._blind(_without_class_mix(places))[0]
        return np.where(np.abs(blind[:, :1]) < np.abs(changes[:, :1]), blind, changes), variance


def _without_class_mix(places: Vector) -> Vector:
    """Leave out the entropy of the predicted classes."""
    return np.delete(places, 7, axis=1)


def _kernel(first: Vector, second: Vector) -> Vector:
    squares = (first**2).sum(axis=1)[:, None] + (second**2).sum(axis=1) - 2 * first @ second.T
    return np.asarray(np.exp(-np.maximum(squares, 0.0) / 8.0))


class Following(Record):
    """What was learned about damage from the views of a fit; made by `learn` and kept in a
    `Profile`.

    Parameters
    ----------
    beta, cut, accuracy : float
        For the undamaged inputs: the best 1/T, ATC's cut of the entropy, the accuracy.
    n_samples : int
    kinds : tuple of str
        The kind of view that each set is made of; empty for undamaged inputs.
    damaging : tuple of str
        The kinds that damage inputs.
    statistics : array of shape (n_sets, 9)
    spread : array of shape (9,)
        Spread of each statistic over the views.
    changes : array of shape (n_sets, 2)
        Each set's log(best beta / beta), and the log-odds of its accuracy minus those of the
        undamaged inputs.
    sizes : array of shape (n_sets,)
        The batch size that each set is used for, one of `SIZES`; 0 for whole sets, which are used
        for all sizes.
    """

    beta: Annotated[float, Number(0.0, ends="()")]
    cut: float
    accuracy: Annotated[float, Number(0.0, 1.0)]
    n_samples: Count
    kinds: Texts
    damaging: Texts
    statistics: Annotated[Vector, FloatArray("sets", 9)]
    spread: Annotated[Vector, FloatArray(9, low=SMALLEST)]
    changes: Annotated[Vector, FloatArray("sets", 2)]
    sizes: Annotated[NDArray[np.int64], Integers("sets")]

    def check(self) -> None:
        if len(self.kinds) != len(self.sizes):
            raise InputError(
                f"must name the kind of each of {len(self.sizes)} sets", argument="kinds"
            )
        if not np.isin(self.sizes, (0, *SIZES)).all() or self.sizes[0] != 0:
            raise InputError(f"`sizes` must be 0 or one of {SIZES}, and 0 for the first set.")

    def condition_of(self, rows: Vector) -> WatchResult:
        """Return temperature and accuracy of a batch, given the numbers of its rows."""
        n = len(rows)
        if len(self.damaging) < FEWEST_KINDS:
            reason = (
                f"the fit had views of {len(self.damaging)} damaging kinds and {FEWEST_KINDS} are "
                "needed: collect with the pool 'damage'"
            )
            return WatchResult(n, self.beta, reason=reason)
        if n < SMALLEST_BATCH:
            reason = f"{n} inputs are too few to judge by; {SMALLEST_BATCH} are needed"
            return WatchResult(n, self.beta, reason=reason)
        (change, odds), variance, as_damage, disputes = self._read(rows)
        chance = self._chance(rows)
        errors = np.square(self._doubts) * (variance + NOISE)
        # If leaving out single kinds of view changes log(beta) by this share of its predicted
        # change, the kinds disagree. Sounds with crackle had 1.1, and following raised their NLL by
        # a quarter; twenty damages of photographs had less than 0.8.
        disputed = math.sqrt(disputes[0]) >= 0.9 * abs(change)
        disagree = bool(disputed and held_back(change, 0.0, chance[0]) != 0)
        step = held_back(change, errors[0] + disputes[0], chance[0])
        ratio = 1.0 if disagree else math.exp(step)
        unlike, reason = variance >= UNKNOWN_FROM, ""
        if unlike:
            reason = (
                "these inputs are unlike every view of the fit; label some, or fit with views of "
                "what happened to them"
            )
        elif as_damage >= UNKNOWN_FROM:
            reason = (
                "the mix of predicted classes is that of another class mix, or of damage unlike "
                "every view of the fit"
            )
        found = WatchResult(
            n,
            self.beta * ratio,
            ratio,
            reason,
            variance=variance,
            unlike=unlike,
            kinds_disagree=disagree,
        )
        if reason:
            return found
        centre = log_odds_of(self.accuracy * self.n_samples, self.n_samples) + odds
        accuracy = float(sigmoid(np.array(centre)))
        outcomes = (1 / n + 1 / self.n_samples) / max(accuracy * (1 - accuracy), 0.5 / n)
        spread = math.sqrt(errors[1] + DEVIATIONS**2 * (outcomes + chance[1] + disputes[1]))
        low, high = sigmoid(np.array([centre - spread, centre + spread])).tolist()
        return replace(found, accuracy=accuracy, interval=(low, high))

    def _read(self, rows: Vector) -> tuple[list[float], float, float, Vector]:
        """Return what the process predicts for a batch.

        The changes of log(beta) and of the log-odds of the accuracy; the variance; the variance if
        undamaged inputs with other class mixes do not count; and how much both changes depend on
        single kinds of view, as a jackknife variance.
        """
        place, size = self._place(statistics(rows))[None], nearest_size(len(rows))
        changes, variance = self._process(size)(place)
        without = np.array([self._process(size, kind)(place)[0][0] for kind in self._view_kinds])
        as_damage = float(self._process(size, _CLASS_MIXES)(place)[1][0])
        disputes = (len(without) - 1) * without.var(axis=0)
        return changes[0].tolist(), float(variance[0]), as_damage, disputes

    def _place(self, numbers: Vector) -> Vector:
        return np.asarray((numbers - self.statistics[0]) / self.spread)

    def _process(self, size: int, without: str = "") -> TwoReadings:
        """Return the process for batches of one of `SIZES`, without one kind of view."""
        if (size, without) not in self._processes:
            sets = ((self.sizes == 0) | (self.sizes == size)) & ~self._of(without)
            self._processes[size, without] = TwoReadings(
                self._place(self.statistics[sets]), self.changes[sets]
            )
        return self._processes[size, without]

    @property
    def _view_kinds(self) -> list[str]:
        return sorted(set(self.kinds) - {""})

    def _of(self, kind: str) -> NDArray[np.bool_]:
        """Return which sets are of a kind of view, or are undamaged with other class mixes."""
        kinds = np.array(self.kinds)
        if kind != _CLASS_MIXES:
            return (kinds == kind) & (kind != "")
        return (kinds == "") & (self.sizes == 0) & (np.arange(len(kinds)) > 0)

    @cached_property
    def _processes(self) -> dict[tuple[int, str], TwoReadings]:
        return {}

    @cached_property
    def _doubts(self) -> tuple[float, float]:
        """Return how wrong the process is about kinds of view that it has not seen.

        Each kind is left out in turn. Errors are divided by the square root of variance plus noise.
        Returns the median error for log(beta), and a quantile of the errors for the log-odds of the
        accuracy, over sets that would not be called unknown.
        """
        errors, variances = [np.empty((0, 2))], [np.empty(0)]
        for kind in self._view_kinds:
            own = self._of(kind) & (self.sizes == 0)
            changes, variance = self._process(SIZES[-1], kind)(self._place(self.statistics[own]))
            errors.append(np.abs(self.changes[own] - changes) / np.sqrt(variance + NOISE)[:, None])
            variances.append(variance)
        both = np.concatenate(errors)
        near = both[np.concatenate(variances) < UNKNOWN_FROM]
        if not len(near):
            return float(np.median(both[:, 0])), math.inf
        # With this quantile, intervals for kinds of damage that the profile never saw hold in
        # about 95 % of batches.
        rank = math.ceil(0.9 * (len(near) + 1))
        return float(np.median(near[:, 0])), float(np.sort(near[:, 1])[min(rank, len(near)) - 1])

    def _chance(self, rows: Vector) -> Vector:
        """Return the variance that sampling alone gives the predictions for a batch of this size,
        (2,).
        """
        n = len(rows)
        if n > 20_000:
            return np.zeros(2)
        rng = np.random.default_rng(0)
        counts = rng.multinomial(n, np.full(n, 1 / n), size=50).astype(np.float64)
        places = np.array([self._place(statistics(rows, weights)) for weights in counts])
        return self._process(nearest_size(n))(places)[0].var(axis=0)


def log_odds_of(hits: float, n_samples: int) -> float:
    """Return the log-odds of an accuracy, kept finite by half a hit and half a miss."""
    return math.log(hits + 0.5) - math.log(n_samples - hits + 0.5)


def held_back(change: float, error: float, chance: float) -> float:
    """Shrink a change of log(beta) by its error variance and by the variance that sampling alone
    explains.

    What sampling may have caused is removed first (James and Stein): a change within chance becomes
    0. The rest is multiplied by its share of signal.
    """
    beyond = change * max(0.0, 1 - chance / change**2) if change else 0.0
    return beyond * beyond**2 / (beyond**2 + error) if beyond else 0.0


def nearest_size(size: int) -> int:
    """Return the entry of `SIZES` that is nearest to a batch size."""
    return SIZES[int(np.abs(np.log(np.array(SIZES) / size)).argmin())]


def labelled_rows(logits: Floats, labels: Labels, beta: float, cut: float) -> Vector:
    """Return `row_numbers`, whether each answer is right, and its loss at each temperature of the
    grid.
    """
    numbers = row_numbers(logits, beta, cut)
    plain = np.asarray(logits, np.float64)
    drops = plain - plain.max(axis=1, keepdims=True)
    own = drops[np.arange(len(labels)), labels]
    scales = beta * np.exp(_GRID)
    losses = [np.log(np.exp(scale * drops).sum(axis=1)) - scale * own for scale in scales]
    return np.column_stack([numbers, numbers[:, _ANSWER] == labels, *losses])


def best_change(rows: Vector) -> tuple[float, float]:
    """Return log(best beta / beta of the fit) of labelled rows, and their accuracy's log-odds."""
    odds = log_odds_of(float(rows[:, _RIGHT].sum()), len(rows))
    return lowest(rows[:, _LOSSES:].mean(axis=0)), odds


def lowest(curve: Vector) -> float:
    """Return the minimum of a curve over the grid: the vertex of the parabola through its three
    lowest points.
    """
    at = int(np.clip(curve.argmin(), 1, len(_GRID) - 2))
    left, middle, right = curve[at - 1 : at + 2]
    bend = left - 2 * middle + right
    step = 0.0 if bend <= 0 else float(np.clip(0.5 * (left - right) / bend, -1.0, 1.0))
    return float(_GRID[at] + step * (_GRID[1] - _GRID[0]))


def learn(views: Views, labels: Labels, beta: float, rng: np.random.Generator) -> Following | None:
    """Learn to follow damage from the views of a fit; return None if there are too few samples.

    The sets are: the undamaged inputs, each view, mixtures of a view with undamaged inputs (a batch
    may be damaged in part), and undamaged inputs with other class mixes (which must not be mistaken
    for damage). Small sets of all of these show what chance does to batches of each size.
    """
    if views.n_samples < FEWEST_ROWS:
        return None
    most = 4000  # more rows would be more precise than the nine statistics can resolve
    if views.n_samples > most:
        chosen = np.sort(rng.choice(views.n_samples, most, replace=False))
        views, labels = views[chosen], labels[chosen]
    accuracy = float((views.logits.argmax(axis=1) == labels).mean())
    cut = float(np.quantile(_certainty(views.logits, beta)[1], accuracy))
    clean = labelled_rows(views.logits, labels, beta, cut)
    kinds = [view_kind(str(transform)) for transform in views.transforms]
    damaged = [
        labelled_rows(views.transformed(transform), labels, beta, cut)
        for transform in views.transforms
    ]
    # Mirrored or shifted inputs teach nothing about damage: a kind must lose 5 % of right answers.
    most_right = (1 - 0.05) * clean[:, _RIGHT].mean()
    damaging = dict.fromkeys(
        kind for kind, rows in zip(kinds, damaged) if rows[:, _RIGHT].mean() <= most_right
    )
    odds = best_change(clean)[1]

    def source(kind: str, rows: Vector) -> tuple[str, Vector, Vector]:
        """Return kind and numbers of rows, and the changes of temperature and accuracy."""
        return kind, rows[:, :_RIGHT], np.subtract(best_change(rows), (0.0, odds))

    whole = [source("", clean), *(source(*pair) for pair in zip(kinds, damaged))]
    mixed = [source(kind, _mixture(clean, rows, rng)) for kind, rows in zip(kinds, damaged)]
    mixes = [source("", clean[rows]) for rows in _class_mixes(labels, rng)]
    sets = [(kind, statistics(rows), change, 0) for kind, rows, change in whole + mixed + mixes]
    spread = np.std([numbers for _, numbers, *_ in sets[: len(whole)]], axis=0)
    # Small sets show what chance does: statistics vary, temperature and accuracy stay.
    step = -(-len(damaged) // 40) or 1  # they are drawn from at most 40 views
    sources = [whole[0]] * 20 + [one for one in whole[1::step] for _ in range(3)] + mixed[::step]
    small = []
    for size in SIZES:
        for kind, rows, change in sources:
            drawn = rows[rng.choice(len(rows), size, replace=size > len(rows))]
            small.append((kind, statistics(drawn), change, size))
    # Without this floor, a statistic that no view changes would amplify chance in small batches.
    chance = [numbers for kind, numbers, _, size in small if kind == "" and size == SIZES[1]]
    spread = np.maximum(spread, np.std(chance, axis=0))
    names, places, changes, sizes = zip(*sets, *small)
    return Following(
        beta=beta,
        cut=cut,
        accuracy=accuracy,
        n_samples=len(labels),
        kinds=names,
        damaging=tuple(damaging),
        statistics=np.array(places),
        spread=np.where(spread > 0, spread, 1.0),
        changes=np.array(changes),
        sizes=np.array(sizes),
    )


def view_kind(spec: str) -> str:
    """Return the kind of a view: its spec without the strength."""
    return str(as_transform(spec)).split(":")[0]


def _mixture(clean: Vector, damaged: Vector, rng: np.random.Generator) -> Vector:
    """Mix some rows of a view with the undamaged rows of the other samples."""
    order = rng.permutation(len(clean))
    part = int(rng.uniform(0.25, 0.75) * len(order))
    return np.concatenate([damaged[order[:part]], clean[order[part:]]])


def _class_mixes(labels: Labels, rng: np.random.Generator) -> Iterator[NDArray[np.intp]]:
    """Draw rows with other class shares."""
    classes, members = np.unique(labels, return_inverse=True)
    for _ in range(10):
        # A concentration below 1 lets a few classes dominate.
        shares = rng.dirichlet(np.full(len(classes), 0.5))[members]
        yield rng.choice(len(labels), len(labels) // 2, p=shares / shares.sum())


def to_the_power(probs: ArrayLike, ratio: float) -> NDArray[np.float64]:
    """Raise probabilities to a power and normalise: a ratio below 1 makes them less confident, one
    above 1 more.

    For temperature scaling this is the same as multiplying beta = 1/T by the ratio. For other
    calibrators it makes the same change to their final probabilities. The order of the classes in a
    row does not change.

    Parameters
    ----------
    probs : array-like of shape (n_samples, n_classes)
    ratio : float
        Above 0; `WatchResult.ratio` suits a batch.

    Examples
    --------
    >>> from recal.decisions import to_the_power
    >>> to_the_power([[0.9, 0.1]], 0.5).round(3)
    array([[0.75, 0.25]])
    """
    array = np.asarray(check_probs(probs), dtype=np.float64)
    if not (np.isfinite(ratio) and ratio > 0):
        raise InputError(f"`ratio` must be a number above 0, got {ratio!r}.")
    if ratio == 1.0:
        return array
    logs = np.log(np.maximum(array, np.finfo(np.float64).tiny))
    weights = np.exp(ratio * (logs - logs.max(axis=1, keepdims=True)))
    probs = bounded(weights / weights.sum(axis=1, keepdims=True))
    return lift_answers(probs, array.argmax(axis=1)[:, None])


def followed_confidences(
    confidences: NDArray[np.float64], probs: NDArray[np.float64], followed: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Shift the log-odds of each confidence by the same amount as following shifted those of the
    prediction.
    """
    predictions, rows = probs.argmax(axis=1), np.arange(len(probs))
    shift = log_odds(followed[rows, predictions]) - log_odds(probs[rows, predictions])
    return np.asarray(sigmoid(log_odds(confidences) + shift))


def accept_followed(
    rule: DecisionRule,
    probs: ArrayLike,
    result: WatchResult,
    confidences: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    *,
    accept_unlike: bool = False,
) -> NDArray[np.bool_]:
    """Apply a rule to followed probabilities; it accepts nothing if the batch is unlike every view
    of the fit.

    Parameters
    ----------
    rule : DecisionRule
    probs : array-like of shape (n_samples, n_classes)
        Already followed: `to_the_power(probs, result.ratio)`.
    result : WatchResult
    confidences : array-like of shape (n_samples,), optional
        Followed, too; needed if the rule reads confidences.
    groups : array-like of shape (n_samples,), optional
        Needed if the rule has a threshold per group.
    accept_unlike : bool
        Apply the rule anyway.

    Examples
    --------
    >>> from recal import DecisionRule
    >>> from recal.decisions import WatchResult, accept_followed
    >>> rule = DecisionRule((0.9,), risk=0.01, confidence=0.95)
    >>> strange = WatchResult(100, 1.0, reason="unlike every view", unlike=True)
    >>> accept_followed(rule, [[0.95, 0.05]], strange)
    array([False])
    >>> accept_followed(rule, [[0.95, 0.05]], strange, accept_unlike=True)
    array([ True])
    """
    accepted = rule.accept(probs, confidences, groups)
    return np.zeros_like(accepted) if result.unlike and not accept_unlike else accepted
