"""Functions of the logits that never change their order, learned by a small network or a curve."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import scipy
from numpy.typing import NDArray

from recal.calibrators.base import Calibrator, from_fit
from recal.calibrators.samples import Samples
from recal.checks import Floats, Labels, Vector
from recal.engine.series import ScaledLogits
from recal.errors import ConvergenceWarning
from recal.maps.arrays import largest_columns, log_softmax
from recal.maps.scaling import GapNetwork, RisingCurve, network_shapes, unpack
from recal.schema import Count, NotNegative, Number, RandomState
from recal.solvers.temperature import fit_betas

Objective = Callable[[Vector], tuple[float, Vector]]


@dataclass(frozen=True)
class IncreasingCurve:
    """A piecewise linear curve from 0 downwards: between inputs[j] and inputs[j + 1] the slope is
    exp(parameters[j]).

    The last piece has no end. A log-probability of 0 stays 0; softmax ignores a common shift.
    """

    inputs: Vector  # knots, falling from 0

    @classmethod
    def for_logits(cls, logits: Floats, labels: Labels, n_pieces: int) -> IncreasingCurve:
        """Place the knots by the log-probabilities of the label and of the two largest: they decide
        the likelihood.
        """
        log_probs = log_softmax(logits)
        truth = log_probs[np.arange(len(labels)), labels]
        largest = np.partition(log_probs, -2, axis=1)[:, -2:]
        crucial = np.concatenate([truth, largest.ravel()])
        knots = np.quantile(crucial, np.arange(1, n_pieces) / n_pieces)
        # The slope between closer knots would be arbitrary: hardly any data lie between them.
        distinct = [0.0]
        for knot in knots[::-1]:
            if knot < distinct[-1] - 1e-3:
                distinct.append(float(knot))
        return cls(np.array(distinct))

    def start(self, beta: float, rng: np.random.Generator) -> Vector:
        """Return the parameters of temperature scaling."""
        return np.full(len(self.inputs), np.log(beta))

    def map(self, parameters: Vector) -> RisingCurve:
        """Return the fitted map."""
        return RisingCurve(self.inputs, parameters)

    def objective(self, logits: Floats, labels: Labels, penalty: float) -> Objective:
        """Return the function of the parameters that is minimised, with its gradient."""
        rows, n_pieces, lengths = np.arange(len(labels)), len(self.inputs), -np.diff(self.inputs)
        log_inputs = log_softmax(logits)
        # The piece of each value, and how far below the piece's upper end it lies.
        piece = np.maximum(np.searchsorted(-self.inputs, -log_inputs, side="right") - 1, 0)
        beyond = self.inputs[piece] - log_inputs

        def loss(parameters: Vector) -> tuple[float, Vector]:
            slopes = np.exp(parameters)
            ends = np.concatenate([[0.0], -np.cumsum(slopes[:-1] * lengths)])
            log_probs = log_softmax(ends[piece] - slopes[piece] * beyond)
            pull = np.exp(log_probs)
            pull[rows, labels] -= 1.0
            pull /= len(labels)
            # A value depends on part of the slope of its own piece, and on the slopes of all pieces
            # above.
            partly = np.bincount(piece.ravel(), weights=(pull * beyond).ravel(), minlength=n_pieces)
            below = np.cumsum(
                np.bincount(piece.ravel(), weights=pull.ravel(), minlength=n_pieces)[::-1]
            )[::-1]
            by_slope = -partly.astype(np.float64)
            by_slope[:-1] -= lengths * below[1:]
            bends = np.diff(parameters)
            gradient = slopes * by_slope
            gradient[1:] += 2 * penalty * bends
            gradient[:-1] -= 2 * penalty * bends
            return float(-log_probs[rows, labels].mean() + penalty * (bends**2).sum()), gradient

        return loss


@dataclass(frozen=True)
class OrderNetwork:
    """A network of tanh units on the logarithms of the distances from the top, with one softplus
    output for each gap.

    If n_ranks < n_classes, the last output is the factor of all distances below the last rank that
    is read.
    """

    inputs: Vector  # (2, n_ranks - 1): means and scales of the inputs
    n_classes: int
    n_hidden: int

    @classmethod
    def for_logits(cls, logits: Floats, n_ranks: int, n_hidden: int) -> OrderNetwork:
        n_ranks = min(n_ranks, logits.shape[1])
        features = _features(_largest(logits, n_ranks)[1])
        scales = features.std(axis=0)
        inputs = np.stack([features.mean(axis=0), np.where(scales > 1e-9, scales, 1.0)])
        return cls(inputs, logits.shape[1], n_hidden)

    @property
    def n_ranks(self) -> int:
        return self.inputs.shape[1] + 1

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return network_shapes(self.inputs.shape[1], self.n_classes, self.n_hidden)

    def map(self, parameters: Vector) -> GapNetwork:
        """Return the fitted map."""
        return GapNetwork(self.inputs, parameters, self.n_classes)

    def start(self, beta: float, rng: np.random.Generator) -> Vector:
        """Return parameters of temperature scaling: a random first layer, and zero weights in the
        second.
        """
        first, hidden, second, outputs = self.shapes
        before_softplus = beta + np.log(-np.expm1(-beta))
        return np.concatenate(
            [
                rng.normal(scale=1 / np.sqrt(first[0]), size=first).ravel(),
                np.zeros(hidden),
                np.zeros(np.prod(second)),
                np.full(outputs, before_softplus),
            ]
        )

    def objective(self, logits: Floats, labels: Labels, penalty: float) -> Objective:
        """Return the function of the parameters that is minimised, with its gradient."""
        columns, values = _largest(logits, self.n_ranks)
        scaled = (_features(values) - self.inputs[0]) / self.inputs[1]
        gaps, n_samples, n_gaps = values[:, :-1] - values[:, 1:], len(labels), self.n_ranks - 1
        hits = columns == labels[:, None]
        truth = np.where(
            hits.any(axis=1), hits.argmax(axis=1), self.n_ranks
        )  # n_ranks: below the ranks that are read
        rows = np.arange(n_samples)
        tail = _Tail(logits, labels, columns, truth) if self.n_classes > self.n_ranks else None

        def loss(parameters: Vector) -> tuple[float, Vector]:
            weights, offsets, out_weights, out_offsets = unpack(parameters, self.shapes)
            hidden = np.tanh(scaled @ weights + offsets)
            before = hidden @ out_weights + out_offsets
            factors = np.logaddexp(0.0, before)
            levels = np.zeros((n_samples, n_gaps + 1 + (tail is not None)))
            levels[:, 1 : n_gaps + 1] = -np.cumsum(gaps * factors[:, :n_gaps], axis=1)
            reached = levels[rows, np.minimum(truth, n_gaps)]
            if tail is not None:
                partition, slope = tail.partition(factors[:, -1])
                levels[:, -1] = levels[:, n_gaps] + partition
                reached = reached - factors[:, -1] * tail.truth_below
            log_total = np.logaddexp.reduce(levels, axis=1)
            probs = np.exp(levels - log_total[:, None])
            # Column l: by how much the probability above gap l exceeds its share; the gap's factor
            # separates the sides.
            excess = np.cumsum(probs[:, :n_gaps], axis=1) - (truth[:, None] <= np.arange(n_gaps))
            by_factor = np.empty_like(factors)
            by_factor[:, :n_gaps] = gaps * excess
            if tail is not None:
                by_factor[:, -1] = probs[:, -1] * slope + tail.truth_below
            by_before = by_factor * scipy.special.expit(before) / n_samples
            by_hidden = (by_before @ out_weights.T) * (1.0 - hidden**2)
            uneven = out_offsets - out_offsets.mean()
            gradient = np.concatenate(
                [
                    (scaled.T @ by_hidden + 2 * penalty * weights).ravel(),
                    by_hidden.sum(axis=0),
                    (hidden.T @ by_before + 2 * penalty * out_weights).ravel(),
                    by_before.sum(axis=0) + 2 * penalty * uneven,
                ]
            )
            size = (weights**2).sum() + (out_weights**2).sum() + (uneven**2).sum()
            return float((log_total - reached).mean() + penalty * size), gradient

        return loss


def _largest(logits: Floats, n_ranks: int) -> tuple[NDArray[np.intp], Vector]:
    """Return the columns of each row's largest logits, in falling order, and these logits."""
    exact = np.asarray(logits, dtype=np.float64)
    columns = largest_columns(exact, n_ranks)
    return columns, np.take_along_axis(exact, columns, axis=1)


class _Tail:
    """The logits below the ranks that are read: a partition function with one factor per row."""

    def __init__(
        self, logits: Floats, labels: Labels, columns: NDArray[np.intp], truth: NDArray[np.intp]
    ) -> None:
        exact, rows = np.asarray(logits, dtype=np.float64), np.arange(len(labels))
        last = exact[rows, columns[:, -1]]
        outside = np.ones(exact.shape, dtype=bool)
        np.put_along_axis(outside, columns, False, axis=1)
        self._state = ScaledLogits(exact[outside].reshape(len(rows), -1))
        self._drop = last - self._state.maxima
        self.truth_below = np.where(truth == columns.shape[1], last - exact[rows, labels], 0.0)

    def partition(self, factors: Vector) -> tuple[Vector, Vector]:
        """Return log sum exp(-factor * distance below the last rank), and its derivative in the
        factor.
        """
        slopes = self._state.slopes(factors)[0]
        return self._state.log_partition_at(factors) - factors * self._drop, slopes - self._drop


def _features(values: Vector) -> Vector:
    """Return the logarithm of 1 + each distance from the top: bounded enough for saturated logits."""
    return np.log1p(values[:, :1] - values[:, 1:])


class OrderPreserving(Calibrator):
    """Stretch the gaps between sorted logits by positive factors, so that no class ever overtakes
    another.

    Order-invariant (the default): a small network reads the sorted logits and returns a factor for
    each gap between neighbours. Equal factors would be a temperature; separate factors for each gap
    and sample can make the first two classes nearly equal and the rest negligible. Classes are
    treated alike: permuting the logits permutes the probabilities. Diagonal: one increasing curve,
    with pieces of different slope, is applied to every log-probability.

    Both start at temperature scaling and are fitted by L-BFGS with exact gradients; neither needs
    torch. Two details differ from the publication, to work with a thousand classes on few samples:
    the network reads only the first `n_ranks` logits, and all gaps below them share one factor; and
    the diagonal curve is piecewise linear rather than the integral of a network. Reference: Rahimi
    et al., *Intra order-preserving functions for calibration of multi-class neural networks*
    (NeurIPS 2020).

    Parameters
    ----------
    variant : {"order-invariant", "diagonal"}
    n_ranks : int
        How many of the largest logits the network reads.
    n_hidden : int
        The number of hidden units of the network.
    n_pieces : int
        The number of linear pieces of the diagonal curve.
    penalty : float
        Strength of the penalty on the network's squared weights and on differences between the
        gaps' mean factors, or on the squared differences between the log-slopes of neighbouring
        pieces. A large penalty leads to temperature scaling.
    max_iter : int
        The largest number of iterations of L-BFGS.
    random_state : int, optional
        Seed of the network's first weights.

    Attributes
    ----------
    parameters_ : ndarray
        All parameters in one vector: factors as logarithms, or before the softplus.
    inputs_ : ndarray
        The means and scales of the network's inputs, or the knots of the curve.
    loss_ : float
        The mean negative log-likelihood of the fitted samples.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.calibrators import OrderPreserving
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(500, 3))
    >>> labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    >>> model = OrderPreserving(random_state=0).fit(4 * logits, labels)  # overconfident: four times too large
    >>> bool(model.predict_proba([[4.0, 0.0, 0.0]])[0, 0] < 0.7)
    True
    """

    short_name = "iop"
    keeps_accuracy = True

    variant: Literal["order-invariant", "diagonal"] = "order-invariant"
    n_ranks: Annotated[int, Number(2, whole=True)] = 10
    n_hidden: Count = 16
    n_pieces: Count = 10
    penalty: NotNegative = 0.003
    max_iter: Count = 200
    random_state: RandomState = 0

    map_: GapNetwork | RisingCurve = from_fit()
    loss_: float = from_fit()

    def _fit(self, samples: Samples) -> dict[str, Any]:
        rng = np.random.default_rng(self.random_state)
        logits, labels = samples.logits, samples.labels
        state = ScaledLogits(logits)
        beta = float(fit_betas(state, labels).values[0])
        function: OrderNetwork | IncreasingCurve
        if self.variant == "diagonal":
            function = IncreasingCurve.for_logits(logits, labels, self.n_pieces)
        else:
            function = OrderNetwork.for_logits(logits, self.n_ranks, self.n_hidden)
        parameters = function.start(beta, rng)
        # Without mistakes the gaps would grow without limit, so only temperature scaling can be
        # learned.
        if (state.columns != labels).any():
            objective = function.objective(logits, labels, self.penalty)
            options = {"maxiter": self.max_iter}
            answer = scipy.optimize.minimize(
                objective, parameters, jac=True, method="L-BFGS-B", options=options
            )
            if answer.status not in (0, 1):  # 1: max_iter was reached
                warnings.warn(
                    f"OrderPreserving stopped early: {answer.message}.",
                    ConvergenceWarning,
                    stacklevel=3,
                )
            parameters = np.asarray(answer.x, dtype=np.float64)
        loss = float(function.objective(logits, labels, 0.0)(parameters)[0])
        return {"map_": function.map(parameters), "loss_": loss}

    @property
    def parameters_(self) -> NDArray[np.float64]:
        return self.map_.log_slopes if isinstance(self.map_, RisingCurve) else self.map_.parameters

    @property
    def inputs_(self) -> NDArray[np.float64]:
        return self.map_.knots if isinstance(self.map_, RisingCurve) else self.map_.inputs
