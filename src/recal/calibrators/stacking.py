"""Stacking, a weighted sum of the log-probabilities of the original and of a few views; and plain
averaging over views.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.base import Calibrator, from_fit, from_map
from recal.calibrators.samples import Samples
from recal.calibrators.view_selection import WORTH, StackData, ViewChoice, choose_views
from recal.checks import Floats
from recal.engine.series import ScaledLogits
from recal.maps.arrays import safe_log
from recal.maps.base import wide
from recal.maps.blend import Answers, Blend, ViewMean, mean_probs
from recal.maps.steps import Plan
from recal.schema import NotNegative, Number, RandomState, Size
from recal.solvers.softmax import Stack, StackedMap
from recal.solvers.temperature import fit_beta
from recal.transforms import Transform

# The most values in memory, as float32: 200 MB. With more, candidates are shortlisted and samples
# drawn at random.
_MOST_VALUES = 50_000_000
_SHORTLIST = 8


Gate = Annotated[float, Number(0.0, 1.0, ends="(]")] | Literal["auto"] | None


class ViewStacking(Calibrator):
    """Combine the log-probabilities of the input and of a few transformed copies, usually one or
    two.

    With b the beta of temperature scaling and x(z) = log((1 - e) softmax(b z) + e/K), minimise over
    weights a >= 0 and offsets c the mean NLL of softmax(a_0 x(z) + c + sum of a_g x(view g)) plus
    K/n times the sum of c^2 and 5e-5 times the sum of a_g^2. Samples left out decide which views
    are used, so `fit` may get many candidates. If no view helps, the result is temperature scaling,
    at no cost. Samples more confident than `gate` need no view.

    Parameters
    ----------
    answers : {"kept", "free"}
        "kept": predictions never change. "free": they may change, which gains more and lowers the
        error rate.
    max_views : int
        The most views that may be used. 0 fits offsets alone.
    gate : float in (0, 1], "auto" or None
        Samples with at least this confidence (after temperature scaling) need no views. "auto"
        takes the lowest gate that keeps 95 % of the gain; None computes the views of all samples.
    no_harm : bool
        Use views and offsets only if the gain on samples left out clearly exceeds its standard
        error.
    worth : float, optional
        The share of the gain so far that each further view must add, because it costs a forward
        pass. By default 0.1, and 0.03 with answers="free".
    random_state : int, Generator or None
        Seed of the folds.

    Attributes
    ----------
    plan_ : Blend, or Plan if neither views nor offsets help
        A blend, or plain temperature scaling.
    accepted_ : bool
        Whether views are used.
    views_report_ : list of dict
        For each candidate: `view`; `alone`, its gain in mean NLL without other views (to second
        order, on the samples of the fit); `order`, its position in the search; `added` and
        `standard_error`, its gain on samples left out; `weight`, 0 if it is not used.
    temperature_ : float
    offsets_gain_, views_gain_ : float
        The gain of class offsets over temperature scaling, and of views over that, in mean NLL on
        samples left out.

    Notes
    -----
    If the views exceed 50 million values, eight candidates are shortlisted by the gain that each
    has by itself, and a random subset of the samples is used. Views on disk are read one candidate
    at a time.

    Examples
    --------
    >>> from recal import ViewStacking, Views
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 3, 600)
    >>> looks = [3.0 * np.eye(3)[y] + rng.normal(size=(600, 3)) * 2 for _ in range(2)]
    >>> stack = ViewStacking(random_state=0).fit(Views(looks[0], {"flip": looks[1]}), y)
    >>> stack.accepted_, [str(t) for t in stack.plan_.transforms]
    (True, ['flip'])
    """

    short_name: ClassVar[str] = "stack"
    reads_views: ClassVar[bool] = True

    answers: Answers = "kept"
    max_views: Size = 3
    gate: Gate = 0.99
    no_harm: bool = True
    worth: NotNegative | None = None
    random_state: RandomState = 0

    map_: Plan | Blend = from_fit()
    accepted_: bool = from_fit()
    temperature_: float = from_fit()
    offsets_gain_: float = from_fit()
    views_gain_: float = from_fit()
    views_report_: list[dict[str, Any]] = from_fit()

    def _fit(self, samples: Samples) -> dict[str, Any]:
        views, rng = samples.views, np.random.default_rng(self.random_state)
        worth = WORTH[self.answers] if self.worth is None else self.worth
        beta, epsilon = samples.beta, share_of_chance(len(samples))
        candidates = views.transforms if self.max_views else ()
        # What fits into memory.
        most = _MOST_VALUES // ((1 + min(len(candidates), _SHORTLIST)) * views.n_classes)
        samples = samples.drawn(most, rng)
        candidates, gains = shortlist(samples, candidates, beta, epsilon)
        data = stack_data(samples, candidates, beta, epsilon, kept=self.answers == "kept")
        choice = choose_views(
            data, rng, max_views=self.max_views, gate=self.gate, no_harm=self.no_harm, worth=worth
        )
        plan = stack_plan(
            choice.base, choice.stack, candidates, beta, epsilon, self.answers, choice.gate
        )
        added = zip(choice.order, choice.gains)
        used = [gain.mean for view, gain in added if candidates[view - 1] in plan.transforms]
        return {
            "map_": plan,
            "accepted_": bool(plan.transforms),
            "temperature_": 1.0 / beta,
            "offsets_gain_": choice.base_gain.mean,
            "views_gain_": float(sum(used)),
            "views_report_": report_of(candidates, choice, plan, gains),
        }

    @property
    def plan_(self) -> Plan | Blend:
        """The fitted map."""
        return self.map_


def share_of_chance(n_samples: int) -> float:
    """Return the share of the uniform distribution in probabilities before their logarithm is
    taken.
    """
    # A larger share than 1e-4 would compress the highest confidences, and predictions that views
    # have raised would then rank above them.
    return min(1e-4, 1.0 / (n_samples + 1.0))


def fill_log_probs(out: NDArray[np.float32], logits: Floats, beta: float, epsilon: float) -> None:
    """Write the values of `maps.arrays.soft_log_probs` into `out` in float32, in a third of the
    time.
    """
    size, n_classes = max(1, 200_000 // logits.shape[1]), logits.shape[1]
    for begin in range(0, len(logits), size):
        part = logits[begin : begin + size]
        x = out[begin : begin + size]
        x[:] = part - part.max(axis=1, keepdims=True)
        x *= np.float32(beta)
        np.exp(x, out=x)
        x *= np.float32(1.0 - epsilon) / x.sum(axis=1, keepdims=True)
        x += np.float32(epsilon / n_classes)
        np.log(x, out=x)


def stack_data(
    samples: Samples, candidates: tuple[Transform, ...], beta: float, epsilon: float, *, kept: bool
) -> StackData:
    """Return the data of the choice: the original and each candidate, scaled by the temperature of
    the original.
    """
    views, logits = samples.views, samples.logits
    features = np.empty((1 + len(candidates), *logits.shape), dtype=np.float32)
    fill_log_probs(features[0], logits, beta, epsilon)
    for place, transform in enumerate(candidates, 1):
        fill_log_probs(features[place], views.transformed(transform), beta, epsilon)
    state = ScaledLogits(logits)
    state.rescale(beta)
    log_partition = state.log_partition()
    return StackData(
        samples,
        features,
        confidence=np.exp(-log_partition),
        plain_losses=log_partition - beta * state.drop_at(samples.labels),
        lossless=tuple(is_lossless(transform) for transform in candidates),
        kept=kept,
    )


def stack_plan(
    base: Stack,
    stack: Stack | None,
    candidates: tuple[Transform, ...],
    beta: float,
    epsilon: float,
    answers: Answers,
    gate: float | None,
    matrices: NDArray[np.float64] | None = None,
) -> Plan | Blend:
    """Return the plan of a stack, which is `base` above the gate; without a stack, that of `base`.

    Candidates are numbered from `n_base`.
    """
    main = base if stack is None else stack
    own, mixture, offsets = _numbers(main)
    if stack is None:
        return (
            Blend(own, (), offsets, epsilon, answers=answers, start=beta)
            if offsets
            else Plan(start=beta)
        )
    gated_own, gated_mixture, gated_offsets = _numbers(base)
    weights = tuple(
        (candidates[view - stack.n_base], float(weight))
        for view, weight in zip(stack.used, stack.weights)
        if view >= stack.n_base and (weight > 0.0 or matrices is not None)
    )
    return Blend(
        own, weights, offsets, epsilon, gate, gated_own, gated_offsets, answers,
        mixture, gated_mixture, () if matrices is None else matrices.tolist(), beta,
    )  # fmt: skip


def _numbers(stack: Stack) -> tuple[float, float, tuple[float, ...]]:
    """Return the weights of the original and of a mixture, and the offsets, if there are any."""
    return (
        float(stack.weights[0]),
        float(stack.weights[1 : stack.n_base].sum()),
        tuple(stack.offsets.tolist()) if stack.offsets.any() else (),
    )


def is_lossless(transform: Transform) -> bool:
    """Whether the view keeps all information, according to the transformation itself or else to its
    name.
    """
    lossless = getattr(transform, "keeps_information", None)
    if lossless is None:
        return str(transform).split(":")[0] in ("flip", "mirror", "shift", "crop")
    return bool(lossless)


def shortlist(
    samples: Samples, candidates: tuple[Transform, ...], beta: float, epsilon: float
) -> tuple[tuple[Transform, ...], dict[Transform, float]]:
    """Return the candidates, or those with the largest gain by themselves if they do not all fit
    into memory.

    Only a shortlist comes with the gains of all candidates; one candidate is in memory at a time.
    """
    views, labels = samples.views, samples.labels
    size = labels.size * views.n_classes
    if (1 + len(candidates)) * size <= _MOST_VALUES or len(candidates) <= _SHORTLIST:
        return candidates, {}
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
    return tuple(transform for transform in candidates if transform in best), gains


def report_of(
    candidates: tuple[Transform, ...],
    choice: ViewChoice,
    plan: Plan | Blend | None,
    alone: dict[Transform, float] | None = None,
) -> list[dict[str, Any]]:
    """Return a record of each candidate, in the order of the search.

    `alone` has the gain of each candidate by itself, even if it was not shortlisted.
    """
    weights = dict(plan.weights) if isinstance(plan, Blend) else {}
    alone = alone or dict(zip(candidates, choice.alone.tolist()))
    places = {candidates[view - 1]: place for place, view in enumerate(choice.order, 1)}
    records = []
    for transform, gain in alone.items():
        place = places.get(transform)
        added = None if place is None else choice.gains[place - 1]
        records.append(
            {
                "view": str(transform),
                "alone": float(gain),
                "order": place,
                "added": None if added is None else added.mean,
                "standard_error": None if added is None else added.error,
                "weight": weights.get(transform, 0.0),
            }
        )
    return sorted(records, key=lambda record: (record["order"] or np.inf, -record["alone"]))


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

    def _fit(self, samples: Samples) -> dict[str, Any]:
        views, beta = samples.views, 1.0
        if self.temperature:
            others = [wide(views.transformed(transform)) for transform in views.transforms]
            beta = fit_beta(safe_log(mean_probs(wide(views.logits), others)), samples.labels)
        return {"map_": ViewMean(views.transforms, beta)}
