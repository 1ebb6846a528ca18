"""Every method on many real problems: how often it beats a fixed panel, and its NLL against temperature scaling.

    python -m benchmarks.arena_study arena.npz
    python -m benchmarks.arena_study arena.npz --rows 100 --answers free --methods auto,ensemble,sms

The file holds, for each data set and classifier, `<data>/<model>/cal_logits`, `cal_labels`, `test_logits` and
`test_labels`. Methods are fitted to the calibration part, or to `--rows` of it at random, and judged on the test part.
Intervals come from resampling data sets, since the classifiers of one data set share its difficulties.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path

import numpy as np

from benchmarks.arena.scores import JUDGED, Parts, read
from benchmarks.arena.summary import BY_CLASSES, BY_MISTAKES, PANEL, Problem, summarise
from recal.calibrators.machinery.probabilities import softmax
from recal.calibrators.names import find_method
from recal.runtime.reference import keep_answers


def main() -> None:
    options = _options()
    problems, seconds = [], dict.fromkeys((*PANEL, *options.methods), 0.0)
    chosen_data = set(sorted({name.split("/")[0] for name, _ in read(options.path)})[:: options.every])
    for name, parts in read(options.path):
        if name.split("/")[0] in chosen_data:
            problems.append(_solve(name, parts, options, seconds))
    names = list(seconds)
    print(f"{len(problems)} problems, {len({p.data for p in problems})} data sets, answers {options.answers}")
    _print_table(problems, names, seconds)
    for title, groups in (("classes", BY_CLASSES), ("mistakes", BY_MISTAKES)):
        for label, inside in groups.items():
            part = [problem for problem in problems if inside(problem)]
            if part:
                print(f"\n{title} {label}: {len(part)} problems")
                _print_table(part, ["ts", *options.methods], None)
    chosen = [problem.chosen for problem in problems if problem.chosen]
    print("\nauto chose", {name: chosen.count(name) for name in sorted(set(chosen))})


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="arena.npz, or a folder of such files")
    parser.add_argument("--rows", type=int, default=0, help="how many calibration rows; 0 for all")
    parser.add_argument("--answers", choices=("kept", "free"), default="kept")
    parser.add_argument("--methods", type=lambda text: tuple(text.split(",")), default=JUDGED)
    parser.add_argument("--every", type=int, default=1, help="take every so-manieth data set")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def _solve(name: str, parts: Parts, options: argparse.Namespace, seconds: dict[str, float]) -> Problem:
    logits, labels, test, truth = parts
    if 0 < options.rows < len(labels):
        rows = np.random.default_rng(options.seed).permutation(len(labels))[: options.rows]
        logits, labels = logits[rows], labels[rows]
    mistakes = int((logits.argmax(axis=1) != labels).sum())
    problem = Problem(name, logits.shape[1], len(labels), mistakes)
    answers, place = test.argmax(axis=1), np.arange(len(truth))
    for method in seconds:
        begun = time.process_time()
        if method == "none":
            probs = softmax(test)
        else:
            family, fixed = find_method(method)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                fixed |= {"answers": options.answers} if "answers" in family().get_params() else {}
                calibrator = family(**fixed).fit(logits, labels)
                probs = calibrator.predict_proba(test)
            if method == "auto":
                problem.chosen = calibrator.choice_
        seconds[method] += time.process_time() - begun
        if options.answers == "kept":
            probs = keep_answers(probs, answers)
        problem.nll[method] = float(-np.log(np.maximum(probs[place, truth], 1e-300)).mean())
    return problem


def _print_table(problems: list[Problem], names: list[str], seconds: dict[str, float] | None) -> None:
    print(f"{'method':12s} {'win %':>18s} {'mean':>22s} {'median':>7s} {'worst':>7s} {'>1 %':>5s} {'s per fit':>9s}")
    for name in names:
        line = summarise(problems, name)
        (low, high), (least, most) = line.wins_interval, line.mean_interval
        cost = f"{seconds[name] / len(problems):9.3f}" if seconds else ""
        print(
            f"{name:12s} {line.wins:5.1f} [{low:4.1f}, {high:4.1f}] "
            f"{line.mean:7.2f} [{least:6.2f}, {most:6.2f}] {line.median:7.2f} {line.worst:7.2f} {line.worse:5d} {cost}"
        )


if __name__ == "__main__":
    main()
