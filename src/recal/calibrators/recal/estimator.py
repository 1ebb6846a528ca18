"""ReCal: confidence corrected by how a sample reacts to losing information (Jang, Lee, Weimer, 2021)."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.base import Calibrator, State
from recal.calibrators.machinery.parameters import check_count, check_random_state
from recal.calibrators.machinery.state import check_plan
from recal.calibrators.machinery.suspicions import FEWEST_MISTAKES
from recal.calibrators.recal.loop import Iteration, Reading, ThinEvidence, compile_plan
from recal.checks import Labels
from recal.errors import FewSamplesWarning, InputError
from recal.maps.replay import calibrated_probs
from recal.plan import ConfidenceAt, Plan, Rule, Ties
from recal.progress import track
from recal.transforms import Transform, as_transform
from recal.views import Views

# How much surer groups may become, all iterations together, on the evidence of a handful of mistakes.
_HARMLESS = 1.25


class ReCal(Calibrator):
    """Correct confidence by how each sample reacts to transformations that keep its label and lose information.

    Each iteration draws one transformation, sorts the samples into four groups by their reaction to it (`Group`), and
    scales each group's logits by a temperature of its own, shrunk towards 1 by the group's share. Predictions never
    change.

    Parameters
    ----------
    max_iter : int
        The most iterations.
    tol : float
        Stop when the expected calibration error changes by less; 0 never stops early.
    confidence_at : {"original", "own"}
        Where a transformed copy's confidence is read: at the original's prediction, or at the copy's own.
    shrink : {"beta", "temperature"}
        Whether 1/T or T is shrunk towards 1.
    guard : {None, "ece"}
        "ece" undoes an iteration, or a group's part in it, that would raise the calibration error.
    start : {"raw", "temperature"}
        Begin with the logits as they are, or after one temperature scaling.
    finish : {None, "temperature"}
        End with one more temperature scaling, or not.
    floor : float or None
        Keep probabilities above this before taking logarithms, at the outset (also before a `start` temperature) and
        after every rescaling. Needs a dense copy of every view.
    ties : {"float32", "exact"}
        Compare confidences as float32 softmax values, or exactly, in log-odds.
    n_bins : int
        Bins of the calibration error that `tol` and `guard` look at.
    separable : {"pooled", "bound"}
        What a group without a single mistake gets, for which no finite temperature is best. "pooled": the temperature
        that is best for all samples together at that state; where that would raise its confidence, no more than one
        more, wrong, sample of its own would allow. "bound": beta = 100, the end of the solver's range.
    sequence : sequence of transformations, specs or indices, optional
        The transformation of each iteration, instead of random draws. Draws pass over views that lose nothing, such
        as a mirror (`keeps_information`), unless the views hold no others.
    random_state : int, Generator or None
        Seeds the draws.
    exact : bool
        Compute every step from the logits in float64, instead of taking shortcuts that give the same groups and betas
        within 1e-8. For checking; many times slower where there are many classes.

    Attributes
    ----------
    plan_ : Plan
        What the fit produced.
    history_ : tuple of Iteration
        Per iteration: transformation, group sizes, raw and shrunk betas, ECE before and after, accepted or not.
    n_iter_ : int

    Warns
    -----
    FewSamplesWarning
        Where groups with fewer than ten mistakes became much more confident: new mistakes can raise the NLL sharply.
        Few held-out samples are the usual cause; see `sizes` and `raw_betas` in `history_`.

    Examples
    --------
    >>> import numpy as np
    >>> from recal import ReCal, Views
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 3, 300)
    >>> logits = 4 * (np.eye(3)[y] + rng.normal(0, 0.6, (300, 3)))
    >>> views = Views(logits, {"zoom:0.5": logits * 0.5 + rng.normal(0, 1, (300, 3))}, y)
    >>> recal = ReCal(random_state=0).fit(views)
    >>> probs = recal.predict_proba(views)
    >>> bool((probs.argmax(1) == logits.argmax(1)).all())
    True
    """

    short_name: ClassVar[str] = "recal"
    keeps_accuracy: ClassVar[bool] = True
    needs_views: ClassVar[bool] = True

    def __init__(
        self,
        *,
        max_iter: int = 200,
        tol: float = 1e-6,
        confidence_at: ConfidenceAt = "original",
        shrink: Literal["beta", "temperature"] = "beta",
        guard: Literal["ece"] | None = None,
        start: Literal["raw", "temperature"] = "raw",
        finish: Literal["temperature"] | None = None,
        floor: float | None = None,
        ties: Ties = "float32",
        n_bins: int = 15,
        separable: Literal["pooled", "bound"] = "pooled",
        sequence: Sequence[Transform | str | int] | NDArray[np.integer[Any]] | None = None,
        exact: bool = False,
        random_state: int | np.random.Generator | None = 0,
    ) -> None:
        self.max_iter = max_iter
        self.tol = tol
        self.confidence_at = confidence_at
        self.shrink = shrink
        self.guard = guard
        self.start = start
        self.finish = finish
        self.floor = floor
        self.ties = ties
        self.n_bins = n_bins
        self.separable = separable
        self.sequence = sequence
        self.random_state = random_state
        self.exact = exact

    def _fit(self, views: Views, labels: Labels) -> None:
        reading = Reading(
            rule=Rule(confidence_at=self.confidence_at, ties=self.ties, floor=self.floor),
            shrink=self.shrink,
            guard=self.guard,
            start=self.start,
            finish=self.finish,
            tol=self.tol,
            n_bins=self.n_bins,
            separable=self.separable,
            exact=self.exact,
        )
        self.plan_, self.history_, thin = compile_plan(
            views, labels, reading, track(self._draws(views), "iteration", self.max_iter)
        )
        self.n_iter_ = len(self.history_)
        if thin.growth > _HARMLESS:
            _warn_of_thin_evidence(views.n_samples, thin, self.separable)

    def _draws(self, views: Views) -> Iterator[Transform]:
        """Yield the transformation of each iteration."""
        max_iter = check_count("max_iter", self.max_iter, least=0)
        candidates = views.transforms
        if self.sequence is not None:
            if isinstance(self.sequence, str) or not isinstance(self.sequence, Iterable):
                raise InputError(
                    "must be a list, one transformation per iteration",
                    argument="sequence",
                    came=f"got {self.sequence!r}",
                )
            chosen = [_find(item, candidates) for item in self.sequence]
            return iter(chosen[:max_iter])
        # The method reads how a sample reacts to loss; a mirrored copy tells it something else.
        candidates = tuple(t for t in candidates if not getattr(t, "keeps_information", False)) or candidates
        rng = check_random_state(self.random_state)
        return (candidates[rng.integers(len(candidates))] for _ in range(max_iter))

    def _check_state(self, n_classes: int) -> None:
        check_plan(self, n_classes)

    @property
    def map_(self) -> Plan:  # type: ignore[override]
        """The fitted map, which is `plan_`."""
        return self.plan_

    def _predict_proba(self, views: Views) -> NDArray[np.float64]:
        return calibrated_probs(self.plan_, views)

    def state(self) -> State:
        return {**super().state(), "history_": [iteration.to_json() for iteration in self.history_]}

    def set_state(self, state: State) -> Self:
        history = tuple(Iteration.from_json(record) for record in state.get("history_", ()))
        return super().set_state({**state, "history_": history})


def _warn_of_thin_evidence(n_samples: int, thin: ThinEvidence, separable: str) -> None:
    remedy = ', separable="pooled"' if separable == "bound" else ""
    warnings.warn(
        f"{n_samples} samples are few for this ReCal: groups with fewer than {FEWEST_MISTAKES} mistakes, such as "
        f"{thin.size} samples with {thin.mistakes}, became up to {thin.growth:.3g} times more confident. New "
        f"mistakes there can raise the NLL sharply: compare with TemperatureScaling. "
        f'Use more samples{remedy} or guard="ece".',
        FewSamplesWarning,
        stacklevel=4,
    )


def _find(item: Transform | str | int | np.integer[Any], candidates: tuple[Transform, ...]) -> Transform:
    if isinstance(item, int | np.integer):
        if not 0 <= item < len(candidates):
            last = len(candidates) - 1
            raise InputError(
                f"holds the index {item}, but the views' transformations go from 0 to {last}", argument="sequence"
            )
        return candidates[int(item)]
    transform = as_transform(item)
    if transform not in candidates:
        raise InputError(f"names {str(transform)!r}, which the views do not hold", argument="sequence")
    return transform
