"""Fit and decide on the same samples: the confidence of each comes from a fit without it."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.calibrators.samples import as_views
from recal.calibrators.signal_table import SignalTable, columns_of, read_correct
from recal.calibrators.signals import copies_of_answers
from recal.checks import Floats, Indices, Labels, check_labels, need_labels
from recal.clusters import (
    check_clusters,
    cluster_folds,
    each_fold,
    row_names,
    some_rows,
    stratified_folds,
)
from recal.copies import copies_of
from recal.decisions.decision import Decision
from recal.decisions.guarantee import decide
from recal.errors import DependentRowsWarning, FewSamplesWarning, UnseenGroupsWarning
from recal.metrics.row_scores import Classes
from recal.schema import Number, check
from recal.views import Views


def decide_crossfitted(
    calibrator: Any,
    X: Any,
    y: ArrayLike | None = None,
    risk: float = 0.01,
    confidence: float = 0.95,
    *,
    folds: int = 10,
    groups: ArrayLike | None = None,
    one_rule: bool = False,
    clusters: ArrayLike | None = None,
    classes: Classes = None,
    random_state: int = 0,
    **options: Any,
) -> tuple[Any, Decision]:
    """Fit a calibrator and decide on the same samples, if there are too few of them to split.

    The samples are divided into folds. The confidence of each sample comes from a calibrator that
    was fitted on the other folds, and the threshold is searched among these confidences. The
    calibrator that is returned is fitted on all samples and has the rule as its `decision_`.

    The guarantee is measured, not proven, because the final calibrator differs slightly from those
    of the folds. `docs/deciding.md` shows how often the true share of mistakes was above the risk.

    Parameters
    ----------
    calibrator : Calibrator or SignalCalibration
        Its method and options are used; it is not changed.
    X : Views or logits of shape (n_samples, n_classes); signals for a SignalCalibration
    y : array-like of shape (n_samples,)
        Labels, optional if the views have labels; for signals, which answers are right.
    risk, confidence, classes, **options : as in `decide`
    folds : int
    groups : array-like of shape (n_samples,), optional
        As in `decide`; fits read them as well.
    one_rule : bool
        Whether all groups share one threshold; fits still read the groups.
    clusters : array-like of shape (n_samples,), optional
        As in `decide`; folds never divide a cluster. Clusters and groups are by default those of
        the views.
    random_state : int
        Seed of the folds.

    Returns
    -------
    The fitted calibrator, and the Decision.

    Examples
    --------
    >>> import numpy as np
    >>> from recal import TemperatureScaling
    >>> from recal.decisions import decide_crossfitted
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 3, 800)
    >>> logits = 5 * np.eye(3)[y] + rng.normal(0, 1.5, (800, 3))
    >>> calibrator, decision = decide_crossfitted(TemperatureScaling(), logits, y, risk=0.05)
    >>> decision.possible, calibrator.accept(logits).mean() > 0.9
    (True, np.True_)
    """
    from sklearn.base import clone

    if graded := not hasattr(calibrator, "predict_proba"):
        read = list(columns_of(X)[0].values())
        truth = read_correct([] if y is None else y, len(read[0]) if read else 0) > 0
        labels, classes = truth.astype(np.intp), None
    else:
        X = as_views(X, needs_views=calibrator.needs_views, method=type(calibrator).__name__)
        classes = X.classes if classes is None else tuple(np.asarray(classes).tolist())
        labels = X.labels if y is None else check_labels(y, X.n_samples, X.n_classes, classes)
        labels = need_labels(labels, "decide")
        truth = _by_name(labels, classes)
        groups = X.groups if groups is None else row_names(groups, X.n_samples, "groups")
        clusters = X.clusters if clusters is None else clusters
    named: dict[str, Any] = {} if classes is None else {"classes": classes}
    probs, sure = crossfitted(
        calibrator, X, labels, groups, clusters, folds=folds, random_state=random_state, **named
    )
    decision = decide(
        probs,
        truth,
        risk,
        confidence,
        confidences=None if graded else sure,
        groups=None if one_rule else groups,
        clusters=clusters,
        **named,
        **options,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DependentRowsWarning)  # `decide` has warned
        final = clone(calibrator).fit(X, truth, groups=groups, clusters=clusters, **named)
    final.decision_ = decision.rule
    return final, decision


def crossfitted(
    calibrator: Any,
    X: Any,
    labels: Labels,
    groups: ArrayLike | None = None,
    clusters: ArrayLike | None = None,
    *,
    classes: Classes = None,
    folds: int = 10,
    random_state: int = 0,
) -> tuple[Floats, Floats]:
    """Return each sample's probabilities and confidence from a fit on the other folds, which hold
    no copy of it.

    `labels` are columns of the probabilities; for signals, 1 for right answers, and both results
    are the confidence.
    """
    from sklearn.base import clone

    truth, names = _by_name(labels, classes), None if groups is None else np.asarray(groups)
    named: dict[str, Any] = {} if classes is None else {"classes": classes}
    check(folds, Number(2, len(labels), whole=True), "folds")
    rng = np.random.default_rng(random_state)
    together = None if clusters is None else check_clusters(clusters, len(labels))
    if together is None:
        fold = stratified_folds(labels, folds, rng, _copies(X, labels, groups))
    else:
        fold = cluster_folds(together, labels, folds, rng)
    inputs = X if isinstance(X, Views) else columns_of(X)[0]
    rows, found = [], []
    for rest, left in each_fold(fold):
        with warnings.catch_warnings():
            for category in (FewSamplesWarning, DependentRowsWarning, UnseenGroupsWarning):
                warnings.simplefilter("ignore", category)  # the fit on all samples repeats them
            fitted = clone(calibrator).fit(
                some_rows(inputs, rest),
                truth[rest],
                groups=some_rows(names, rest),
                clusters=some_rows(together, rest),
                **named,
            )
            new = some_rows(inputs, left), some_rows(names, left)
            if isinstance(X, Views):
                both = fitted.predict_both(*new)
            else:
                both = (fitted.predict_confidence(*new),) * 2
        rows.append(left)
        found.append(both)
    order = np.argsort(np.concatenate(rows))
    probs, sure = (np.concatenate(column)[order] for column in zip(*found))
    return probs, sure


def _copies(X: Any, labels: Labels, groups: ArrayLike | None) -> Indices | None:
    """Return a number for each row that its copies share; None if there are no copies."""
    if isinstance(X, Views):
        return copies_of(X.logits, labels)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DependentRowsWarning)  # the fit on all samples repeats it
        return copies_of_answers(SignalTable.of(X, groups).values(X, groups), labels)


def _by_name(labels: Labels, classes: Classes) -> NDArray[Any]:
    return labels if classes is None else np.asarray(classes)[labels]
