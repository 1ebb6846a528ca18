"""Methods that aggregate the original and its views: averaging, learned sums, votes, adaptive
mixtures.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import scipy
from numpy.typing import NDArray

from recal.calibrators.base import Calibrator, from_fit, from_map
from recal.calibrators.solvers.temperature import fit_beta
from recal.checks import Labels
from recal.maps.aggregation import (
    TINY,
    AdaptiveMixture,
    ViewMean,
    ViewSum,
    Votes,
    allowed_share,
    count_votes,
    mean_probs,
    tame,
)
from recal.maps.arrays import log_softmax, safe_log, softmax
from recal.maps.base import wide
from recal.maps.plan import Answers
from recal.metrics import ece
from recal.schema import Count, NotNegative, RandomState, Strength
from recal.views import Views


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

    def _fit(self, views: Views, labels: Labels) -> None:
        beta = 1.0
        if self.temperature:
            mean = mean_probs(
                wide(views.logits), [wide(views.transformed(one)) for one in views.transforms]
            )
            beta = fit_beta(safe_log(mean), labels)
        self.map_ = ViewMean(views.transforms, beta)


class LearnedAggregation(Calibrator):
    """Sum the logits of the original and its views with learned weights of at least 0.

    There is one weight for each of them, or with `per_class` one for each of them and each class.
    The weights minimise the negative log-likelihood with a slight penalty on their squares, as
    published. The loss is convex, so it is solved to its minimum (L-BFGS-B), while the authors take
    a few steps of gradient descent. They scale the weights without `per_class` to a sum of 1, since
    they only need accuracy; here the sum is free and acts as a temperature. Reference: Shanmugam,
    Blalock, Balakrishnan and Guttag, *Better aggregation in test-time augmentation* (ICCV 2021).

    Parameters
    ----------
    per_class : bool
        Whether every class has its own weights.
    penalty : float
        Strength of the penalty on half the sum of the squared weights.
    answers : {"free", "kept"}
        "kept": predictions never change: a guard keeps the model's prediction the likeliest class
        at the lowest cost.

    Attributes
    ----------
    beta_ : float
        The common scale of all logits before they are weighted: the inverse of the original's
        fitted temperature.
    weights_ : ndarray of shape (1 + n_views, 1) or (1 + n_views, n_classes)
        The weights; those of the original come first.
    transforms_ : list of str
        The specs of the views.

    Examples
    --------
    >>> from recal import Views
    >>> from recal.calibrators import LearnedAggregation
    >>> views = Views([[2.0, 0.0], [0.0, 1.0]] * 20, {"flip": [[3.0, 0.0], [0.0, 2.0]] * 20}, labels=[0, 1, 1, 1] * 10)
    >>> LearnedAggregation().fit(views).predict_proba(views[:2]).round(2)
    array([[0.73, 0.27],
           [0.34, 0.66]])
    """

    short_name: ClassVar[str] = "aggregate"
    needs_views: ClassVar[bool] = True

    answers: Answers = "free"
    per_class: bool = False
    penalty: NotNegative = 0.0001

    map_: ViewSum = from_fit()
    beta_ = from_map("beta")
    weights_ = from_map("weights")

    def _fit(self, views: Views, labels: Labels) -> None:
        per_class, penalty = self.per_class, self.penalty
        beta = fit_beta(views.logits, labels)
        layers = [views.logits, *(views.transformed(transform) for transform in views.transforms)]
        stack = np.stack([tame(beta * wide(layer)) for layer in layers], axis=1)
        rows, n_layers = np.arange(len(labels)), stack.shape[1]
        shape = (n_layers, views.n_classes if per_class else 1)

        def loss(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            weights = flat.reshape(shape)
            log_probs = log_softmax(
                np.einsum("nmk,mk->nk", stack, np.broadcast_to(weights, stack.shape[1:]))
            )
            slopes = np.exp(log_probs)
            slopes[rows, labels] -= 1.0
            gradient = np.einsum("nmk,nk->mk", stack, slopes) / len(labels)
            by_weight = (
                gradient if per_class else gradient.sum(axis=1, keepdims=True)
            ) + penalty * weights
            value = -log_probs[rows, labels].mean() + 0.5 * penalty * (weights**2).sum()
            return float(value), by_weight.ravel()

        start = np.full(shape, 1.0 / n_layers).ravel()
        answer = scipy.optimize.minimize(
            loss, start, jac=True, method="L-BFGS-B", bounds=[(0.0, None)] * len(start),
            options={"maxiter": 1000, "ftol": 1e-12, "gtol": 1e-8},
        )  # fmt: skip
        self.map_ = ViewSum(views.transforms, beta, answer.x.reshape(shape))


# The published search for the size of the noise: a coarse grid, then three finer ones around the
# best value so far.
_LARGEST_NOISE = 10.0
_GRID = 20
_LEVELS = 3


class ConsistencyCalibration(Calibrator):
    """Let perturbed copies of an input vote: the probability of a class is the share of copies that
    predict it.

    The authors perturb the input or, which is cheaper and equally good, its logits. The size of the
    Gaussian noise minimises the calibration error on the held-out samples. Views are perturbed
    inputs, but a few votes give only coarse shares, so both are used: the draws are divided among
    the original and its views, and each adds its noise to the logits of its copy. One further vote
    is spread over all classes, so that none has probability 0. Without views and without that vote,
    this is the published method. The noise is drawn once from the seed and is the same for every
    sample, so a sample's result does not depend on its batch. Reference: Tao, Guo, Dong and Xu,
    *Consistency calibration: improving uncertainty calibration via consistency among perturbed
    neighbors* (arXiv 2410.12295, 2024).

    Parameters
    ----------
    draws : int
        The total number of copies that vote. The authors use 1,000.
    n_bins : int
        The number of bins of the calibration error that chooses the noise.
    random_state : int, Generator or None
        Seed of the noise.
    answers : {"free", "kept"}
        "kept": predictions never change: a guard keeps the model's prediction the likeliest class
        at the lowest cost.

    Attributes
    ----------
    noise_ : float
        The standard deviation of the noise that is added to logits.
    seed_ : int
    transforms_ : list of str
        The specs of the views.

    Examples
    --------
    >>> from recal import Views
    >>> from recal.calibrators import ConsistencyCalibration
    >>> views = Views([[2.0, 0.0], [0.0, 1.0]] * 20, {"flip": [[1.0, 0.0], [0.5, 0.0]] * 20}, labels=[0, 1, 1, 1] * 10)
    >>> ConsistencyCalibration(draws=50).fit(views).predict_proba(views[:2]).shape
    (2, 2)
    """

    short_name: ClassVar[str] = "consistency"
    needs_views: ClassVar[bool] = True

    answers: Answers = "free"
    draws: Count = 200
    n_bins: Count = 15
    random_state: RandomState = 0

    map_: Votes = from_fit()
    noise_ = from_map("noise")
    seed_ = from_map("seed")

    def _fit(self, views: Views, labels: Labels) -> None:
        seed = int(np.random.default_rng(self.random_state).integers(2**31))
        layers = [wide(views.logits), *(wide(views.transformed(one)) for one in views.transforms)]
        best, least = 0.0, np.inf
        for level in range(_LEVELS + 1):
            reach = 10.0 ** (1 - level)
            low, high = (
                (0.0, _LARGEST_NOISE) if level == 0 else (max(best - reach, 0.0), best + reach)
            )
            for noise in np.linspace(low, high, _GRID):
                error = float(
                    ece(
                        count_votes(layers, float(noise), self.draws, seed),
                        labels,
                        n_bins=self.n_bins,
                    )
                )
                if error < least:
                    best, least = float(noise), error
        self.map_ = Votes(views.transforms, best, self.draws, seed)


Array = NDArray[np.float64]
_DECAY = 1e-5


def _gradient(
    stack: Array, own: Array, top: Labels, labels: Labels, weights: Array, share: float
) -> Array:
    """Return the gradient of the mean negative log-likelihood in the weights and, last, the share."""
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
    # A share that was lowered to 0 stays at 0, whatever the common share is.
    pulls = np.where(mixed > 0.0, (p_own - p_other) / likelihood, 0.0)
    by_share = float(pulls.mean()) if 0.0 <= share <= 1.0 else 0.0
    return np.append(by_weight.ravel(), by_share)


class VATTA(Calibrator):
    """Mix the model's probabilities with a learned sum of the views, as far as the prediction does
    not change.

    The views' logits are summed with one weight per view, and the softmax of the sum is mixed with
    the model's own probabilities. The share of the views is learned, too, and lowered in steps of
    0.01 if the prediction would change. `MATTA` gives every class its own weights. Every prediction
    uses all views.

    Solver and settings are the published ones: Adam, 500 epochs in batches of 500. Reference:
    Conde, Barros, Lopes, Premebida and Nunes, *Approaching test time augmentation in the context of
    uncertainty calibration for deep neural networks* (arXiv 2304.05104).

    Parameters
    ----------
    epochs, batch_size : int
    learning_rate : float
    random_state : int, Generator or None
        Seed of the order of the samples.

    Attributes
    ----------
    weights_ : ndarray of shape (n_views, 1)
    share_ : float
        The share of the views, lowered if the prediction would change.
    transforms_ : list of str
        The specs of the views.

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

    epochs: Count = 500
    batch_size: Count = 500
    learning_rate: Strength = 0.001
    random_state: RandomState = 0

    map_: AdaptiveMixture = from_fit()
    weights_ = from_map("weights")
    share_ = from_map("share")

    def _fit(self, views: Views, labels: Labels) -> None:
        rng = np.random.default_rng(self.random_state)
        own, top, n_classes = (
            softmax(views.logits),
            np.argmax(views.logits, axis=1),
            views.n_classes,
        )
        stack = np.stack(
            [tame(views.transformed(transform)) for transform in views.transforms], axis=1
        )
        shape = stack.shape[1], n_classes if self.per_class else 1
        # All parameters, the share last. The optimiser is Adam (Kingma and Ba, 2015) with weight
        # decay.
        point = np.append(np.full(shape, 1.0 / n_classes).ravel(), 1.0)
        first, second, steps = np.zeros_like(point), np.zeros_like(point), 0
        for _ in range(self.epochs):
            order = rng.permutation(len(labels))
            for start in range(0, len(order), self.batch_size):
                rows = order[start : start + self.batch_size]
                weights, share = point[:-1].reshape(shape), float(point[-1])
                gradient = (
                    _gradient(stack[rows], own[rows], top[rows], labels[rows], weights, share)
                    + _DECAY * point
                )
                steps += 1
                first = 0.9 * first + 0.1 * gradient
                second = 0.999 * second + 0.001 * gradient**2
                spread = np.sqrt(second / (1 - 0.999**steps))
                point = point - self.learning_rate * (first / (1 - 0.9**steps)) / (spread + 1e-8)
        self.map_ = AdaptiveMixture(
            views.transforms, point[:-1].reshape(shape), float(np.clip(point[-1], 0.0, 1.0))
        )


class MATTA(VATTA):
    """Mix the model's probabilities with a learned sum of the views, with a weight for each view
    and class.

    Otherwise the same as `VATTA`. With few samples, the single weight per view of `VATTA` is
    better.

    Parameters
    ----------
    epochs, batch_size : int
    learning_rate : float
    random_state : int, Generator or None
        Seed of the order of the samples.

    Attributes
    ----------
    weights_ : ndarray of shape (n_views, n_classes)
    share_ : float
        The share of the views, lowered if the prediction would change.
    transforms_ : list of str
        The specs of the views.

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
