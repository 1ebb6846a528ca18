"""The fit of a panel: a conditional logit, and the cross-validation of its penalty and systems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.panel_answers import PanelRows, PanelTable
from recal.calibrators.panel_truth import main_places
from recal.calibrators.signal_models import choose_kinds, encoding_of
from recal.calibrators.signals import SignalCalibration
from recal.clusters import cluster_sums, stratified_folds
from recal.maps.panel import PanelMap, PanelStage
from recal.maps.signals import CATEGORY, SignalEncoding, SignalMap

Vector = NDArray[np.float64]
Rows = NDArray[np.intp]


def choose(probs: Vector, slots: Vector, n_samples: int, kept: bool) -> tuple[Rows, Vector]:
    """Return the place of the answer, -1 if there is none, and its probability."""
    if kept:
        main = main_places(slots, n_samples)
        places = np.where(np.isnan(main), -1, main).astype(np.intp)
    else:
        places = np.where(np.isnan(slots).all(axis=1), -1, probs[:, :-1].argmax(axis=1))
    own = probs[np.arange(len(probs)), np.maximum(places, 0)]
    return places, np.where(places >= 0, own, 0.0)


@dataclass(frozen=True)
class Features:
    """Which features a system has besides a constant, each (kind, signal, level)."""

    parts: tuple[tuple[str, int, int], ...]

    @classmethod
    def of(cls, system: int, signals: Vector, table: PanelTable) -> Features:
        parts: list[tuple[str, int, int]] = []
        levels = ((),) * len(table.owner) if table.table is None else table.table.levels
        for signal in np.flatnonzero(np.array(table.owner) == system).tolist():
            missing = float(np.isnan(signals[:, signal]).mean())
            if levels[signal]:
                parts += [("level", signal, level) for level in range(len(levels[signal]))]
            elif missing < 1.0:
                parts.append(("value", signal, 0))
            if 0.0 < missing < 1.0:
                parts.append(("missing", signal, 0))
        return cls(tuple(parts))

    def columns(self, scaled: Vector, missing: Vector, signals: Vector) -> Vector:
        columns = [np.ones(len(signals))]
        for kind, signal, level in self.parts:
            if kind == "value":
                columns.append(scaled[:, signal])
            elif kind == "missing":
                columns.append(missing[:, signal])
            else:
                columns.append((signals[:, signal] == level).astype(np.float64))
        return np.column_stack(columns)


@dataclass(frozen=True)
class Problem:
    """What the fit reads.

    votes : (n, n_answers + 1, n_systems), the share of a system's samples that support a candidate
    columns : for each system, (n, n_features), the first of them 1
    right : (n, n_answers + 1), which candidate is right; the last is "none of these"
    """

    votes: Vector
    columns: tuple[Vector, ...]
    right: Vector
    weights: Vector

    def __getitem__(self, rows: Rows) -> Problem:
        columns = tuple(one[rows] for one in self.columns)
        return Problem(self.votes[rows], columns, self.right[rows], self.weights[rows])

    def probs(self, used: Sequence[int], solution: Vector) -> Vector:
        """Return the probability of each candidate, (n, n_answers + 1)."""
        votes, design, unit = self._design(used)
        return _softmax(votes, _scores(design, unit, solution))

    def solve(self, used: Sequence[int], penalty: float) -> Vector:
        """Return the parameters of the systems in use, and last the score of "none of these".

        The loss is the NLL of the right candidate plus a ridge: `penalty` for slopes and a tenth of
        it for weights. It is convex; Newton's method with step halving finds its minimum.
        """
        votes, design, unit = self._design(used)
        right, weights = self._right(used), self.weights
        ridge = np.full(len(unit), penalty)
        ridge[np.r_[True, np.diff(unit) > 0]] = 0.1 * penalty
        ridge[-1] = 0.1
        observed = np.einsum("nc,ncs->ns", right, votes)

        def loss(point: Vector) -> tuple[float, Vector]:
            probs = _softmax(votes, _scores(design, unit, point))
            fit = weights @ (right * np.log(np.maximum(probs, 1e-300))).sum(axis=1)
            return float(0.5 * ridge @ point**2 - fit), probs

        solution = np.zeros(len(unit))
        current, probs = loss(solution)
        for _ in range(50):
            expected = np.einsum("nc,ncs->ns", probs, votes)
            pull = weights[:, None] * (expected - observed)
            slope = (design * pull[:, unit]).sum(axis=0) + ridge * solution
            curvature = _curvature(votes, design, unit, probs, weights)
            curvature[np.diag_indices_from(curvature)] += ridge
            step, size = np.linalg.solve(curvature, slope), 1.0
            trial, trial_probs = loss(solution - step)
            while trial > current and size > 1e-6:
                size *= 0.5
                trial, trial_probs = loss(solution - size * step)
            gained = current - trial
            if gained <= 0.0:
                break
            solution = solution - size * step
            current, probs = trial, trial_probs
            if gained < 1e-7 * current:
                break
        return solution

    def _right(self, used: Sequence[int]) -> Vector:
        """Return the right candidates if answers of other systems count as "none of these"."""
        given = self.votes[:, :-1, list(used)].sum(axis=2) > 0.0
        right = np.where(given, self.right[:, :-1], 0.0)
        right = right / np.maximum(right.sum(axis=1, keepdims=True), 1e-300)
        return np.column_stack([right, 1.0 - right.sum(axis=1)])

    def _design(self, used: Sequence[int]) -> tuple[Vector, Vector, Rows]:
        """Return votes with "none of these" as one more system, features, and their systems."""
        n = len(self.votes)
        none = np.zeros((n, self.votes.shape[1], 1))
        none[:, -1] = 1.0
        votes = np.concatenate([self.votes[:, :, list(used)], none], axis=2)
        blocks = [self.columns[place] for place in used] + [np.ones((n, 1))]
        unit = np.repeat(np.arange(len(blocks)), [one.shape[1] for one in blocks])
        return votes, np.concatenate(blocks, axis=1), unit


def _curvature(votes: Vector, design: Vector, unit: Rows, probs: Vector, weights: Vector) -> Vector:
    """Return the Hessian of the NLL."""
    expected = np.einsum("nc,ncs->ns", probs, votes)
    spread = np.matmul((votes * probs[:, :, None]).transpose(0, 2, 1), votes)
    spread -= expected[:, :, None] * expected[:, None, :]
    spread *= weights[:, None, None]
    curvature = np.empty((len(unit), len(unit)))
    for one in range(votes.shape[2]):
        own = np.flatnonzero(unit == one)
        curvature[own] = design[:, own].T @ (design * spread[:, one, unit])
    return curvature


def _scores(design: Vector, unit: Rows, solution: Vector) -> Vector:
    return np.asarray(design @ (solution[:, None] * (unit[:, None] == np.arange(unit[-1] + 1))))


def _softmax(votes: Vector, scores: Vector) -> Vector:
    total = np.matmul(votes, scores[:, :, None])[:, :, 0]
    total = np.where(votes.sum(axis=2) > 0.0, total, -np.inf)
    total = np.exp(total - total.max(axis=1, keepdims=True))
    return np.asarray(total / total.sum(axis=1, keepdims=True))


def _encoding(
    rows: PanelRows,
    table: PanelTable,
    right: Vector,
    weights: Vector,
    rng: np.random.Generator,
    merged: bool,
) -> SignalEncoding:
    """Choose how each system's signals are transformed, by how well they tell whether it is right.

    If only the first system's answers were graded, its grades choose for all.
    """
    n_signals = rows.signals.shape[1]
    n_levels = np.zeros(n_signals, np.intp) if table.table is None else table.table.n_levels
    kinds, owner = np.zeros(n_signals, np.intp), np.array(table.owner)
    for system in np.unique(owner).tolist():
        slot = rows.slots[:, 0 if merged else sum(table.samples[:system])]
        given, own = np.flatnonzero(~np.isnan(slot)), np.flatnonzero(owner == system)
        grades = right[given, slot[given].astype(np.intp)]
        if min(grades.sum(), len(grades) - grades.sum()) >= 5:
            folds = stratified_folds(grades.astype(np.intp), 5, rng)
            values = rows.signals[np.ix_(given, own)]
            kinds[own] = choose_kinds(values, grades, weights[given], n_levels[own], folds)
    return encoding_of(rows.signals, np.where(n_levels > 0, CATEGORY, kinds), n_levels)


class PanelFit:
    """The fit of all stages of a panel.

    Parameters
    ----------
    rows, table : the answers and signals of the fit
    right : (n, n_answers + 1), which candidate is right
    merged : whether only the main system was graded
    kept : whether the main system's answers are kept
    most_rows : cross-validation reads at most this many rows; more do not change what is chosen
    penalties : the ridges to compare; the first is used unless another one is clearly better, by
        one standard error
    """

    def __init__(
        self,
        rows: PanelRows,
        table: PanelTable,
        right: Vector,
        weights: Vector,
        clusters: Rows | None,
        rng: np.random.Generator,
        *,
        merged: bool,
        kept: bool,
        most_rows: int = 2000,
        n_folds: int = 5,
        penalties: Sequence[float] = (20.0, 4.0, 100.0),
    ) -> None:
        self.table, self.merged, self.kept, self.penalties = table, merged, kept, penalties
        self.signals = rows.signals
        self.scale = _encoding(rows, table, right, weights, rng, merged)
        n_systems = len(table.systems)
        self.features = [Features.of(one, rows.signals, table) for one in range(n_systems)]
        self.whole = self._problem(rows, right, weights)
        drawn = np.arange(len(rows))
        if len(drawn) > most_rows:
            drawn = np.sort(rng.choice(len(rows), most_rows, replace=False))
        self.rows, self.problem, self.slots = drawn, self.whole[drawn], rows.slots[drawn]
        places, own = choose(self.problem.right, self.slots, table.samples[0], True)
        self.answered, self.main_right = places >= 0, own > 0.0
        self.clusters = None if clusters is None else clusters[drawn]
        folds = stratified_folds(
            self.main_right.astype(np.intp), n_folds, rng, clusters=self.clusters
        )
        self._folds = [
            (np.flatnonzero(folds != one), np.flatnonzero(folds == one)) for one in np.unique(folds)
        ]
        self._known: dict[tuple[tuple[int, ...], float], Vector] = {}

    def _problem(self, rows: PanelRows, right: Vector, weights: Vector) -> Problem:
        frame = self._map([self._stage(np.array([0.0]), [])] * len(self.table.systems))
        votes = frame.votes(rows.slots)
        if self.merged:
            votes = frame.merge(votes)
        samples = np.array(self.table.samples)
        system = np.repeat(np.arange(len(samples)), samples)
        share = (system[:, None] == np.arange(len(samples))) / samples
        scaled, missing = self.scale.encode(rows.signals)
        columns = tuple(one.columns(scaled, missing, rows.signals) for one in self.features)
        return Problem(votes @ share, columns, right, weights * (len(weights) / weights.sum()))

    def probs(self, used: Sequence[int], penalty: float) -> Vector:
        """Return the probabilities of the candidates for rows left out."""
        key = (tuple(used), penalty)
        if key not in self._known:
            probs = np.zeros(self.problem.right.shape)
            for rest, left in self._folds:
                solution = self.problem[rest].solve(used, penalty)
                probs[left] = self.problem[left].probs(used, solution)
            self._known[key] = probs
        return self._known[key]

    def losses(self, used: Sequence[int], penalty: float) -> Vector:
        """Return the NLL of "the main system is right" of rows left out, if it gave an answer.

        Unlike the NLL of the truth, it can be compared between different sets of systems.
        """
        own = choose(self.probs(used, penalty), self.slots, self.table.samples[0], True)[1]
        likelihood = np.where(self.main_right, own, 1.0 - own)
        return np.where(self.answered, -np.log(np.maximum(likelihood, 1e-12)), 0.0)

    def mean_loss(self, used: Sequence[int], penalty: float) -> float:
        return float(np.average(self.losses(used, penalty), weights=self._weights))

    @property
    def _weights(self) -> Vector:
        return self.problem.weights * self.answered

    def _clearly(self, better: Vector, worse: Vector) -> float:
        """Return by how many standard errors one loss is below another."""
        mean, error = self._difference(worse, better)
        return mean / max(error, 1e-300)

    def _difference(self, one: Vector, other: Vector) -> tuple[float, float]:
        """Return the mean difference of two losses, and its standard error."""
        sums = cluster_sums(self._weights * (one - other), self.clusters)
        total = float(self._weights.sum())
        return float(sums.sum()) / total, float(np.sqrt(len(sums)) * sums.std()) / total

    def best_penalty(self, used: Sequence[int]) -> float:
        best = min(self.penalties, key=lambda penalty: self.mean_loss(used, penalty))
        usual = self.penalties[0]
        gain = self._clearly(self.losses(used, best), self.losses(used, usual))
        return best if gain > 1.0 else usual

    def best_systems(self) -> list[int]:
        """Drop systems as long as this lowers the loss by one standard error."""
        used = list(range(len(self.features)))
        penalty = self.best_penalty(used)
        while len(used) > 1:
            trials = [[one for one in used if one != place] for place in used[1:]]
            best = min(trials, key=lambda trial: self.mean_loss(trial, penalty))
            if self._clearly(self.losses(best, penalty), self.losses(used, penalty)) <= 1.0:
                break
            used = best
        return used

    def alone(self, used: Sequence[int]) -> tuple[SignalMap | None, dict[str, float]]:
        """Return the SignalCalibration of the main system if it predicts better than the panel."""
        losses = {
            name: self.mean_loss(some, self.best_penalty(some))
            for name, some in (("panel", used), ("main system", [0]))
        }
        graded = np.flatnonzero(self.answered)
        rarer = min(self.main_right[graded].sum(), (~self.main_right[graded]).sum())
        own = np.flatnonzero(np.array(self.table.owner) == 0)
        # SignalCalibration combines signals from this many graded answers on.
        if self.table.table is None or not len(own) or len(graded) < 50 or rarer < 5:
            return None, losses
        some = self._signal_fit(self.rows[graded], self.main_right[graded], own)
        losses["signals of the main system"] = some.losses_.get("mixture", np.inf)
        levels = tuple(self.table.table.levels[place] for place in own)
        if some.table_.levels != levels:
            return None, losses
        if len(used) > 1:
            penalty = self.best_penalty(used)
            main = self.losses([0], self.best_penalty([0]))
            # The standard error for the main system's own logit stands in for that of its
            # SignalCalibration, whose losses per row are not known.
            margin = self._difference(main, self.losses(used, penalty))[1]
            if losses["signals of the main system"] > losses["panel"] - margin:
                return None, losses
        if len(self.rows) < len(self.signals):
            every, right = self._all_graded()
            some = self._signal_fit(every, right, own)
        return some.map_, losses

    def _all_graded(self) -> tuple[Rows, NDArray[np.bool_]]:
        given = self.whole.votes[:, :-1, 0]
        rows = np.flatnonzero(given.any(axis=1))
        own = self.whole.right[rows, given[rows].argmax(axis=1)]
        return rows, own > 0.0

    def _signal_fit(self, rows: Rows, right: NDArray[np.bool_], own: Rows) -> SignalCalibration:
        assert self.table.table is not None
        columns = {}
        for place in own.tolist():
            values = self.signals[rows, place]
            if levels := self.table.table.levels[place]:
                texts = np.array([*levels, ""], dtype=object)
                values = texts[np.where(np.isnan(values), len(levels), values).astype(np.intp)]
            columns[str(place)] = values
        weights = self.whole.weights[rows]
        return SignalCalibration().fit(columns, right, sample_weight=weights)

    def fit(self, used: Sequence[int], alone: SignalMap | None) -> PanelMap:
        """Return the map: a stage for each number of systems that were asked."""
        stages = []
        for some in self._prefixes(used):
            solution = self.whole.solve(some, self.best_penalty(some))
            stages.append(self._stage(solution, some, alone))
        return self._map(stages)

    def outcomes(self, used: Sequence[int]) -> tuple[Vector, NDArray[np.bool_]]:
        """Return confidence and correctness of rows left out after each system, (n, n_systems)."""
        confidence, correct = [], []
        for some in self._prefixes(used):
            probs = self.probs(some, self.best_penalty(some))
            places, own = choose(probs, self.slots, self.table.samples[0], self.kept)
            hit = self.problem.right[np.arange(len(places)), np.maximum(places, 0)] > 0.0
            confidence.append(own)
            correct.append(hit & (places >= 0))
        return np.column_stack(confidence), np.column_stack(correct)

    def _prefixes(self, used: Sequence[int]) -> list[list[int]]:
        every = range(len(self.features))
        return [[one for one in used if one <= place] for place in every]

    def _map(self, stages: Sequence[PanelStage]) -> PanelMap:
        samples = np.array(self.table.samples, dtype=np.int64)
        owner = np.array(self.table.owner, dtype=np.int64)
        return PanelMap(tuple(stages), samples, owner, self.scale, self.merged)

    def _stage(
        self, solution: Vector, used: Sequence[int], alone: SignalMap | None = None
    ) -> PanelStage:
        n_systems, n_signals = len(self.table.systems), len(self.table.owner)
        levels = [0] if self.table.table is None else [len(one) for one in self.table.table.levels]
        values = {
            "value": np.zeros((n_signals, 1)),
            "missing": np.zeros((n_signals, 1)),
            "level": np.zeros((n_signals, max(*levels, 1))),
        }
        weights, start = np.zeros(n_systems), 0
        for place in used:
            weights[place] = solution[start]
            for kind, signal, level in self.features[place].parts:
                start += 1
                values[kind][signal, level] = solution[start]
            start += 1
        in_use = np.isin(np.arange(n_systems), [0, *used]).astype(np.int64)
        slopes, missing = values["value"][:, 0], values["missing"][:, 0]
        none = float(solution[-1])
        return PanelStage(in_use, weights, slopes, missing, values["level"], none, alone)
