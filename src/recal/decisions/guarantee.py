"""How much can be automated: the threshold above which answers may be accepted, with a guarantee."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.calibrators.base import Calibrator, as_views
from recal.calibrators.machinery.folds import stratified_folds
from recal.checks import Floats, Labels, check_confidences, check_labels, check_probs
from recal.decisions.certify import Ranked, Vector, certified, further_answers, ranked, share_interval
from recal.decisions.decision import Costs, Decision, Part
from recal.decisions.rule import DecisionRule, Reads, check_share, is_number
from recal.engine.same_rows import fitted_rows, warn_of_fitted
from recal.errors import FewSamplesWarning, InputError
from recal.metrics.rows import Classes
from recal.views import Views

REMEDY = (
    "Decide on other labelled samples. Where there are none, recal.decisions.decide_crossfitted "
    "(recal decide --cross-fit) uses the same samples for both."
)
# Of each sample: its answer, the confidence in it, whether it is wrong.
Read = tuple[Labels, Vector, NDArray[np.bool_]]


def decide(
    probs: ArrayLike,
    y: ArrayLike,
    risk: float = 0.01,
    confidence: float = 0.95,
    *,
    confidences: ArrayLike | None = None,
    cost_error: float | None = None,
    cost_review: float | None = None,
    per_class: bool = False,
    classes: Classes = None,
) -> Decision:
    """Find the confidence threshold above which at most a share `risk` of the answers is wrong, with a guarantee.

    With probability at least `confidence` over the labelled samples, the true share of mistakes among accepted answers
    is at most `risk`. The bound is exact (binomial) and holds for the search over thresholds, too: see
    `recal.decisions.search`. The samples must be like those to come, and not those that the calibrator was fitted on.

    Parameters
    ----------
    probs : array-like of shape (n_samples, n_classes)
        Calibrated or not; the guarantee holds for any. Better confidence accepts more.
    y : array-like of shape (n_samples,)
        Integers are column indices; anything else needs `classes`.
    risk : float
        The largest share of mistakes among accepted answers. Given costs replace it.
    confidence : float
        The probability that the guarantee holds.
    confidences : array-like of shape (n_samples,), optional
        What `predict_confidence` gave; by default each row's largest probability. They rank answers better where a
        calibrator keeps answers that it finds unlikely, and the rule then reads them, too. Being calibrated, they also
        say where the search had best begin, which accepts more where samples are few. The guarantee holds for any.
    cost_error, cost_review : float, optional
        The cost of an accepted error and of a review. The threshold is then the one with the lowest cost among those
        that are, with the given confidence, cheaper than reviewing every answer.
    per_class : bool
        One threshold for each class that can be answered, and the guarantee for each of them, all at once.
    classes : sequence of length n_classes, optional
        The columns' names, in the columns' order.

    Examples
    --------
    >>> import numpy as np
    >>> from recal import decide
    >>> rng = np.random.default_rng(0)
    >>> right = rng.random(2000) < 0.97
    >>> found = decide(np.where(right, 0.9, 0.6)[:, None] * [1, -1] + [0, 1], np.where(right, 0, 1), risk=0.02)
    >>> found.threshold, found.coverage > 0.9, found.needed
    (0.75, True, 0)
    >>> print(decide([[0.9, 0.1], [0.8, 0.2]], [0, 0]))  # doctest: +NORMALIZE_WHITESPACE
    No answer can be accepted: 2 labelled samples cannot show a risk below 1% at 95% confidence. You need at least
    about 300 more labelled samples.
    """
    check_share(risk, "risk")
    level = 1.0 - check_share(confidence, "confidence")
    costs = _check_costs(cost_error, cost_review)
    array = check_probs(probs)
    labels = check_labels(y, len(array), array.shape[1], classes)
    bound = risk if costs is None else costs.risk
    read = answers_of(array, labels, confidences)
    groups = by_answer(read, array.shape[1]) if per_class else [ranked(*read[1:])]
    calibrated = confidences is not None
    parts = tuple(_part(group, bound, level / len(groups), costs, calibrated) for group in groups)
    rule = DecisionRule(
        tuple(part.threshold for part in parts), risk=bound, confidence=confidence, reads=_reads(array, read)
    )
    accepted = sum(part.n_accepted for part in parts)
    names = None if classes is None else tuple(np.asarray(classes).tolist())
    supported = None if accepted or per_class else _supported(groups[0], bound, level)
    fitted = fitted_rows(array)
    warn_of_fitted(fitted, len(array), "the guarantee does not hold", REMEDY)
    return Decision(
        rule,
        parts,
        share_interval(accepted, len(array), confidence),
        costs,
        names,
        supported,
        fitted,
        _lowest(groups, costs),
    )


def answers_of(probs: Floats, labels: Labels, confidences: ArrayLike | None = None) -> Read:
    """Each sample's answer, the confidence in it, and whether it is wrong."""
    answers = probs.argmax(axis=1)
    if confidences is None:
        sure = probs[np.arange(len(probs)), answers].astype(np.float64)
    else:
        sure = check_confidences(confidences, len(probs))
    return answers, sure, answers != labels


def _reads(probs: Floats, read: Read) -> Reads:
    """Confidences that are the largest probabilities in every row need not be given to the rule again."""
    answers, sure, _ = read
    same = np.allclose(probs[np.arange(len(probs)), answers], sure, rtol=1e-6, atol=0.0)
    return "maximum" if same else "confidence"


def by_answer(read: Read, n_classes: int) -> list[Ranked]:
    """The answers of each class, ranked."""
    answers, sure, wrong = read
    order = np.argsort(answers, kind="stable")
    cuts = np.searchsorted(answers[order], np.arange(1, n_classes))
    return [ranked(sure[rows], wrong[rows]) for rows in np.split(order, cuts)]


def _lowest(groups: list[Ranked], costs: Costs | None) -> float:
    """The mean cost of an answer if each group had the threshold that is cheapest in these samples."""
    if costs is None:
        return math.nan
    total, n_samples = 0.0, sum(map(len, groups))
    for one in groups:
        sizes = np.r_[0, one.ends]
        total += float(np.min(costs.per_answer(one.errors[sizes], sizes, len(one)))) * len(one) if len(one) else 0.0
    return total / n_samples


def _supported(answers: Ranked, risk: float, level: float) -> float | None:
    """The lowest risk above `risk` at which these answers allow anything to be accepted, to 1 % of itself."""
    low, high = risk, 0.5
    if risk >= high or not len(certified(answers, high, level)):
        return None
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if len(certified(answers, middle, level)) else (middle, high)
    return high


def _part(answers: Ranked, risk: float, level: float, costs: Costs | None, calibrated: bool) -> Part:
    """Decide about some answers: the largest certified set, or the one that costs least."""
    n = len(answers)
    sizes = certified(answers, risk, level, calibrated=calibrated) if n else np.empty(0, np.intp)
    if not len(sizes):
        needed, at_least = further_answers(answers, risk, level) if n else (None, True)
        return Part(math.inf, n, 0, 0, needed, at_least)
    errors = answers.errors[sizes]
    best = len(sizes) - 1 if costs is None else int(np.argmin(costs.per_answer(errors, sizes, n)))
    count = int(sizes[best])
    return Part(answers.threshold(count), n, count, int(errors[best]), 0, False)


def _check_costs(error: float | None, review: float | None) -> Costs | None:
    if error is None and review is None:
        return None
    for name, value in (("cost_error", error), ("cost_review", review)):
        if value is None or not is_number(value) or not 0 < value < math.inf:
            raise InputError(
                "must both be positive numbers", argument=("cost_error", "cost_review"), came=f"got {name}={value!r}"
            )
    assert error is not None
    assert review is not None
    if review >= error:
        raise InputError(
            f"A review ({review:g}) costs as much as a mistake ({error:g}) or more: accepting every answer is "
            "cheapest, and there is nothing to decide."
        )
    return Costs(float(error), float(review))


def decide_crossfitted(
    calibrator: Calibrator,
    X: Views | ArrayLike,
    y: ArrayLike | None = None,
    risk: float = 0.01,
    confidence: float = 0.95,
    *,
    folds: int = 10,
    classes: Classes = None,
    random_state: int = 0,
    **options: Any,
) -> tuple[Calibrator, Decision]:
    """Fit a calibrator and decide, where the labelled samples are too few to be parted in two.

    The samples are parted into folds. Each sample's confidence comes from a calibrator that was fitted on the other
    folds, and the threshold is searched among these confidences. The calibrator that is returned is fitted on all
    samples and holds the rule as its `decision_`.

    The guarantee is measured, not proved: the calibrator that is used is not quite any of those that gave the
    confidences. `docs/deciding.md` shows how often the true share of mistakes was above the risk.

    Parameters
    ----------
    calibrator : Calibrator
        Its method and options are taken; it is not changed.
    X : Views, or logits of shape (n_samples, n_classes)
    y : labels of shape (n_samples,), optional where the views hold them
    risk, confidence, classes, **options : as in `decide`
    folds : int
    random_state : int
        Draws the folds.

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
    >>> calibrator, found = decide_crossfitted(TemperatureScaling(), logits, y, risk=0.05)
    >>> found.possible, calibrator.accept(logits).mean() > 0.9
    (True, np.True_)
    """
    from sklearn.base import clone

    views = as_views(X, needs_views=calibrator.needs_views, method=type(calibrator).__name__)
    names = classes if classes is not None else views.classes
    if y is None and views.labels is None:
        raise InputError("Labels are needed to decide: pass them as `y`, or use views that hold them.")
    labels = views.labels if y is None else check_labels(y, views.n_samples, views.n_classes, names)
    assert labels is not None
    probs, sure = crossfitted_answers(calibrator, views, labels, folds=folds, classes=names, random_state=random_state)
    truth = labels if names is None else np.asarray(names)[labels]
    given = None if names is None else tuple(np.asarray(names).tolist())
    decision = decide(probs, truth, risk, confidence, confidences=sure, classes=given, **options)
    whole: Calibrator = clone(calibrator).fit(views, truth, classes=names)
    whole.decision_ = decision.rule
    return whole, decision


def crossfitted_answers(
    calibrator: Calibrator, views: Views, labels: Labels, *, folds: int, classes: Classes, random_state: int
) -> tuple[Floats, Floats]:
    """Return each sample's probabilities and confidence from a fit on the other folds; `labels` are columns."""
    from sklearn.base import clone

    if isinstance(folds, bool) or not isinstance(folds, int) or not 2 <= folds <= len(labels):
        raise InputError(
            "must be a whole number from 2 to that of the samples", argument="folds", came=f"got {folds!r}"
        )
    fold = stratified_folds(labels, folds, np.random.default_rng(random_state))
    truth = labels if classes is None else np.asarray(classes)[labels]
    probs, sure = np.empty(views.logits.shape), np.empty(len(labels))
    for number in range(folds):
        rest, left = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FewSamplesWarning)
            fitted = clone(calibrator).fit(views[rest], truth[rest], classes=classes)
        probs[left], sure[left] = fitted._answer(views[left])
    return probs, sure
