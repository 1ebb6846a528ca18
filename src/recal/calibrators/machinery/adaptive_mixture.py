"""A learned answer of the views, mixed into the model's own as far as its prediction allows (M-ATTA and V-ATTA).

The views' logits are summed with learned weights, q = softmax(sum_m W_m * Z_m), and p = (1 - o) p_0 + o q, where o is
the learned share, lowered in steps of 0.01 for a sample until the model's own answer is the largest again. Weights and
share minimise the negative log-likelihood by Adam, with the settings that the authors published; the lowered share
takes part, as it does there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.machinery.probabilities import softmax
from recal.checks import Labels
from recal.maps.aggregation import TINY, allowed_share, tame
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
