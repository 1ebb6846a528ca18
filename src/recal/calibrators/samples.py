"""What a fit reads: labelled samples, with weights, clusters and groups if there are any."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import Floats, Indices, Labels, Vector, check_weights
from recal.clusters import check_clusters, cluster_sums, row_names, some_rows, stratified_folds
from recal.copies import copies_of, warn_of_copies
from recal.errors import DoubtfulLabelsWarning, FewSamplesWarning, InputError
from recal.maps.arrays import log_softmax
from recal.maps.base import Array, Map
from recal.maps.guard import keep_answers
from recal.solvers.temperature import fit_beta
from recal.views import Views


@dataclass(frozen=True)
class LossGain:
    """The decrease of the mean loss on samples left out, and its standard error."""

    mean: float
    error: float

    @staticmethod
    def between(
        before: Vector, after: Vector, weights: Vector | None, clusters: Indices | None
    ) -> LossGain:
        """Compare the losses of the same samples."""
        counts = np.ones(len(before)) if weights is None else weights
        mean = float(np.average(before - after, weights=counts))
        sums = cluster_sums(counts * (before - after - mean), clusters)
        if len(sums) < 2:
            return LossGain(mean, np.inf)
        weighted_rows = weights is not None and clusters is None
        small_sample = 1.0 if weighted_rows else len(sums) / (len(sums) - 1)
        return LossGain(mean, float(np.sqrt(small_sample * (sums @ sums)) / counts.sum()))

    @property
    def is_clear(self) -> bool:
        return self.mean > self.error

    def exceeds(self, errors: float, n_samples: int) -> bool:
        """Whether the gain exceeds this many standard errors, or more if few samples make them
        unreliable.
        """
        return self.mean > (errors + 5.0 / np.sqrt(n_samples)) * self.error

    @property
    def trust(self) -> float:
        """The share of the change to keep: 0 if the gain is within one standard error, otherwise
        3/4 or more.
        """
        return 1.0 - (0.5 * self.error / self.mean) ** 2 if self.is_clear else 0.0


@dataclass(frozen=True)
class Samples:
    """Labelled samples of a fit. `samples[rows]` selects rows of everything.

    Parameters
    ----------
    inputs : Views, a table of signals, or answers
        Anything that can be indexed by rows. The fits of logits read it as `views`.
    labels : array of shape (n_samples,)
        Column indices, or whether each answer is right.
    weights : array of shape (n_samples,), optional
        How often each sample counts.
    clusters : array of int, shape (n_samples,), optional
        The number of each sample's cluster: folds never divide clusters, and standard errors count
        them.
    groups : array of str, shape (n_samples,), optional
        The name of each sample's group.
    classes : array of shape (n_classes,), optional
        The names of the columns.
    near : Map, optional
        The map of a fit to nearly the same samples. The fit may start there and stop within 1e-5 of
        the lowest loss.
    known_beta : float, optional
        1/T of these samples, if it was fitted before.

    Examples
    --------
    >>> from recal import Views
    >>> from recal.calibrators.samples import Samples
    >>> samples = Samples(Views([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0]]), np.array([0, 1, 1]))
    >>> len(samples), samples[1:].labels.tolist(), round(samples.beta, 3)
    (3, [1, 1], 0.756)
    """

    inputs: Any
    labels: NDArray[Any]
    weights: NDArray[np.float64] | None = None
    clusters: NDArray[np.intp] | None = None
    groups: NDArray[np.str_] | None = None
    classes: NDArray[Any] | None = None
    near: Map | None = None
    known_beta: float | None = None

    @classmethod
    def checked(
        cls,
        inputs: Any,
        labels: NDArray[Any],
        sample_weight: ArrayLike | None = None,
        clusters: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        classes: NDArray[Any] | None = None,
    ) -> Self:
        """Return samples from what a user passed to `fit`, beside inputs and labels."""
        count = len(labels)
        weights = None if sample_weight is None else check_weights(sample_weight, count)
        together = None if clusters is None else check_clusters(clusters, count)
        return cls(inputs, labels, weights, together, row_names(groups, count, "groups"), classes)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows: Any) -> Self:
        columns = (self.inputs, self.labels, self.weights, self.clusters, self.groups)
        inputs, labels, weights, clusters, groups = (some_rows(one, rows) for one in columns)
        return type(self)(inputs, labels, weights, clusters, groups, self.classes)

    @property
    def views(self) -> Views:
        """The inputs of a fit of logits."""
        return cast(Views, self.inputs)

    @property
    def logits(self) -> Floats:
        return self.views.logits

    @property
    def n_classes(self) -> int:
        return self.views.n_classes

    @cached_property
    def answers(self) -> Labels:
        """The model's own predictions, as column indices."""
        return cast(Labels, np.asarray(self.logits).argmax(axis=1))

    @property
    def counts(self) -> Vector:
        """How often each sample counts, (n_samples,)."""
        return np.ones(len(self)) if self.weights is None else self.weights

    @property
    def n_mistakes(self) -> int:
        return int((self.answers != self.labels).sum())

    @cached_property
    def beta(self) -> float:
        """1/T of temperature scaling."""
        if self.known_beta is not None:
            return self.known_beta
        start = getattr(self.near, "beta", None)
        return fit_beta(self.logits, self.labels, self.weights, start)

    @property
    def n_units(self) -> int:
        """The number of clusters, or of samples without clusters."""
        return len(self) if self.clusters is None else len(np.unique(self.clusters))

    @cached_property
    def copies(self) -> Indices | None:
        """The number that copies of one sample share; None if there are no copies."""
        return copies_of(self.logits, self.labels)

    def folds(self, n_folds: int, rng: np.random.Generator) -> Indices:
        """Return the fold of each sample; neither clusters nor copies of a sample are divided."""
        return stratified_folds(self.labels, n_folds, rng, self.copies, self.clusters)

    def losses(self, probs: Array, *, kept: bool, rows: Any = slice(None)) -> Vector:
        """Return the NLL of some samples, after the guard if predictions are kept."""
        labels, probs = self.labels[rows], probs.astype(np.float64)
        if kept:
            probs = keep_answers(probs, self.answers[rows][:, None])
        likelihoods = probs[np.arange(len(labels)), labels]
        return -np.log(np.maximum(likelihoods, np.finfo(np.float64).tiny))

    def gain(self, before: Vector, after: Vector, rows: Any = slice(None)) -> LossGain:
        """Return the decrease of the mean loss over all samples, or over some."""
        weights, clusters = some_rows(self.weights, rows), some_rows(self.clusters, rows)
        return LossGain.between(before[rows], after[rows], weights, clusters)

    def mean(self, values: Vector) -> float:
        """Return the weighted mean."""
        return float(np.average(values, weights=self.weights))

    def drawn(self, most: int, rng: np.random.Generator) -> Self:
        """Return all samples, or a random subset of `most`."""
        most = max(1, most)
        return self if len(self) <= most else self[np.sort(rng.choice(len(self), most, False))]

    def without_zeros(self) -> Self:
        """Return the samples whose weight is not 0."""
        if self.weights is None or self.weights.all():
            return self
        return self[np.flatnonzero(self.weights)]

    def without_counts(self) -> Self:
        """Return the samples, repeated and without weights if the weights are counts.

        Large whole numbers, such as amounts of money, are treated as plain weights; repeated rows
        would fill the memory.
        """
        weights, most = self.weights, max(10 * len(self), 50_000)
        if weights is None or weights.sum() > most or (weights != np.rint(weights)).any():
            return self
        return self.repeated()

    def repeated(self) -> Self:
        """Return each sample as often as its weight says, without weights.

        Weights are rounded so that their running sums are kept.
        """
        if self.weights is None:
            return self
        whole = np.diff(np.floor(np.cumsum(self.weights) + 0.5).astype(np.intp), prepend=0)
        return replace(self, weights=None)[np.repeat(np.arange(len(self)), whole)]


def refuse_fractions(weights: Vector | None, method: str) -> None:
    """Refuse weights that do not say how often each sample counts."""
    odd = [] if weights is None else weights[weights != np.rint(weights)]
    if len(odd):
        raise InputError(
            f"{method} takes whole numbers as `sample_weight`, how often each sample counts; got "
            f"{odd[0]:.6g}. TemperatureScaling and VectorScaling take any number."
        )


def as_views(X: Views | ArrayLike, *, needs_views: bool, method: str) -> Views:
    """Return X as Views; plain logits become views without transformations."""
    views = X if isinstance(X, Views) else Views(X)
    if needs_views and not views.transforms:
        raise InputError(
            f"{method} needs Views with logits of transformed inputs; these hold none",
            remedy="Make them with collect(..., pool=...) (recal collect --pool)",
        )
    return views


def check_samples(samples: Samples, stacklevel: int = 3) -> None:
    """Refuse constant predictions, and warn of the most serious problem with these samples."""
    doubt = ""
    if len(samples) >= 20:
        refuse_constant(samples.logits)
        doubt = _doubtful_labels(samples)
    if doubt:
        warnings.warn(doubt, DoubtfulLabelsWarning, stacklevel=stacklevel)
    elif samples.n_mistakes < 10:
        count = len(samples)
        own = " If the model was trained on these samples, use others." if count >= 100 else ""
        warnings.warn(
            f"{samples.n_mistakes} of {count} predictions are wrong. With fewer than about 200 "
            f"samples or 20 mistakes, results depend on individual samples.{own} Fit on more "
            "held-out samples.",
            FewSamplesWarning,
            stacklevel=stacklevel,
        )
    if samples.clusters is None:
        check_copies(samples.logits, samples.labels, stacklevel + 1)


def check_copies(logits: Floats, labels: Labels, stacklevel: int = 3) -> None:
    """Warn if rows are near-copies of each other; with many rows, the first ones are compared."""
    first = slice(max(1000, 200_000 // logits.shape[1]))
    scores = log_softmax(np.asarray(logits[first]))
    warn_of_copies(scores, scores.argmax(axis=1) != labels[first], stacklevel)


def is_constant(logits: Floats) -> bool:
    """Whether logits hardly depend on the input.

    No column then varies by more than a thousandth of its mean distance from the row's largest
    logit. The measure does not depend on the scale of the logits.
    """
    some = np.asarray(logits[:: max(1, len(logits) // 1000)], dtype=np.float64)
    drops = some.max(axis=1, keepdims=True) - some
    return not (drops.std(axis=0) > 1e-3 * drops.mean(axis=0)).any()


def refuse_constant(logits: Floats) -> None:
    """Refuse constant logits, which wrong preprocessing gives."""
    if is_constant(logits):
        raise InputError(
            f"The model gives nearly the same logits for all {len(logits):,} inputs, so there is "
            "nothing to calibrate. Check how inputs are prepared for the model: its range (0 to 1, "
            "not 0 to 255), normalisation, colour order and column order."
        )


def _doubtful_labels(samples: Samples) -> str:
    """Say why labels and logits do not seem to belong together, if they do not."""
    labels, answers, count = samples.labels, samples.answers, len(samples)
    if labels.min() == labels.max():
        return (
            f"All {count} labels are of one class, column {labels[0]}: nothing can be learned "
            "about the others. Were the samples sorted by class before they were split?"
        )
    accuracy = float((answers == labels).mean())
    truth, predicted = (np.bincount(one, minlength=samples.n_classes) for one in (labels, answers))
    # The accuracy of the same labels in any other order, its deviation, and the best order.
    by_chance = float(truth @ predicted) / count**2
    deviation = np.sqrt(by_chance * (1.0 - by_chance) / count)
    best = float(np.minimum(truth, predicted).sum()) / count
    if best - by_chance < 6.0 * deviation or accuracy > by_chance + 2.0 * deviation:
        return ""  # too few different predictions to tell, or better than chance
    if samples.n_classes == 2 and accuracy < min(0.5, by_chance - 4.0 * deviation):
        names: NDArray[Any] = np.arange(2) if samples.classes is None else samples.classes
        first, second = names.tolist()
        return (
            f"Accuracy is {accuracy:.3g}, clearly below chance: the two columns look swapped. If "
            f"the first column is {second!r}, pass classes={[second, first]!r} "
            f"(--classes {second},{first})."
        )
    return (
        f"Accuracy is at chance: {accuracy:.3g}, where the same labels in any other order would "
        f"give {by_chance:.3g}. Are labels and rows in the same order?"
    )
