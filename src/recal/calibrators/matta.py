"""M-ATTA: adaptive test-time augmentation with a weight per view and class."""

from __future__ import annotations

from typing import ClassVar

from recal.calibrators.vatta import VATTA


class MATTA(VATTA):
    """Mix a learned answer of the views into the model's own, as far as its prediction allows.

    The views' logits are summed with one weight per view and class, and softmax of the sum is mixed with the model's
    own probabilities. The share of the mixture is learned too, and lowered in steps of 0.01 where the prediction would
    change. `VATTA` has one weight per view, which suits few samples better. All views are used, at every answer.

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
    weights_ : ndarray of shape (n_views, n_classes)
    share_ : float
        Of the views' answer, where the prediction allows it.
    transforms_ : list of str
        The views' specs.

    Examples
    --------
    >>> import numpy as np
    >>> from recal import Views
    >>> from recal.calibrators import MATTA
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 3, 200)
    >>> logits = 4 * (np.eye(3)[y] + rng.normal(0, 0.6, (200, 3)))
    >>> views = Views(logits, {"flip": logits + rng.normal(0, 1, (200, 3))}, y)
    >>> probs = MATTA().fit(views).predict_proba(views)
    >>> bool((probs.argmax(1) == logits.argmax(1)).all())
    True
    """

    short_name: ClassVar[str] = "matta"
    per_class: ClassVar[bool] = True
