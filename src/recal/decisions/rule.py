"""Which answers are accepted: the small value that a decision leaves behind and that every runtime applies."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import check_confidences, check_probs
from recal.errors import InputError

Reads = Literal["maximum", "confidence"]


@dataclass(frozen=True, slots=True)
class DecisionRule:
    """Accept an answer where the confidence in it reaches the threshold; leave the others to a person.

    The answer is the column of the largest probability, the first where several are equal.

    Parameters
    ----------
    thresholds : tuple of float
        One for all classes, or one for each class that can be answered; ``inf`` accepts none of them.
    risk : float
        The share of mistakes among accepted answers that was asked for, in (0, 1).
    confidence : float
        The probability that the bound holds, in (0, 1).
    reads : {"maximum", "confidence"}
        What is compared with the threshold: each row's largest probability, or the confidence in the answer, as
        `predict_confidence` gives it. The two differ where a calibrator keeps answers that it finds unlikely.

    Examples
    --------
    >>> from recal import DecisionRule
    >>> rule = DecisionRule((0.9,), risk=0.01, confidence=0.95)
    >>> rule.accept([[0.95, 0.05], [0.4, 0.6]])
    array([ True, False])
    """

    thresholds: tuple[float, ...]
    risk: float
    confidence: float
    reads: Reads = "maximum"

    def __post_init__(self) -> None:
        if not isinstance(self.thresholds, tuple) or not self.thresholds:
            raise InputError(
                "must be a tuple of one or more numbers", argument="thresholds", came=f"got {self.thresholds!r}"
            )
        for threshold in self.thresholds:
            # Not above 1 but for "none": a probability never gets there, and a typing error would go unseen.
            if not is_number(threshold) or not (0 <= threshold <= 1 or threshold == math.inf):
                raise InputError(f"A threshold lies in [0, 1], or is inf to accept nothing, got {threshold!r}.")
        check_share(self.risk, "risk")
        check_share(self.confidence, "confidence")
        if self.reads not in ("maximum", "confidence"):
            raise InputError("must be 'maximum' or 'confidence'", argument="reads", came=f"got {self.reads!r}")

    @property
    def per_class(self) -> bool:
        """Whether each class that can be answered has a threshold of its own."""
        return len(self.thresholds) > 1

    def accept(self, probs: ArrayLike, confidences: ArrayLike | None = None) -> NDArray[np.bool_]:
        """Say of each row of probabilities, (n_samples, n_classes), whether its answer is accepted.

        A rule that reads confidences needs them, (n_samples,); one that reads the largest probability ignores them.
        """
        array = check_probs(probs)
        self.check_classes(array.shape[1])
        answers = array.argmax(axis=1)
        if self.reads == "maximum":
            confidence = array[np.arange(len(array)), answers]
        elif confidences is None:
            raise InputError(
                "This rule was made for the confidences of predict_confidence, and only probabilities were given. Use "
                "accept(probs, calibrator.predict_confidence(X)), or calibrator.accept(X) with the rule in decision_."
            )
        else:
            confidence = check_confidences(confidences, len(array))
        thresholds = np.asarray(self.thresholds)
        return np.asarray(confidence >= (thresholds[answers] if self.per_class else thresholds[0]))

    def check_classes(self, n_classes: int) -> None:
        """Refuse probabilities of another number of classes than there are thresholds."""
        if self.per_class and len(self.thresholds) != n_classes:
            raise InputError(
                f"This rule has a threshold for each of {len(self.thresholds)} classes, got {n_classes} classes."
            )


def is_number(value: object) -> bool:
    """Whether a value is a real number rather than a truth value or text."""
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def check_share(value: float, name: str) -> float:
    """Return a share strictly between 0 and 1."""
    if not is_number(value) or not 0 < value < 1:
        share = float(value) if is_number(value) and 1 < value < 100 else 5.0
        raise InputError(
            f"must lie strictly between 0 and 1, as {share / 100:g} for {share:g} %",
            argument=name,
            came=f"got {value!r}",
        )
    return float(value)
