"""Centred isotonic regression: rising between its end levels where isotonic regression is flat."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.isotonic import IsotonicCalibration, lines
from recal.calibrators.machinery.monotone import fit_increasing
from recal.checks import Floats, Labels
from recal.maps.arrays import class_scores

Array = NDArray[np.float64]


class CentredIsotonic(IsotonicCalibration):
    """Isotonic regression whose flat stretches are drawn together to their centres, with lines between them.

    Each level of the isotonic curve is put at the mean score of its samples, and neighbours are joined by straight
    lines; beyond the first and the last level the curve is flat. Between them it orders samples that isotonic
    regression ties, and errs less where the truth rises steadily. Levels of 0 and 1 keep their inner ends, so that a
    score that was always right stays so. Reference: Oron and Flournoy, *Centered isotonic regression: point and
    interval estimation for dose-response studies* (Statistics in Biopharmaceutical Research 2017).

    Parameters
    ----------
    penalty : float
        How many samples, spread evenly over the classes, are added to the frequencies so that none is 0 or 1.
    answers : {"free", "kept"}
        "kept": where the likeliest class is not the model's own answer, a guard makes it so, at the least cost.

    Attributes
    ----------
    knots_, values_, offsets_ : ndarray
        The classes' curves, as in `IsotonicCalibration`.

    Examples
    --------
    >>> from recal.calibrators import CentredIsotonic
    >>> logits = [[3.0, 0.0], [2.0, 0.0], [1.0, 0.0], [0.0, 2.0]]
    >>> CentredIsotonic().fit(logits, [0, 1, 0, 1]).predict_proba([[2.5, 0.0], [1.5, 0.0]]).round(3)
    array([[0.767, 0.233],
           [0.5  , 0.5  ]])
    """

    short_name = "centred"

    def _fit_columns(self, logits: Floats, labels: Labels, beta: float) -> None:
        n_samples, n_classes = logits.shape
        columns = np.ascontiguousarray(class_scores(logits, beta).T)
        curves = [centred(columns[k], labels == k) for k in range(n_classes)]
        self.map_ = lines(curves, n_samples, n_classes, self.penalty, beta)


def centred(scores: Array, hits: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Return the knots of centred isotonic regression: one for each level, at the mean score of its samples."""
    knots, values = fit_increasing(scores, hits)
    levels, first = np.unique(values, return_index=True)
    ends = knots[np.append(first[1:], len(knots)) - 1]
    members = np.minimum(np.searchsorted(ends, scores, side="left"), len(levels) - 1)
    counts = np.bincount(members, minlength=len(levels))
    centres = np.bincount(members, weights=scores, minlength=len(levels)) / np.maximum(counts, 1)
    # What was never, or always, right stays so up to its inner end.
    if len(levels) > 1 and levels[0] == 0.0:
        centres[0] = ends[0]
    if len(levels) > 1 and levels[-1] == 1.0:
        centres[-1] = knots[first[-1]]
    return centres, levels
