"""Problems with the samples of a fit, said in one warning or error before the fit starts."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.samples import Samples
from recal.checks import Floats, Labels
from recal.copies import near_duplicates
from recal.errors import DependentRowsWarning, DoubtfulLabelsWarning, FewSamplesWarning, InputError
from recal.maps.arrays import log_softmax

# Temperatures are learned from mistakes; with fewer, the result depends on individual samples.
FEWEST_MISTAKES = 10


def check_samples(samples: Samples, stacklevel: int = 3) -> None:
    """Refuse constant predictions, and warn of the most serious problem with these samples."""
    if len(samples) >= 20:
        refuse_constant(samples.logits)
    doubt = _doubtful_labels(samples) if len(samples) >= 20 else ""
    few = "" if doubt else _few_mistakes(samples)
    if doubt:
        warnings.warn(doubt, DoubtfulLabelsWarning, stacklevel=stacklevel)
    elif few:
        warnings.warn(few, FewSamplesWarning, stacklevel=stacklevel)
    if samples.clusters is None:
        warn_of_copies(samples.logits, samples.labels, stacklevel + 1)


def warn_of_copies(logits: Floats, labels: Labels, stacklevel: int = 3) -> None:
    """Warn if rows are near-copies of each other; with many rows, the first ones are compared."""
    first = slice(max(1000, 200_000 // logits.shape[1]))
    scores = log_softmax(np.asarray(logits[first]))
    count = near_duplicates(scores, scores.argmax(axis=1) != labels[first])
    if count:
        warnings.warn(
            f"{count:,} of {len(scores):,} rows are near-copies of another row, such as frames of "
            "one video. They count as one sample, not as several. Pass clusters=, one name for all "
            "rows that belong together (--cluster COLUMN).",
            DependentRowsWarning,
            stacklevel=stacklevel,
        )


def refuse_constant(logits: Floats) -> None:
    """Refuse logits that hardly depend on the input, as wrong preprocessing gives.

    No column then varies by more than a thousandth of its mean distance from the row's largest
    logit. The measure does not depend on the scale of the logits.
    """
    some = np.asarray(logits[:: max(1, len(logits) // 1000)], dtype=np.float64)
    drops = some.max(axis=1, keepdims=True) - some
    varies = drops.std(axis=0) > 1e-3 * drops.mean(axis=0)
    if varies.any():
        return
    same = "the same" if not drops.std(axis=0).any() else "nearly the same"
    raise InputError(
        f"The model gives {same} logits for all {len(logits):,} inputs, so there is nothing to "
        "calibrate. Check how inputs are prepared for the model: its range (0 to 1, not 0 to 255), "
        "normalisation, colour order and column order."
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


def _few_mistakes(samples: Samples) -> str:
    mistakes, count = samples.n_mistakes, len(samples)
    if mistakes >= FEWEST_MISTAKES:
        return ""
    own = " If the model was trained on these samples, use others." if count >= 100 else ""
    if mistakes == 0:
        return (
            f"All {count} predictions are right, so no finite temperature is best. The fit uses "
            f"the temperature that one more, wrong, sample would give.{own} Fit on more held-out "
            "samples."
        )
    return (
        f"{mistakes} of {count} predictions are wrong. With fewer than about 200 samples or 20 "
        f"mistakes, results depend on individual samples.{own} Fit on more held-out samples."
    )


def warn_if_few(method: object, samples: Samples, *, mistakes: bool = False) -> None:
    """Warn if a method with parameters per class has fewer than ten samples per class.

    With `mistakes`, the method also needs as many mistakes: it does harm to a nearly perfect model.
    """
    count, n_classes = len(samples), samples.n_classes
    few_mistakes = mistakes and samples.n_mistakes < 10 * n_classes
    if count >= 10 * n_classes and not few_mistakes:
        return
    have = f"{samples.n_mistakes} mistakes among {count}" if few_mistakes else f"{count}"
    warnings.warn(
        f"{type(method).__name__} learns from each class alone, and {have} samples of {n_classes} "
        "classes are fewer than 10 per class: expect worse probabilities than the model's own. "
        "Use a method that shares its parameters, such as TemperatureScaling or "
        "IsotonicMulticlass.",
        FewSamplesWarning,
        stacklevel=4,
    )
