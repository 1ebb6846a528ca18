"""Fit every method on the same rows and test it on the same other rows, for one split or several."""

from __future__ import annotations

import hashlib
import inspect
import platform
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal import __version__
from recal.calibrators.base import Calibrator
from recal.calibrators.names import find_method as find_class
from recal.calibrators.names import name_of
from recal.calibrators.sample_checks import warn_of_copies
from recal.calibrators.temperature import TemperatureScaling
from recal.checks import check_graded, check_labels, is_graded
from recal.comparison.results import UNCALIBRATED, Comparison, Setup
from recal.engine.clusters import check_clusters, split_by_cluster
from recal.errors import DependentRowsWarning, InputError, RecalError, Remedy
from recal.maps.arrays import softmax
from recal.metrics import LABELS, evaluate
from recal.metrics.differences import paired_draws
from recal.metrics.rows import RowScores, score
from recal.progress import track
from recal.views import Views

Methods = Sequence[Calibrator | str] | Mapping[str, Calibrator | str]
# Number of random halves if no test set is given; a single split proves little.
_HALVES = 10


def compare(
    methods: Methods,
    fit: Views,
    test: Views | None = None,
    *,
    splits: int | None = None,
    baseline: str = TemperatureScaling.short_name,
    bootstrap: int = 500,
    n_bins: int = 15,
    clusters: ArrayLike | None = None,
    random_state: int = 0,
) -> Comparison:
    """Compare calibrators on the same data.

    Parameters
    ----------
    methods : sequence of calibrators or their short names, or a mapping of your names to them
        The uncalibrated model, and the baseline where it is missing, are added.
    fit, test : Views with labels
        Without `test`, `fit` is cut into random halves.
    splits : int, optional
        How many random splits. By default one, the given one, with `test`, and 10 halves without; with both, all
        rows are pooled and split anew into sets of the two sizes.
    baseline : str
        The method to which differences are taken, by its name in the comparison.
    bootstrap : int
        Draws for the intervals of a single split. Several splits have a corrected t-interval instead, see
        `corrected_interval`.
    n_bins : int
    clusters : array-like, optional
        Names of rows that belong together, such as frames of one video: first those of `fit`, then those of `test`.
        Random splits never divide a cluster, and intervals resample whole clusters. By default those of the views.
    random_state : int
        Seeds the splits, the draws, and every method that draws at random.

    Examples
    --------
    >>> import numpy as np
    >>> from recal import Views, compare
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 3, 400)
    >>> views = Views(6 * (np.eye(3)[y] + rng.normal(0, 0.6, (400, 3))), labels=y)
    >>> found = compare(["ts", "vs"], views, splits=3)
    >>> found.methods
    ('uncalibrated', 'ts', 'vs')
    >>> found.row("nll", "uncalibrated").difference > 0
    True
    """
    named = _named(methods, baseline)
    clusters = _clusters(fit, test) if clusters is None else clusters
    pooled, cuts, random_halves = _cuts(fit, test, splits, random_state, clusters)
    if clusters is None and pooled.clusters is None:
        warn_of_copies(pooled.logits, _labels(pooled))
    names = (UNCALIBRATED, *named)
    n_splits = len(cuts)
    values = {metric: np.full((n_splits, len(names)), np.nan) for metric in LABELS}
    seconds = np.zeros((n_splits, len(names)))
    first: dict[str, _Fitted] = {}
    failures: dict[str, str] = {}
    for split, cut in enumerate(track(cuts, "split")):
        for index, name in track(tuple(enumerate(names)), "method"):
            if name in failures:
                continue
            try:
                fitted = _run(named.get(name), cut, random_state + split)
            except RecalError as error:
                failures[name] = str(error)
                continue
            result = evaluate(fitted.probs, _labels(cut.test), confidences=fitted.confidences, n_bins=n_bins)
            for metric, value in result.items():
                values[metric][split, index] = value
            seconds[split, index] = fitted.seconds
            if split == 0:
                first[name] = fitted
    if baseline in failures:
        raise InputError(f"The baseline {baseline!r} cannot be fitted: {failures[baseline]}")
    kept = [index for index, name in enumerate(names) if name not in failures]
    names = tuple(names[index] for index in kept)
    labels = _labels(cuts[0].test)
    samples = {name: score(first[name].probs, labels, confidences=first[name].confidences) for name in names}
    draws = bootstrap if n_splits == 1 else 0
    intervals, paired = _resampled(names, first, samples, cuts[0], draws, n_bins, random_state)
    return Comparison(
        methods=names,
        baseline=baseline,
        values={metric: array[:, kept] for metric, array in values.items()},
        fit_seconds=seconds[:, kept],
        passes=tuple(first[name].passes for name in names),
        keeps_accuracy=tuple(first[name].keeps_accuracy for name in names),
        setup=Setup(
            n_fit=cuts[0].fit.n_samples,
            n_test=cuts[0].test.n_samples,
            n_classes=pooled.n_classes,
            n_bins=n_bins,
            splits=n_splits,
            random_halves=random_halves,
            draws=draws,
            random_state=random_state,
            fingerprints={"fit": fingerprint(fit), **({} if test is None else {"test": fingerprint(test)})},
            versions=_versions(),
        ),
        samples=samples,
        answers={name: first[name].probs.argmax(axis=1) for name in names},
        calibrators={name: fitted.calibrator for name, fitted in first.items() if fitted.calibrator is not None},
        intervals=intervals,
        paired=paired,
        failures=failures,
        fit_views=cuts[0].fit,
        test=cuts[0].test,
        test_rows=cuts[0].rows,
        clusters=cuts[0].test_clusters,
        classes=pooled.classes,
    )


def compare_probs(
    probs: Mapping[str, ArrayLike],
    y: ArrayLike,
    *,
    confidences: Mapping[str, ArrayLike | None] | None = None,
    passes: Mapping[str, float] | None = None,
    baseline: str | None = None,
    bootstrap: int = 500,
    n_bins: int = 15,
    classes: Sequence[Any] | NDArray[Any] | None = None,
    clusters: ArrayLike | None = None,
    random_state: int = 0,
) -> Comparison:
    """Compare probabilities from anywhere on the same rows, such as ``{"before": p, "after": q}``.

    Parameters
    ----------
    probs : mapping of name to an array of shape (n_samples, n_classes) or (n_samples,)
        Probabilities, or the confidence of each answer.
    y : array-like of shape (n_samples,)
        Labels; with confidences, which answers are right.
    confidences : mapping of name to what `predict_confidence` gave, optional
        By default each row's largest probability.
    passes : mapping of name to forward passes per answer, optional
        Names that are not in it take one.
    baseline : str, optional
        The name to which differences are taken; the first by default.
    clusters : array-like of shape (n_samples,), optional
        Names of rows that belong together; intervals resample whole clusters.

    Examples
    --------
    >>> from recal.comparison import compare_probs
    >>> found = compare_probs({"before": [[0.9, 0.1], [0.9, 0.1]], "after": [[0.6, 0.4], [0.6, 0.4]]}, [0, 1])
    >>> found.best("nll")
    'after'
    >>> compare_probs({"before": [0.9, 0.9], "after": [0.6, 0.6]}, [True, False]).best("nll")  # graded answers
    'after'
    """
    if not probs:
        raise InputError("must hold at least one set of probabilities", argument="probs")
    names = tuple(probs)
    baseline = names[0] if baseline is None else baseline
    if baseline not in names:
        raise InputError(f"The baseline {baseline!r} is not among {', '.join(names)}.")
    arrays = [np.asarray(probs[name]) for name in names]
    if len({array.shape for array in arrays}) > 1:
        raise InputError(f"All probabilities must have one shape, got {', '.join(str(a.shape) for a in arrays)}.")
    graded = is_graded(arrays[0])
    truth: NDArray[Any]
    if graded:
        truth = check_graded(arrays[0], y, classes)[1]
        labels = (~truth).astype(np.intp)  # every prediction is class 0, the label of a right answer
        predictions = [np.zeros(len(labels), np.intp) for _ in arrays]
    else:
        labels = truth = check_labels(y, len(arrays[0]), arrays[0].shape[1], classes)
        predictions = [array.argmax(axis=1) for array in arrays]
    own = [(confidences or {}).get(name) for name in names]
    groups = None if clusters is None else check_clusters(clusters, len(labels))
    options: dict[str, Any] = {
        "bootstrap": bootstrap, "n_bins": n_bins, "random_state": random_state, "clusters": groups
    }  # fmt: skip
    evaluations = [evaluate(array, truth, confidences=given, **options) for array, given in zip(arrays, own)]
    samples = {name: score(array, truth, confidences=given) for name, array, given in zip(names, arrays, own)}
    metrics = tuple(evaluations[0])
    return Comparison(
        methods=names,
        baseline=baseline,
        values={metric: np.array([[one[metric] for one in evaluations]]) for metric in metrics},
        fit_seconds=np.zeros((1, len(names))),
        passes=tuple((passes or {}).get(name, 1.0) for name in names),
        passes_known=passes is not None,
        keeps_accuracy=tuple(bool(np.array_equal(p, predictions[0])) for p in predictions),
        setup=Setup(
            n_fit=0,
            n_test=len(labels),
            n_classes=2 if graded else arrays[0].shape[1],
            n_bins=n_bins,
            splits=1,
            random_halves=False,
            draws=bootstrap,
            random_state=random_state,
            fingerprints={name: _digest(array, labels) for name, array in zip(names, arrays)},
            versions=_versions(),
        ),
        samples=samples,
        answers=dict(zip(names, predictions)),
        intervals={metric: [one.intervals[metric] for one in evaluations] for metric in metrics} if bootstrap else {},
        paired=paired_draws(list(samples.values()), bootstrap, n_bins, random_state, groups) if bootstrap else {},
        probs=dict(zip(names, arrays)),
        labels=labels,
        graded=graded,
        clusters=groups,
        classes=None if classes is None else np.asarray(classes),
    )


@dataclass(frozen=True)
class _Cut:
    """Views to fit on and to test on; `rows` are the test rows in the pooled views, None if the test set was given."""

    fit: Views
    test: Views
    rows: NDArray[np.intp] | None
    fit_clusters: NDArray[np.intp] | None = None
    test_clusters: NDArray[np.intp] | None = None


@dataclass(frozen=True)
class _Fitted:
    calibrator: Calibrator | None
    probs: NDArray[np.float64]
    confidences: NDArray[np.float64]
    seconds: float
    passes: float
    keeps_accuracy: bool


def _run(calibrator: Calibrator | None, cut: _Cut, seed: int) -> _Fitted:
    if calibrator is None:
        probs = softmax(cut.test.logits)
        return _Fitted(None, probs, probs.max(axis=1), 0.0, 1.0, True)
    began = time.process_time()
    fresh = refit(calibrator, cut.fit, seed, cut.fit_clusters)
    seconds = time.process_time() - began
    passes = passes_per_answer(fresh, cut.test)
    return _Fitted(fresh, *fresh.predict_both(cut.test), seconds, passes, fresh.keeps_accuracy)


def refit(calibrator: Calibrator, views: Views, seed: int, clusters: NDArray[np.intp] | None = None) -> Calibrator:
    """Return a new calibrator of the same kind and options, fitted on these views with this seed."""
    from sklearn.base import clone

    fresh: Calibrator = clone(calibrator)
    if "random_state" in inspect.signature(type(fresh)).parameters and fresh.get_params()["random_state"] is None:
        fresh.set_params(random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DependentRowsWarning)  # `compare` warns once, of all rows
        return fresh.fit(views, clusters=clusters)


def passes_per_answer(calibrator: Calibrator, views: Views) -> float:
    """How often the model runs for one input, on the mean over these: a gate spares the sure ones their views."""
    needed = len(calibrator.needed_transforms())
    return 1.0 + (needed * float(np.mean(calibrator.map_.needs_views(views.logits))) if needed else 0.0)


def _named(methods: Methods, baseline: str) -> dict[str, Calibrator]:
    if isinstance(methods, str):
        raise InputError(f"must be several: a list such as [{methods!r}]", argument="methods")
    pairs = methods.items() if isinstance(methods, Mapping) else [(_name(m), m) for m in methods]
    named: dict[str, Calibrator] = {}
    for name, method in pairs:
        if name in named or name == UNCALIBRATED:
            raise InputError(f"The method {name!r} is given twice; give a mapping of your own names to methods.")
        named[name] = find_method(method) if isinstance(method, str) else method
    if not all(isinstance(method, Calibrator) for method in named.values()):
        raise InputError("Methods must be calibrators, such as ReCal(), or their short names, such as 'recal'.")
    if baseline not in named and baseline != UNCALIBRATED:
        named = {baseline: find_method(baseline), **named}
    return named


def _name(method: Any) -> str:
    if isinstance(method, str):
        known, options = find_class(method)
        return name_of(known(**options))
    return name_of(method) if isinstance(method, Calibrator) else str(method)


def usual_methods(views: Views) -> list[str]:
    """Methods to compare by default: one of each useful kind, with those that use views if there are any."""
    return ["ts", "ets", "spline", "irm", "svs", "ensemble", *(["recal", "stack"] if views.transforms else [])]


def find_method(name: str) -> Calibrator:
    """A calibrator with its defaults, by its short name; `svs (kept)` is `svs` with its answers kept."""
    known, options = find_class(name)
    return known(**options)


def _cuts(
    fit: Views, test: Views | None, splits: int | None, seed: int, clusters: ArrayLike | None
) -> tuple[Views, list[_Cut], bool]:
    if splits is not None and (isinstance(splits, bool) or not isinstance(splits, int) or splits < 1):
        raise InputError("must be a whole number of at least 1", argument="splits", came=f"got {splits!r}")
    for views in (fit, test):
        if views is not None and not isinstance(views, Views):
            raise InputError("must be Views", argument=("fit", "test"), came=f"got {type(views).__name__}")
        if views is not None:
            _labels(views)
    if test is not None and fit.n_classes != test.n_classes:
        raise InputError(
            "must have the same classes", argument=("fit", "test"), came=f"got {fit.n_classes} and {test.n_classes}"
        )
    n = fit.n_samples + (0 if test is None else test.n_samples)
    groups = None if clusters is None else check_clusters(clusters, n)
    if test is not None and splits is None:
        if groups is None:
            return fit, [_Cut(fit, test, None)], False
        parts = groups[: fit.n_samples], _renumbered(groups[fit.n_samples :])
        return fit, [_Cut(fit, test, None, *parts)], False
    pooled = fit if test is None else pool_views(fit, test)
    size = pooled.n_samples // 2 if test is None else fit.n_samples
    if pooled.n_samples < 2:
        raise InputError("At least two samples are needed, to fit on one and test on the other.")
    rng = np.random.default_rng(seed)
    cuts = []
    for _ in range(splits or _HALVES):
        if groups is None:
            order = rng.permutation(n)
            first, second = np.sort(order[:size]), np.sort(order[size:])
            cuts.append(_Cut(pooled[first], pooled[second], second))
        else:
            first, second = split_by_cluster(groups, (size / n, 1 - size / n), rng)
            if not (len(first) and len(second)):
                raise InputError("There are too few clusters to fit on some and test on others.", argument="clusters")
            numbers = groups[first], _renumbered(groups[second])
            cuts.append(_Cut(pooled[first], pooled[second], second, *numbers))
    return pooled, cuts, True


def _clusters(fit: Views, test: Views | None) -> NDArray[Any] | None:
    """Return the clusters of the views, if all of them have some."""
    parts = [views.clusters for views in (fit, test) if isinstance(views, Views)]
    named = [clusters for clusters in parts if clusters is not None]
    return np.concatenate(named) if named and len(named) == len(parts) else None


def _renumbered(clusters: NDArray[np.intp]) -> NDArray[np.intp]:
    return np.unique(clusters, return_inverse=True)[1].astype(np.intp)


def pool_views(one: Views, other: Views) -> Views:
    """Join two sets of rows, with the transformations that both have."""
    shared = [transform for transform in one.transforms if transform in other.transforms]
    joined: dict[Any, NDArray[Any]] = {t: np.concatenate([one.transformed(t), other.transformed(t)]) for t in shared}
    labels = np.concatenate([_labels(one), _labels(other)])
    names = one.classes
    return Views(
        np.concatenate([one.logits, other.logits]), joined, labels if names is None else names[labels], classes=names
    )


def _labels(views: Views) -> NDArray[np.intp]:
    if views.labels is None:
        raise InputError(
            "Labels are needed to compare methods",
            remedy=Remedy(
                "use views that hold them",
                typed="Collect views with labels, or add them to the file as an array `labels`",
            ),
        )
    return views.labels


def _resampled(
    names: Sequence[str],
    first: Mapping[str, _Fitted],
    samples: Mapping[str, RowScores],
    cut: _Cut,
    draws: int,
    n_bins: int,
    seed: int,
) -> tuple[dict[str, list[tuple[float, float]]], dict[str, NDArray[np.float64]]]:
    if not draws:
        return {}, {}
    evaluations = [
        evaluate(
            first[name].probs,
            _labels(cut.test),
            bootstrap=draws,
            confidences=first[name].confidences,
            n_bins=n_bins,
            clusters=cut.test_clusters,
            random_state=seed,
        )
        for name in names
    ]
    intervals = {metric: [one.intervals[metric] for one in evaluations] for metric in LABELS}
    return intervals, paired_draws([samples[name] for name in names], draws, n_bins, seed, cut.test_clusters)


def fingerprint(views: Views) -> str:
    """A short hash of the data: equal for equal numbers."""
    return _digest(views.logits, views.labels, *sorted(map(str, views.transforms)))


def _digest(array: NDArray[Any], labels: NDArray[Any] | None, *words: str) -> str:
    digest = hashlib.sha256(repr((array.shape, words)).encode())
    digest.update(np.ascontiguousarray(array, dtype=np.float64).tobytes())
    if labels is not None:
        digest.update(np.ascontiguousarray(labels, dtype=np.int64).tobytes())
    return digest.hexdigest()[:16]


def _versions() -> dict[str, str]:
    return {"recal": __version__, "python": platform.python_version(), "numpy": np.__version__}
