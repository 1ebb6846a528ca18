"""One confidence for the answers that several systems give to the same question."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.calibrators.base import RULE, Estimator, from_fit
from recal.calibrators.group_offsets import GroupOffsets, fit_group_offsets
from recal.calibrators.panel_answers import Match, PanelRows, PanelTable, Same, right_answers
from recal.calibrators.panel_fit import PanelFit, chosen_answers
from recal.calibrators.samples import Samples
from recal.checks import Indices, Vector
from recal.copies import count_fitted, kept_hashes
from recal.engine import one_thread
from recal.errors import FewSamplesWarning, InputError
from recal.maps.blend import Answers
from recal.maps.signals import PanelMap
from recal.schema import FloatArray, Integers, Number, RandomState, check, check_parameters


class PanelCalibration(Estimator):
    """Probability that an answer is right, from the answers of several systems and their signals.

    Systems can be language models, prompts, samples of one model, classifiers or people. An
    answer's score is the sum over the systems that gave it of a weight plus slopes times their
    signals; "none of these" has a score of its own. The probabilities are the softmax over the
    distinct answers of a question (a conditional logit), so answers need not be a closed list.
    Cross-validation chooses the ridge penalty and drops systems that do not pay. With one system,
    or if the others do not help, this is `SignalCalibration`; if they do not clearly help, the
    confidence of the main system's answer is a mixture of both.

    Parameters
    ----------
    answers : {"free", "kept"}
        "free" predicts the likeliest answer of any system, "kept" always that of the first.
    match : {"text", "exact", "number"}
        When two answers are the same. "text" ignores case, spaces, punctuation and how a number is
        written; "number" compares the last number of each text.
    same : function of two answers, optional
        Says whether they are the same, in place of `match`. Files hold no functions, so a panel
        with one cannot be saved.
    random_state : int, Generator or None
        Decides the folds.

    Attributes
    ----------
    map_ : PanelMap
        One conditional logit for each number of systems that were asked.
    table_ : PanelTable
        The systems and their signals.
    reason_ : str
        What each further system adds.
    gains_ : list of dict
        For each system, asked after those before it: cross-validated accuracy, share of answers
        that can be automated at 5 % errors, and whether it is `used`.
    stage_confidence_ : array of shape (n, n_systems)
        Cross-validated confidences after each system, from which `plan_cascade` lists policies.
    decision_ : DecisionRule, if one was set

    Examples
    --------
    >>> import numpy as np
    >>> from recal import PanelCalibration
    >>> rng = np.random.default_rng(0)
    >>> truth = rng.choice(list("ABCD"), 400)
    >>> answers = {
    ...     name: np.where(rng.random(400) < accuracy, truth, rng.choice(list("ABCD"), 400))
    ...     for name, accuracy in {"large": 0.7, "small": 0.6, "tiny": 0.5}.items()
    ... }
    >>> panel = PanelCalibration().fit(answers, truth)
    >>> new = {"large": ["A", "A"], "small": ["a.", "B"], "tiny": ["A", "B"]}
    >>> panel.predict_confidence(new).round(1).tolist()
    [1.0, 0.8]
    """

    answers: Answers = "free"
    match: Match = "text"
    same: Same | None = None
    random_state: RandomState = 0

    map_: PanelMap = from_fit()
    table_: PanelTable = from_fit()
    reason_: str = from_fit()
    gains_: list[Any] = from_fit()
    stage_confidence_: Annotated[Vector, FloatArray(None, None, low=0.0, high=1.0)] = from_fit()
    n_fitted_: int = from_fit()
    row_hashes_: Annotated[NDArray[np.uint64], Integers(None)] = from_fit()
    group_offsets_: GroupOffsets = from_fit()
    decision_: Annotated[Any, RULE] = from_fit()

    @one_thread()
    def fit(
        self,
        answers: Any,
        truth: Any,
        signals: Any = None,
        groups: Any = None,
        clusters: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        *,
        costs: Mapping[str, float] | Sequence[float] | None = None,
    ) -> Self:
        """Learn the weights of the systems from questions with known answers.

        Parameters
        ----------
        answers : {system: answers}, data frame, or array of shape (n_questions, n_systems)
            Text, numbers, or None for no answer. Several samples of one system are an array of
            shape (n_questions, n_samples), or a list per question; they share one weight. The first
            system is the main one. Systems come in the order in which a cascade would ask them.
        truth : array-like of shape (n_questions,) or (n_questions, n_systems), or {system: grades}
            The right answers; or grades (True or False) of each system's answer; or, as booleans of
            shape (n_questions,), grades of the main system's answers, which are then always kept.
        signals : {system: columns}, optional
            What comes with an answer, as `SignalCalibration` reads it: a mapping, a data frame or
            an array. Missing values and systems without signals are normal.
        groups : array-like of shape (n_questions,), optional
            Each group gets an offset on the log-odds of the confidence, if offsets pay.
        clusters : array-like of shape (n_questions,), optional
            Names of questions that belong together; cross-validation never divides them.
        sample_weight : array-like of shape (n_questions,), optional
        costs : {system: cost}, or one cost per system, optional
            The price of asking each system; `reason_` then says what each adds for it.
        """
        check_parameters(self)
        table = PanelTable.of(answers, signals)
        prices = None if costs is None else read_costs(costs, table.systems)
        same = self.same or self.match
        rows = table.rows(answers, signals, same, len(table.systems))
        if len(rows) < 10:
            raise InputError(
                f"must have at least 10 questions, got {len(rows)}", argument="answers"
            )
        if np.isnan(rows.slots[:, : table.samples[0]]).all():
            raise InputError(
                f"of {table.systems[0]!r}, the main system, are all missing", argument="answers"
            )
        right, merged = right_answers(rows, table, truth, same)
        if not right[:, :-1].any():
            raise InputError(
                "is the answer of no system in any row, so there is nothing to learn",
                argument="truth",
                remedy="Grades of the main system must be booleans, in one column",
            )
        _refuse_leaks(rows, right, table)
        samples = Samples.checked(rows, right, sample_weight, clusters, groups)
        if len(rows) < 50:
            warnings.warn(
                f"{len(rows)} questions with known answers are few: weights depend on single ones.",
                FewSamplesWarning,
                stacklevel=3,
            )
        kept = self.answers == "kept" or merged
        rng = np.random.default_rng(self.random_state)
        fit = PanelFit(samples, table, rng, merged=merged, kept=kept)
        used = fit.best_systems()
        confidence, correct = fit.outcomes(used)
        gains = _gains(table.systems, used, confidence, correct)
        state: dict[str, Any] = {
            "map_": fit.fit(used),
            "table_": table,
            "n_fitted_": len(rows),
            "gains_": gains,
            "reason_": _panel_reason(gains, len(rows), prices),
            "stage_confidence_": confidence,
            "row_hashes_": kept_hashes(rows.digits()),
        }
        some = fit.drawn
        if some.groups is not None:
            state["group_offsets_"] = fit_group_offsets(
                confidence[:, -1], correct[:, -1], some.groups, some.weights, clusters=some.clusters
            )
        return self.set_state(state)

    def predict(self, answers: Any, signals: Any = None, *, asked: Any = None) -> NDArray[Any]:
        """Return the answer to each question as it was given, (n_questions,), or None."""
        return self.predict_both(answers, signals, asked=asked)[0]

    def predict_confidence(
        self, answers: Any, signals: Any = None, groups: Any = None, *, asked: Any = None
    ) -> Vector:
        """Return the probability that the answer of `predict` is right, (n_questions,).

        Systems that are not in `answers`, or that come last and have neither answer nor signal,
        count as not asked. `asked` says how many systems were asked if this is not so.
        """
        return self.predict_both(answers, signals, groups, asked=asked)[1]

    def predict_both(
        self, answers: Any, signals: Any = None, groups: Any = None, *, asked: Any = None
    ) -> tuple[NDArray[Any], Vector]:
        """Return the results of `predict` and `predict_confidence` at the cost of one of them."""
        rows = self.read(answers, signals, asked)
        places, confidence = self.chosen(rows, self.map_.probs(rows.encoded()))
        found = places >= 0
        picked = rows.raw[np.arange(len(rows)), np.maximum(places, 0)]
        picked[~found] = None
        if groups is not None:
            self._check_groups(groups)
            confidence = np.where(found, self.group_offsets_.apply(confidence, groups), 0.0)
        return picked, confidence

    def read(self, answers: Any, signals: Any = None, asked: Any = None) -> PanelRows:
        """Return the rows that the map reads."""
        self._check_fitted()
        return self.table_.rows(answers, signals, self.same or self.match, asked)

    def chosen(self, rows: PanelRows, probs: Vector) -> tuple[Indices, Vector]:
        """Return the place of each question's answer, -1 if there is none, and its confidence."""
        kept = self.answers == "kept" or self.map_.merged
        return chosen_answers(probs, rows.slots, self.table_.samples[0], kept)

    def fitted_questions(self, rows: PanelRows) -> int:
        """Return about how many of these questions the panel was fitted on, by their hashes."""
        kept = getattr(self, "row_hashes_", np.empty(0, np.uint64))  # older files have none
        return count_fitted(rows.digits(), kept, self.n_fitted_)

    def check_state(self) -> None:
        super().check_state()
        if (self.map_.samples != self.table_.samples).any():
            raise InputError("must describe the systems of the table", argument="map_")

    def _repr_html_(self) -> str:
        # Import by name, because reporting imports calibrators, not the other way round.
        return str(import_module("recal.reporting.notebook").panel_html(self))


def read_costs(
    costs: Mapping[str, float] | Sequence[float], systems: Sequence[str]
) -> NDArray[np.float64]:
    """Return the price of asking each system."""
    given: Any = costs if hasattr(costs, "__len__") else [costs]
    named = given if isinstance(given, Mapping) else dict(zip(systems, given))
    if set(named) != set(systems) or len(given) != len(systems):
        raise InputError(
            f"must be one for each of {', '.join(systems)}, got {costs}", argument="costs"
        )
    return np.array([check(named[name], Number(0.0), "costs") for name in systems], np.float64)


def _panel_reason(
    gains: Sequence[dict[str, Any]], n_questions: int, prices: NDArray[np.float64] | None
) -> str:
    told: list[str] = []
    dropped: list[str] = []
    for place, gain in enumerate(gains):
        rates = f"accuracy {gain['accuracy']:.1%}, {gain['automated']:.0%} automated at 5 % errors"
        if told and prices is not None:
            points = 100.0 * (gain["automated"] - gains[place - 1]["automated"])
            rates += f" ({points:+.1f} points for {prices[place]:g}"
            rates += f", {points / prices[place]:+.3g} per 1)" if prices[place] else ")"
        if gain["used"]:
            told.append(f"{gain['system']}: {rates}")
        else:
            dropped.append(gain["system"])
    text = f"Fitted on {n_questions:,} questions. Alone, {'; then with '.join(told)}."
    if dropped:
        text += f" Left out, because the panel predicts better without: {', '.join(dropped)}."
    return text


def _refuse_leaks(rows: PanelRows, right: Vector, table: PanelTable) -> None:
    """Refuse a system that is right in every row: most likely its column is the truth itself."""
    given = ~np.isnan(rows.slots)
    places = np.where(given, rows.slots, 0).astype(np.intp)
    correct = given & (np.take_along_axis(right, places, axis=1) > 0.0)
    every = np.split(correct.all(axis=0), np.cumsum(table.samples)[:-1])
    for name, own in zip(table.systems, every):
        if own.all():
            raise InputError(
                f"The answers of {name!r} equal the truth in every row, so they leak the result. "
                "Leave this system out."
            )


def automated_share(confidence: Vector, correct: NDArray[np.bool_], risk: float) -> float:
    """Return the largest share of most confident answers with at most this share of errors."""
    order = np.argsort(-confidence, kind="stable")
    errors = np.cumsum(~correct[order]) / np.arange(1, len(order) + 1)
    within = np.flatnonzero(errors <= risk)
    return (within[-1] + 1) / len(order) if len(within) else 0.0


def _gains(
    systems: Sequence[str], used: Sequence[int], confidence: Vector, correct: NDArray[np.bool_]
) -> list[dict[str, Any]]:
    return [
        {
            "system": name,
            "used": place in used,
            "accuracy": float(right.mean()),
            "automated": automated_share(sure, right, 0.05),
        }
        for place, (name, sure, right) in enumerate(zip(systems, confidence.T, correct.T))
    ]
