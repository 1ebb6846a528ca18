"""Small wrong changes to the code, each of which the named tests must notice: (file, code, wrong code, tests).

A file is given within `src/recal`; its code must stand there once. Tests are files, or node ids, within `tests`.
"""

from __future__ import annotations

from typing import NamedTuple


class Mutation(NamedTuple):
    file: str
    code: str
    wrong: str
    tests: str


_DECISIONS = "statistics/test_decisions.py"
_INTERVALS = "statistics/test_intervals.py"
_SAME = "unit/test_same_rows.py"
_DECIDE = "unit/decisions/test_decide.py"
_RULE = "unit/decisions/test_rule.py"
_GUARD = "unit/runtime/test_guard.py"
_METRICS = "parity/test_metrics_parity.py"

MUTATIONS = tuple(
    Mutation(*row)
    for row in (
        # decisions: which answers are accepted
        ("decisions/search.py", "if low < (short", "if low <= (short", _DECISIONS),
        ("decisions/search.py", "return short", "return low", _DECISIONS),
        ("decisions/search.py", "_GROWTH = 1.005", "_GROWTH = 1.05", _DECISIONS),
        ("decisions/search.py", "_GROWTH = 1.005", "_GROWTH = 1.0", _DECISIONS),
        ("decisions/search.py", "carried = allowed if length == len(good) else 0.0", "carried = allowed", _DECISIONS),
        ("decisions/search.py", "allowed = carried + weights[start]", "allowed = level", _DECISIONS),
        (
            "decisions/search.py",
            "sizes = answers.ends[np.searchsorted(answers.ends, planned)]",
            "sizes = planned",
            _DECISIONS,
        ),
        ("decisions/search.py", "_LEAST_DOUBT = 0.2", "_LEAST_DOUBT = 0.0", _DECISIONS),
        ("decisions/search.py", "n < _MANY_TIMES * fewest", "n <= _MANY_TIMES * fewest", _DECISIONS),
        ("decisions/search.py", "_MANY_TIMES = 8", "_MANY_TIMES = 7", _DECISIONS),
        ("decisions/search.py", "_FEW = ((0, 0.8),)", "_FEW = ((0, 0.9),)", _DECISIONS),
        ("decisions/bounds.py", "wrong + 1.0", "wrong + 0.5", _DECIDE),
        ("decisions/bounds.py", "tail = (1.0 - confidence) / 2", "tail = 1.0 - confidence", _DECIDE),
        ("decisions/bounds.py", "np.ceil(np.log(level)", "np.floor(np.log(level)", _DECIDE),
        ("decisions/rule.py", "np.asarray(confidence >= (", "np.asarray(confidence > (", _DECISIONS),
        ("decisions/rule.py", 'if self.reads == "maximum":', "if confidences is None:", _RULE),
        ("decisions/decision.py", "level / len(groups), costs", "level, costs", _DECISIONS),
        ("decisions/decision.py", "self.review / self.error", "self.error / self.review", _DECISIONS),
        ("decisions/decision.py", "sizes = np.r_[0, one.ends]", "sizes = one.ends[:1]", _DECISIONS),
        ("decisions/decision.py", "calibrated = confidences is not None", "calibrated = True", _DECIDE),
        ("decisions/sets.py", "self.scores(array, u) <= np", "self.scores(array, u) < np", _DECISIONS),
        ("decisions/sets.py", "(len(scores) + 1) * coverage", "len(scores) * coverage", _DECISIONS),
        ("decisions/sets.py", "coverage - 1e-9)", "coverage + 1e-9)", _DECISIONS),
        ("decisions/sets.py", "array.shape[1] + 1) - self.free_ranks", "array.shape[1] + 1) - 0", _DECISIONS),
        # rows that were fitted on
        ("same_rows.py", "_LEAST_SHARE = 0.01", "_LEAST_SHARE = 0.5", _SAME),
        ("same_rows.py", "by_chance + 3.0 * np.sqrt(by_chance)", "0", _INTERVALS),
        ("same_rows.py", "single = (counts == 1)", "single = (counts >= 0)", _SAME),
        ("same_rows.py", "* factors).sum(axis=1)", ").sum(axis=1)", _SAME),
        ("same_rows.py", "dtype=np.float32) + np.float32(0.0)", "dtype=np.float32)", _SAME),
        # calibrators and the guard
        ("calibrators/base.py", "kept = np.flatnonzero(weights)", "kept = np.arange(len(weights))", _INTERVALS),
        ("runtime/reference.py", "MARGIN = 1e-6", "MARGIN = 1e-3", _INTERVALS),
        ("runtime/reference.py", "np.arange(2, rivals.shape[1] + 2)", "np.arange(1, rivals.shape[1] + 1)", _GUARD),
        # metrics and their intervals
        ("metrics/intervals.py", "_DEVIATIONS = 1.96", "_DEVIATIONS = 1.5", _INTERVALS),
        ("metrics/intervals.py", "return low, max(high, _solve(", "return low, min(high, _solve(", _INTERVALS),
        ("metrics/intervals.py", 'if name in ("aurc", "auroc") else 0.0', "if False else 0.0", _INTERVALS),
        ("metrics/intervals.py", "(width.correct[held] + 1)", "(width.correct[held] + 0)", _INTERVALS),
        ("metrics/intervals.py", "(width.counts[held] + 2)", "(width.counts[held] + 1)", _INTERVALS),
        ("metrics/ranked.py", "np.cumsum(wrong) - wrong / 2", "np.cumsum(wrong)", _METRICS),
        # files
        ("files/probs.py", '"confidence" in arrays else None', "False else None", _SAME),
        ("files/probs.py", "sure, int(fitted))", "sure, 0)", _SAME),
        (
            "files/encoding.py",
            "if not isinstance(values, dict) or not needed <= set(values) <= known | former:",
            "if not isinstance(values, dict) or set(values) != known:",
            _RULE,
        ),
        # runtimes
        (
            "plan.py",
            'replace(self.blend, answers="free")',
            'replace(self.blend, answers="kept")',
            "contract/test_runtimes.py::test_confidence_is_the_same_in_every_runtime_and_the_guard_does_not_lift_it",
        ),
        (
            "runtime/torch/replay.py",
            "return own.amax(1)",
            "return own.amin(1)",
            "contract/test_runtimes.py::test_confidence_is_the_same_in_every_runtime_and_the_guard_does_not_lift_it",
        ),
        (
            "runtime/onnx/heads.py",
            'return probs, answer, g.op("GatherElements", own,',
            'return probs, answer, g.op("GatherElements", probs,',
            "contract/test_runtimes.py::test_confidence_is_the_same_in_every_runtime_and_the_guard_does_not_lift_it",
        ),
    )
)
