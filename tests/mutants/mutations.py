"""Small wrong changes to the code, each of which the named tests must notice: (file, code, wrong
code, tests).

A file is given within `src/recal`; its code must stand there once. Tests are files, or node ids,
within `tests`.
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
_EXACT = "statistics/test_exact.py"
_SAME = "unit/test_copies.py"
_DECIDE = "unit/decisions/test_decide.py"
_RULE = "unit/decisions/test_rule.py"
_BY_GROUP = "unit/decisions/test_groups.py"
_CONSTANTS = "statistics/test_decision_constants.py"
_GUARD = "unit/export/test_guard.py"
_METRICS = "parity/test_metrics_parity.py"
_CHOICES = "statistics/test_choices.py"
_AUTO = "unit/calibrators/test_auto.py"
_SETS = "unit/decisions/test_sets.py"
_WATCH = "unit/decisions/test_watch.py"
_WATCH_CONFIDENCES = "unit/decisions/test_watch_confidences.py"
_FOLLOWING = "unit/decisions/test_following.py"
_MIX = "unit/decisions/test_class_mix.py"
_ATOMIC = "unit/files/test_atomic.py"
_REFUSAL = "unit/cli/test_decide_watch.py::test_decide_refuses_the_samples_of_the_fit_from_views_and_from_probabilities"
_LIMITS = "unit/files/test_limits.py"
_LEDGER = "unit/files/test_ledger.py"
_BLOCKS = "unit/collecting/test_blocks.py"
_GROUPS = "parity/test_reference.py::test_saturated_fit parity/test_reference.py::test_groups"

MUTATIONS = tuple(
    Mutation(*row)
    for row in (
        # decisions: which answers are accepted
        ("decisions/certify.py", "if low < (short", "if low <= (short", _DECISIONS),
        ("decisions/certify.py", "return short", "return low", _DECISIONS),
        ("decisions/certify.py", "_GROWTH = 1.005", "_GROWTH = 1.05", _DECISIONS),
        ("decisions/certify.py", "_GROWTH = 1.005", "_GROWTH = 1.0", _DECISIONS),
        (
            "decisions/certify.py",
            "carried = allowed if length == len(good) else 0.0",
            "carried = allowed",
            _DECISIONS,
        ),
        (
            "decisions/certify.py",
            "allowed = carried + weights[start]",
            "allowed = level",
            _DECISIONS,
        ),
        (
            "decisions/certify.py",
            "sizes = answers.ends[np.searchsorted(answers.ends, planned)]",
            "sizes = planned",
            _DECISIONS,
        ),
        ("decisions/certify.py", "_LEAST_DOUBT = 0.2", "_LEAST_DOUBT = 0.0", _DECISIONS),
        (
            "decisions/certify.py",
            "n < _MANY_TIMES * fewest",
            "n <= _MANY_TIMES * fewest",
            _DECISIONS,
        ),
        ("decisions/certify.py", "_MANY_TIMES = 8", "_MANY_TIMES = 7", _DECISIONS),
        ("decisions/certify.py", "_FEW = ((0, 0.8),)", "_FEW = ((0, 0.9),)", _DECISIONS),
        ("decisions/certify.py", "wrong + 1.0", "wrong + 0.5", _DECIDE),
        (
            "metrics/intervals.py",
            "tail = (1 - level) / 2  # of a rate",
            "tail = 1 - level",
            _DECIDE,
        ),
        ("decisions/certify.py", "np.ceil(np.log(level)", "np.floor(np.log(level)", _DECIDE),
        (
            "decisions/rule.py",
            "confidence >= thresholds[0])",
            "confidence > thresholds[0])",
            _DECISIONS,
        ),
        ("decisions/rule.py", 'if self.reads == "maximum":', "if confidences is None:", _RULE),
        ("decisions/guarantee.py", "level / answers.n_groups, costs", "level, costs", _DECISIONS),
        (
            "decisions/rule.py",
            "thresholds.get(name, math.inf)",
            "thresholds.get(name, 0.0)",
            _BY_GROUP,
        ),
        ("decisions/decision.py", "_BROKEN_LEVEL = 0.05", "_BROKEN_LEVEL = 0.1", _BY_GROUP),
        ("decisions/decision.py", "np.arange(len(values), 0, -1)", "1", _BY_GROUP),
        (
            "decisions/decision.py",
            "chance_of_so_few(errors - 1, counts",
            "chance_of_so_few(errors, counts",
            _BY_GROUP,
        ),
        ("decisions/certify.py", "place == drawn[clusters[order]]", "place >= 0", _BY_GROUP),
        (
            "decisions/certify.py",
            "integers(0, counts.max(), len(counts))",
            "integers(0, counts)",
            _BY_GROUP,
        ),
        ("decisions/certify.py", "size = n / max(effect, 1.0)", "size = n", _BY_GROUP),
        (
            "decisions/decision.py",
            "self.review / self.error",
            "self.error / self.review",
            _DECISIONS,
        ),
        (
            "decisions/guarantee.py",
            "sizes = np.r_[0, one.ends]",
            "sizes = one.ends[:1]",
            _DECISIONS,
        ),
        ("decisions/guarantee.py", "reads, confidences is not None", "reads, True", _DECISIONS),
        (
            "decisions/sets.py",
            "self.scores(array, u) <= np",
            "self.scores(array, u) < np",
            _DECISIONS,
        ),
        ("decisions/sets.py", "(len(scores) + 1) * coverage", "len(scores) * coverage", _DECISIONS),
        ("decisions/sets.py", "coverage - 1e-9)", "coverage + 1e-9)", _DECISIONS),
        ("decisions/sets.py", "np.sort(order[size:])", "np.sort(order)", _SETS),
        ("decisions/sets.py", "if size < max(_FEWEST", "if size <= max(_FEWEST", _SETS),
        ("decisions/sets.py", "_PART = 0.2", "_PART = 0.3", _SETS),
        ("decisions/sets.py", "_MOST = 2_000", "_MOST = 3_000", _SETS),
        ("decisions/sets.py", "min(sizes, key", "max(sizes, key", _SETS),
        ("decisions/sets.py", "elif endless:", "elif False:", _SETS),
        (
            "decisions/sets.py",
            "own = scores[np.arange(len(array)), labels]",
            "own = scores.max(axis=1)",
            _DECISIONS,
        ),
        (
            "decisions/sets.py",
            "array.shape[1] + 1) - self.free_ranks",
            "array.shape[1] + 1) - 0",
            _DECISIONS,
        ),
        # watches without labels
        ("decisions/watch.py", "(largest >= largest[0])", "(largest > largest[0])", _DECISIONS),
        ("decisions/watch.py", "p_value <= alpha", "p_value < alpha", _DECISIONS),
        (
            "decisions/watch.py",
            "smaller = n_fit + n_today, min(",
            "smaller = n_fit + n_today, max(",
            _WATCH,
        ),
        (
            "decisions/watch.py",
            "own = np.r_[last + 1, 0, last[:-1] + 1]",
            "own = np.r_[last + 1, last + 1]",
            _WATCH,
        ),
        ("decisions/watch.py", "(all_rows - own) / (total - size)", "all_rows / total", _WATCH),
        (
            "decisions/watch.py",
            "_RESERVE, _SLOW, _DECAY = 0.5,",
            "_RESERVE, _SLOW, _DECAY = 0.0,",
            _DECISIONS,
        ),
        ("decisions/watch.py", "20.0, 0.2", "20.0, 0.5", _DECISIONS),
        ("decisions/watch.py", "(_JUMP * capital + released)", "_JUMP * capital", _WATCH),
        ("decisions/watch.py", "now >= 1 / self.alpha", "now >= 0.5 / self.alpha", _DECISIONS),
        (
            "decisions/watch.py",
            "(through - below + 1)) / len(pool)",
            "(through - below)) / len(pool)",
            _DECISIONS,
        ),
        (
            "decisions/watch.py",
            "part * (self._counts[answer] + 1))",
            "part * self._counts[answer])",
            _DECISIONS,
        ),
        ("decisions/follow.py", "result.unlike and not accept_unlike", "False", _DECISIONS),
        (
            "decisions/follow.py",
            "result.unlike and not accept_unlike",
            "not result.known",
            _DECISIONS,
        ),
        ("decisions/damage.py", "SMALLEST_BATCH = 50", "SMALLEST_BATCH = 49", _FOLLOWING),
        (
            "decisions/damage.py",
            "unlike = reading.variance >= UNKNOWN_FROM",
            "unlike = reading.variance > UNKNOWN_FROM",
            _DECISIONS,
        ),
        ("decisions/damage.py", "UNKNOWN_FROM = 0.3", "UNKNOWN_FROM = 0.32", _FOLLOWING),
        (
            "decisions/damage.py",
            "unlike or reading.as_damage >= UNKNOWN_FROM",
            "unlike",
            _FOLLOWING,
        ),
        ("decisions/damage.py", "unlike=unlike", "unlike=True", _FOLLOWING),
        (
            "decisions/damage.py",
            "(len(without) - 1) * without.var(axis=0)",
            "without.var(axis=0)",
            _FOLLOWING,
        ),
        ("decisions/damage.py", "max(0.0, 1 - chance / change**2)", "1.0", _FOLLOWING),
        ("decisions/damage.py", "& (np.arange(len(kinds)) > 0)", "", _FOLLOWING),
        ("decisions/class_mix.py", "_DOUBT = 1.2816", "_DOUBT = 2.326", _MIX),
        ("decisions/class_mix.py", "_DAMAGED = 1.1\n", "_DAMAGED = 1.2\n", _MIX),
        ("decisions/class_mix.py", "or abs(math.log(profile", "or -(math.log(profile", _MIX),
        ("decisions/damage.py", "FEWEST_KINDS = 3", "FEWEST_KINDS = 2", _FOLLOWING),
        ("decisions/damage.py", "_DISAGREEMENT = 0.9", "_DISAGREEMENT = 1.0", _CONSTANTS),
        ("decisions/damage.py", "_DEVIATIONS = 1.959964", "_DEVIATIONS = 1.0", _CONSTANTS),
        ("decisions/damage.py", "_LEFT_OUT_LEVEL = 0.9", "_LEFT_OUT_LEVEL = 0.5", _CONSTANTS),
        ("decisions/class_mix.py", "_USUAL = 5.0", "_USUAL = 0.5", _CONSTANTS),
        (
            "decisions/profile.py",
            "_DEVIATIONS = 1.959964",
            "_DEVIATIONS = 1.644854",
            _WATCH_CONFIDENCES,
        ),
        (
            "decisions/curves.py",
            "[(1 - confidence) / 2, (1 + confidence) / 2]",
            "[0.05, 0.95]",
            _CONSTANTS,
        ),
        ("decisions/curves.py", "[0.025, 0.975]", "[0.05, 0.95]", _CONSTANTS),
        (
            "decisions/guarantee.py",
            "np.flatnonzero(fold != number)",
            "np.arange(len(fold))",
            _CONSTANTS,
        ),
        ("decisions/guarantee.py", "rtol=1e-6", "rtol=1e-4", _CONSTANTS),
        ("decisions/guarantee.py", "high / low > 1.01", "high / low > 1.1", _CONSTANTS),
        ("calibrators/auto.py", "_NEARLY_ALL = 0.95", "_NEARLY_ALL = 0.85", _CONSTANTS),
        (
            "calibrators/ensemble_fit.py",
            "_PRIOR_BY_MISTAKES = 30.0",
            "_PRIOR_BY_MISTAKES = 3.0",
            _CONSTANTS,
        ),
        # rows that were fitted on
        ("copies.py", "_LEAST_SHARE = 0.01", "_LEAST_SHARE = 0.5", _SAME),
        (
            "copies.py",
            "by_chance + 3.0 * np.sqrt(2.0 * max(by_chance, share_kept))",
            "0",
            _INTERVALS,
        ),
        ("copies.py", "alone = counts == 1", "alone = counts >= 0", _INTERVALS),
        ("copies.py", "np.uint32), factors))", "np.uint32), factors * 0 + 1))", _SAME),
        ("copies.py", "dtype=np.float32) + np.float32(0.0)", "dtype=np.float32)", _SAME),
        ("cli/decide.py", "if matters(one.fitted_rows, len(one.probs)):", "if False:", _REFUSAL),
        # which views and methods are taken
        ("calibrators/view_choice.py", "errors + 5.0 / np", "errors + 0.0 / np", _CHOICES),
        ("calibrators/view_choice.py", "errors + 5.0 / np", "errors + 6.0 / np", _CHOICES),
        (
            "calibrators/view_choice.py",
            "self.mean > self.error",
            "self.mean >= self.error",
            _CHOICES,
        ),
        ("calibrators/view_choice.py", "(0.5 * self.error", "(1.0 * self.error", _CHOICES),
        (
            "calibrators/view_choice.py",
            "else gain.exceeds(1.0, n",
            "else gain.exceeds(0.0, n",
            _CHOICES,
        ),
        ("calibrators/view_choice.py", "gain.mean >= least", "gain.mean >= 0", _CHOICES),
        ("calibrators/view_choice.py", "_LEAST_SHARE = 0.005", "_LEAST_SHARE = 0.01", _CHOICES),
        ("calibrators/view_choice.py", "_SHARE_KEPT = 0.95", "_SHARE_KEPT = 0.9", _CHOICES),
        ("calibrators/view_choice.py", "_SHARE_KEPT = 0.95", "_SHARE_KEPT = 0.96", _CHOICES),
        ("calibrators/view_choice.py", "confidence >= gate", "confidence > gate", _CHOICES),
        (
            "calibrators/view_choice.py",
            "key=lambda pair: pair[0].loss",
            "key=lambda pair: 0",
            _CHOICES,
        ),
        ("calibrators/view_choice.py", "else gentle[0][0]", "else contenders[0][0]", _CHOICES),
        ("calibrators/view_choice.py", "np.argsort(-gains", "np.argsort(gains", _CHOICES),
        (
            "calibrators/view_choice.py",
            "_CONTENDERS, _NEAR = 2, 0.8",
            "_CONTENDERS, _NEAR = 2, 0.5",
            _CHOICES,
        ),
        ("calibrators/view_choice.py", "LEAST_SAMPLES = 100", "LEAST_SAMPLES = 99", _AUTO),
        ("calibrators/view_choice.py", "LEAST_SAMPLES = 100", "LEAST_SAMPLES = 101", _AUTO),
        ("calibrators/ensemble_fit.py", "_MANY_MISTAKES = 200", "_MANY_MISTAKES = 199", _AUTO),
        ("calibrators/ensemble_fit.py", "_MANY_MISTAKES = 200", "_MANY_MISTAKES = 201", _AUTO),
        ("calibrators/auto.py", "and evidence.many_mistakes", "", _AUTO),
        ("calibrators/auto.py", "_GAIN_PER_PASS = 0.005", "_GAIN_PER_PASS = 0.0", _CHOICES),
        ("calibrators/auto.py", "_GAIN_PER_PASS = 0.005", "_GAIN_PER_PASS = 0.006", _CHOICES),
        ("calibrators/auto.py", "(passes - evidence.passes)", "passes", _CHOICES),
        ("comparison/judgement.py", "_NEAR = 0.5", "_NEAR = 0.6", _CHOICES),
        ("comparison/judgement.py", "_NEAR = 0.5", "_NEAR = 0.4", _CHOICES),
        ("comparison/judgement.py", "cost(comparison, name)[0] == fewest", "True", _CHOICES),
        ("comparison/judgement.py", "cheapest if methods[0] in cheapest else", "", _CHOICES),
        ("comparison/judgement.py", "near[0] & near[1] or near[0]", "near[0]", _CHOICES),
        (
            "comparison/judgement.py",
            "near[0] & near[1] or near[0]",
            "near[0] & near[1] or near[1]",
            _CHOICES,
        ),
        ("comparison/judgement.py", "max(len(methods) - 1, 1)", "1", _CHOICES),
        # calibrators and the guard
        (
            "calibrators/base.py",
            "rows = np.flatnonzero(weights)",
            "rows = np.arange(len(weights))",
            _INTERVALS,
        ),
        ("maps/guard.py", "MARGIN = 1e-6", "MARGIN = 1e-3", _INTERVALS),
        (
            "maps/guard.py",
            "np.arange(2.0, probs.shape[1] + 2.0)",
            "np.arange(1.0, probs.shape[1] + 1.0)",
            _GUARD,
        ),
        # metrics and their intervals
        ("metrics/intervals.py", "DEVIATIONS = 1.96", "DEVIATIONS = 1.5", _INTERVALS),
        ("metrics/intervals.py", "LEVEL = 0.95", "LEVEL = 0.9", _EXACT),
        (
            "metrics/intervals.py",
            "betaincinv(count + 1, n - count",
            "betaincinv(count + 0.5, n - count",
            _EXACT,
        ),
        ("metrics/intervals.py", "total + pseudo, squares + pseudo**2", "total, squares", _EXACT),
        ("metrics/intervals.py", "2 * correlation * a * b", "correlation * a * b", _EXACT),
        ("metrics/intervals.py", "FEW = 30", "FEW = 3", _EXACT),
        (
            "metrics/resampling.py",
            "_LEAST_ERROR = 0.2",
            "_LEAST_ERROR = 0.02",
            "unit/metrics/test_evaluation.py",
        ),
        ("metrics/resampling.py", "            low = 0.0\n", "            pass\n", _EXACT),
        (
            "metrics/intervals.py",
            "-np.log(_coverage(rows.confidence)), 1.0",
            "-np.log(_coverage(rows.confidence)), 0.1",
            _EXACT,
        ),
        (
            "metrics/calibration_error.py",
            "error_at(coefficients, middle) > middle",
            "error_at(coefficients, middle) > 2 * middle",
            _EXACT,
        ),
        (
            "metrics/calibration_error.py",
            "np.exp(-0.5 * (bandwidth",
            "np.exp(-1.0 * (bandwidth",
            _EXACT,
        ),
        (
            "metrics/resampling.py",
            "return low, max(high, _solve(",
            "return low, min(high, _solve(",
            _INTERVALS,
        ),
        (
            "metrics/resampling.py",
            'if name in ("aurc", "auroc") else 0.0',
            "if False else 0.0",
            _INTERVALS,
        ),
        (
            "metrics/resampling.py",
            "(width.correct[filled] + 1)",
            "(width.correct[filled] + 0)",
            _INTERVALS,
        ),
        (
            "metrics/resampling.py",
            "(width.counts[filled] + 2)",
            "(width.counts[filled] + 1)",
            _INTERVALS,
        ),
        ("metrics/scores.py", "np.cumsum(wrong) - wrong / 2", "np.cumsum(wrong)", _METRICS),
        (
            "metrics/resampling.py",
            "(deviation, _LEAST_ERROR * own)",
            "(deviation, _LEAST_ERROR * own).mean()",
            _INTERVALS,
        ),
        (
            "metrics/resampling.py",
            '_SKEWED, _ENOUGH_ROWS = ("nll", "brier"), 30',
            '_SKEWED, _ENOUGH_ROWS = ("nll", "brier"), 31',
            _INTERVALS,
        ),
        ("metrics/resampling.py", "hidden * rng.standard_normal(drawn.shape)", "0", _INTERVALS),
        (
            "metrics/resampling.py",
            "(gaps + outcomes) / rows) / (rows + 1)",
            "0.5) / (rows + 1)",
            _INTERVALS,
        ),
        (
            "metrics/resampling.py",
            "rate * (1 - rate), 0.0) * counts",
            "rate * (1 - rate), 0.0)",
            _INTERVALS,
        ),
        (
            "metrics/row_scores.py",
            'edges[1:-1], values, side="left"',
            'edges[1:-1], values, side="right"',
            _METRICS,
        ),
        # engine
        (
            "calibrators/solvers/temperature.py",
            "_LAST_STEP = 1e-5",
            "_LAST_STEP = 1e-1",
            "unit/engine/test_temperature.py",
        ),
        ("engine/grouping.py", "_SATURATED = -16.8", "_SATURATED = -5.0", _GROUPS),
        (
            "engine/grouping.py",
            "fell[ties] = _comparable(original, ties, original.columns, rule) >=",
            "fell[ties] = _comparable(original, ties, original.columns, rule) >",
            _GROUPS,
        ),
        (
            "engine/grouping.py",
            "(2 * (original.columns == view.columns) + fell)",
            "(2 * (original.columns == view.columns) + ~fell)",
            _GROUPS,
        ),
        # files
        (
            "files/limits.py",
            "n_bytes > (allowed := allowance(size))",
            "n_bytes > 10**15 + (allowed := allowance(size))",
            _LIMITS,
        ),
        (
            "files/ledger.py",
            "if int(line[:8], 16) == zlib.crc32(text) else None",
            "if text else None",
            _LEDGER,
        ),
        ("files/zarr_rows.py", "or checksum(values) != sums[block]", "", _LEDGER),
        (
            "collecting/store.py",
            '["sums"] == record["sums"]',
            '["rows"] == record["rows"]',
            _LEDGER,
        ),
        ("collecting/store.py", "if not self.token.is_valid():", "if False:", _BLOCKS),
        ("files/paths.py", 'partial.open("xb")', 'target.open("wb")', _ATOMIC),
        ("files/paths.py", "partial.unlink(missing_ok=True)", "pass", _ATOMIC),
        ("files/paths.py", "Path(os.path.realpath(path))", "Path(path)", _ATOMIC),
        ("files/paths.py", "secrets.token_hex(4)", "0", _ATOMIC),
        ("files/probabilities.py", '"confidence" in arrays else None', "False else None", _SAME),
        ("files/probabilities.py", "confidence, int(fitted))", "confidence, 0)", _SAME),
        (
            "files/encoding.py",
            "if not required <= set(values) <= names:",
            "if set(values) != names:",
            _RULE,
        ),
        # runtimes
        ("maps/plan.py", "row_sum(weights) < gate", "row_sum(weights) <= gate", _DECISIONS),
        ("maps/guard.py", "at(probs, columns) * (1.0 - MARGIN))", "at(probs, columns))", _GUARD),
        ("engine/grouping.py", "np.exp(rows).astype(np.float32)", "np.exp(rows)", _GROUPS),
        (
            "maps/guard.py",
            "bounded(at(own, column))[:, 0]",
            "bounded(at(keep_answers(own, column), column))[:, 0]",
            "contract/test_runtimes.py::test_confidence_is_the_same_in_every_runtime_and_the_guard_does_not_lift_it",
        ),
        (
            "export/calibration_file.py",
            "if calibration.kept and not calibration.map.keeps_order:",
            "if False:",
            "contract/test_export.py::test_every_runtime_gives_the_same",
        ),
        (
            "export/calibration_file.py",
            'scores = logits.to("float64") if calibration.kept else own',
            "scores = own",
            "contract/test_runtimes.py::test_confidence_is_the_same_in_every_runtime_and_the_guard_does_not_lift_it",
        ),
    )
)
