"""Following damage: estimate temperature and accuracy of a batch from its logits.

Damaged sets with known labels (`learning`) show which temperature and accuracy belong to which
statistics of the logits. A Gaussian process interpolates between them. Far from every set it
predicts "no change", with variance 1.

Nine statistics distinguish kinds and strengths of damage. Mean confidence alone is not enough: a
blurred and a dark set with the same mean confidence can differ in accuracy. The shape of the
confidence distribution, the size of the logits and the mix of predicted classes distinguish them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

from recal.checks import Floats
from recal.decisions.follow import WatchResult, unknown
from recal.errors import InputError
from recal.maps.arrays import sigmoid
from recal.schema import SMALLEST, Count, Integers, ListOf, Number, Record, Text
from recal.schema import Floats as FloatArray

Vector = NDArray[np.float64]

N_STATISTICS = 9
CLASS_MIX = 7  # position of the entropy of the predicted classes
# The shares of confidences above these levels are counted.
_CONFIDENT = (0.99, 0.9, 0.6)
# Shares are clipped at this value before taking log-odds; a set of a few hundred samples cannot
# resolve more.
_EDGE = 0.005
_TINY = 1e-12
_BLOCK = 2_000_000  # values per block
# Length scale and noise of the process. Distances are in units of the spread of each statistic over
# the sets of a fit, noise in units of the prior variance.
LENGTH = 2.0
NOISE = 0.05
# Batch sizes for which small sets of the fit's samples show what chance does to the statistics.
SIZES = (50, 100, 200, 400, 800)
# With fewer inputs, or fewer kinds of damaging views, the temperature of the fit stays.
SMALLEST_BATCH = 50
FEWEST_KINDS = 3
# At this variance or above, a batch is unlike every set of the fit, and its accuracy is unknown.
# Its temperature still follows, because the process predicts less change if it knows less.
UNKNOWN_FROM = 0.3
# If leaving out single kinds of view changes log(beta) by this share of its predicted change, the
# kinds disagree and the temperature of the fit stays. Sounds with crackle had 1.1, and following
# raised their NLL by a quarter. Twenty damages of photographs had less than 0.8 if there was
# anything to gain.
_DISAGREEMENT = 0.9
# With this quantile, intervals for kinds of damage that the profile never saw hold in about 95 % of
# batches.
_LEFT_OUT_LEVEL = 0.9
_DEVIATIONS = 1.959964
_RESAMPLES = 50
_RESAMPLED_AT_MOST = 20_000
_CLASS_MIXES = ":"  # marks the sets with other class mixes; a kind of view never contains a colon
_UNLIKE = "these inputs are unlike every view of the fit; label some, or fit with views of what happened to them"
_FEW_CLASSES = "the mix of predicted classes is that of another class mix, or of damage unlike every view of the fit"


@dataclass(frozen=True)
class RowNumbers:
    """The contribution of each row of logits to the nine statistics."""

    values: Vector  # (n_samples, 9): see `row_numbers`
    answers: NDArray[np.intp]
    n_classes: int

    def __len__(self) -> int:
        return len(self.answers)

    def __getitem__(self, rows: NDArray[np.intp]) -> RowNumbers:
        return RowNumbers(self.values[rows], self.answers[rows], self.n_classes)


def join_rows(pieces: Sequence[RowNumbers]) -> RowNumbers:
    """Join the rows of several sets."""
    if len(pieces) == 1:
        return pieces[0]
    values, answers = (
        np.concatenate([getattr(piece, name) for piece in pieces]) for name in ("values", "answers")
    )
    return RowNumbers(values, answers, pieces[0].n_classes)


def row_numbers(logits: Floats, beta: float, cut: float) -> RowNumbers:
    """Compute the numbers of each row.

    The columns: confidence at `beta`; whether the entropy lies below `cut` (ATC; Garg et al.,
    2022); whether the confidence exceeds .99, .9 and .6; the largest centred logit; the spread of
    the logits; the logarithm of their squared norm, and its square.
    """
    n, n_classes = logits.shape
    values, answers = np.empty((n, N_STATISTICS)), np.empty(n, np.intp)
    step = max(1, _BLOCK // n_classes)
    for start in range(0, n, step):
        block = slice(start, start + step)
        plain = np.asarray(logits[block], np.float64)
        centred = plain - plain.mean(axis=1, keepdims=True)
        answers[block] = best = plain.argmax(axis=1)
        top = centred[np.arange(len(best)), best]
        confidence = 1.0 / np.exp(beta * (centred - top[:, None])).sum(axis=1)
        squares = np.einsum("ij,ij->i", centred, centred)
        norm = np.log(squares + _TINY)
        columns = [
            confidence,
            entropies(plain, beta) < cut,
            *(confidence > level for level in _CONFIDENT),
        ]
        values[block] = np.column_stack(
            [*columns, top, np.sqrt(squares / n_classes), norm, norm**2]
        )
    return RowNumbers(values, answers, n_classes)


def entropies(logits: Floats, beta: float) -> Vector:
    """Return the entropy of each row's probabilities at `beta`, in nats."""
    scaled = np.asarray(logits, np.float64) * beta
    scaled -= scaled.max(axis=1, keepdims=True)
    weights = np.exp(scaled)
    total = weights.sum(axis=1)
    return np.asarray(np.log(total) - (weights * scaled).sum(axis=1) / total)


def statistics(rows: RowNumbers, weights: Vector | None = None) -> Vector:
    """Return the nine statistics of a set of rows, (9,); `weights` says how often each row counts.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.decisions.damage import row_numbers, statistics
    >>> logits = 3 * np.random.default_rng(0).normal(size=(500, 4))
    >>> statistics(row_numbers(logits, beta=1.0, cut=0.5)).shape
    (9,)
    """
    means = rows.values.mean(axis=0) if weights is None else weights @ rows.values / weights.sum()
    shares = np.clip(means[:5], _EDGE, 1 - _EDGE)
    spread = np.sqrt(max(means[8] - means[7] ** 2, 0.0))
    sizes = np.log(np.maximum(means[5:7], _TINY))
    counts = np.bincount(rows.answers, weights, minlength=rows.n_classes)
    mix = counts[counts > 0] / counts.sum()
    # The entropy of the predicted classes, with Miller and Madow's correction for small sets.
    entropy = -(mix * np.log(mix)).sum() + (len(mix) - 1) / (2 * counts.sum())
    return np.r_[np.log(shares) - np.log1p(-shares), sizes, entropy, spread]


class Process:
    """Gaussian process regression with one kernel for all outputs, exp(-d^2 / (2 LENGTH^2)).

    Parameters
    ----------
    places : array of shape (n_sets, n_statistics)
    changes : array of shape (n_sets, n_outputs)
        The values to learn, as differences from the undamaged set.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.decisions.damage import Process
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
        self._all, self._blind = (
            Process(places, changes),
            Process(np.delete(places, CLASS_MIX, axis=1), changes),
        )

    def __call__(self, places: Vector) -> tuple[Vector, Vector]:
        changes, variance = self._all(places)
        blind = self._blind(np.delete(places, CLASS_MIX, axis=1))[0]
        return np.where(np.abs(blind[:, :1]) < np.abs(changes[:, :1]), blind, changes), variance


def _kernel(first: Vector, second: Vector) -> Vector:
    squares = (first**2).sum(axis=1)[:, None] + (second**2).sum(axis=1) - 2 * first @ second.T
    return np.asarray(np.exp(-np.maximum(squares, 0.0) / (2 * LENGTH**2)))


class _Reading(NamedTuple):
    """What the process predicts for a batch."""

    changes: Vector  # of log(beta) and of the log-odds of the accuracy
    variance: float
    as_damage: float  # the variance if undamaged inputs with other class mixes do not count
    disputed: Vector  # how much both changes depend on single kinds of view, as a variance


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
    kinds: Annotated[tuple[str, ...], ListOf(Text(), keep=tuple)]
    damaging: Annotated[tuple[str, ...], ListOf(Text(), keep=tuple)]
    statistics: Annotated[Vector, FloatArray("sets", N_STATISTICS)]
    spread: Annotated[Vector, FloatArray(N_STATISTICS, low=SMALLEST)]
    changes: Annotated[Vector, FloatArray("sets", 2)]
    sizes: Annotated[NDArray[np.int64], Integers("sets")]

    def check(self) -> None:
        if len(self.kinds) != len(self.sizes):
            raise InputError(
                f"must name the kind of each of {len(self.sizes)} sets", argument="kinds"
            )
        if not np.isin(self.sizes, (0, *SIZES)).all() or self.sizes[0] != 0:
            raise InputError(f"`sizes` must be 0 or one of {SIZES}, and 0 for the first set.")

    def condition_of(self, rows: RowNumbers) -> WatchResult:
        """Return temperature and accuracy of a batch, given the numbers of its rows."""
        n = len(rows)
        if len(self.damaging) < FEWEST_KINDS:
            return unknown(
                self.beta,
                f"the fit had views of {len(self.damaging)} damaging kinds and {FEWEST_KINDS} are needed: "
                "collect with the pool 'damage'",
                n,
            )
        if n < SMALLEST_BATCH:
            return unknown(
                self.beta, f"{n} inputs are too few to judge by; {SMALLEST_BATCH} are needed", n
            )
        reading, chance = self._read(rows), self._chance(rows)
        unlike = reading.variance >= UNKNOWN_FROM
        errors = np.square(self._doubts) * (reading.variance + NOISE)
        change, dispute = float(reading.changes[0]), float(reading.disputed[0])
        disagree = (
            math.sqrt(dispute) >= _DISAGREEMENT * abs(change)
            and held_back(change, 0.0, chance[0]) != 0
        )
        ratio = 1.0 if disagree else math.exp(held_back(change, errors[0] + dispute, chance[0]))
        if unlike or reading.as_damage >= UNKNOWN_FROM:
            reason = _UNLIKE if unlike else _FEW_CLASSES
            nothing = unknown(self.beta, reason, n, reading.variance)
            return replace(
                nothing, ratio=ratio, beta=self.beta * ratio, unlike=unlike, kinds_disagree=disagree
            )
        centre = self.clean_log_odds + float(reading.changes[1])
        accuracy = float(sigmoid(np.array(centre)))
        outcomes = (1 / n + 1 / self.n_samples) / max(accuracy * (1 - accuracy), 0.5 / n)
        spread = math.sqrt(
            errors[1] + _DEVIATIONS**2 * (outcomes + chance[1] + reading.disputed[1])
        )
        low, high = sigmoid(np.array([centre - spread, centre + spread])).tolist()
        return WatchResult(
            n,
            True,
            "",
            ratio,
            self.beta * ratio,
            accuracy,
            (low, high),
            reading.variance,
            kinds_disagree=disagree,
        )

    def _read(self, rows: RowNumbers) -> _Reading:
        """Evaluate the process over all sets, and the processes that leave out one kind of view
        each.
        """
        place, size = self._place(statistics(rows))[None], _nearest(len(rows))
        changes, variance = self._process(size)(place)
        without = np.array(
            [self._process(size, kind)(place)[0][0] for kind in sorted(set(self.kinds) - {""})]
        )
        as_damage = float(self._process(size, _CLASS_MIXES)(place)[1][0])
        disputed = (len(without) - 1) * without.var(
            axis=0
        )  # the jackknife variance over kinds of view
        return _Reading(changes[0], float(variance[0]), as_damage, disputed)

    def _place(self, numbers: Vector) -> Vector:
        return np.asarray((numbers - self.statistics[0]) / self.spread)

    @property
    def clean_log_odds(self) -> float:
        """The log-odds of the accuracy of undamaged inputs, to which `changes` are added."""
        return log_odds_of(self.accuracy * self.n_samples, self.n_samples)

    def _process(self, size: int, without: str = "") -> TwoReadings:
        """Return the process for batches of one of `SIZES`, without the sets of one kind of view."""
        if (size, without) not in self._processes:
            sets = ((self.sizes == 0) | (self.sizes == size)) & ~self._of(without)
            self._processes[size, without] = TwoReadings(
                self._place(self.statistics[sets]), self.changes[sets]
            )
        return self._processes[size, without]

    def _of(self, kind: str) -> NDArray[np.bool_]:
        """Return which sets are of a kind of view, or are undamaged inputs with other class mixes."""
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
        for kind in sorted(set(self.kinds) - {""}):
            own = self._of(kind) & (self.sizes == 0)
            changes, variance = self._process(SIZES[-1], kind)(self._place(self.statistics[own]))
            errors.append(np.abs(self.changes[own] - changes) / np.sqrt(variance + NOISE)[:, None])
            variances.append(variance)
        both = np.concatenate(errors)
        near = both[np.concatenate(variances) < UNKNOWN_FROM]
        if not len(near):
            return float(np.median(both[:, 0])), math.inf
        rank = math.ceil(_LEFT_OUT_LEVEL * (len(near) + 1))
        return float(np.median(near[:, 0])), float(np.sort(near[:, 1])[min(rank, len(near)) - 1])

    def _chance(self, rows: RowNumbers) -> Vector:
        """Return the variance that sampling alone gives the predictions for a batch of this size,
        (2,).
        """
        n = len(rows)
        if n > _RESAMPLED_AT_MOST:
            return np.zeros(2)
        rng = np.random.default_rng(0)
        counts = rng.multinomial(n, np.full(n, 1 / n), size=_RESAMPLES).astype(np.float64)
        places = np.array([self._place(statistics(rows, weights)) for weights in counts])
        return self._process(_nearest(n))(places)[0].var(axis=0)


def log_odds_of(hits: float, n_samples: int) -> float:
    """Return the log-odds of an accuracy; half a hit and half a miss are added to keep them finite."""
    return math.log(hits + 0.5) - math.log(n_samples - hits + 0.5)


def held_back(change: float, error: float, chance: float) -> float:
    """Shrink a change of log(beta) by its error variance and by the variance that sampling alone
    explains.

    What sampling may have caused is removed first (James and Stein): a change within chance becomes
    0. The rest is multiplied by its share of signal.
    """
    beyond = change * max(0.0, 1 - chance / change**2) if change else 0.0
    return beyond * beyond**2 / (beyond**2 + error) if beyond else 0.0


def _nearest(size: int) -> int:
    """Return the entry of `SIZES` that is nearest to a batch size."""
    return SIZES[int(np.abs(np.log(np.array(SIZES) / size)).argmin())]
