"""Where it goes wrong: slices of the samples, with intervals that hold for all at once, and inputs to look at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import check_labels, check_probs
from recal.decisions.bounds import Interval, share_interval
from recal.decisions.decide import answers_of
from recal.decisions.profile import all_log_probs
from recal.decisions.rule import check_share
from recal.errors import InputError
from recal.metrics.rows import Classes
from recal.views import Views

Vector = NDArray[np.float64]
# Below this the chance of a number of right answers is summed exactly; above, a normal variable is as good.
_EXACT = 2000
# An interval of accuracy that is wider than this tells next to nothing.
_WIDE = 0.3


@dataclass(frozen=True)
class Slice:
    """The samples that share a value: what was promised and what came.

    Attributes
    ----------
    name : the value
    n_samples : int
    accuracy, accuracy_interval : float, (low, high)
    confidence : float
        The mean confidence: the accuracy that was promised.
    p_value : float
        Of "the promise was honest in this slice", corrected for the number of slices (Holm).
    verdict : {"over-confident", "under-confident", "no difference that these samples can show", "too few to tell"}
    """

    name: Any
    n_samples: int
    accuracy: float
    accuracy_interval: Interval
    confidence: float
    p_value: float
    verdict: str

    @property
    def gap(self) -> float:
        """Confidence minus accuracy: above 0 where too much was promised."""
        return self.confidence - self.accuracy

    @property
    def gap_interval(self) -> Interval:
        """Of the gap, from that of the accuracy."""
        low, high = self.accuracy_interval
        return self.confidence - high, self.confidence - low


def slices(
    probs: ArrayLike,
    y: ArrayLike,
    by: ArrayLike,
    *,
    confidence: float = 0.95,
    classes: Classes = None,
) -> tuple[Slice, ...]:
    """Measure every slice of the samples, the least accurate first (by what the samples can show).

    Intervals hold for all slices at once (Clopper-Pearson at a level divided by their number), and p-values are
    corrected for it, so that the worst of many slices is not believed for its luck.

    Parameters
    ----------
    probs, y, classes : as in `recal.evaluate`
    by : array-like of shape (n_samples,)
        The value that makes the slices: a camera, a country, the true class, the answered class.
    confidence : float
        Of all intervals together.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.decisions import slices
    >>> camera = np.repeat(["day", "night"], 500)
    >>> wrong = np.r_[np.arange(500) % 10 == 0, np.arange(500) % 3 == 0]
    >>> found = slices(np.tile([0.9, 0.1], (1000, 1)), wrong.astype(int), camera)
    >>> [(one.name, one.n_samples, round(one.gap, 2), one.verdict) for one in found]
    [('night', 500, 0.23, 'over-confident'), ('day', 500, 0.0, 'no difference that these samples can show')]
    """
    level = 1 - check_share(confidence, "confidence")
    array = check_probs(probs)
    labels = check_labels(y, len(array), array.shape[1], classes)
    values = np.asarray(by)
    if values.shape != (len(array),):
        raise InputError(f"`by` must hold one value for each of {len(array)} samples, got the shape {values.shape}.")
    _, sure, wrong = answers_of(array, labels)
    names, member = np.unique(values.astype(np.str_) if values.dtype.kind == "O" else values, return_inverse=True)
    rows = [np.flatnonzero(member == index) for index in range(len(names))]
    chances = _holm(np.array([honest_chance(sure[one], ~wrong[one]) for one in rows]))
    found = []
    for name, one, chance in zip(names.tolist(), rows, chances.tolist()):
        right = int((~wrong[one]).sum())
        interval = share_interval(right, len(one), 1 - level / len(names))
        promised = float(sure[one].mean())
        verdict = _verdict(promised - right / len(one), chance, level, interval)
        found.append(Slice(name, len(one), right / len(one), interval, promised, chance, verdict))
    return tuple(sorted(found, key=lambda one: (one.accuracy_interval[1], one.accuracy)))


def _verdict(gap: float, chance: float, level: float, interval: Interval) -> str:
    if chance <= level:
        return "over-confident" if gap > 0 else "under-confident"
    return "too few to tell" if interval[1] - interval[0] > _WIDE else "no difference that these samples can show"


def honest_chance(sure: Vector, right: NDArray[np.bool_]) -> float:
    """The two-sided p-value of so many right answers, if each is right with exactly the confidence it came with."""
    count, n = int(right.sum()), len(right)
    if n > _EXACT:
        from scipy.special import ndtr

        deviation = max(float(np.sqrt((sure * (1 - sure)).sum())), 1e-12)
        distance = max(abs(count - float(sure.sum())) - 0.5, 0.0) / deviation
        return float(min(1.0, 2 * ndtr(-distance)))
    chances = np.zeros(n + 1)
    chances[0] = 1.0
    for done, one in enumerate(sure.tolist(), start=1):  # add one answer after the other (Poisson-binomial)
        chances[1 : done + 1] = chances[1 : done + 1] * (1 - one) + chances[:done] * one
        chances[0] *= 1 - one
    return float(min(1.0, 2 * min(chances[: count + 1].sum(), chances[count:].sum())))


def _holm(chances: Vector) -> Vector:
    """Holm's correction: valid however the tests depend on each other."""
    order = np.argsort(chances)
    steps = np.minimum(np.maximum.accumulate(chances[order] * np.arange(len(chances), 0, -1)), 1.0)
    corrected = np.empty(len(chances))
    corrected[order] = steps
    return corrected


@dataclass(frozen=True)
class Pick:
    """An input to look at: its row, what was answered and how surely, the truth where it is known, and why.

    `doubt` is the confidence minus the views' mean probability of the same answer; NaN without views.
    """

    row: int
    answer: int
    confidence: float
    truth: int | None
    doubt: float


def confident_mistakes(probs: ArrayLike, y: ArrayLike, top: int = 20, *, classes: Classes = None) -> tuple[Pick, ...]:
    """Return the wrong answers that were given most surely: often wrong labels, or a class that two names share.

    Examples
    --------
    >>> from recal.decisions import confident_mistakes
    >>> [pick.row for pick in confident_mistakes([[0.9, 0.1], [0.6, 0.4], [0.8, 0.2]], [1, 1, 0])]
    [0, 1]
    """
    array = check_probs(probs)
    labels = check_labels(y, len(array), array.shape[1], classes)
    answers, sure, wrong = answers_of(array, labels)
    rows = np.flatnonzero(wrong)
    rows = rows[np.argsort(-sure[rows], kind="stable")][:top]
    nan = float("nan")
    return tuple(Pick(int(row), int(answers[row]), float(sure[row]), int(labels[row]), nan) for row in rows)


def doubted_answers(views: Views, top: int = 20, *, beta: float = 1.0) -> tuple[Pick, ...]:
    """Return the answers that the views doubt most, though the model was sure; no labels are needed.

    `beta` is a temperature's inverse, as that of a fitted `TemperatureScaling`, for all probabilities.

    Examples
    --------
    >>> from recal import Views
    >>> from recal.decisions import doubted_answers
    >>> views = Views([[3.0, 0.0], [3.0, 0.0]], {"zoom:0.5": [[2.0, 0.0], [0.0, 2.0]]})
    >>> doubted_answers(views, top=1)[0].row
    1
    """
    if not views.transforms:
        raise InputError("These views hold no transformations, so nothing doubts their answers.")
    log_probs = all_log_probs(views, tuple(str(transform) for transform in views.transforms), beta)
    answers = log_probs[0].argmax(axis=1)
    rows = np.arange(len(answers))
    sure = np.exp(log_probs[0][rows, answers])
    doubt = sure - np.exp(log_probs[1:, rows, answers]).mean(axis=0)
    labels = views.labels
    chosen = np.argsort(-doubt, kind="stable")[:top]
    return tuple(
        Pick(
            int(row),
            int(answers[row]),
            float(sure[row]),
            None if labels is None else int(labels[row]),
            float(doubt[row]),
        )
        for row in chosen
    )
