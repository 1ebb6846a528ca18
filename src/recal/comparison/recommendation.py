"""Which method to use: what proper scores say about pairs of methods, and the cheapest of those
that no other beats.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from recal.calibrators.samples import LossGain
from recal.comparison.results import Comparison, corrected_error
from recal.metrics.intervals import LEVEL

Standing = Literal["better", "no difference", "worse", "mixed"]
# Proper scores reward calibrated and sharp confidence together, so a method cannot win by being
# miscalibrated.
PROPER = ("nll", "brier")


@dataclass(frozen=True)
class Difference:
    """A method's mean score minus another's on the same rows, with the standard error of that
    difference.
    """

    metric: str
    value: float
    error: float
    freedom: int

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """The t-interval of the difference; infinite if a label got the probability 0."""
        from scipy.stats import t

        if not math.isfinite(self.value):
            return self.value, self.value
        half = float(t.ppf(0.5 + level / 2, self.freedom)) * self.error
        return self.value - half, self.value + half


@dataclass(frozen=True)
class Judgement:
    """A method beside another: what both proper scores say together.

    `outcome` is "better" or "worse" where at least one score differs distinguishably that way and
    none the other way, "mixed" where they contradict each other, and "no difference" where these
    samples show none.
    """

    method: str
    other: str
    outcome: Standing
    differences: tuple[Difference, ...]
    level: float  # of each score's interval; together they hold with that of `judge`

    def difference(self, metric: str) -> Difference:
        return next(one for one in self.differences if one.metric == metric)


def difference(comparison: Comparison, metric: str, method: str, other: str) -> Difference:
    """Return the paired difference of a proper score.

    With one split, its standard error comes from the rows; with several, from the splits. Splits of
    one data set overlap, so this error has Nadeau and Bengio's correction, as in
    `corrected_error`.
    """
    setup = comparison.setup
    if setup.splits > 1:
        columns = [comparison.methods.index(name) for name in (method, other)]
        one, two = comparison.values[metric][:, columns].T
    else:
        one, two = (getattr(comparison.samples[name], metric) for name in (method, other))
        if metric == "brier":
            one, two = one / setup.n_classes, two / setup.n_classes
    means = float(one.mean()), float(two.mean())
    if np.isinf(means).any():
        return Difference(metric, 0.0 if np.isinf(means).all() else means[0] - means[1], 0.0, 1)
    if setup.splits > 1:
        error = corrected_error(one - two, setup.n_test / setup.n_fit)
        return Difference(metric, float((one - two).mean()), error, len(one) - 1)
    clusters = comparison.clusters
    n_units = len(one) if clusters is None else len(np.unique(clusters))
    gain = LossGain.between(one, two, None, clusters)
    return Difference(metric, gain.mean, gain.error, max(n_units - 1, 1))


def judge(comparison: Comparison, method: str, other: str, level: float = LEVEL) -> Judgement:
    """Say whether `method` is better or worse than `other`, as far as these samples can show.

    Each of the two scores gets half of the error that `level` allows (Bonferroni), so that both
    intervals hold at once.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.comparison import compare_probs, judge
    >>> y = (np.arange(400) % 10 == 0).astype(int)
    >>> calibrated, boastful = np.tile([0.9, 0.1], (400, 1)), np.tile([0.999, 0.001], (400, 1))
    >>> comparison = compare_probs({"boastful": boastful, "calibrated": calibrated}, y)
    >>> judge(comparison, "calibrated", "boastful").outcome
    'better'
    """
    each = 1 - (1 - level) / len(PROPER)
    differences = tuple(difference(comparison, metric, method, other) for metric in PROPER)
    intervals = [one.interval(each) for one in differences]
    better, worse = any(high < 0 for _, high in intervals), any(low > 0 for low, _ in intervals)
    outcome: Standing = "mixed" if worse else "better"
    if not better:
        outcome = "worse" if worse else "no difference"
    return Judgement(method, other, outcome, differences, each)


@dataclass(frozen=True)
class Recommendation:
    """The method to use: of those that no other beats distinguishably the cheapest, and of these
    the best.

    Attributes
    ----------
    method : its name
    passes : forward passes of the model for one answer, the mean over the test rows
    contenders : those that no other beats distinguishably, in the comparison's order
    """

    method: str
    passes: float
    contenders: tuple[str, ...]


def recommend(comparison: Comparison) -> Recommendation:
    """Choose a method: more forward passes, or a change of a calibrated model, need a gain that is
    larger than the noise of the test rows.

    A method is dropped when some other is distinguishably better by proper scores, at a level
    corrected for the number of methods: the truly best one stays in with a probability of at least
    95 % (Hsu's comparisons with the best, by Bonferroni). Of the others, only those with the fewest
    forward passes per answer are considered. If the model itself is among them and the calibration
    test does not reject it, it is chosen. Otherwise the choice is the first method within half a
    standard error of the best one by both scores; methods that keep every answer come first, then
    the given order counts. All of these cost the same, so a difference need not be proven to be
    used.
    """
    methods = comparison.methods
    level = 1 - (1 - LEVEL) / max(len(methods) - 1, 1)
    beaten = {
        name
        for name in methods
        if any(
            judge(comparison, other, name, level).outcome == "better"
            for other in methods
            if other != name
        )
    }
    # Two scores could in theory beat each other in a circle.
    unbeaten = tuple(name for name in methods if name not in beaten) or tuple(methods)
    # The model as it is stays out if the calibration test rejects it.
    out = {methods[0]} if comparison.calibration_tests[methods[0]].rejected else set()
    contenders = tuple(name for name in unbeaten if name not in out) or unbeaten
    fewest = min(cost(comparison, name)[0] for name in contenders)
    cheapest = [name for name in contenders if cost(comparison, name)[0] == fewest]
    near = cheapest if methods[0] in cheapest else _near_best(comparison, cheapest)
    method = min(near, key=lambda name: cost(comparison, name))
    return Recommendation(method, comparison.passes[methods.index(method)], contenders)


def _near_best(comparison: Comparison, methods: list[str]) -> list[str]:
    """Methods that are at most half a standard error worse than the best one, by each score."""
    near: list[set[str]] = []
    for metric in PROPER:
        means = dict(zip(comparison.methods, comparison.values[metric].mean(axis=0).tolist()))
        best = min(methods, key=lambda name: means[name])
        apart = {name: difference(comparison, metric, name, best) for name in methods}
        near.append({name for name, one in apart.items() if one.value <= 0.5 * one.error})
    # If the scores disagree about the best method, the first score decides.
    return sorted(near[0] & near[1] or near[0])


def cost(comparison: Comparison, method: str) -> tuple[float, bool, int]:
    """What one answer costs, for sorting: forward passes, whether answers may change, the place in
    the comparison.
    """
    index = comparison.methods.index(method)
    return comparison.passes[index], not comparison.keeps_accuracy[index], index
