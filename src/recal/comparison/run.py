"""Fit every method on the same rows and test it on the same other rows, in one or more splits."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.calibrators import find_method, name_of
from recal.calibrators.base import Calibrator
from recal.calibrators.samples import check_copies
from recal.calibrators.temperature import TemperatureScaling
from recal.checks import Labels, check_graded, check_labels, is_graded, need_labels
from recal.clusters import check_clusters, split_by_cluster
from recal.comparison.results import UNCALIBRATED, Comparison, Setup
from recal.errors import DependentRowsWarning, InputError, RecalError, recorded_warnings
from recal.maps.arrays import softmax
from recal.metrics import Evaluation, evaluate
from recal.metrics.intervals import paired_draws
from recal.metrics.row_scores import Classes, score
from recal.progress import track
from recal.schema import Number, check
from recal.views import Views

Methods = Sequence[Calibrator | str] | Mapping[str, Calibrator | str]


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
        How many random halves of `fit` if there is no `test`: 10 by default.
    baseline : str
        The method to which differences are taken, by its name in the comparison.
    bootstrap : int
        Draws for the intervals of a single split. Several splits have a corrected t-interval
        instead, see `corrected_interval`.
    n_bins : int
    clusters : array-like, optional
        Names of rows that belong together, such as frames of one video: first those of `fit`, then
        those of `test`. Random splits never divide a cluster, and intervals resample whole
        clusters. By default those of the views.
    random_state : int
        Seeds the splits, the draws, and every method that draws at random.

    Examples
    --------
    >>> import numpy as np
    >>> from recal import Views, compare
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 3, 400)
    >>> views = Views(6 * (np.eye(3)[y] + rng.normal(0, 0.6, (400, 3))), labels=y)
    >>> result = compare(["ts", "vs"], views, splits=3)
    >>> result.methods
    ('uncalibrated', 'ts', 'vs')
    >>> result.row("nll", "uncalibrated").difference > 0
    True
    """
    found: list[str] = []
    with recorded_warnings(found):
        named = _named(methods, baseline)
        cuts = _cuts(fit, test, splits, random_state, clusters)
        cut = cuts[0]
        if cut.test.clusters is None:
            check_copies(fit.logits, _truth(fit))
        setup = Setup(
            n_fit=cut.fit.n_samples,
            n_test=cut.test.n_samples,
            n_classes=fit.n_classes,
            n_bins=n_bins,
            splits=len(cuts),
            draws=bootstrap if len(cuts) == 1 else 0,
            random_state=random_state,
        )
        runs, failures = _fit_all({UNCALIBRATED: None, **named}, cuts, setup)
    if baseline in failures:
        raise InputError(f"The baseline {baseline!r} cannot be fitted: {failures[baseline]}")
    return _gathered(
        runs,
        _truth(cut.test),
        setup,
        baseline,
        failures=failures,
        warnings=tuple(found),
        test_rows=cut.rows,
        ids=cut.test.known_ids,
        clusters=_clusters(cut.test),
        classes=fit.classes,
    )


@dataclass(frozen=True)
class _Run:
    """A method on the test rows of one split; `evaluation` is measured on them."""

    probs: NDArray[np.floating[Any]]
    confidences: ArrayLike | None
    evaluation: Evaluation
    calibrator: Calibrator | None = None
    seconds: float = 0.0
    passes: float = 1.0
    keeps_accuracy: bool = True


def _fit_all(
    named: Mapping[str, Calibrator | None], cuts: Sequence[_Cut], setup: Setup
) -> tuple[dict[str, list[_Run]], dict[str, str]]:
    """Return the runs of each method by split, and why others could not be fitted."""
    runs: dict[str, list[_Run]] = {name: [] for name in named}
    failures: dict[str, str] = {}
    for split, cut in enumerate(track(cuts, "split")):
        for name, calibrator in track(tuple(named.items()), "method"):
            if name in failures:
                continue
            try:
                runs[name].append(_run(calibrator, cut, setup, split))
            except RecalError as error:
                failures[name] = str(error)
    return {name: some for name, some in runs.items() if name not in failures}, failures


def _run(calibrator: Calibrator | None, cut: _Cut, setup: Setup, split: int) -> _Run:
    """Fit one method on one split and test it there; None is the model as it is."""
    from sklearn.base import clone

    fresh, seconds, passes, keeps = None, 0.0, 1.0, True
    if calibrator is None:
        probs: NDArray[np.floating[Any]] = softmax(cut.test.logits)
        confidences: NDArray[np.floating[Any]] = probs.max(axis=1)
    else:
        seed = setup.random_state + split
        began = time.process_time()
        fresh = clone(calibrator)
        if fresh.get_params().get("random_state", seed) is None:
            fresh.set_params(random_state=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DependentRowsWarning)  # `compare` warns once of all
            fresh.fit(cut.fit)
        seconds = time.process_time() - began
        passes = float(fresh.map_.passes(cut.test.logits).mean())
        probs, confidences = fresh.predict_both(cut.test)
        keeps = fresh.keeps_accuracy
    result = evaluate(
        probs,
        _truth(cut.test),
        setup.draws,
        confidences=confidences,
        n_bins=setup.n_bins,
        clusters=cut.test.clusters,
        random_state=setup.random_state,
    )
    return _Run(probs, confidences, result, fresh, seconds, passes, keeps)


def _gathered(
    runs: Mapping[str, Sequence[_Run]],
    truth: NDArray[Any],
    setup: Setup,
    baseline: str,
    *,
    clusters: NDArray[np.intp] | None,
    graded: bool = False,
    **more: Any,
) -> Comparison:
    """Return the comparison of the runs of each method by split; rows are those of the first."""
    first = {name: some[0] for name, some in runs.items()}
    samples = {
        name: score(one.probs, truth, confidences=one.confidences) for name, one in first.items()
    }
    evaluations = [one.evaluation for one in first.values()]
    columns = list(zip(*runs.values()))
    values, intervals, paired = {}, {}, {}
    for metric in evaluations[0]:
        values[metric] = np.array([[run.evaluation[metric] for run in row] for row in columns])
    for metric in evaluations[0].intervals:
        intervals[metric] = [one.intervals[metric] for one in evaluations]
    if setup.draws:
        rows, seed = list(samples.values()), setup.random_state
        paired = paired_draws(rows, setup.draws, setup.n_bins, seed, clusters)
    fitted = {name: one.calibrator for name, one in first.items()}
    return Comparison(
        methods=tuple(first),
        baseline=baseline,
        values=values,
        fit_seconds=np.array([[run.seconds for run in row] for row in columns]),
        passes=tuple(one.passes for one in first.values()),
        keeps_accuracy=tuple(one.keeps_accuracy for one in first.values()),
        setup=setup,
        # Every graded prediction is class 0, the label of a right answer.
        test_labels=(~truth).astype(np.intp) if graded else truth,
        samples=samples,
        probs={name: one.probs for name, one in first.items()},
        calibrators={name: one for name, one in fitted.items() if one is not None},
        intervals=intervals,
        paired=paired,
        clusters=clusters,
        graded=graded,
        **more,
    )


def compare_probs(
    probs: Mapping[str, ArrayLike],
    y: ArrayLike,
    *,
    confidences: Mapping[str, ArrayLike | None] | None = None,
    passes: Mapping[str, float] | None = None,
    baseline: str | None = None,
    bootstrap: int = 500,
    classes: Classes = None,
    clusters: ArrayLike | None = None,
    ids: ArrayLike | None = None,
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
    ids : array-like of shape (n_samples,), optional
        What traces each row to its input, such as a file name; shown in the report.

    Examples
    --------
    >>> from recal.comparison import compare_probs
    >>> before, after = [[0.9, 0.1], [0.9, 0.1]], [[0.6, 0.4], [0.6, 0.4]]
    >>> compare_probs({"before": before, "after": after}, [0, 1]).best("nll")
    'after'
    >>> graded = {"before": [0.9, 0.9], "after": [0.6, 0.6]}  # the confidence of each answer
    >>> compare_probs(graded, [True, False]).best("nll")
    'after'
    """
    if not probs:
        raise InputError("must hold at least one set of probabilities", argument="probs")
    names = tuple(probs)
    baseline = names[0] if baseline is None else baseline
    if baseline not in names:
        raise InputError(f"The baseline {baseline!r} is not among {', '.join(names)}.")
    arrays = {name: np.asarray(one) for name, one in probs.items()}
    if len({array.shape for array in arrays.values()}) > 1:
        shapes = ", ".join(str(array.shape) for array in arrays.values())
        raise InputError(f"All probabilities must have one shape, got {shapes}.")
    first = arrays[names[0]]
    graded = is_graded(first)
    truth: NDArray[Any]
    if graded:
        truth = check_graded(first, y, classes)[1]
    else:
        truth = check_labels(y, len(first), first.shape[1], classes)
    groups = None if clusters is None else check_clusters(clusters, len(truth))
    setup = Setup(
        n_test=len(truth),
        n_classes=2 if graded else first.shape[1],
        n_bins=15,
        draws=bootstrap,
        random_state=random_state,
    )
    how: dict[str, Any] = {"clusters": groups, "random_state": random_state}
    runs = {}
    for name, array in arrays.items():
        own = (confidences or {}).get(name)
        result = evaluate(array, truth, bootstrap, confidences=own, **how)
        keeps = graded or np.array_equal(array.argmax(axis=1), first.argmax(axis=1))
        needed = (passes or {}).get(name, 1.0)
        runs[name] = [_Run(array, own, result, passes=needed, keeps_accuracy=keeps)]
    return _gathered(
        runs,
        truth,
        setup,
        baseline,
        passes_known=passes is not None,
        graded=graded,
        clusters=groups,
        ids=None if ids is None else np.asarray(ids).astype(str),
        classes=None if classes is None else np.asarray(classes),
    )


@dataclass(frozen=True)
class _Cut:
    """Views to fit on and to test on; `rows` are the test rows in the file that was cut, None if
    the test set was given.
    """

    fit: Views
    test: Views
    rows: NDArray[np.intp] | None = None


def _named(methods: Methods, baseline: str) -> dict[str, Calibrator]:
    if isinstance(methods, str):
        raise InputError(f"must be several: a list such as [{methods!r}]", argument="methods")
    pairs = (
        methods.items() if isinstance(methods, Mapping) else [("", method) for method in methods]
    )
    named: dict[str, Calibrator] = {}
    for own_name, method in pairs:
        calibrator = method_by_name(method) if isinstance(method, str) else method
        if not isinstance(calibrator, Calibrator):
            rule = "must be calibrators, such as ReCal(), or their short names, such as 'recal'"
            raise InputError(f"{rule}, got {method!r}", argument="methods")
        name = own_name or name_of(calibrator)
        if name in named or name == UNCALIBRATED:
            raise InputError(
                f"The method {name!r} is given twice; give a mapping of your own names to methods."
            )
        named[name] = calibrator
    if baseline not in named and baseline != UNCALIBRATED:
        named = {baseline: method_by_name(baseline), **named}
    return named


def usual_methods(views: Views) -> list[str]:
    """Methods to compare by default: one of each useful kind, with those that use views if there
    are any.
    """
    usual = ["ts", "ets", "spline", "irm", "svs", "ensemble"]
    return [*usual, "recal", "stack"] if views.transforms else usual


def method_by_name(name: str) -> Calibrator:
    """Return a calibrator with its defaults, by its short name; `svs (kept)` is `svs` with its
    answers kept.
    """
    kind, options = find_method(name)
    return kind(**options)


def _cuts(
    fit: Views, test: Views | None, splits: int | None, seed: int, clusters: ArrayLike | None
) -> list[_Cut]:
    both = [fit] if test is None else [fit, test]
    for views in both:
        if not isinstance(views, Views):
            raise InputError(f"must be Views, got {type(views).__name__}", argument=("fit", "test"))
        _truth(views)
    if clusters is not None:
        index, count = check_clusters(clusters, sum(map(len, both))), len(fit)
        parts = (index[:count], index[count:])
        both = [views.assign(clusters=own) for views, own in zip(both, parts)]
    if test is not None:
        if splits is not None:
            raise InputError("cuts one set of views; leave out `test`", argument="splits")
        if fit.n_classes != test.n_classes:
            counts = f"{fit.n_classes} and {test.n_classes}"
            raise InputError(f"must have the same classes, got {counts}", argument=("fit", "test"))
        return [_Cut(both[0], both[1])]
    count = check(10 if splits is None else splits, Number(1, whole=True), "splits")
    whole, n = both[0], fit.n_samples
    rng = np.random.default_rng(seed)
    cuts = []
    for _ in range(count):
        if whole.clusters is None:
            first, second = map(np.sort, np.split(rng.permutation(n), [n // 2]))
        else:
            first, second = split_by_cluster(whole.clusters, (0.5, 0.5), rng)
        if not (len(first) and len(second)):
            raise InputError(
                "At least two samples or clusters are needed to fit on one and test on the "
                f"other, got {n} samples."
            )
        cuts.append(_Cut(whole[first], whole[second], second))
    return cuts


def _clusters(views: Views) -> NDArray[np.intp] | None:
    return None if views.clusters is None else check_clusters(views.clusters, len(views))


def _truth(views: Views) -> Labels:
    return need_labels(views.labels, "compare methods")
