"""Prediction sets: the classes that remain possible, so that the true class is among them with a
given probability.

Split-conformal prediction (Vovk, Gammerman and Shafer, 2005): a score says how badly a class fits a
sample. On labelled samples the score of the true class is at most q in a share `coverage` of them.
A new sample keeps the classes whose score is at most q. For samples like the labelled ones, the
true class is then kept with at least that probability, for any model. Three scores:

- lac: 1 - p. The smallest sets on average (Sadinle, Lei and Wasserman, 2019); also called THR.
- aps: the probability of all classes that are likelier, and a random part of the class's own
  (Romano, Sesia and Candes, 2020). Hard samples get larger sets.
- raps: aps with a penalty on every rank beyond the first few (Angelopoulos, Bates, Malik and
  Jordan, 2021); the penalty is chosen on a part of the samples.

The penalty must be fixed before looking at the samples that the limit comes from, or the coverage
would not hold. A random part of the samples therefore chooses the penalty with the smallest sets,
and the others give the limit.

The random part is computed from the sample's own probabilities. A sample then gets the same set
alone or in a batch, and the guarantee needs no random numbers.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import Floats, Indices, Vector, check_labels, check_probs
from recal.copies import mix, rows_of_fit
from recal.decisions.rule import SHARE, OrInfinity
from recal.errors import FewSamplesWarning, InputError
from recal.schema import NotNegative, Record, Size

Method = Literal["lac", "aps", "raps"]


class PredictionSets(Record):
    """A rule for which classes remain possible: those whose score is at most a limit; made by
    `prediction_sets`.

    Parameters
    ----------
    method : {"lac", "aps", "raps"}
    coverage : float
        The share of samples whose true class must be kept.
    limits : tuple of float
        The largest score that is kept: one limit for all classes, or one for each; ``inf`` always
        keeps a class.
    penalty, free_ranks : float, int
        For raps: each rank beyond the free ones adds the penalty to the score.
    at_least_one : bool
        Whether the likeliest class is kept if the set would otherwise be empty.

    Examples
    --------
    >>> from recal.decisions import PredictionSets
    >>> PredictionSets("lac", 0.9, (0.7,)).predict([[0.6, 0.35, 0.05], [0.2, 0.25, 0.55]])
    array([[ True,  True, False],
           [False, False,  True]])
    """

    method: Method
    coverage: Annotated[float, SHARE]
    limits: tuple[Annotated[float, OrInfinity(meaning="keep a class always")], ...]
    penalty: NotNegative = 0.1
    free_ranks: Size = 2
    at_least_one: bool = False

    def check(self) -> None:
        if not self.limits:
            raise InputError("must hold one or more numbers, got ()", argument="limits")

    @property
    def per_class(self) -> bool:
        """Whether each class has its own limit."""
        return len(self.limits) > 1

    def check_classes(self, n_classes: int) -> None:
        """Refuse probabilities whose number of classes differs from the number of limits."""
        if self.per_class and len(self.limits) != n_classes:
            raise InputError(
                f"These sets have a limit for each of {len(self.limits)} classes, got {n_classes}."
            )

    def scores(self, probs: ArrayLike) -> Vector:
        """The score of every class, (n_samples, n_classes); a lower score is a better fit."""
        array = np.asarray(check_probs(probs), dtype=np.float64)
        if self.method == "lac":
            return 1.0 - array
        parts = content_uniforms(array)
        order = np.argsort(-array, axis=1, kind="stable")
        falling = np.take_along_axis(array, order, axis=1)
        scores = np.cumsum(falling, axis=1) - (1.0 - parts[:, None]) * falling
        if self.method == "raps":
            scores += self.penalty * np.maximum(
                np.arange(1, array.shape[1] + 1) - self.free_ranks, 0
            )
        by_class = np.empty_like(scores)
        np.put_along_axis(by_class, order, scores, axis=1)
        return by_class

    def predict(self, probs: ArrayLike) -> NDArray[np.bool_]:
        """Return whether each class remains possible, (n_samples, n_classes)."""
        array = check_probs(probs)
        self.check_classes(array.shape[1])
        kept = self.scores(array) <= np.asarray(self.limits)
        if self.at_least_one:
            kept[np.arange(len(array)), array.argmax(axis=1)] |= ~kept.any(axis=1)
        return kept


def content_uniforms(array: Floats) -> Vector:
    """Return a number in [0, 1) for each row that looks random and depends only on the row.

    Values are rounded to 12 bits, so that differences in how they were computed seldom matter, in
    float32 or float64, and mixed column after column.
    """
    bits = np.rint(np.asarray(array, dtype=np.float64) * 2**12).astype(np.uint64)
    state = np.zeros(len(bits), dtype=np.uint64)
    for column in bits.T:
        state = mix(state ^ column)
    return (state >> np.uint64(11)).astype(np.float64) / 2.0**53


def prediction_sets(
    probs: ArrayLike,
    y: ArrayLike,
    coverage: float = 0.9,
    method: Method = "lac",
    *,
    per_class: bool = False,
    penalty: float | None = None,
    free_ranks: int = 2,
    at_least_one: bool = False,
    calibrator: Any = None,
    classes: Any = None,
) -> PredictionSets:
    """Find the sets of classes that contain the true one with probability `coverage`, from labelled
    samples.

    The samples must be like those to come, and must not be those of the calibrator's fit. This is
    only checked if you pass the calibrator; plain arrays do not say where they come from.

    Parameters
    ----------
    probs : array-like of shape (n_samples, n_classes)
        Calibrated or not; the guarantee holds for any. Better probabilities give smaller sets.
    y : array-like of shape (n_samples,)
        Integers are column indices; anything else needs `classes`.
    coverage, method, at_least_one : see `PredictionSets`
    penalty, free_ranks : float, int
        For raps; see `PredictionSets`. Without a penalty, a random fifth of the samples chooses
        both for the smallest sets, and the others give the limit, so that the coverage holds. With
        fewer than 250 samples, or fewer than ``5 / (1 - coverage)``, the penalty is 0.1.
    per_class : bool
        Guarantee the coverage for the samples of each true class, with a limit for each (Mondrian).
        A class with fewer than about ``1 / (1 - coverage)`` labelled samples is then always kept.
    calibrator : Calibrator, optional
        The fitted calibrator that gave `probs`, to check that these are not the samples of its fit.
    classes : sequence of length n_classes, optional
        The names of the columns, in order.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.decisions import prediction_sets
    >>> rng = np.random.default_rng(0)
    >>> probs = rng.dirichlet([0.3] * 4, size=4000)
    >>> y = (probs.cumsum(1) > rng.random((4000, 1))).argmax(1)
    >>> sets = prediction_sets(probs[:2000], y[:2000], coverage=0.9)
    >>> kept = sets.predict(probs[2000:])
    >>> round(kept[np.arange(2000), y[2000:]].mean(), 2), kept.sum(axis=1).mean() < 2
    (np.float64(0.9), np.True_)
    """
    array = check_probs(probs)
    labels = check_labels(y, len(array), array.shape[1], classes)
    rows_of_fit(calibrator, array, "the coverage does not hold", "Make the sets on other samples.")
    form = PredictionSets(
        method, coverage, (math.inf,), 0.1 if penalty is None else penalty, free_ranks, at_least_one
    )
    kept = np.arange(len(array))
    if method == "raps" and penalty is None:
        chosen, kept = parted(len(array), coverage)
        if len(chosen):
            scores = replace(form, method="aps").scores(array[chosen])
            ranks = np.argsort(np.argsort(-array[chosen], axis=1, kind="stable"), axis=1) + 1
            penalty, free_ranks = smallest(scores, ranks, labels[chosen], coverage)
            form = replace(form, penalty=penalty, free_ranks=free_ranks)
    array, labels = array[kept], labels[kept]
    scores = form.scores(array)
    own = scores[np.arange(len(array)), labels]
    groups = [own[labels == column] for column in range(array.shape[1])] if per_class else [own]
    limits = tuple(limit(scores, coverage) for scores in groups)
    _warn_of_whole_sets(limits, scores, coverage)
    return replace(form, limits=limits)


def parted(n_samples: int, coverage: float) -> tuple[Indices, Indices]:
    """Return random rows that choose the penalty, none if there are few rows, and those that give
    the limit.
    """
    order = np.random.default_rng(0).permutation(n_samples)
    size = min(int(0.2 * n_samples), 2000)
    if size < max(50, fewest_scores(coverage)):  # the choice would be random
        size = 0
    return np.sort(order[:size]), np.sort(order[size:])


def smallest(scores: Vector, ranks: Indices, labels: Indices, coverage: float) -> tuple[float, int]:
    """Return the penalty and the free ranks with the smallest sets on average; among ties, the
    mildest.
    """
    rows = np.arange(len(labels))
    sizes = []
    for penalty in (0.0, 0.001, 0.01, 0.03, 0.1, 0.3, 1.0):
        for free in (1, 2, 5) if penalty else (1,):  # without a penalty, raps is aps
            penalised = scores + penalty * np.maximum(ranks - free, 0)
            kept = penalised <= limit(penalised[rows, labels], coverage)
            sizes.append((float(kept.sum(axis=1).mean()), penalty, free))
    _, penalty, free = min(sizes, key=lambda one: one[0])
    return penalty, free


def fewest_scores(coverage: float) -> int:
    """Return the smallest number of scores with a finite limit."""
    return math.ceil(coverage / (1.0 - coverage) - 1e-9)


def limit(scores: Vector, coverage: float) -> float:
    """Return the k-th smallest score, k = ceil((n + 1) coverage).

    A new score is at most this with that probability. Many samples may have exactly this score, and
    float32 computes it a little larger: the limit leaves room for that.
    """
    rank = math.ceil((len(scores) + 1) * coverage - 1e-9)  # so that 10 x 0.9 gives 9
    if rank > len(scores):
        return math.inf
    return float(np.partition(scores, rank - 1)[rank - 1]) + 2.0**-21


def _warn_of_whole_sets(limits: tuple[float, ...], scores: Vector, coverage: float) -> None:
    """Warn if classes are in every set, or every set contains every class, and say what to do."""
    if math.inf in limits:
        per_class = len(limits) > 1
        few = (
            f"{limits.count(math.inf)} of {len(limits)} classes have" if per_class else "There are"
        )
        text = (
            f"{few} fewer than the {fewest_scores(coverage)} labelled samples that a coverage of "
            f"{coverage:g} needs, so {'they are' if per_class else 'every class is'} in every set. "
            "Add labelled samples, or lower the coverage."
        )
    elif scores.shape[1] > 1 and (scores <= np.asarray(limits)).all():
        text = (
            f"With a coverage of {coverage:g} every set holds every class: these probabilities "
            "cannot rule any out. Use a better model or calibration, or lower the coverage."
        )
    else:
        return
    warnings.warn(text, FewSamplesWarning, stacklevel=3)
