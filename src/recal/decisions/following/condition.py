"""What a batch of logits says about its condition: its best temperature and its accuracy, or that it is unknown."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from recal.decisions.bounds import Interval
from recal.decisions.following.process import NOISE, TwoReadings
from recal.decisions.following.statistics import CLASS_MIX, N_STATISTICS, RowNumbers, statistics
from recal.errors import InputError

Vector = NDArray[np.float64]

# Sizes of batches for which chance is learned from small sets of the fit's samples.
SIZES = (50, 100, 200, 400, 800)
# Below so many inputs, or kinds of damaging views, the fit's temperature stays.
SMALLEST_BATCH = 50
FEWEST_KINDS = 3
# From this variance of the process on (1 is the prior's), a batch is unlike every set of the fit and its accuracy
# unknown. Its temperature still follows: the process says "no change" the more, the less it knows.
UNKNOWN_FROM = 0.3
_EVERYTHING: Interval = (0.0, 1.0)
_LEFT_OUT_LEVEL = 0.9
_DEVIATIONS = 1.959964
_RESAMPLES = 50
_RESAMPLED_AT_MOST = 20_000
_CLASS_MIXES = ":"  # stands for these sets; a kind of view is its spec up to the colon
_UNLIKE = "these inputs are unlike every view of the fit; label some, or fit with views of what happened to them"
_FEW_CLASSES = "the mix of predicted classes is that of another class mix, or of damage unlike every view of the fit"


class _Reading(NamedTuple):
    """What the views say of a batch."""

    changes: Vector  # of log(beta) and of the log-odds of the accuracy
    variance: float
    as_damage: float  # the variance where undamaged inputs with other class mixes do not count
    disputed: Vector  # how far both changes rest on single kinds of view, as a variance


@dataclass(frozen=True)
class Condition:
    """What following found of a batch.

    Attributes
    ----------
    known : bool
        Whether the batch resembles sets of the fit closely enough to be followed.
    reason : str
        Where it is not known, why; empty where it is.
    ratio : float
        The beta that suits the batch over the fit's; 1 where too little is known of it.
    beta : float
    accuracy : float
        The estimate; NaN where not known.
    interval : (low, high)
        Of the accuracy, 95 %; from 0 to 1 where not known.
    variance : float
        Of the process, from 0 (much like sets of the fit) to 1 (unlike any).
    unlike : bool
        Whether the batch was judged and found unlike every set of the fit; no rule of decisions should be relied on.
    """

    known: bool
    reason: str
    ratio: float
    beta: float
    accuracy: float
    interval: Interval
    variance: float
    unlike: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        accuracy = self.accuracy if self.known else None
        return {**vars(self), "accuracy": accuracy, "interval": list(self.interval)}

    def __str__(self) -> str:
        """One sentence for a person: what was done, and why."""
        if self.ratio == 1 and not self.known:
            return f"The temperature of the fit stays: {self.reason}."
        change = "stays" if abs(self.ratio - 1) < 0.005 else f"is multiplied by {1 / self.ratio:.2f}"
        if not self.known:
            return f"The temperature {change}, and accuracy is unknown: {self.reason}."
        low, high = self.interval
        return f"The temperature {change}; estimated accuracy {self.accuracy:.1%} (95 %: {low:.1%} to {high:.1%})."


@dataclass(frozen=True, eq=False)
class Following:
    """What a fit's views taught about following; made by `learn`, kept in a `Profile`.

    Parameters
    ----------
    beta, cut, accuracy : float
        Of the inputs as they are: the best 1/T, ATC's cut of the entropy, the share of right answers.
    n_samples : int
    kinds : tuple of str
        Of the views that each set is made of; empty for inputs as they are.
    damaging : tuple of str
        The kinds that damage inputs.
    statistics : array of shape (n_sets, 9)
    spread : array of shape (9,)
        Of each statistic over the views.
    changes : array of shape (n_sets, 2)
        Each set's log(best beta / beta), and the log-odds of its accuracy less those of the inputs as they are.
    sizes : array of shape (n_sets,)
        The size of batch that each set serves, one of `SIZES`; 0 for whole sets, which serve all.
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

    def condition_of(self, rows: RowNumbers) -> Condition:
        """Say what a batch shows, of which each row's numbers are known."""
        n = len(rows.answers)
        if len(self.damaging) < FEWEST_KINDS:
            return unknown(
                self.beta,
                f"the fit had views of {len(self.damaging)} damaging kinds and {FEWEST_KINDS} are needed: "
                "collect with the pool 'damage'",
            )
        if n < SMALLEST_BATCH:
            return unknown(self.beta, f"{n} inputs are too few to judge by; {SMALLEST_BATCH} are needed")
        found, chance = self._read(rows), self._chance(rows)
        strange = found.variance >= UNKNOWN_FROM
        error = self._doubts[0] ** 2 * (found.variance + NOISE) + found.disputed[0]
        ratio = math.exp(held_back(float(found.changes[0]), error, chance[0]))
        if strange or found.as_damage >= UNKNOWN_FROM:
            reason = _UNLIKE if strange else _FEW_CLASSES
            nothing = unknown(self.beta, reason, found.variance)
            return replace(nothing, ratio=ratio, beta=self.beta * ratio, unlike=strange)
        return self._known(found, ratio, n, chance[1])

    def _known(self, found: _Reading, ratio: float, n: int, chance: float) -> Condition:
        """The condition of a batch of `n` that resembles sets of the fit."""
        centre = self.clean_log_odds + float(found.changes[1])
        accuracy = _share(centre)
        outcomes = (1 / n + 1 / self.n_samples) / max(accuracy * (1 - accuracy), 0.5 / n)
        error = self._doubts[1] ** 2 * (found.variance + NOISE)
        spread = math.sqrt(error + _DEVIATIONS**2 * (outcomes + chance + found.disputed[1]))
        interval = (_share(centre - spread), _share(centre + spread))
        return Condition(True, "", ratio, self.beta * ratio, accuracy, interval, found.variance)

    def _read(self, rows: RowNumbers) -> _Reading:
        """What the processes say of a batch: the one over all sets, and those that miss one kind of view each."""
        place, size = self._place(statistics(rows))[None], _nearest(len(rows.answers))
        changes, variance = self._process(size)(place)
        without = np.array([self._process(size, kind)(place)[0][0] for kind in sorted(set(self.kinds) - {""})])
        as_damage = float(self._process(size, _CLASS_MIXES)(place)[1][0])
        disputed = (len(without) - 1) * without.var(axis=0)  # the jackknife's variance, over kinds of view
        return _Reading(changes[0], float(variance[0]), as_damage, disputed)

    def _place(self, found: Vector) -> Vector:
        return np.asarray((found - self.statistics[0]) / self.spread)

    @property
    def clean_log_odds(self) -> float:
        """The log-odds of the accuracy of inputs as they are, from which `changes` are counted."""
        n, hits = self.n_samples, self.accuracy * self.n_samples
        return math.log(hits + 0.5) - math.log(n - hits + 0.5)

    def _process(self, size: int, without: str = "") -> TwoReadings:
        """The process for batches of one of `SIZES`, without the sets of a kind of view."""
        if (size, without) not in self._processes:
            chosen = (self.sizes == 0) | (self.sizes == size)
            self._processes[size, without] = self._learned(chosen & ~self._of(without))
        return self._processes[size, without]

    def _of(self, kind: str) -> NDArray[np.bool_]:
        """Which sets are of a kind of view, or undamaged inputs with other class mixes."""
        kinds = np.array(self.kinds)
        if kind != _CLASS_MIXES:
            return (kinds == kind) & (kind != "")
        return (kinds == "") & (self.sizes == 0) & (np.arange(len(kinds)) > 0)

    @cached_property
    def _processes(self) -> dict[tuple[int, str], TwoReadings]:
        return {}

    def _learned(self, sets: NDArray[np.bool_]) -> TwoReadings:
        return TwoReadings(self._place(self.statistics[sets]), self.changes[sets], hidden=CLASS_MIX)

    @cached_property
    def _doubts(self) -> tuple[float, float]:
        """How far temperatures and accuracies lie from what the process says of kinds of view that it was not shown.

        Per square root of the variance and noise, over all whole sets of each kind left out in its turn: the median
        for log(beta), and a quantile for the log-odds of the accuracy, for which sets that would be called unknown do
        not count. With this quantile, intervals of kinds left out of the whole profile hold in about 95 % of batches.
        """
        errors, variances = [np.empty((0, 2))], [np.empty(0)]
        for kind in sorted(set(self.kinds) - {""}):
            own = self._of(kind) & (self.sizes == 0)
            changes, variance = self._process(SIZES[-1], kind)(self._place(self.statistics[own]))
            errors.append(np.abs(self.changes[own] - changes) / np.sqrt(variance + NOISE)[:, None])
            variances.append(variance)
        found, known = np.concatenate(errors), np.concatenate(variances) < UNKNOWN_FROM
        if not known.any():
            return float(np.median(found[:, 0])), math.inf
        rank = math.ceil(_LEFT_OUT_LEVEL * (known.sum() + 1))
        return float(np.median(found[known, 0])), float(np.sort(found[known, 1])[min(rank, known.sum()) - 1])

    def _chance(self, rows: RowNumbers) -> Vector:
        """The variances that chance alone gives what the process says of a batch of this size, (2,)."""
        n = len(rows.answers)
        if n > _RESAMPLED_AT_MOST:
            return np.zeros(2)
        rng = np.random.default_rng(0)
        counts = rng.multinomial(n, np.full(n, 1 / n), size=_RESAMPLES).astype(np.float64)
        places = np.array([self._place(statistics(rows, weights)) for weights in counts])
        return self._process(_nearest(n))(places)[0].var(axis=0)


def unknown(beta: float, reason: str, variance: float = 1.0) -> Condition:
    """The condition of a batch that nothing can be said about: the fit's temperature stays."""
    return Condition(False, reason, 1.0, beta, math.nan, _EVERYTHING, variance)


def held_back(change: float, error: float, chance: float) -> float:
    """A change of log(beta) as far as it exceeds chance and its own error, both squared.

    What chance may have made is taken off first (James and Stein): a change no larger than chance is none. The rest is
    followed by the share of it that is not error.
    """
    beyond = change * max(0.0, 1 - chance / change**2) if change else 0.0
    return beyond * beyond**2 / (beyond**2 + error) if beyond else 0.0


def _nearest(size: int) -> int:
    """The size of batch, of those for which chance was learned, that is nearest to this one."""
    return SIZES[int(np.abs(np.log(np.array(SIZES) / size)).argmin())]


def _share(log_odds: float) -> float:
    return float(0.5 * (1 + np.tanh(0.5 * log_odds)))
