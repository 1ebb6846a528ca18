"""Following damage: estimate temperature and accuracy of a batch from its logits.

Damaged sets with known labels (`learning`) show which temperature and accuracy belong to which statistics of the
logits. A Gaussian process interpolates between them. Far from every set it predicts "no change", with variance 1: it
knows what it does not know.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from recal.decisions.watching.result import WatchResult, unknown
from recal.decisions.watching.statistics import CLASS_MIX, N_STATISTICS, RowNumbers, statistics
from recal.errors import InputError

Vector = NDArray[np.float64]

# Of the process. Distances are in units of the spread of each statistic over the sets of a fit, noise in units of the
# prior variance.
LENGTH = 2.0
NOISE = 0.05
# Batch sizes for which small sets of the fit's samples show what chance does to the statistics.
SIZES = (50, 100, 200, 400, 800)
# With fewer inputs, or fewer kinds of damaging views, the temperature of the fit stays.
SMALLEST_BATCH = 50
FEWEST_KINDS = 3
# From this variance on, a batch is unlike every set of the fit and its accuracy is unknown. Its temperature still
# follows, because the process predicts less change the less it knows.
UNKNOWN_FROM = 0.3
# If leaving out single kinds of view changes log(beta) by this share of its predicted change, the kinds disagree and
# the temperature of the fit stays. Sounds with crackle had 1.1, and following raised their NLL by a quarter. Twenty
# damages of photographs had less than 0.8 if there was anything to gain.
_DISAGREEMENT = 0.9
# With this quantile, intervals for kinds of damage that the profile never saw hold in about 95 % of batches.
_LEFT_OUT_LEVEL = 0.9
_DEVIATIONS = 1.959964
_RESAMPLES = 50
_RESAMPLED_AT_MOST = 20_000
_CLASS_MIXES = ":"  # stands for the sets with other class mixes; a kind of view never contains a colon
_UNLIKE = "these inputs are unlike every view of the fit; label some, or fit with views of what happened to them"
_FEW_CLASSES = "the mix of predicted classes is that of another class mix, or of damage unlike every view of the fit"


class Process:
    """Gaussian process regression with one kernel for all outputs, exp(-d^2 / (2 LENGTH^2)).

    Parameters
    ----------
    places : array of shape (n_sets, n_statistics)
    changes : array of shape (n_sets, n_outputs)
        The values to learn, as differences from the undamaged set.
    noise : array of shape (n_sets,), optional
        The noise variance of each set, `NOISE` by default.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.decisions.watching.following import Process
    >>> process = Process(np.array([[0.0], [1.0]]), np.array([[0.0], [-1.0]]))
    >>> near, far = process(np.array([[1.0], [50.0]]))[1]
    >>> bool(near < 0.1), float(far)
    (True, 1.0)
    """

    def __init__(self, places: Vector, changes: Vector, noise: Vector | None = None) -> None:
        self.places = places
        kernel = _kernel(places, places)
        kernel[np.diag_indices_from(kernel)] += NOISE if noise is None else noise
        self._root = np.linalg.cholesky(kernel)
        self._weights = np.linalg.solve(kernel, changes)

    def __call__(self, places: Vector) -> tuple[Vector, Vector]:
        """Return the expected changes, (n, n_outputs), and the variance at each place, (n,), in [0, 1]."""
        kernel = _kernel(places, self.places)
        explained = np.linalg.solve(self._root, kernel.T)
        return kernel @ self._weights, np.clip(1.0 - (explained**2).sum(axis=0), 0.0, 1.0)


class TwoReadings:
    """Two processes over the same sets; one of them does not see the mix of predicted classes.

    Damage makes a model predict few classes. So do undamaged inputs of few classes. The prediction closer to
    "no change" is used.
    """

    def __init__(self, places: Vector, changes: Vector, *, hidden: int) -> None:
        self._hidden = hidden
        self._all, self._blind = Process(places, changes), Process(self._without_mix(places), changes)

    def __call__(self, places: Vector) -> tuple[Vector, Vector]:
        (seen, variance), blind = self._all(places), self._blind(self._without_mix(places))[0]
        nearer = np.abs(blind[:, :1]) < np.abs(seen[:, :1])
        return np.where(nearer, blind, seen), variance

    def _without_mix(self, places: Vector) -> Vector:
        return np.delete(places, self._hidden, axis=1)


def _kernel(first: Vector, second: Vector) -> Vector:
    squares = (first**2).sum(axis=1)[:, None] + (second**2).sum(axis=1) - 2 * first @ second.T
    return np.asarray(np.exp(-np.maximum(squares, 0.0) / (2 * LENGTH**2)))


class _Reading(NamedTuple):
    """What the process predicts for a batch."""

    changes: Vector  # of log(beta) and of the log-odds of the accuracy
    variance: float
    as_damage: float  # the variance if undamaged inputs with other class mixes do not count
    disputed: Vector  # how much both changes depend on single kinds of view, as a variance


@dataclass(frozen=True, eq=False)
class Following:
    """What the views of a fit teach about damage; made by `learn` and kept in a `Profile`.

    Parameters
    ----------
    beta, cut, accuracy : float
        Of the undamaged inputs: the best 1/T, ATC's cut of the entropy, the accuracy.
    n_samples : int
    kinds : tuple of str
        The kind of view that each set is made of; empty for undamaged inputs.
    damaging : tuple of str
        The kinds that damage inputs.
    statistics : array of shape (n_sets, 9)
    spread : array of shape (9,)
        Of each statistic over the views.
    changes : array of shape (n_sets, 2)
        Each set's log(best beta / beta), and the log-odds of its accuracy minus those of the undamaged inputs.
    sizes : array of shape (n_sets,)
        The batch size that each set serves, one of `SIZES`; 0 for whole sets, which serve all.
    """

    beta: float
    cut: float
    accuracy: float
    n_samples: int
    kinds: tuple[str, ...]
    damaging: tuple[str, ...]
    statistics: Vector
    spread: Vector
    changes: Vector
    sizes: NDArray[np.int64]

    def __post_init__(self) -> None:
        n = len(self.kinds)
        if not all(isinstance(kind, str) for kind in (*self.kinds, *self.damaging)) or n < 1:
            raise InputError("`kinds` and `damaging` must be tuples of text.")
        shapes = {"statistics": (n, N_STATISTICS), "spread": (N_STATISTICS,), "changes": (n, 2)}
        shapes["sizes"] = (n,)
        for name, shape in shapes.items():
            array = getattr(self, name)
            if array.shape != shape or not np.isfinite(array).all():
                raise InputError(f"`{name}` must be finite and have the shape {shape}, got {array.shape}.")
        if not (self.beta > 0 and 0 <= self.accuracy <= 1 and (self.spread > 0).all() and self.n_samples > 0):
            raise InputError("Following needs a positive beta and spread, and an accuracy from 0 to 1.")
        if not np.isin(self.sizes, (0, *SIZES)).all() or self.sizes[0] != 0:
            raise InputError(f"`sizes` must be 0 or one of {SIZES}, and 0 for the first set.")

    def condition_of(self, rows: RowNumbers) -> WatchResult:
        """Return temperature and accuracy of a batch, given the numbers of its rows."""
        n = len(rows.answers)
        if len(self.damaging) < FEWEST_KINDS:
            return unknown(
                self.beta,
                f"the fit had views of {len(self.damaging)} damaging kinds and {FEWEST_KINDS} are needed: "
                "collect with the pool 'damage'",
                n,
            )
        if n < SMALLEST_BATCH:
            return unknown(self.beta, f"{n} inputs are too few to judge by; {SMALLEST_BATCH} are needed", n)
        reading, chance = self._read(rows), self._chance(rows)
        unlike = reading.variance >= UNKNOWN_FROM
        error = self._doubts[0] ** 2 * (reading.variance + NOISE) + reading.disputed[0]
        change = float(reading.changes[0])
        disagree = (
            math.sqrt(reading.disputed[0]) >= _DISAGREEMENT * abs(change) and held_back(change, 0.0, chance[0]) != 0
        )
        ratio = 1.0 if disagree else math.exp(held_back(change, error, chance[0]))
        if unlike or reading.as_damage >= UNKNOWN_FROM:
            reason = _UNLIKE if unlike else _FEW_CLASSES
            nothing = unknown(self.beta, reason, n, reading.variance)
            return replace(nothing, ratio=ratio, beta=self.beta * ratio, unlike=unlike, kinds_disagree=disagree)
        return replace(self._known(reading, ratio, n, chance[1]), kinds_disagree=disagree)

    def _known(self, reading: _Reading, ratio: float, n: int, chance: float) -> WatchResult:
        """Return the result for a batch of `n` that resembles sets of the fit."""
        centre = self.clean_log_odds + float(reading.changes[1])
        accuracy = _share(centre)
        outcomes = (1 / n + 1 / self.n_samples) / max(accuracy * (1 - accuracy), 0.5 / n)
        error = self._doubts[1] ** 2 * (reading.variance + NOISE)
        spread = math.sqrt(error + _DEVIATIONS**2 * (outcomes + chance + reading.disputed[1]))
        interval = (_share(centre - spread), _share(centre + spread))
        return WatchResult(n, True, "", ratio, self.beta * ratio, accuracy, interval, reading.variance)

    def _read(self, rows: RowNumbers) -> _Reading:
        """Ask the process over all sets, and those that leave out one kind of view each."""
        place, size = self._place(statistics(rows))[None], _nearest(len(rows.answers))
        changes, variance = self._process(size)(place)
        without = np.array([self._process(size, kind)(place)[0][0] for kind in sorted(set(self.kinds) - {""})])
        as_damage = float(self._process(size, _CLASS_MIXES)(place)[1][0])
        disputed = (len(without) - 1) * without.var(axis=0)  # the jackknife variance over kinds of view
        return _Reading(changes[0], float(variance[0]), as_damage, disputed)

    def _place(self, numbers: Vector) -> Vector:
        return np.asarray((numbers - self.statistics[0]) / self.spread)

    @property
    def clean_log_odds(self) -> float:
        """The log-odds of the accuracy of undamaged inputs, to which `changes` are added."""
        n, hits = self.n_samples, self.accuracy * self.n_samples
        return math.log(hits + 0.5) - math.log(n - hits + 0.5)

    def _process(self, size: int, without: str = "") -> TwoReadings:
        """Return the process for batches of one of `SIZES`, without the sets of one kind of view."""
        if (size, without) not in self._processes:
            chosen = (self.sizes == 0) | (self.sizes == size)
            self._processes[size, without] = self._learn(chosen & ~self._of(without))
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

    def _learn(self, sets: NDArray[np.bool_]) -> TwoReadings:
        return TwoReadings(self._place(self.statistics[sets]), self.changes[sets], hidden=CLASS_MIX)

    @cached_property
    def _doubts(self) -> tuple[float, float]:
        """How wrong the process is about kinds of view that it has not seen.

        Each kind is left out in turn. Errors are divided by the square root of variance plus noise. Returned are the
        median error for log(beta), and a quantile of the errors for the log-odds of the accuracy, over sets that would
        not be called unknown.
        """
        errors, variances = [np.empty((0, 2))], [np.empty(0)]
        for kind in sorted(set(self.kinds) - {""}):
            own = self._of(kind) & (self.sizes == 0)
            changes, variance = self._process(SIZES[-1], kind)(self._place(self.statistics[own]))
            errors.append(np.abs(self.changes[own] - changes) / np.sqrt(variance + NOISE)[:, None])
            variances.append(variance)
        both, known = np.concatenate(errors), np.concatenate(variances) < UNKNOWN_FROM
        if not known.any():
            return float(np.median(both[:, 0])), math.inf
        rank = math.ceil(_LEFT_OUT_LEVEL * (known.sum() + 1))
        return float(np.median(both[known, 0])), float(np.sort(both[known, 1])[min(rank, known.sum()) - 1])

    def _chance(self, rows: RowNumbers) -> Vector:
        """Return the variance that sampling alone gives the predictions for a batch of this size, (2,)."""
        n = len(rows.answers)
        if n > _RESAMPLED_AT_MOST:
            return np.zeros(2)
        rng = np.random.default_rng(0)
        counts = rng.multinomial(n, np.full(n, 1 / n), size=_RESAMPLES).astype(np.float64)
        places = np.array([self._place(statistics(rows, weights)) for weights in counts])
        return self._process(_nearest(n))(places)[0].var(axis=0)


def held_back(change: float, error: float, chance: float) -> float:
    """Shrink a change of log(beta) by its error variance and by the variance that sampling alone explains.

    What sampling may have caused is removed first (James and Stein): a change within chance becomes 0. The rest is
    multiplied by its share of signal.
    """
    beyond = change * max(0.0, 1 - chance / change**2) if change else 0.0
    return beyond * beyond**2 / (beyond**2 + error) if beyond else 0.0


def _nearest(size: int) -> int:
    """Return the entry of `SIZES` that is nearest to a batch size."""
    return SIZES[int(np.abs(np.log(np.array(SIZES) / size)).argmin())]


def _share(log_odds: float) -> float:
    return float(0.5 * (1 + np.tanh(0.5 * log_odds)))
