"""A smooth curve through the cumulative hits of the predicted class; its slope is the calibrated
confidence.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import scipy
from numpy.typing import NDArray

from recal.calibrators.base import Calibrator, from_fit, from_map
from recal.calibrators.samples import Samples
from recal.maps.arrays import softmax
from recal.maps.curves import TopLine
from recal.schema import NotNegative, Number
from recal.solvers.isotonic import merge_ties, smooth


class SplineCalibration(Calibrator):
    """Calibrate the confidence by the slope of a spline through the cumulative hits, without any
    bins.

    Sort the samples by confidence and add up hits minus confidence, starting from the lowest. For a
    calibrated model the sum stays near zero. A natural cubic spline with few knots is fitted to it
    by least squares. The calibrated confidence of a sample is its confidence plus the spline's
    slope at its rank; between samples it is interpolated.

    Only the probability of the predicted class is calibrated. The other classes share the rest in
    proportion to their probabilities after temperature scaling. If the second class would then
    overtake the predicted one, a temperature for this row shrinks the differences between the
    others just enough. Predictions therefore never change, and the confidence equals the curve;
    only a confidence below 1 / n_classes is raised to it. Reference: Gupta et al.,
    *Calibration of neural networks using splines* (ICLR 2021).

    Parameters
    ----------
    n_knots : int
        Knots of the spline, spread evenly over the ranks.
    penalty : float
        The number of samples, right only by chance, that are added so that no confidence is 0 or 1.

    Attributes
    ----------
    knots_, coefficients_ : ndarray of shape (n_knots,)
        The spline of the cumulative hits minus confidence: its knots in [0, 1] and its values at
        the knots.
    scores_, values_ : ndarray
        The confidences of the fit, in rising order, and their calibrated values.
    beta_ : float
        The scale 1/T of the temperature scaling that divides the rest among the other classes.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.calibrators import SplineCalibration
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(1000, 3))
    >>> labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    >>> model = SplineCalibration().fit(3 * logits, labels)  # overconfident: three times too large
    >>> bool(model.predict_proba(3 * logits).max(axis=1).mean() < 0.65)
    True
    """

    short_name = "spline"
    keeps_accuracy = True

    n_knots: Annotated[int, Number(2, whole=True)] = 6
    penalty: NotNegative = 1.0

    map_: TopLine = from_fit()
    knots_: NDArray[np.float64] = from_fit()
    coefficients_: NDArray[np.float64] = from_fit()
    scores_ = from_map("scores")
    values_ = from_map("values")
    beta_ = from_map("beta")

    def _fit(self, samples: Samples) -> dict[str, Any]:
        n_samples, logits = len(samples), samples.logits
        # Fewer samples than knots would leave the spline undetermined; two knots make a straight
        # line.
        n_knots = min(self.n_knots, max(2, n_samples // 2))
        confidence = softmax(logits)[np.arange(n_samples), samples.answers]
        order = np.argsort(confidence, kind="stable")
        confidence, hits = confidence[order], (samples.answers == samples.labels)[order]
        ranks = np.arange(n_samples + 1) / n_samples
        excess = np.concatenate([[0.0], np.cumsum(hits - confidence)]) / n_samples
        knots = np.linspace(0.0, 1.0, n_knots)
        coefficients = np.linalg.lstsq(_basis(knots)(ranks), excess, rcond=None)[0]
        # Half a rank lower is the middle of a sample's step in the sum.
        slopes = _basis(knots)(ranks[1:] - 0.5 / n_samples, 1) @ coefficients
        # Confidences that differ by a few units in the last place count as equal.
        scores, tied, counts = np.unique(
            merge_ties(confidence, 1e-15), return_inverse=True, return_counts=True
        )
        calibrated = scores + np.bincount(tied, weights=slopes) / counts
        values = smooth(np.clip(calibrated, 0.0, 1.0), n_samples, samples.n_classes, self.penalty)
        fitted = TopLine(scores, values, samples.beta)
        return {"map_": fitted, "knots_": knots, "coefficients_": coefficients}


def _basis(knots: NDArray[np.float64]) -> Any:
    """Return the natural splines that are 1 at one knot and 0 at the others, as one vector-valued
    function.
    """
    return scipy.interpolate.CubicSpline(knots, np.eye(len(knots)), bc_type="natural")
