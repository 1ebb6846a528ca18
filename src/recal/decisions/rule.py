"""A decision rule: the small value that `decide` produces and that every runtime applies."""

from __future__ import annotations

import math
import warnings
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import check_confidences, check_probs, is_graded
from recal.clusters import check_names
from recal.errors import InputError, UnseenGroupsWarning
from recal.schema import Number, Record, Sizes, Texts, check

Reads = Literal["maximum", "confidence"]
Guarantee = Literal["confidence", "average"]
SHARE = Number(0.0, 1.0, ends="()")
SHARE.rule = "strictly between 0 and 1, as 0.05 for 5 %"


class OrInfinity(Number):
    """A number between two bounds, or infinity."""

    def __init__(self, low: float = -math.inf, high: float = math.inf, *, meaning: str) -> None:
        super().__init__(low, high)
        self.rule += f", or inf to {meaning}"

    def read(self, value: Any, sizes: Sizes) -> float:
        return math.inf if value == math.inf else float(super().read(value, sizes))


class DecisionRule(Record):
    """Accept a prediction if its confidence reaches the threshold; leave the others to a person.

    The prediction is the column of the largest probability; among ties, the first column.

    Parameters
    ----------
    thresholds : tuple of float
        One threshold for all, one per predicted class, or one per group; ``inf`` accepts nothing.
    risk : float
        The largest share of mistakes among accepted predictions, in (0, 1).
    confidence : float
        The probability that the bound holds, in (0, 1); without meaning if it holds on average.
    reads : {"maximum", "confidence"}
        What is compared with the threshold: the largest probability of a row, or its confidence as
        given by `predict_confidence`. The two differ if a calibrator keeps predictions that it
        finds unlikely.
    groups : tuple of str
        The name of the group of each threshold; empty if thresholds do not depend on groups.
    guarantee : {"confidence", "average"}
        Whether the risk holds with this confidence, or only on average over labelled samples and
        new inputs.

    Examples
    --------
    >>> from recal import DecisionRule
    >>> rule = DecisionRule((0.9,), risk=0.01, confidence=0.95)
    >>> rule.accept([[0.95, 0.05], [0.4, 0.6]])
    array([ True, False])
    >>> rule.accept([0.95, 0.6])  # the confidence of each answer
    array([ True, False])
    """

    # A finite threshold above 1 would accept nothing and is most likely a typing error.
    thresholds: tuple[Annotated[float, OrInfinity(0.0, 1.0, meaning="accept nothing")], ...]
    risk: Annotated[float, SHARE]
    confidence: Annotated[float, SHARE]
    reads: Reads = "maximum"
    groups: Texts = ()
    guarantee: Guarantee = "confidence"

    def check(self) -> None:
        if not self.thresholds:
            raise InputError("must hold one or more numbers, got ()", argument="thresholds")
        if self.groups and (
            len(self.groups) != len(self.thresholds) or len(set(self.groups)) < len(self.groups)
        ):
            raise InputError("must name each threshold once", argument="groups")

    @property
    def per_class(self) -> bool:
        """Whether each predicted class has its own threshold."""
        return len(self.thresholds) > 1 and not self.groups

    @property
    def promise(self) -> str:
        """The promise in words, without a full stop."""
        return promise_in_words(self.risk, self.confidence, self.guarantee)

    def __str__(self) -> str:
        shown = [
            "nothing yet" if value == math.inf else f"a confidence of at least {value:.6g}"
            for value in self.thresholds
        ]
        if self.groups:
            shown = [f"{name}: {one}" for name, one in zip(self.groups, shown)]
        elif self.per_class:
            shown = [f"class {number}: {one}" for number, one in enumerate(shown)]
        rest = f" and {len(shown) - 10:,} more" if len(shown) > 10 else ""
        return f"accepts {'; '.join(shown[:10])}{rest}. Promise: {self.promise}"

    @property
    def note_on_refuted(self) -> str:
        """A sentence that follows when errors exceed the risk; empty if a single rule must not."""
        if self.guarantee == "confidence":
            return ""
        return (
            "The rule was made with guarantee='average' (--guarantee average), which bounds the "
            "mean over many such rules: a single one may exceed the risk, as this one does."
        )

    def note_on(self, errors: int, accepted: int) -> str:
        """Return a sentence about a count of mistakes above the risk; empty if it is not above."""
        from recal.decisions.certify import chance_of_so_few

        if errors <= self.risk * accepted:
            return ""
        chance = 1.0 - float(chance_of_so_few(errors - 1, accepted, self.risk))
        often = f"in {percentage(chance, 2)}" if chance >= 0.001 else "in fewer than 0.1%"
        return (
            f"If exactly {percentage(self.risk)} of such answers were wrong, {errors:,} or more "
            f"mistakes among {accepted:,} would occur {often} of samples."
        )

    def accept(
        self,
        probs: ArrayLike,
        confidences: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> NDArray[np.bool_]:
        """Return whether each prediction is accepted, (n_samples,).

        Parameters
        ----------
        probs : array-like of shape (n_samples, n_classes) or (n_samples,)
            Probabilities of all classes, or the confidence of each answer.
        confidences : array-like of shape (n_samples,), optional
            Result of `predict_confidence`. Needed if the rule reads confidences, ignored otherwise.
        groups : array-like of shape (n_samples,), optional
            Needed if the rule has a threshold per group. Groups without a threshold accept nothing,
            with a warning.
        """
        confidence, predictions = self._read(probs, confidences)
        thresholds = np.asarray(self.thresholds)
        if self.groups:
            places = places_of_groups(self.groups, groups, len(confidence))
            return np.asarray(confidence >= np.append(thresholds, math.inf)[places])
        if not self.per_class:
            return np.asarray(confidence >= thresholds[0])
        if predictions is None:
            raise InputError(
                "This rule has a threshold per class: pass the probabilities of all classes."
            )
        return np.asarray(confidence >= thresholds[predictions])

    def _read(
        self, probs: ArrayLike, confidences: ArrayLike | None
    ) -> tuple[NDArray[np.float64], NDArray[np.intp] | None]:
        """Return the confidence of each row, and the predicted columns if there are any."""
        if is_graded(probs):
            return check_confidences(probs, len(np.asarray(probs))), None
        array = check_probs(probs)
        self.check_classes(array.shape[1])
        predictions = array.argmax(axis=1)
        if self.reads == "maximum":
            return array[np.arange(len(array)), predictions].astype(np.float64), predictions
        if confidences is None:
            raise InputError(
                "This rule was made for the confidences of predict_confidence, and only "
                "probabilities were given. Use accept(probs, calibrator.predict_confidence(X)), "
                "or calibrator.accept(X) with the rule in decision_."
            )
        return check_confidences(confidences, len(array)), predictions

    def check_classes(self, n_classes: int) -> None:
        """Refuse probabilities whose number of classes differs from the number of thresholds."""
        if self.per_class and len(self.thresholds) != n_classes:
            raise InputError(
                f"This rule has a threshold for each of {len(self.thresholds)} classes, got "
                f"{n_classes} classes."
            )


def places_of_groups(
    known: tuple[str, ...], groups: ArrayLike | None, n_samples: int
) -> NDArray[np.intp]:
    """Return the place of each row's group among those of a rule; -1, with a warning, if the rule
    does not know it.
    """
    if groups is None:
        raise InputError(
            f"This rule has a threshold for each of {len(known)} groups: pass groups=, one per "
            "sample."
        )
    names, index = check_names(groups, n_samples, "groups")
    place_of = {name: place for place, name in enumerate(known)}
    places = [place_of.get(name, -1) for name in names]
    if -1 in places:
        unseen = names[places.index(-1)]
        warnings.warn(
            f"{places.count(-1)} groups are not in the decision rule, such as {unseen!r}. "
            "Nothing in them is accepted. Label samples of these groups and decide again.",
            UnseenGroupsWarning,
            stacklevel=4,
        )
    return np.array(places, dtype=np.intp)[index]


def promise_in_words(risk: float, confidence: float, guarantee: Guarantee) -> str:
    """Return what is promised about the accepted answers, without a full stop."""
    most = f"at most {percentage(risk)} of the accepted answers are wrong"
    if guarantee == "average":
        return f"on average, {most}"
    return f"with {percentage(confidence)} confidence, {most}"


def percentage(share: float, digits: int = 3) -> str:
    """Return a share as a percentage with so many digits."""
    return f"{float(f'{100 * share:.{digits}g}'):g}%"  # 100%, not 1e+02%


def check_share(value: float, name: str) -> float:
    """Return a share strictly between 0 and 1."""
    return float(check(value, SHARE, name))
