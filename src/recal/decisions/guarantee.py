"""How much can be automated: the threshold above which predictions can be accepted, with a
guarantee.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.calibrators.base import Calibrator
from recal.calibrators.samples import as_views
from recal.checks import Floats, Labels, check_labels, is_graded
from recal.clusters import check_clusters, check_names, cluster_folds, stratified_folds
from recal.copies import matters, near_duplicates, warn_of_fitted
from recal.decisions.certify import (
    Counts,
    Ranked,
    Vector,
    certified,
    further_answers,
    one_row_per_cluster,
    ranked,
    share_interval,
)
from recal.decisions.decision import Costs, Decision, Part
from recal.decisions.rule import DecisionRule, Reads, check_share
from recal.errors import DependentRowsWarning, FewSamplesWarning, InputError
from recal.metrics.bins import equal_width_edges, table_of
from recal.metrics.intervals import rate_interval
from recal.metrics.row_scores import Classes, score
from recal.schema import Number, check
from recal.views import Views

_OTHER_SAMPLES = (
    "Decide on other labelled samples. If there are none, recal.decisions.decide_crossfitted "
    "(recal decide --cross-fit) uses the same samples for both."
)


def decide(
    probs: ArrayLike,
    y: ArrayLike,
    risk: float = 0.01,
    confidence: float = 0.95,
    *,
    confidences: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    clusters: ArrayLike | None = None,
    calibrator: Any = None,
    cost_error: float | None = None,
    cost_review: float | None = None,
    per_class: bool = False,
    classes: Classes = None,
) -> Decision:
    """Find the confidence threshold above which at most a share `risk` of the predictions is wrong,
    with a guarantee.

    With probability at least `confidence` over the labelled samples, the true share of mistakes
    among accepted predictions is at most `risk`. The bound is exact (binomial), and the search over
    thresholds is accounted for: see `recal.decisions.certify`. The samples must be like those to
    come, and must not be those of the calibrator's fit. This is only checked if you pass the
    calibrator; plain arrays do not say where they come from.

    Parameters
    ----------
    probs : array-like of shape (n_samples, n_classes) or (n_samples,)
        Probabilities of all classes; or the confidence of each answer of any system, and `y` says
        which are right. The guarantee holds for any numbers. A better confidence accepts more.
    y : array-like of shape (n_samples,)
        Labels: integers are column indices, anything else needs `classes`. With 1-D confidences,
        whether each answer is right.
    risk : float
        The largest share of mistakes among accepted predictions. Costs replace it.
    confidence : float
        The probability that the guarantee holds.
    confidences : array-like of shape (n_samples,), optional
        Result of `predict_confidence`; by default the largest probability of each row. If a
        calibrator keeps predictions that it finds unlikely, they rank predictions better, and the
        rule then reads them, too. Because they are calibrated, they also decide where the search
        starts, which accepts more with few samples.
    groups : array-like of shape (n_samples,), optional
        One threshold and one guarantee for each group (subject, customer, camera), all of them at
        once. Groups without enough evidence accept nothing; `Decision.table` says how many labels
        they need.
    clusters : array-like of shape (n_samples,), optional
        Rows that belong together: frames of a video, samples of a patient. They are dependent, and
        the guarantee only holds if you pass the clusters. The evidence then comes from one random
        row per cluster.
    calibrator : Calibrator, optional
        The fitted calibrator that gave `probs`, to check that these are not the samples of its fit.
    cost_error, cost_review : float, optional
        The cost of an accepted mistake and of a review. The threshold is then the cheapest of those
        that are cheaper than reviewing everything, with the given confidence.
    per_class : bool
        One threshold and one guarantee for each predicted class: the predicted classes are the
        groups.
    classes : sequence of length n_classes, optional
        The names of the columns, in order.

    Examples
    --------
    >>> import numpy as np
    >>> from recal import decide
    >>> rng = np.random.default_rng(0)
    >>> right = rng.random(2000) < 0.97
    >>> decision = decide(np.where(right, 0.9, 0.6)[:, None] * [1, -1] + [0, 1], np.where(right, 0, 1), risk=0.02)
    >>> decision.threshold, decision.coverage > 0.9, decision.needed
    (0.75, True, 0)
    >>> decide(np.where(right, 0.9, 0.6), right, risk=0.02).threshold  # the confidence of each answer
    0.75
    >>> print(decide([[0.9, 0.1], [0.8, 0.2]], [0, 0]))  # doctest: +NORMALIZE_WHITESPACE
    No answer can be accepted: 2 labelled samples cannot show a risk below 1% at 95% confidence. You
    need at least about 300 more labelled samples.
    """
    check_share(risk, "risk")
    level = 1.0 - check_share(confidence, "confidence")
    costs = None if cost_error is cost_review is None else Costs(cost_error, cost_review)  # type: ignore[arg-type]
    bound = risk if costs is None else costs.risk
    answers = read_answers(
        probs, y, confidences, groups, clusters, per_class=per_class, classes=classes
    )
    n_fitted = _fitted_rows(calibrator, probs, len(answers))
    copies = 0
    if clusters is None and not is_graded(probs):
        copies = near_duplicates(
            np.log(np.maximum(np.asarray(probs, np.float64), 1e-12)), answers.wrong
        )
    if copies:
        warnings.warn(
            f"{copies:,} of {len(answers):,} rows are near-copies of another row, and rows must be independent for "
            "the guarantee to hold. Pass clusters= (recal: --cluster COLUMN), one name for all copies of an input.",
            DependentRowsWarning,
            stacklevel=2,
        )
    pieces = answers.parts()
    parts = tuple(
        decide_part(piece, bound, level / answers.n_groups, costs, answers.calibrated, name)
        for name, piece in zip(answers.names, pieces)
    )
    rule = DecisionRule(
        tuple(part.threshold for part in parts),
        risk=bound,
        confidence=confidence,
        reads=answers.reads,
        groups=() if groups is None else tuple(answers.names),
    )
    accepted = answers.confidence >= np.asarray(rule.thresholds)[answers.group]
    alone = answers.n_groups == 1 and not accepted.any()
    return Decision(
        n_samples=len(answers),
        n_accepted=int(accepted.sum()),
        n_errors=int((accepted & answers.wrong).sum()),
        interval=share_interval(accepted, answers.clusters, confidence),
        rule=rule,
        parts=parts,
        costs=costs,
        classes=None if classes is None else tuple(np.asarray(classes).tolist()),
        supported_risk=_supported(pieces[0].evidence, bound, level) if alone else None,
        n_fitted=n_fitted,
        lowest_cost=math.nan
        if costs is None
        else _lowest([piece.all_rows for piece in pieces], costs),
        n_clusters=None if answers.clusters is None else int(answers.clusters.max()) + 1,
        bins=table_of(answers.confidence, ~answers.wrong, equal_width_edges(15)),
    )


@dataclass(frozen=True)
class Evidence:
    """Predictions of one group, and those that the bound is computed from: all, or one row per
    cluster.
    """

    all_rows: Ranked
    evidence: Ranked


@dataclass(frozen=True)
class Answers:
    """Predictions with their confidence, whether they are wrong, and their group."""

    confidence: Vector
    wrong: NDArray[np.bool_]
    group: Counts  # the group of each row, 0..n_groups-1
    names: tuple[Any, ...]  # of the groups
    clusters: Counts | None
    reads: Reads
    calibrated: (
        bool  # whether confidences were given, so that they may choose where the search starts
    )

    def __len__(self) -> int:
        return len(self.confidence)

    @property
    def n_groups(self) -> int:
        return len(self.names)

    def take(self, rows: Counts, clusters: Counts | None = None) -> Answers:
        """Return some rows, with new cluster numbers."""
        confidence, wrong, group = self.confidence[rows], self.wrong[rows], self.group[rows]
        return replace(self, confidence=confidence, wrong=wrong, group=group, clusters=clusters)

    def parts(self) -> list[Evidence]:
        """Return the predictions of each group."""
        order, parts = np.argsort(self.group, kind="stable"), []
        for rows in np.split(
            order, np.searchsorted(self.group[order], np.arange(1, self.n_groups))
        ):
            confidence, wrong = self.confidence[rows], self.wrong[rows]
            evidence = everything = ranked(confidence, wrong)
            if self.clusters is not None and len(rows):
                _, clusters = np.unique(self.clusters[rows], return_inverse=True)
                drawn = one_row_per_cluster(confidence, wrong, clusters.astype(np.intp))
                evidence = ranked(confidence[drawn], wrong[drawn])
            parts.append(Evidence(everything, evidence))
        return parts


def read_answers(
    probs: ArrayLike,
    y: ArrayLike,
    confidences: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    clusters: ArrayLike | None = None,
    *,
    per_class: bool = False,
    classes: Classes = None,
) -> Answers:
    """Check the arguments of `decide` and convert them to one form."""
    rows, array = score(probs, y, classes, confidences), np.asarray(probs)
    if per_class and rows.graded:
        raise InputError(
            "A threshold per class needs the probabilities of all classes.", argument="per_class"
        )
    if groups is not None and per_class:
        raise InputError(
            "cannot be combined: leave one of them out", argument=("groups", "per_class")
        )
    n = len(rows)
    names: tuple[Any, ...] = (None,)
    group = np.zeros(n, np.intp)
    if groups is not None:
        names, group = check_names(groups, n, "groups")
    elif per_class:
        names = (
            tuple(range(rows.n_classes)) if classes is None else tuple(np.asarray(classes).tolist())
        )
        group = array.argmax(axis=1)
    units = None if clusters is None else check_clusters(clusters, n)
    # If confidences equal the largest probabilities, the rule does not need them as well.
    equal = not rows.graded and np.allclose(array.max(axis=1), rows.confidence, rtol=1e-6, atol=0.0)
    reads: Reads = "maximum" if equal else "confidence"
    return Answers(
        rows.confidence, ~rows.correct, group, names, units, reads, confidences is not None
    )


def decide_part(
    rows: Evidence,
    risk: float,
    level: float,
    costs: Costs | None,
    calibrated: bool,
    name: Any = None,
) -> Part:
    """Decide about one group: the largest certified set, or the cheapest one."""
    n, evidence = len(rows.all_rows), rows.evidence
    sizes = certified(evidence, risk, level, calibrated=calibrated) if n else np.empty(0, np.intp)
    threshold, labels, at_least = math.inf, None, True
    if len(sizes):
        errors = evidence.errors[sizes]
        best = (
            len(sizes) - 1
            if costs is None
            else int(np.argmin(costs.per_answer(errors, sizes, len(evidence))))
        )
        threshold, labels, at_least = evidence.threshold(int(sizes[best])), 0, False
    elif n:
        labels, at_least = further_answers(evidence, risk, level)
    share = len(evidence) / max(n, 1)  # with clusters, one row per cluster counts
    count = int((rows.all_rows.confidence >= threshold).sum())
    mistakes = int(rows.all_rows.errors[count])
    return Part(
        name=name,
        threshold=threshold,
        n_samples=n,
        n_accepted=count,
        n_errors=mistakes,
        needed=math.ceil(labels * n / len(evidence)) if labels else labels,
        needed_at_least=at_least,
        interval=rate_interval(share * mistakes, share * count),
    )


def _fitted_rows(calibrator: Any, probs: ArrayLike, n_samples: int) -> int:
    """Return how many samples the calibrator was fitted on, with a warning; 0 if no calibrator was
    given.
    """
    if calibrator is None:
        return 0
    if not hasattr(calibrator, "fitted_rows"):
        rule = f"must be a fitted calibrator of logits or views, got {type(calibrator).__name__}"
        raise InputError(
            rule, argument="calibrator", remedy="Others keep no record of their rows: leave it out"
        )
    count = int(calibrator.fitted_rows(probs))
    warn_of_fitted(count, n_samples, "the guarantee does not hold", _OTHER_SAMPLES, stacklevel=4)
    return count if matters(count, n_samples) else 0


def _lowest(groups: list[Ranked], costs: Costs) -> float:
    """Return the mean cost if each group had the threshold that is cheapest in these samples."""
    total = 0.0
    for one in filter(len, groups):
        sizes = np.r_[0, one.ends]
        total += float(np.min(costs.per_answer(one.errors[sizes], sizes, len(one)))) * len(one)
    return total / sum(map(len, groups))


def _supported(answers: Ranked, risk: float, level: float) -> float | None:
    """Return the lowest risk above `risk` at which anything can be accepted, to 1 % of itself."""
    low, high = risk, 0.5
    if risk >= high or not len(certified(answers, high, level)):
        return None
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if len(certified(answers, middle, level)) else (middle, high)
    return high


def decide_crossfitted(
    calibrator: Calibrator,
    X: Views | ArrayLike,
    y: ArrayLike | None = None,
    risk: float = 0.01,
    confidence: float = 0.95,
    *,
    folds: int = 10,
    clusters: ArrayLike | None = None,
    classes: Classes = None,
    random_state: int = 0,
    **options: Any,
) -> tuple[Calibrator, Decision]:
    """Fit a calibrator and decide on the same samples, if there are too few of them to split.

    The samples are divided into folds. The confidence of each sample comes from a calibrator that
    was fitted on the other folds, and the threshold is searched among these confidences. The
    calibrator that is returned is fitted on all samples and has the rule as its `decision_`.

    The guarantee is measured, not proven, because the final calibrator differs slightly from those
    of the folds. `docs/deciding.md` shows how often the true share of mistakes was above the risk.

    Parameters
    ----------
    calibrator : Calibrator
        Its method and options are used; it is not changed.
    X : Views, or logits of shape (n_samples, n_classes)
    y : labels of shape (n_samples,), optional if the views have labels
    risk, confidence, classes, **options : as in `decide`
    folds : int
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

    views = as_views(X, needs_views=calibrator.needs_views, method=type(calibrator).__name__)
    names = classes if classes is not None else views.classes
    if y is None and views.labels is None:
        raise InputError(
            "Labels are needed to decide: pass them as `y`, or use views that hold them."
        )
    labels = views.labels if y is None else check_labels(y, views.n_samples, views.n_classes, names)
    assert labels is not None
    clusters = views.clusters if clusters is None else clusters
    views = views if options.get("groups") is None else views.assign(groups=options["groups"])
    options["groups"] = views.groups
    probs, confidences = crossfitted_answers(
        calibrator,
        views,
        labels,
        folds=folds,
        clusters=clusters,
        classes=names,
        random_state=random_state,
    )
    truth = labels if names is None else np.asarray(names)[labels]
    columns = None if names is None else tuple(np.asarray(names).tolist())
    decision = decide(
        probs,
        truth,
        risk,
        confidence,
        confidences=confidences,
        clusters=clusters,
        classes=columns,
        **options,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DependentRowsWarning)  # `decide` has warned
        final: Calibrator = clone(calibrator).fit(views, truth, classes=names, clusters=clusters)
    final.decision_ = decision.rule
    return final, decision


def crossfitted_answers(
    calibrator: Calibrator,
    views: Views,
    labels: Labels,
    *,
    folds: int,
    classes: Classes,
    random_state: int,
    clusters: ArrayLike | None = None,
) -> tuple[Floats, Floats]:
    """Return each sample's probabilities and confidence from a fit on the other folds; `labels` are
    columns.
    """
    from sklearn.base import clone

    check(folds, Number(2, len(labels), whole=True), "folds")
    rng = np.random.default_rng(random_state)
    together = None if clusters is None else check_clusters(clusters, len(labels))
    fold = (
        stratified_folds(labels, folds, rng)
        if together is None
        else cluster_folds(together, labels, folds, rng)
    )
    truth = labels if classes is None else np.asarray(classes)[labels]
    probs, confidences = np.empty(views.logits.shape), np.empty(len(labels))
    for number in range(folds):
        rest, left = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FewSamplesWarning)
            warnings.simplefilter("ignore", DependentRowsWarning)
            some = None if together is None else together[rest]
            fitted = clone(calibrator).fit(views[rest], truth[rest], classes=classes, clusters=some)
        probs[left], confidences[left] = fitted.predict_both(views[left])
    return probs, confidences
