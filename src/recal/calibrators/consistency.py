"""Consistency Calibration: confidence as the share of perturbed copies that agree."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.base import Calibrator, kept_by_answers
from recal.calibrators.machinery.parameters import check_count, check_random_state
from recal.calibrators.machinery.state import number
from recal.checks import Labels
from recal.errors import InputError
from recal.metrics import ece
from recal.plan import Answers
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

    noise_: float
    seed_: int
    transforms_: list[str]

    def __init__(
        self,
        *,
        answers: Answers = "free",
        draws: int = 200,
        n_bins: int = 15,
        random_state: int | np.random.Generator | None = 0,
    ) -> None:
        self.draws = draws
        self.n_bins = n_bins
        self.random_state = random_state
        self.answers = answers

    def _fit(self, views: Views, labels: Labels) -> None:
        check_count("draws", self.draws)
        n_bins = check_count("n_bins", self.n_bins)
        self.seed_ = int(check_random_state(self.random_state).integers(2**31))
        self.transforms_ = [str(transform) for transform in views.transforms]
        layers, best, least = self._layers(views), 0.0, np.inf
        for level in range(_LEVELS + 1):
            reach = 10.0 ** (1 - level)
            low, high = (0.0, _LARGEST_NOISE) if level == 0 else (max(best - reach, 0.0), best + reach)
            for noise in np.linspace(low, high, _GRID):
                error = float(ece(self._votes(layers, float(noise)), labels, n_bins=n_bins))
                if error < least:
                    best, least = float(noise), error
        self.noise_ = best

    def _layers(self, views: Views) -> list[NDArray[np.float64]]:
        layers = [views.logits, *(views.transformed(spec) for spec in self.transforms_)]
        return [np.asarray(layer, dtype=np.float64) for layer in layers]

    def _votes(self, layers: list[NDArray[np.float64]], noise: float) -> NDArray[np.float64]:
        n_samples, n_classes = layers[0].shape
        total = max(self.draws, len(layers))
        added = noise * np.random.default_rng(self.seed_).standard_normal((total, n_classes))
        counts = np.zeros(n_samples * n_classes)
        first_cells = np.arange(n_samples) * n_classes
        at_once = max(1, _MOST_VALUES // (n_samples * n_classes))
        for index, layer in enumerate(layers):
            own = added[index :: len(layers)]
            for start in range(0, len(own), at_once):
                answers = (layer + own[start : start + at_once, None]).argmax(axis=2)
                counts += np.bincount((first_cells + answers).ravel(), minlength=len(counts))
        return (counts.reshape(n_samples, n_classes) + 1.0 / n_classes) / (total + 1)

    def _check_state(self, n_classes: int) -> None:
        number(self, "noise_", 0.0)
        number(self, "seed_", 0, 2**63)
        if check_count("draws", self.draws) > _MOST_DRAWN // n_classes:
            raise InputError(f"must be at most {_MOST_DRAWN // n_classes}", argument="draws", came=f"got {self.draws}")

    def _predict_proba(self, views: Views) -> NDArray[np.float64]:
        return self._votes(self._layers(views), self.noise_)
