"""Functions of the logits that never change their order, learned by a small network or a curve."""

from __future__ import annotations

import warnings

import numpy as np
import scipy
from numpy.typing import NDArray

from recal.calibrators.base import Calibrator
from recal.calibrators.machinery.common_scale import fit_betas
from recal.calibrators.machinery.increasing_curve import IncreasingCurve
from recal.calibrators.machinery.parameters import check_choice, check_count, check_number, check_random_state
from recal.calibrators.order_preserving.network import OrderNetwork
from recal.checks import Labels
from recal.engine.scaled import ScaledLogits
from recal.errors import ConvergenceWarning
from recal.maps.order import GapNetwork, RisingCurve
from recal.views import Views

# e to this power is still a float that can be multiplied by another.
_LARGEST_EXPONENT = 230.0


class OrderPreserving(Calibrator):
    """Stretch the gaps between sorted logits by positive factors, so that no class ever overtakes another.

    Order-invariant (the default): a small network reads the sorted logits and answers a factor for each gap between
    neighbours. Equal factors would be a temperature; a factor of its own for each gap and each sample can make the
    first two classes hard to tell and the rest negligible. Classes are treated alike: permuting the logits permutes
    the answer. Diagonal: one increasing curve, with pieces of different slope, is applied to every log-probability.

    Both begin at temperature scaling and are fitted by L-BFGS with exact gradients; neither needs torch. Two readings
    differ from the publication, to work with a thousand classes on few samples: the network tells apart the first
    `n_ranks` logits only, all gaps below them share one factor; and the diagonal curve is piecewise linear rather than
    the integral of a network. Reference: Rahimi et al., *Intra order-preserving functions for calibration of
    multi-class neural networks* (NeurIPS 2020).

    Parameters
    ----------
    variant : {"order-invariant", "diagonal"}
    n_ranks : int
        How many of the largest logits the network reads.
    n_hidden : int
        The network's hidden units.
    n_pieces : int
        The diagonal curve's linear pieces.
    penalty : float
        Of the network's squared weights and of what sets the gaps' mean factors apart, or of the squared differences
        of the log-slopes of neighbouring pieces; both become temperature scaling as it grows.
    max_iter : int
        Iterations of L-BFGS.
    random_state : int, optional
        Of the network's first weights.

    Attributes
    ----------
    parameters_ : ndarray
        All that was learned, end to end: factors are kept as logarithms or before the softplus.
    inputs_ : ndarray
        The network's means and scales of its inputs, or the curve's knots.
    loss_ : float
        The mean negative log-likelihood of the fitted samples.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.calibrators import OrderPreserving
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(500, 3))
    >>> labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    >>> model = OrderPreserving(random_state=0).fit(4 * logits, labels)  # four times too sure
    >>> bool(model.predict_proba([[4.0, 0.0, 0.0]])[0, 0] < 0.7)
    True
    """

    short_name = "iop"
    keeps_accuracy = True

    map_: GapNetwork | RisingCurve
    loss_: float

    def __init__(
        self,
        *,
        variant: str = "order-invariant",
        n_ranks: int = 10,
        n_hidden: int = 16,
        n_pieces: int = 10,
        penalty: float = 0.003,
        max_iter: int = 200,
        random_state: int | None = 0,
    ) -> None:
        self.variant = variant
        self.n_ranks = n_ranks
        self.n_hidden = n_hidden
        self.n_pieces = n_pieces
        self.penalty = penalty
        self.max_iter = max_iter
        self.random_state = random_state

    def _fit(self, views: Views, labels: Labels) -> None:
        penalty = check_number("penalty", self.penalty)
        max_iter = check_count("max_iter", self.max_iter)
        variant = check_choice("variant", self.variant, ("order-invariant", "diagonal"))
        n_ranks, n_hidden = check_count("n_ranks", self.n_ranks, 2), check_count("n_hidden", self.n_hidden)
        n_pieces, rng = check_count("n_pieces", self.n_pieces), check_random_state(self.random_state)
        state = ScaledLogits(views.logits)
        beta = fit_betas(state, labels).values[0]
        function: OrderNetwork | IncreasingCurve
        if variant == "diagonal":
            function = IncreasingCurve.for_logits(views.logits, labels, n_pieces)
            start = function.start(beta)
        else:
            function = OrderNetwork.for_logits(views.logits, n_ranks, n_hidden)
            start = function.start(beta, rng)
        parameters = start
        # Without a mistake every gap would be stretched without end: temperature scaling is all that can be learned.
        if (state.columns != labels).any():
            objective = function.objective(views.logits, labels, penalty)
            options = {"maxiter": max_iter}
            answer = scipy.optimize.minimize(objective, start, jac=True, method="L-BFGS-B", options=options)
            if answer.status not in (0, 1):  # 1: as many iterations as were asked for
                warnings.warn(f"OrderPreserving stopped early: {answer.message}.", ConvergenceWarning, stacklevel=3)
            parameters = np.asarray(answer.x, dtype=np.float64)
        self.loss_ = float(function.objective(views.logits, labels, 0.0)(parameters)[0])
        self.map_ = function.map(parameters)

    @property
    def parameters_(self) -> NDArray[np.float64]:
        return self.map_.log_slopes if isinstance(self.map_, RisingCurve) else self.map_.parameters

    @property
    def inputs_(self) -> NDArray[np.float64]:
        return self.map_.knots if isinstance(self.map_, RisingCurve) else self.map_.inputs
