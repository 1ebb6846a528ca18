"""How much can be automated: the threshold above which predictions can be accepted, with a
guarantee, and the share at each of several risks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import Vector, as_array
from recal.clusters import check_clusters, check_names, effective_count
from recal.copies import rows_of_fit, warn_of_copies
from recal.decisions.certify import Counts, Evidence, labels_needed
from recal.decisions.decision import Costs, Decision, Part
from recal.decisions.rule import DecisionRule, Guarantee, Reads, check_share
from recal.errors import InputError
from recal.metrics.calibration_error import equal_width_edges, table_of
from recal.metrics.intervals import Interval, rate_interval
from recal.metrics.row_scores import Classes, score
from recal.schema import check, kind_of

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
    guarantee: Guarantee = "confidence",
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
    thresholds is accounted for: see `recal.decisions.certify`. With ``guarantee="average"`` the
    promise is weaker and accepts far more with few labels: over labelled samples and new inputs,
    the expected share of mistakes is at most `risk`. A single rule then exceeds it in a third to
    half of the cases, by chance.

    The samples must be like those to come, and must not be those of the calibrator's fit. This is
    only checked if you pass the calibrator; plain arrays do not say where they come from.

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
    guarantee : {"confidence", "average"}
        Whether the risk holds with this confidence, or on average.
    confidences : array-like of shape (n_samples,), optional
        Result of `predict_confidence`; by default the largest probability of each row. If a
        calibrator keeps predictions that it finds unlikely, they rank predictions better, and the
        rule then reads them, too.
    groups : array-like of shape (n_samples,), optional
        One threshold and one guarantee for each group (subject, customer, camera), all of them at
        once. Groups without enough evidence accept nothing; `Decision.table` says how many labels
        they need.
    clusters : array-like of shape (n_samples,), optional
        Rows that belong together: frames of a video, samples of a patient. They are dependent, and
        the guarantee only holds if you pass the clusters. It is then about an average cluster, in
        which each cluster counts the same, whatever its size.
    calibrator : Calibrator or SignalCalibration, optional
        The fitted calibrator that gave `probs`, to check that these are not the samples of its fit.
    cost_error, cost_review : float, optional
        The cost of an accepted mistake and of a review. The threshold is then the cheapest of those
        that are cheaper than reviewing everything, with this guarantee.
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
    >>> confidence = 1 - 0.3 * rng.random(300)
    >>> right = rng.random(300) < confidence
    >>> strict = decide(confidence, right, risk=0.1)
    >>> average = decide(confidence, right, risk=0.1, guarantee="average")
    >>> strict.coverage < 0.5 < average.coverage
    True
    >>> print(str(decide([[0.9, 0.1], [0.8, 0.2]], [0, 0])).splitlines()[0])
    No answer can be accepted: 2 labelled samples cannot show a risk below 1% at 95% confidence.
    """
    check_share(risk, "risk")
    check_share(confidence, "confidence")
    check(guarantee, kind_of(Guarantee), "guarantee")
    probs = as_array(probs, "probs")
    costs = None if cost_error is cost_review is None else Costs(cost_error, cost_review)  # type: ignore[arg-type]
    bound = risk if costs is None else costs.risk
    answers = read_answers(
        probs, y, confidences, groups, clusters, per_class=per_class, classes=classes
    )
    n_fitted = rows_of_fit(calibrator, probs, "the guarantee does not hold", _OTHER_SAMPLES)
    if clusters is None:
        warn_of_copies(np.log(np.maximum(probs.astype(np.float64), 1e-12)), answers.wrong)
    pieces = answers.parts()
    terms = Terms(bound, confidence, guarantee, costs, len(pieces))
    parts = tuple(terms.part(piece, name) for name, piece in zip(answers.names, pieces))
    rule = DecisionRule(
        tuple(part.threshold for part in parts),
        risk=bound,
        confidence=confidence,
        reads=answers.reads,
        groups=() if groups is None else tuple(answers.names),
        guarantee=guarantee,
    )
    accepted = answers.confidence >= np.asarray(rule.thresholds)[answers.group]
    size = effective_count(accepted.astype(np.float64), answers.clusters)

    def share_of(kind: Guarantee, risk: float) -> float:
        """Return the share that another promise would accept."""
        return replace(terms, guarantee=kind, risk=risk).share(pieces)

    return Decision(
        n_samples=len(answers),
        n_accepted=int(accepted.sum()),
        n_errors=int((accepted & answers.wrong).sum()),
        interval=rate_interval(float(accepted.mean()) * size, size, confidence),
        rule=rule,
        parts=parts,
        costs=costs,
        classes=None if classes is None else tuple(np.asarray(classes).tolist()),
        n_fitted=n_fitted,
        n_clusters=None if answers.clusters is None else int(answers.clusters.max()) + 1,
        bins=table_of(answers.confidence, ~answers.wrong, equal_width_edges(15)),
        share_of=share_of,
    )


@dataclass(frozen=True)
class JudgedAnswers:
    """Predictions with their confidence, whether they are wrong, and their group."""

    confidence: Vector
    wrong: NDArray[np.bool_]
    group: Counts  # the group of each row, 0..n_groups-1
    names: tuple[Any, ...]  # of the groups
    clusters: Counts | None
    reads: Reads

    def __len__(self) -> int:
        return len(self.confidence)

    def parts(self) -> list[Evidence]:
        """Return the predictions of each group."""
        order = np.argsort(self.group, kind="stable")
        cuts = np.searchsorted(self.group[order], np.arange(1, len(self.names)))
        parts = []
        for rows in np.split(order, cuts):
            clusters = None if self.clusters is None else self.clusters[rows]
            parts.append(Evidence.of(self.confidence[rows], self.wrong[rows], clusters))
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
) -> JudgedAnswers:
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
    return JudgedAnswers(rows.confidence, ~rows.correct, group, names, units, reads)


@dataclass(frozen=True)
class Terms:
    """The promise that a threshold must keep, and the costs if the cheapest one is wanted.

    The promises of several groups hold at once: they share the error probability. Averages need
    not.
    """

    risk: float
    confidence: float
    guarantee: Guarantee = "confidence"
    costs: Costs | None = None
    n_groups: int = 1

    @property
    def level(self) -> float:
        return (1.0 - self.confidence) / self.n_groups

    def threshold(self, rows: Evidence) -> float:
        """Return the threshold of one group: the largest set that keeps the promise, or the
        cheapest.
        """
        answers, sizes = rows.sizes(self.risk, self.level, self.guarantee)
        if not len(sizes):
            return math.inf
        if self.costs is None:
            return answers.threshold(int(sizes[-1]))
        price = self.costs.per_answer(answers.errors[sizes], sizes, len(answers))
        return answers.threshold(int(sizes[int(np.argmin(price))]))

    def share(self, parts: list[Evidence]) -> float:
        """Return the share of all predictions that the thresholds of all groups accept."""
        counts = [(one.all_rows.confidence >= self.threshold(one)).sum() for one in parts]
        return float(sum(counts) / sum(len(one.all_rows) for one in parts))

    def part(self, rows: Evidence, name: Any = None) -> Part:
        """Decide about one group."""
        n, n_units = len(rows.all_rows), len(rows.evidence)
        threshold = self.threshold(rows)
        needed: list[int | None] = [0, 0]
        needed_share = 0.0
        if threshold == math.inf:
            # On average, half of the samples get a set that would be tested at a level of 1/2.
            level = 0.5 if self.guarantee == "average" else self.level
            *numbers, needed_share = labels_needed(rows.evidence, self.risk, level)
            needed = [
                None if units is None else math.ceil((units - n_units) * n / max(n_units, 1))
                for units in numbers
            ]
        count = int((rows.all_rows.confidence >= threshold).sum())
        mistakes = int(rows.all_rows.errors[count])
        share = n_units / max(n, 1)  # with clusters, one row per cluster counts
        return Part(
            name=name,
            threshold=threshold,
            n_samples=n,
            n_accepted=count,
            n_errors=mistakes,
            needed=needed[0],
            needed_most=needed[1],
            needed_share=needed_share,
            interval=rate_interval(share * mistakes, share * count),
        )


# From one mistake in a thousand to one in five.
RISKS = tuple(float(f"{risk:.3g}") for risk in np.geomspace(0.001, 0.2, 24))


@dataclass(frozen=True)
class RiskCurve:
    """The share of predictions that can be accepted at each risk, as found by `decide`.

    Every point has its own guarantee; there is none for the whole curve at once. `seen` is the
    share at which mistakes reach the risk in these samples, without a guarantee. More labels could
    close the distance between the two.
    """

    risks: tuple[float, ...]
    thresholds: tuple[float, ...]
    coverage: tuple[float, ...]
    intervals: tuple[Interval, ...]
    seen: tuple[float, ...]
    confidence: float


def risk_curve(
    probs: ArrayLike,
    y: ArrayLike,
    risks: Sequence[float] = RISKS,
    confidence: float = 0.95,
    *,
    guarantee: Guarantee = "confidence",
    confidences: ArrayLike | None = None,
    clusters: ArrayLike | None = None,
    classes: Classes = None,
) -> RiskCurve:
    """Return the share that can be accepted at each of several risks.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.decisions import risk_curve
    >>> confidence = np.linspace(1, 0.5, 1000)
    >>> wrong = np.arange(1000) % 50 == 49
    >>> curve = risk_curve(confidence, ~wrong, risks=(0.01, 0.05))
    >>> curve.coverage, curve.seen
    ((0.0, 1.0), (0.049, 1.0))
    """
    check_share(confidence, "confidence")
    part = read_answers(probs, y, confidences, clusters=clusters, classes=classes).parts()[0]
    rows = part.all_rows
    n = len(rows)
    rates = rows.errors[rows.ends] / rows.ends
    thresholds = [
        Terms(check_share(risk, "risks"), confidence, guarantee).threshold(part) for risk in risks
    ]
    counts = [int((rows.confidence >= threshold).sum()) for threshold in thresholds]
    within = [rows.ends[rates <= risk] for risk in risks]
    scale = len(part.evidence) / n
    return RiskCurve(
        risks=tuple(float(risk) for risk in risks),
        thresholds=tuple(thresholds),
        coverage=tuple(count / n for count in counts),
        intervals=tuple(rate_interval(scale * count, scale * n, confidence) for count in counts),
        seen=tuple(float(ends[-1] / n) if len(ends) else 0.0 for ends in within),
        confidence=confidence,
    )
