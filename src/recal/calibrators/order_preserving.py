"""Functions of the logits that never change their order, learned by a small network."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import scipy

from recal.calibrators.base import Calibrator, from_fit
from recal.calibrators.samples import Samples
from recal.checks import Floats, Labels, Vector
from recal.engine.series import ScaledLogits
from recal.maps.arrays import largest_columns
from recal.maps.scaling import GapNetwork, network_shapes, unpack
from recal.schema import Count, NotNegative, Number, RandomState
from recal.solvers.temperature import fit_betas


class OrderNetwork:
    """A network of tanh units on the logarithms of the distances from the top, with one softplus
    output for each gap, and its likelihood of some samples.

    If n_ranks < n_classes, the last output is the factor of all distances below the last rank that
    is read.
    """

    def __init__(self, logits: Floats, labels: Labels, n_ranks: int, n_hidden: int) -> None:
        exact, rows = np.asarray(logits, dtype=np.float64), np.arange(len(labels))
        self.n_classes = exact.shape[1]
        n_ranks = min(n_ranks, self.n_classes)
        columns = largest_columns(exact, n_ranks)
        values = np.take_along_axis(exact, columns, axis=1)
        self.gaps = values[:, :-1] - values[:, 1:]
        # Bounded enough for saturated logits.
        features = np.log1p(values[:, :1] - values[:, 1:])
        scales = features.std(axis=0)
        self.inputs = np.stack([features.mean(axis=0), np.where(scales > 1e-9, scales, 1.0)])
        self.features = (features - self.inputs[0]) / self.inputs[1]
        self.shapes = network_shapes(n_ranks - 1, self.n_classes, n_hidden)
        # The rank of each label; n_ranks if it lies below the ranks that are read.
        hits = columns == labels[:, None]
        self.truth = np.where(hits.any(axis=1), hits.argmax(axis=1), n_ranks)
        self.tail = None
        if self.n_classes > n_ranks:
            outside = np.ones(exact.shape, dtype=bool)
            np.put_along_axis(outside, columns, False, axis=1)
            self.tail = ScaledLogits(exact[outside].reshape(len(rows), -1))
            self.drop = values[:, -1] - self.tail.maxima
            below = values[:, -1] - exact[rows, labels]
            self.truth_below = np.where(self.truth == n_ranks, below, 0.0)

    def start(self, beta: float, rng: np.random.Generator) -> Vector:
        """Return parameters of temperature scaling: a random first layer, and zero weights in the
        second.
        """
        first, hidden, second, outputs = self.shapes
        before_softplus = beta + np.log(-np.expm1(-beta))
        weights = rng.normal(scale=1 / np.sqrt(first[0]), size=first).ravel()
        zeros = np.zeros(hidden[0] + np.prod(second, dtype=int))
        return np.concatenate([weights, zeros, np.full(outputs, before_softplus)])

    def loss(self, parameters: Vector, penalty: float) -> tuple[float, Vector]:
        """Return the penalised mean negative log-likelihood and its gradient."""
        n_samples, n_gaps = self.gaps.shape
        weights, offsets, out_weights, out_offsets = unpack(parameters, self.shapes)
        hidden = np.tanh(self.features @ weights + offsets)
        before = hidden @ out_weights + out_offsets
        factors = np.logaddexp(0.0, before)
        levels = np.zeros((n_samples, n_gaps + 1 + (self.tail is not None)))
        levels[:, 1 : n_gaps + 1] = -np.cumsum(self.gaps * factors[:, :n_gaps], axis=1)
        reached = levels[np.arange(n_samples), np.minimum(self.truth, n_gaps)]
        if self.tail is not None:
            last = factors[:, -1]
            slope = self.tail.slopes(last)[0] - self.drop
            partition = self.tail.log_partition_at(last) - last * self.drop
            levels[:, -1] = levels[:, n_gaps] + partition
            reached = reached - last * self.truth_below
        log_total = np.logaddexp.reduce(levels, axis=1)
        probs = np.exp(levels - log_total[:, None])
        # Column l: by how much the probability above gap l exceeds its share; the gap's factor
        # separates the sides.
        excess = np.cumsum(probs[:, :n_gaps], axis=1) - (self.truth[:, None] <= np.arange(n_gaps))
        by_factor = np.empty_like(factors)
        by_factor[:, :n_gaps] = self.gaps * excess
        if self.tail is not None:
            by_factor[:, -1] = probs[:, -1] * slope + self.truth_below
        by_before = by_factor * scipy.special.expit(before) / n_samples
        by_hidden = (by_before @ out_weights.T) * (1.0 - hidden**2)
        uneven = out_offsets - out_offsets.mean()
        gradient = [
            (self.features.T @ by_hidden + 2 * penalty * weights).ravel(),
            by_hidden.sum(axis=0),
            (hidden.T @ by_before + 2 * penalty * out_weights).ravel(),
            by_before.sum(axis=0) + 2 * penalty * uneven,
        ]
        size = (weights**2).sum() + (out_weights**2).sum() + (uneven**2).sum()
        return float((log_total - reached).mean() + penalty * size), np.concatenate(gradient)


class OrderPreserving(Calibrator):
    """Stretch the gaps between sorted logits by positive factors, so that no class ever overtakes
    another.

    A small network reads the sorted logits and returns a factor for each gap between neighbours.
    Equal factors would be a temperature; separate factors for each gap and sample can make the
    first two classes nearly equal and the rest negligible. Classes are treated alike: permuting the
    logits permutes the probabilities.

    The fit starts at temperature scaling and uses L-BFGS with exact gradients, without torch. One
    detail differs from the publication, to work with a thousand classes on few samples: the network
    reads only the first `n_ranks` logits, and all gaps below them share one factor. Reference:
    Rahimi et al., *Intra order-preserving functions for calibration of multi-class neural networks*
    (NeurIPS 2020), order-invariant functions.

    Parameters
    ----------
    n_ranks : int
        How many of the largest logits the network reads.
    n_hidden : int
        The number of hidden units of the network.
    penalty : float
        Strength of the penalty on the network's squared weights and on differences between the
        gaps' mean factors. A large penalty leads to temperature scaling.
    random_state : int, optional
        Seed of the network's first weights.

    Examples
    --------
    >>> rng, y = np.random.default_rng(0), np.arange(500) % 3
    >>> logits = 4.0 * (np.eye(3)[y] + rng.normal(size=(500, 3)))  # overconfident
    >>> bool(OrderPreserving().fit(logits, y).predict_proba([[4.0, 0.0, 0.0]])[0, 0] < 0.7)
    True
    """

    keeps_accuracy = True

    n_ranks: Annotated[int, Number(2, whole=True)] = 10
    n_hidden: Count = 16
    penalty: NotNegative = 0.003
    random_state: RandomState = 0

    map_: GapNetwork = from_fit()

    def _fit(self, samples: Samples) -> dict[str, Any]:
        network = OrderNetwork(samples.logits, samples.labels, self.n_ranks, self.n_hidden)
        state = ScaledLogits(samples.logits)
        beta = float(fit_betas(state, samples.labels).values[0])
        parameters = network.start(beta, np.random.default_rng(self.random_state))
        # Without mistakes the gaps would grow without limit, so only temperature scaling can be
        # learned.
        if samples.n_mistakes:
            answer = scipy.optimize.minimize(
                network.loss,
                parameters,
                args=(self.penalty,),
                jac=True,
                method="L-BFGS-B",
                options={"maxiter": 200},
            )
            parameters = np.asarray(answer.x, dtype=np.float64)
        return {"map_": GapNetwork(network.inputs, parameters, network.n_classes)}
