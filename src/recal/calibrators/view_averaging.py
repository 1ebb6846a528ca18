"""Averaging over views, as in test-time augmentation."""

from __future__ import annotations

from typing import Any

from recal.calibrators.base import Calibrator, from_fit, from_map
from recal.calibrators.samples import Samples
from recal.maps.aggregation import ViewMean, mean_probs
from recal.maps.arrays import safe_log
from recal.maps.base import wide
from recal.maps.blend import Answers
from recal.solvers.temperature import fit_beta


class ViewAveraging(Calibrator):
    """Average the softmax over the original and all its views, as in test-time augmentation.

    Without a temperature it learns nothing: `fit` only stores which transformations to use. The
    average may predict another class than the model, and transformations that lose much information
    make it worse than no calibration: it suits mild views only. Reference: Bahat and Shakhnarovich,
    *Classification confidence estimation with test-time data-augmentation* (2020).

    Parameters
    ----------
    temperature : bool
        Whether to correct the average by one temperature, fitted by the negative log-likelihood.
    answers : {"free", "kept"}
        "kept": predictions never change: a guard keeps the model's prediction the likeliest class
        at the lowest cost.

    Attributes
    ----------
    beta_ : float
        The inverse of the fitted temperature; 1 if `temperature` is False.
    transforms_ : list of str
        The specs of the transformations that are averaged; new views must contain them.

    Examples
    --------
    >>> from recal import Views
    >>> from recal.calibrators import ViewAveraging
    >>> views = Views([[2.0, 0.0], [0.0, 1.0]], {"zoom:0.5": [[0.0, 0.0], [0.0, 3.0]]}, labels=[0, 1])
    >>> ViewAveraging().fit(views).predict_proba(views).round(3)
    array([[0.69 , 0.31 ],
           [0.158, 0.842]])
    """

    short_name = "tta"
    needs_views = True

    answers: Answers = "free"
    temperature: bool = False

    map_: ViewMean = from_fit()
    beta_ = from_map("beta")

    def _fit(self, samples: Samples) -> dict[str, Any]:
        views, beta = samples.views, 1.0
        if self.temperature:
            others = [wide(views.transformed(transform)) for transform in views.transforms]
            beta = fit_beta(safe_log(mean_probs(wide(views.logits), others)), samples.labels)
        return {"map_": ViewMean(views.transforms, beta)}
