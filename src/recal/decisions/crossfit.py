"""One labelled set for both: fit a calibrator and find its threshold on the same samples."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from recal.calibrators.base import Calibrator, as_views
from recal.calibrators.machinery.folds import stratified_folds
from recal.checks import Floats, Labels, check_labels
from recal.decisions.deciding import decide
from recal.decisions.decision import Decision
from recal.errors import FewSamplesWarning, InputError
from recal.metrics.rows import Classes
from recal.views import Views


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
