"""Stacking, a weighted sum of the log-probabilities of the original and of a few views; and plain
averaging over views.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.base import GuardedCalibrator, from_fit
from recal.calibrators.samples import Samples
from recal.calibrators.view_selection import StackData, ViewChoice, choose_views
from recal.checks import Floats
from recal.engine import row_blocks
from recal.engine.series import ScaledLogits
from recal.maps.blend import Answers, Blend, ViewMean
from recal.maps.steps import Plan
from recal.schema import Number, RandomState, Size
from recal.solvers.softmax import Stack, StackedMap
from recal.transforms import Transform

# The most values in memory, as float32: 200 MB. With more, candidates are shortlisted and samples
# drawn at random.
_MOST_VALUES = 50_000_000
_SHORTLIST = 8


class ViewStacking(GuardedCalibrator):
    """Combine the log-probabilities of the input and of a few transformed copies, usually one or
    two.

    With b the beta of temperature scaling and x(z) = log((1 - e) softmax(b z) + e/K), minimise over
    weights a >= 0 and offsets c the mean NLL of softmax(a_0 x(z) + c + sum of a_g x(view g)) plus
    K/n times the sum of c^2 and 5e-5 times the sum of a_g^2. Samples left out decide which views
    are used, so `fit` may get many candidates. Each further view must add a tenth of the gain so
    far, because it costs a forward pass (3 % if predictions may change). If no view helps, the
    result is temperature scaling, at no cost. Samples more confident than `gate` need no view.

    Parameters
    ----------
    max_views : int
        The most views that may be used. 0 fits offsets alone.
    gate : float in (0, 1] or None
        Samples with at least this confidence (after temperature scaling) need no views; None
        computes the views of all samples.
    no_harm : bool
        Use views and offsets only if the gain on samples left out clearly exceeds its standard
        error.
    random_state : int, Generator or None
        Seed of the folds.

    Attributes
    ----------
    plan_ : Blend, or Plan if neither views nor offsets help
        A blend, or plain temperature scaling.
    views_report_ : list of dict
        For each candidate: `view`; `alone`, its gain in mean NLL without other views (to second
        order, on the samples of the fit); `order`, its position in the search; `added` and
        `standard_error`, its gain on samples left out; `weight`, 0 if it is not used.

    Notes
    -----
    If the views exceed 50 million values, eight candidates are shortlisted by the gain that each
    has by itself, and a random subset of the samples is used. Views on disk are read one candidate
    at a time.

    Examples
    --------
    >>> from recal import Views, ViewStacking
    >>> rng, y = np.random.default_rng(0), np.arange(600) % 3
    >>> first, second = (3.0 * np.eye(3)[y] + 2.0 * rng.normal(size=(600, 3)) for _ in range(2))
    >>> stack = ViewStacking().fit(Views(first, {"flip": second}), y)
    >>> [str(transform) for transform in stack.plan_.transforms]
    ['flip']
    """

    reads_views: ClassVar[bool] = True

    answers: Answers = "kept"
    max_views: Size = 3
    gate: Annotated[float, Number(0.0, 1.0, ends="(]")] | None = 0.99
    no_harm: bool = True
    random_state: RandomState = 0

    map_: Plan | Blend = from_fit()
    views_report_: list[dict[str, Any]] = from_fit()

    def _fit(self, samples: Samples) -> dict[str, Any]:
        views, rng, beta = samples.views, np.random.default_rng(self.random_state), samples.beta
        candidates = views.transforms if self.max_views else ()
        epsilon = share_of_chance(len(samples))
        # What fits into memory.
        most = _MOST_VALUES // ((1 + min(len(candidates), _SHORTLIST)) * views.n_classes)
        samples = samples.drawn(most, rng)
        data = stack_data(samples, candidates, beta, epsilon, self.answers, self.gate)
        choice = choose_views(data, rng, max_views=self.max_views, no_harm=self.no_harm)
        plan = stack_plan(data, choice.base, choice.stack)
        return {"map_": plan, "views_report_": report_of(data, choice, plan)}


def share_of_chance(n_samples: int) -> float:
    """Return the share of the uniform distribution that is mixed in before logarithms."""
    # A larger share than 1e-4 would compress the highest confidences, and predictions that views
    # have raised would then rank above them.
    return min(1e-4, 1.0 / (n_samples + 1.0))


def fill_log_probs(out: NDArray[np.float32], logits: Floats, beta: float, epsilon: float) -> None:
    """Write `maps.arrays.soft_log_probs` into `out` in float32, in a third of the time."""
    n_classes = logits.shape[1]
    for rows in row_blocks(len(logits), n_classes, 200_000):
        part, x = logits[rows], out[rows]
        x[:] = part - part.max(axis=1, keepdims=True)
        x *= np.float32(beta)
        np.exp(x, out=x)
        x *= np.float32(1.0 - epsilon) / x.sum(axis=1, keepdims=True)
        x += np.float32(epsilon / n_classes)
        np.log(x, out=x)


def stack_data(
    samples: Samples,
    candidates: tuple[Transform, ...],
    beta: float,
    epsilon: float,
    answers: Answers,
    gate: float | None,
) -> StackData:
    """Return the data of the choice: the original and each candidate, scaled by the temperature of
    the original.
    """
    candidates = _shortlist(samples, candidates, beta, epsilon)
    views, logits = samples.views, samples.logits
    features = np.empty((1 + len(candidates), *logits.shape), dtype=np.float32)
    fill_log_probs(features[0], logits, beta, epsilon)
    for place, transform in enumerate(candidates, 1):
        fill_log_probs(features[place], views.transformed(transform), beta, epsilon)
    state = ScaledLogits(logits)
    state.rescale(beta)
    log_partition = state.log_partition()
    confidence = np.exp(-log_partition)
    plain = log_partition - beta * state.drop_at(samples.labels)
    return StackData(samples, candidates, features, confidence, plain, beta, epsilon, answers, gate)


def _shortlist(
    samples: Samples, candidates: tuple[Transform, ...], beta: float, epsilon: float
) -> tuple[Transform, ...]:
    """Return the candidates, or those with the largest gain by themselves if they do not all fit
    into memory; one candidate is in memory at a time.
    """
    views, labels = samples.views, samples.labels
    size = labels.size * views.n_classes
    if (1 + len(candidates)) * size <= _MOST_VALUES or len(candidates) <= _SHORTLIST:
        return candidates
    pair = np.empty((2, len(labels), views.n_classes), dtype=np.float32)
    fill_log_probs(pair[0], views.logits, beta, epsilon)
    shares = np.full(len(labels), 1.0 / len(labels))
    problem = StackedMap(pair, labels, shares, offset_penalty=views.n_classes / len(labels))
    base = problem.solve((0,))
    gains = {}
    for transform in candidates:
        fill_log_probs(pair[1], views.transformed(transform), beta, epsilon)
        gains[transform] = float(problem.promised_gains(base, (1,))[0])
    best = sorted(candidates, key=lambda transform: -gains[transform])[:_SHORTLIST]
    return tuple(transform for transform in candidates if transform in best)


def stack_plan(
    data: StackData, base: Stack, stack: Stack | None, matrices: NDArray[np.float64] | None = None
) -> Plan | Blend:
    """Return the plan of a stack; above the gate, and without a stack, that of `base`."""

    def numbers(one: Stack) -> tuple[float, float, tuple[float, ...]]:
        offsets = tuple(one.offsets.tolist()) if one.offsets.any() else ()
        return float(one.weights[0]), float(one.weights[1 : one.n_base].sum()), offsets

    own, mixture, offsets = numbers(base if stack is None else stack)
    how: dict[str, Any] = {"answers": data.answers, "start": data.beta}
    if stack is None:
        no_views = Blend(own, (), offsets, data.epsilon, **how)
        return no_views if offsets else Plan(start=data.beta)
    how["gated_own"], how["gated_mixture"], how["gated_offsets"] = numbers(base)
    weights = tuple(
        (data.candidates[view - stack.n_base], float(weight))
        for view, weight in zip(stack.used, stack.weights)
        if view >= stack.n_base and (weight > 0.0 or matrices is not None)
    )
    if matrices is not None:
        how["matrices"] = matrices.tolist()
    return Blend(own, weights, offsets, data.epsilon, data.gate, mixture=mixture, **how)


def report_of(data: StackData, choice: ViewChoice, plan: Plan | Blend) -> list[dict[str, Any]]:
    """Return a record of each candidate, in the order of the search."""
    weights = dict(plan.weights) if isinstance(plan, Blend) else {}
    records = []
    for view, (transform, alone) in enumerate(zip(data.candidates, choice.alone.tolist()), 1):
        added = choice.gains.get(view)
        records.append(
            {
                "view": str(transform),
                "alone": alone,
                "order": None if added is None else list(choice.gains).index(view) + 1,
                "added": None if added is None else added.mean,
                "standard_error": None if added is None else added.error,
                "weight": weights.get(transform, 0.0),
            }
        )
    return sorted(records, key=lambda record: (record["order"] or np.inf, -record["alone"]))


class ViewAveraging(GuardedCalibrator):
    """Average the softmax over the original and all its views, as in test-time augmentation.

    It learns nothing: `fit` only stores which transformations to use. The
    average may predict another class than the model, and transformations that lose much information
    make it worse than no calibration: it suits mild views only. Reference: Bahat and Shakhnarovich,
    *Classification confidence estimation with test-time data-augmentation* (2020).

    Examples
    --------
    >>> from recal import Views
    >>> views = Views([[2.0, 0.0], [0.0, 1.0]], {"zoom:0.5": [[0.0, 0.0], [0.0, 3.0]]}, [0, 1])
    >>> ViewAveraging().fit(views).predict_proba(views).round(3).tolist()
    [[0.69, 0.31], [0.158, 0.842]]
    """

    needs_views = True

    map_: ViewMean = from_fit()

    def _fit(self, samples: Samples) -> dict[str, Any]:
        return {"map_": ViewMean(samples.views.transforms)}
