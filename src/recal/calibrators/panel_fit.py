"""The fit of a panel: a conditional logit, and the cross-validation of its penalty and systems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.panel_answers import PanelTable, main_places
from recal.calibrators.samples import LossGain, Samples
from recal.calibrators.signal_models import choose_kinds, encoding_of
from recal.calibrators.signals import SignalFit, fit_mixture
from recal.checks import Flags, Indices, Vector
from recal.clusters import each_fold, stratified_folds
from recal.maps.signals import CATEGORY, PanelMap, PanelStage, SignalEncoding, SignalMap, mixed
from recal.solvers.convex import Dense, minimise, mixture_weights


def chosen_answers(
    probs: Vector, slots: Vector, n_samples: int, kept: bool
) -> tuple[Indices, Vector]:
    """Return the place of the answer, -1 if there is none, and its probability."""
    if kept:
        main = main_places(slots, n_samples)
        places = np.where(np.isnan(main), -1, main).astype(np.intp)
    else:
        places = np.where(np.isnan(slots).all(axis=1), -1, probs[:, :-1].argmax(axis=1))
    own = probs[np.arange(len(probs)), np.maximum(places, 0)]
    return places, np.where(places >= 0, own, 0.0)


@dataclass(frozen=True)
class PanelProblem:
    """What the fit reads.

    votes : (n, n_answers + 1, n_systems), the share of a system's samples that support a candidate
    columns : for each system, (n, n_features), the first of them 1
    right : (n, n_answers + 1), which candidate is right; the last is "none of these"
    """

    votes: Vector
    columns: tuple[Vector, ...]
    right: Vector
    weights: Vector

    def __getitem__(self, rows: Indices | Flags) -> PanelProblem:
        columns = tuple(one[rows] for one in self.columns)
        return PanelProblem(self.votes[rows], columns, self.right[rows], self.weights[rows])

    def probs(self, used: Sequence[int], solution: Vector) -> Vector:
        """Return the probability of each candidate, (n, n_answers + 1)."""
        logit = _ConditionalLogit(self, used, penalty=0.0)
        logit.evaluate(solution)
        return logit.probs

    def solve(self, used: Sequence[int], penalty: float, start: Vector | None = None) -> Vector:
        """Return the parameters of the systems in use, and last the score of "none of these"."""
        logit = _ConditionalLogit(self, used, penalty)
        first = np.zeros(len(logit.ridge)) if start is None else start
        return minimise(logit, first, warn=False).point


class _ConditionalLogit(Dense):
    """The NLL of the right candidate plus a ridge: `penalty` for slopes, a tenth of it for weights.

    "None of these" counts as one more system, and answers of systems not in use as "none of these".
    """

    def __init__(self, problem: PanelProblem, used: Sequence[int], penalty: float) -> None:
        n, n_candidates, _ = problem.votes.shape
        none = np.zeros((n, n_candidates, 1))
        none[:, -1] = 1.0
        self.votes = np.concatenate([problem.votes[:, :, list(used)], none], axis=2)
        self.by_system = np.ascontiguousarray(self.votes.transpose(2, 0, 1))
        blocks = [problem.columns[place] for place in used] + [np.ones((n, 1))]
        self.design = np.concatenate(blocks, axis=1)
        widths = [one.shape[1] for one in blocks]
        self.system = np.repeat(np.arange(len(blocks)), widths)
        ends = np.cumsum(widths).tolist()
        self.columns = [slice(end - width, end) for end, width in zip(ends, widths)]
        self.given = self.votes.sum(axis=2) > 0.0
        right = np.where(self.given, problem.right, 0.0)[:, :-1]
        right = right / np.maximum(right.sum(axis=1, keepdims=True), 1e-300)
        self.right = np.column_stack([right, 1.0 - right.sum(axis=1)])
        self.weights = problem.weights
        self.ridge = np.full(len(self.system), penalty)
        self.ridge[np.r_[True, np.diff(self.system) > 0]] = 0.1 * penalty
        self.ridge[-1] = 0.1

    def evaluate(self, point: Vector) -> float:
        self.point = point
        own = self.system[:, None] == np.arange(self.votes.shape[2])
        scores = self.design @ (point[:, None] * own)
        total = np.matmul(self.votes, scores[:, :, None])[:, :, 0]
        total = np.where(self.given, total, -np.inf)
        total = np.exp(total - total.max(axis=1, keepdims=True))
        self.probs = total / total.sum(axis=1, keepdims=True)
        fit = (self.right * np.log(np.maximum(self.probs, 1e-300))).sum(axis=1)
        return float(0.5 * self.ridge @ point**2 - self.weights @ fit)

    def derivatives(self) -> tuple[Vector, Vector]:
        expected = np.einsum("nc,ncs->ns", self.probs, self.votes)
        observed = np.einsum("nc,ncs->ns", self.right, self.votes)
        pull = self.weights[:, None] * (expected - observed)
        gradient = (self.design * pull[:, self.system]).sum(axis=0) + self.ridge * self.point
        hessian = np.diag(self.ridge)
        weighted = self.by_system * self.probs
        for one, own in enumerate(self.columns):
            for other, theirs in enumerate(self.columns[: one + 1]):
                spread = np.einsum("nc,nc->n", weighted[one], self.by_system[other])
                spread -= expected[:, one] * expected[:, other]
                block = (self.design[:, own].T * (spread * self.weights)) @ self.design[:, theirs]
                hessian[own, theirs] += block
                if one != other:
                    hessian[theirs, own] += block.T
        return gradient, hessian


def _encoding(samples: Samples, table: PanelTable, merged: bool) -> SignalEncoding:
    """Choose how each system's signals are transformed, by how well they tell whether it is right.

    If only the first system's answers were graded, its grades choose for all.
    """
    rows, n_levels, owner = samples.inputs, table.n_levels, np.array(table.owner)
    kinds = np.zeros(len(owner), np.intp)
    for system in np.unique(owner).tolist():
        slot = rows.slots[:, 0 if merged else sum(table.samples[:system])]
        given, own = np.flatnonzero(~np.isnan(slot)), np.flatnonzero(owner == system)
        grades = samples.labels[given, slot[given].astype(np.intp)]
        if _count_of_rarer(grades) >= 5:
            values = rows.signals[np.ix_(given, own)]
            kinds[own] = choose_kinds(values, grades, samples.counts[given], n_levels[own])
    return encoding_of(rows.signals, np.where(n_levels > 0, CATEGORY, kinds), n_levels)


def _count_of_rarer(right: Vector | Flags) -> float:
    return min(right.sum(), len(right) - right.sum())


class PanelFit:
    """The fit of all stages of a panel.

    Parameters
    ----------
    samples : the answers and signals (`PanelRows`), which candidate is right, weights and clusters
    table : the systems and their signals
    merged : whether only the main system was graded
    kept : whether the main system's answers are kept
    most_rows : cross-validation reads at most this many rows; more do not change what is chosen
    """

    penalties = (20.0, 4.0, 100.0)
    """The ridges to compare; the first is used unless another one is clearly better."""

    def __init__(
        self,
        samples: Samples,
        table: PanelTable,
        rng: np.random.Generator,
        *,
        merged: bool,
        kept: bool,
        most_rows: int = 2000,
    ) -> None:
        self.samples, self.table, self.merged, self.kept = samples, table, merged, kept
        self.scale = _encoding(samples, table, merged)
        self.whole = self._problem()
        self.rows = np.arange(len(samples))
        if len(samples) > most_rows:
            self.rows = np.sort(rng.choice(len(samples), most_rows, replace=False))
        self.drawn, self.problem = samples[self.rows], self.whole[self.rows]
        slots, right = samples.inputs.slots, samples.labels
        self._places, own = chosen_answers(right, slots, table.samples[0], True)
        self.answered, self.main_right = self._places[self.rows] >= 0, own[self.rows] > 0.0
        self.main = self._places[self.rows, None] == np.arange(right.shape[1])
        grades = self.main_right.astype(np.intp)
        self._folds = stratified_folds(grades, 5, rng, clusters=self.drawn.clusters)
        self._known: dict[tuple[float, ...], Vector] = {}

    def _problem(self) -> PanelProblem:
        rows, weights = self.samples.inputs, self.samples.counts
        frame = self._map([self._stage(np.zeros(1), [])] * len(self.table.systems))
        votes = frame.votes(rows.slots)
        if self.merged:
            votes = frame.merge(votes)
        counts = np.array(self.table.samples)
        system = np.repeat(np.arange(len(counts)), counts)
        share = (system[:, None] == np.arange(len(counts))) / counts
        scaled, missing = self.scale.encode(rows.signals)
        missing[:, missing.all(axis=0)] = 0.0  # a signal without values adds nothing
        n_levels, codes = self.table.n_levels[:, None], np.arange(self.table.n_levels.max())
        levels = (codes < n_levels) & (rows.signals[:, :, None] == codes)
        columns = []
        for own in map(self._own, range(len(counts))):
            by_level = levels[:, own].reshape(len(rows), -1)
            parts = np.ones(len(rows)), scaled[:, own], missing[:, own], by_level
            columns.append(np.column_stack(parts))
        weights = weights * (len(weights) / weights.sum())
        return PanelProblem(votes @ share, tuple(columns), self.samples.labels, weights)

    def _own(self, system: int) -> Indices:
        """Return the signals of a system."""
        return np.flatnonzero(np.array(self.table.owner) == system)

    def logit(self, used: Sequence[int], penalty: float) -> Vector:
        """Return the logit's probabilities of the candidates for rows left out."""
        key = (*used, penalty)
        if key not in self._known:
            probs, start = np.zeros(self.problem.right.shape), None
            for rest, left_out in each_fold(self._folds):
                start = self.problem[rest].solve(used, penalty, start)
                probs[left_out] = self.problem[left_out].probs(used, start)
            self._known[key] = probs
        return self._known[key]

    def probs(self, used: Sequence[int]) -> Vector:
        """Return the panel's probabilities of the candidates for rows left out."""
        probs, share = self.logit(used, self.best_penalty(used)), self.share(used)
        return mixed(probs, self.main, self.signals_alone, share) if share else probs

    def losses(self, own: Vector) -> Vector:
        """Return the NLL of "the main system is right" for these probabilities, if it answered.

        Unlike the NLL of the truth, it can be compared between different sets of systems.
        """
        likelihood = np.where(self.main_right, own, 1.0 - own)
        return np.where(self.answered, -np.log(np.maximum(likelihood, 1e-12)), 0.0)

    def own(self, used: Sequence[int], penalty: float) -> Vector:
        """Return the logit's probability of the main system's answer, for rows left out."""
        return np.asarray(np.where(self.main, self.logit(used, penalty), 0.0).sum(axis=1))

    def mean_loss(self, own: Vector) -> float:
        return float(np.average(self.losses(own), weights=self._weights))

    @property
    def _weights(self) -> Vector:
        return self.problem.weights * self.answered

    def _gain(self, before: Vector, after: Vector) -> LossGain:
        pair = self.losses(before), self.losses(after)
        return LossGain.between(*pair, self._weights, self.drawn.clusters)

    def best_penalty(self, used: Sequence[int]) -> float:
        usual = self.penalties[0]
        best = min(self.penalties, key=lambda penalty: self.mean_loss(self.own(used, penalty)))
        return best if self._gain(self.own(used, usual), self.own(used, best)).is_clear else usual

    def best_systems(self) -> list[int]:
        """Drop systems as long as this lowers the loss by one standard error.

        If the main system's signals alone predict at least as well as what is left, drop the rest.
        """
        used = list(range(len(self.table.systems)))
        penalty = self.best_penalty(used)
        while len(used) > 1:
            trials = [[one for one in used if one != place] for place in used[1:]]
            best = min(trials, key=lambda trial: self.mean_loss(self.own(trial, penalty)))
            if not self._gain(self.own(used, penalty), self.own(best, penalty)).is_clear:
                break
            used = best
        if self.signals_alone is None:
            return used
        every = self.mean_loss(self.own(used, self.best_penalty(used)))
        return used if every < self.mean_loss(self.signals_alone) else [0]

    def share(self, used: Sequence[int]) -> float:
        """Return the share of `signals_alone` in the confidence of the main system's answer.

        It is 0 if the logit is clearly better, by two standard errors. Otherwise, the likelihood
        decides; five pseudo-counts against one favour the signals alone, so that systems without
        value do no harm.
        """
        if self.signals_alone is None:
            return 0.0
        if list(used) == [0] and self.table.samples[0] == 1:
            return 1.0
        own = self.own(used, self.best_penalty(used))
        gain = self._gain(self.signals_alone, own)
        if gain.mean > 2.0 * gain.error:
            return 0.0
        both = np.column_stack([own, self.signals_alone])
        likelihoods = np.where(self.main_right[:, None], both, 1.0 - both)
        return float(mixture_weights(likelihoods, self._weights, np.array([1.0, 5.0]))[1])

    @cached_property
    def alone(self) -> SignalFit | None:
        """The mixture that `SignalCalibration` makes of the main system's signals.

        None if there are none, or too few answers to combine signals.
        """
        rows, own = np.flatnonzero(self._places >= 0), self._own(0)
        if self.table.table is None or not len(own) or len(rows) < 50:
            return None
        right = self.whole.right[rows, self._places[rows]] > 0.0
        if _count_of_rarer(right) < 5:
            return None
        signals, weights = self.samples.inputs.signals, self.whole.weights
        samples = replace(self.samples, inputs=signals[:, own], weights=weights)[rows]
        samples = replace(samples, labels=right.astype(np.float64))
        fitted = fit_mixture(samples, self.table.n_levels[own], np.random.default_rng(0))
        return fitted if len(fitted.left_out) else None

    @cached_property
    def signals_alone(self) -> Vector | None:
        """The confidence that the main system's signals alone give to rows left out."""
        if self.alone is None:
            return None
        confidence = np.zeros(len(self._places))
        confidence[self._places >= 0] = self.alone.left_out
        return confidence[self.rows]

    def fit(self, used: Sequence[int]) -> PanelMap:
        """Return the map: a stage for each number of systems that were asked."""
        stages = []
        for some in self._prefixes(used):
            solution = self.whole.solve(some, self.best_penalty(some))
            share = self.share(some)
            alone = None if self.alone is None or not share else self.alone.map
            stages.append(self._stage(solution, some, alone, share))
        return self._map(stages)

    def outcomes(self, used: Sequence[int]) -> tuple[Vector, NDArray[np.bool_]]:
        """Return confidence and correctness of rows left out after each system, (n, n_systems)."""
        confidence, correct = [], []
        for some in self._prefixes(used):
            slots, n_main = self.drawn.inputs.slots, self.table.samples[0]
            places, own = chosen_answers(self.probs(some), slots, n_main, self.kept)
            hit = self.problem.right[np.arange(len(places)), np.maximum(places, 0)] > 0.0
            confidence.append(own)
            correct.append(hit & (places >= 0))
        return np.column_stack(confidence), np.column_stack(correct)

    def _prefixes(self, used: Sequence[int]) -> list[list[int]]:
        every = range(len(self.table.systems))
        return [[one for one in used if one <= place] for place in every]

    def _map(self, stages: Sequence[PanelStage]) -> PanelMap:
        samples = np.array(self.table.samples, dtype=np.int64)
        owner = np.array(self.table.owner, dtype=np.int64)
        return PanelMap(tuple(stages), samples, owner, self.scale, self.merged)

    def _stage(
        self,
        solution: Vector,
        used: Sequence[int],
        alone: SignalMap | None = None,
        share: float = 0.0,
    ) -> PanelStage:
        n_systems, n_signals = len(self.table.systems), len(self.table.owner)
        most = int(self.table.n_levels.max())
        weights, slopes, missing = np.zeros(n_systems), np.zeros(n_signals), np.zeros(n_signals)
        levels = np.zeros((n_signals, max(most, 1)))
        start = 0
        for place in used:
            own = self._own(place)
            # A weight, slopes, weights of missing signals, and weights of levels.
            ends = start + np.cumsum([1, len(own), len(own), len(own) * most])
            weights[place] = solution[start]
            slopes[own], missing[own], by_level = np.split(solution, ends)[1:4]
            levels[own, :most] = by_level.reshape(len(own), most)
            start = ends[-1]
        in_use = np.isin(np.arange(n_systems), [0, *used]).astype(np.int64)
        none = float(solution[-1])
        return PanelStage(in_use, weights, slopes, missing, levels, none, alone, share)
