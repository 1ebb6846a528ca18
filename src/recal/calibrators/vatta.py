"""M-ATTA: adaptive test-time augmentation with a weight per view and class."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.base import Calibrator, from_map
from recal.checks import Labels
from recal.maps.aggregation import TINY, AdaptiveMixture, allowed_share, tame
from recal.maps.arrays import softmax
from recal.schema import Count, RandomState, Strength
from recal.views import Views

Array = NDArray[np.float64]
_DECAY = 1e-5


class Mixture(NamedTuple):
    """Weights of the views' logits, (n_views, 1) or (n_views, n_classes), and the share of their answer."""

    weights: Array
    share: float


class Adam:
    """The optimiser of Kingma and Ba (2015), with weight decay added to the gradient."""

    def __init__(self, rate: float) -> None:
        self.rate, self.steps = rate, 0
        self.first: list[Array] = []
        self.second: list[Array] = []

    def step(self, values: list[Array], gradients: list[Array]) -> list[Array]:
        if not self.steps:
            self.first, self.second = ([np.zeros_like(value) for value in values] for _ in range(2))
        self.steps += 1
        moved = []
        for place, (value, gradient) in enumerate(zip(values, gradients, strict=True)):
            pull = gradient + _DECAY * value
            self.first[place] = 0.9 * self.first[place] + 0.1 * pull
            self.second[place] = 0.999 * self.second[place] + 0.001 * pull**2
            mean = self.first[place] / (1 - 0.9**self.steps)
            spread = np.sqrt(self.second[place] / (1 - 0.999**self.steps))
            moved.append(value - self.rate * mean / (spread + 1e-8))
        return moved


def fit_mixture(
    views: Views,
    labels: Labels,
    *,
    per_class: bool,
    epochs: int,
    learning_rate: float,
    batch_size: int,
    rng: np.random.Generator,
) -> Mixture:
    """Learn weights and share from all views."""
    own, top = softmax(views.logits), np.argmax(views.logits, axis=1)
    stack = np.stack([tame(views.transformed(transform)) for transform in views.transforms], axis=1)
    n_classes = views.n_classes
    weights = np.full((stack.shape[1], n_classes if per_class else 1), 1.0 / n_classes)
    share, adam = np.ones(1), Adam(learning_rate)
    for _ in range(epochs):
        order = rng.permutation(len(labels))
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            gradients = _gradients(stack[rows], own[rows], top[rows], labels[rows], weights, float(share[0]))
            weights, share = adam.step([weights, share], gradients)
    return Mixture(weights, float(np.clip(share[0], 0.0, 1.0)))


def _gradients(stack: Array, own: Array, top: Labels, labels: Labels, weights: Array, share: float) -> list[Array]:
    """Return the gradients of the mean negative log-likelihood in the weights and the share."""
    rows = np.arange(len(labels))
    other = softmax(np.einsum("bmk,mk->bk", stack, np.broadcast_to(weights, stack.shape[1:])))
    mixed = allowed_share(own, other, top[:, None], min(max(share, 0.0), 1.0))[:, 0]
    p_own, p_other = own[rows, labels], other[rows, labels]
    likelihood = np.maximum((1.0 - mixed) * p_own + mixed * p_other, TINY)
    part = mixed * p_other / likelihood / len(labels)
    slopes = part[:, None] * other
    slopes[rows, labels] -= part
    by_weight = np.einsum("bmk,bk->mk", stack, slopes)
    if weights.shape[1] == 1:
        by_weight = by_weight.sum(axis=1, keepdims=True)
    # A share that has fallen to 0 stays there, whatever the common one does.
    pulls = np.where(mixed > 0.0, (p_own - p_other) / likelihood, 0.0)
    by_share = float(pulls.mean()) if 0.0 <= share <= 1.0 else 0.0
    return [by_weight, np.array([by_share])]


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
        epochs: Count = 500,
        batch_size: Count = 500,
        learning_rate: Strength = 0.001,
        random_state: RandomState = 0,
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
            epochs=self.epochs,
            learning_rate=self.learning_rate,
            batch_size=self.batch_size,
            rng=np.random.default_rng(self.random_state),
        )
        self.map_ = AdaptiveMixture(views.transforms, weights, share)


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
