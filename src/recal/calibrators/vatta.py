"""V-ATTA: adaptive test-time augmentation with a weight per view."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from recal.calibrators.base import Calibrator, from_map
from recal.calibrators.machinery.adaptive_mixture import fit_mixture
from recal.calibrators.machinery.parameters import check_count, check_random_state, check_strength
from recal.checks import Labels
from recal.maps.aggregation import AdaptiveMixture
from recal.views import Views


class VATTA(Calibrator):
    """Mix a learned answer of the views into the model's own, as far as its prediction allows.

    The views' logits are summed with one weight per view, and softmax of the sum is mixed with the model's own
    probabilities. The share of the mixture is learned too, and lowered in steps of 0.01 where the prediction would
    change. `MATTA` gives every class its own weights. All views are used, at every answer.

    Solver and settings are the published ones: Adam, 500 epochs in batches of 500. Reference: Conde, Barros, Lopes,
    Premebida and Nunes, *Approaching test time augmentation in the context of uncertainty calibration for deep neural
    networks* (arXiv 2304.05104).

    Parameters
    ----------
    epochs, batch_size : int
    learning_rate : float
    random_state : int, Generator or None
        Shuffles the samples.

    Attributes
    ----------
    weights_ : ndarray of shape (n_views, 1)
    share_ : float
        Of the views' answer, where the prediction allows it.
    transforms_ : list of str
        The views' specs.

    Examples
    --------
    >>> import numpy as np
    >>> from recal import Views
    >>> from recal.calibrators import VATTA
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 3, 200)
    >>> logits = 4 * (np.eye(3)[y] + rng.normal(0, 0.6, (200, 3)))
    >>> views = Views(logits, {"flip": logits + rng.normal(0, 1, (200, 3))}, y)
    >>> probs = VATTA().fit(views).predict_proba(views)
    >>> bool((probs.argmax(1) == logits.argmax(1)).all())
    True
    """

    short_name: ClassVar[str] = "vatta"
    keeps_accuracy: ClassVar[bool] = True
    needs_views: ClassVar[bool] = True
    per_class: ClassVar[bool] = False

    map_: AdaptiveMixture
    weights_ = from_map("weights")
    share_ = from_map("share")

    def __init__(
        self,
        *,
        epochs: int = 500,
        batch_size: int = 500,
        learning_rate: float = 0.001,
        random_state: int | np.random.Generator | None = 0,
    ) -> None:
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.random_state = random_state

    def _fit(self, views: Views, labels: Labels) -> None:
        weights, share = fit_mixture(
            views,
            labels,
            per_class=self.per_class,
            epochs=check_count("epochs", self.epochs),
            learning_rate=check_strength("learning_rate", self.learning_rate),
            batch_size=check_count("batch_size", self.batch_size),
            rng=check_random_state(self.random_state),
        )
        self.map_ = AdaptiveMixture(views.transforms, weights, share)
