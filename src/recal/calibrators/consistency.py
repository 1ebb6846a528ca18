"""Consistency Calibration: confidence as the share of perturbed copies that agree."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from recal.calibrators.base import Calibrator, from_map, kept_by_answers
from recal.checks import Labels
from recal.maps.aggregation import Votes, count_votes
from recal.maps.base import wide
from recal.maps.plan import Answers
from recal.metrics import ece
from recal.schema import Count, RandomState
from recal.views import Views

# The published search for the noise's size: a coarse grid, then three finer ones around the best so far.
_LARGEST_NOISE = 10.0
_GRID = 20
_LEVELS = 3
# How many noisy logits are held at once.
_MOST_VALUES = 1_000_000
# Random numbers that a file may ask for, one for each draw and class.
_MOST_DRAWN = 100_000_000


class ConsistencyCalibration(Calibrator):
    """Let perturbed copies of an input vote: a class's probability is the share of copies that answer it.

    The authors perturb the input, or, as they found cheaper and as good, its logits with Gaussian noise whose size has
    the least calibration error on the held-out samples. Views *are* perturbed inputs, but a few votes make a coarse
    share. So both are used: the draws are shared out between the original and its views, and each adds its noise to the
    logits of its copy. One further vote is spread over all classes, so that none has probability 0; without views and
    without that vote this is the published method. The noise is drawn once from the seed and is the same for every
    sample, so that a sample's answer does not depend on its batch. Reference: Tao, Guo, Dong and Xu, *Consistency
    calibration: improving uncertainty calibration via consistency among perturbed neighbors* (arXiv 2410.12295, 2024).

    Parameters
    ----------
    draws : int
        How many copies vote, in all. The authors take 1,000.
    n_bins : int
        Of the calibration error that chooses the noise.
    random_state : int, Generator or None
        Seeds the noise.
    answers : {"free", "kept"}
        "kept": where the likeliest class is not the model's own answer, a guard makes it so, at the least cost.

    Attributes
    ----------
    noise_ : float
        The standard deviation of what is added to logits.
    seed_ : int
    transforms_ : list of str
        The views' specs.

    Examples
    --------
    >>> from recal import Views
    >>> from recal.calibrators import ConsistencyCalibration
    >>> views = Views([[2.0, 0.0], [0.0, 1.0]] * 20, {"flip": [[1.0, 0.0], [0.5, 0.0]] * 20}, labels=[0, 1, 1, 1] * 10)
    >>> ConsistencyCalibration(draws=50).fit(views).predict_proba(views[:2]).shape
    (2, 2)
    """

    short_name: ClassVar[str] = "consistency"
    keeps_accuracy: ClassVar[bool] = kept_by_answers("free")
    needs_views: ClassVar[bool] = True

    map_: Votes
    noise_ = from_map("noise")
    seed_ = from_map("seed")

    def __init__(
        self,
        *,
        answers: Answers = "free",
        draws: Count = 200,
        n_bins: Count = 15,
        random_state: RandomState = 0,
    ) -> None:
        self.draws = draws
        self.n_bins = n_bins
        self.random_state = random_state
        self.answers = answers

    def _fit(self, views: Views, labels: Labels) -> None:
        seed = int(np.random.default_rng(self.random_state).integers(2**31))
        layers = [wide(views.logits), *(wide(views.transformed(one)) for one in views.transforms)]
        best, least = 0.0, np.inf
        for level in range(_LEVELS + 1):
            reach = 10.0 ** (1 - level)
            low, high = (0.0, _LARGEST_NOISE) if level == 0 else (max(best - reach, 0.0), best + reach)
            for noise in np.linspace(low, high, _GRID):
                error = float(ece(count_votes(layers, float(noise), self.draws, seed), labels, n_bins=self.n_bins))
                if error < least:
                    best, least = float(noise), error
        self.map_ = Votes(views.transforms, best, self.draws, seed)
