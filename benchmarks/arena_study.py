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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.machinery.probabilities import softmax
from recal.calibrators.names import find_method
from recal.runtime.reference import keep_answers

# What a method is compared with: the model as it is and twelve methods of the literature.
PANEL = (
    "none", "ts", "ets", "vs", "svs", "sms", "dir-odir", "platt", "beta", "isotonic", "histogram", "irm", "spline",
)  # fmt: skip
JUDGED = ("ensemble", "auto")
_DRAWS = 1000


@dataclass
class Problem:
    """One classifier on one data set, with what each method scored on it."""

    name: str
    n_classes: int
    n_samples: int
    mistakes: int
    nll: dict[str, float] = field(default_factory=dict)
    chosen: str = ""

    @property
    def data(self) -> str:
        return self.name.split("/")[0]


def main() -> None:
    options = _options()
    problems, seconds = [], dict.fromkeys((*PANEL, *options.methods), 0.0)
    for name, parts in _read(options.path, options.every):
        problems.append(_solve(name, parts, options, seconds))
    names = list(seconds)
    print(f"{len(problems)} problems, {len({p.data for p in problems})} data sets, answers {options.answers}")
    _print_table(problems, names, seconds)
    for title, groups in (("classes", _BY_CLASSES), ("mistakes", _BY_MISTAKES)):
        for label, inside in groups.items():
            part = [problem for problem in problems if inside(problem)]
            if part:
                print(f"\n{title} {label}: {len(part)} problems")
                _print_table(part, ["ts", *options.methods], None)
    chosen = [problem.chosen for problem in problems if problem.chosen]
    print("\nauto chose", {name: chosen.count(name) for name in sorted(set(chosen))})


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", help="arena.npz")
    parser.add_argument("--rows", type=int, default=0, help="how many calibration rows; 0 for all")
    parser.add_argument("--answers", choices=("kept", "free"), default="kept")
    parser.add_argument("--methods", type=lambda text: tuple(text.split(",")), default=JUDGED)
    parser.add_argument("--every", type=int, default=1, help="take every so-manieth data set")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


Parts = tuple[NDArray[np.float32], NDArray[np.intp], NDArray[np.float32], NDArray[np.intp]]


def _read(path: str, every: int) -> Iterator[tuple[str, Parts]]:
    with np.load(path) as file:
        names = sorted({key.rsplit("/", 1)[0] for key in file.files})
        data = sorted({name.split("/")[0] for name in names})[::every]
        for name in names:
            if name.split("/")[0] in data:
                keys = ("cal_logits", "cal_labels", "test_logits", "test_labels")
                logits, labels, test, truth = (file[f"{name}/{key}"] for key in keys)
                yield name, (logits, labels.astype(np.intp), test, truth.astype(np.intp))


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


_BY_CLASSES: dict[str, Callable[[Problem], bool]] = {
    "2": lambda p: p.n_classes == 2,
    "3 to 9": lambda p: 2 < p.n_classes < 10,
    "10 and more": lambda p: p.n_classes >= 10,
}
_BY_MISTAKES: dict[str, Callable[[Problem], bool]] = {
    "below 20": lambda p: p.mistakes < 20,
    "20 to 59": lambda p: 20 <= p.mistakes < 60,
    "60 and more": lambda p: p.mistakes >= 60,
}


def _print_table(problems: list[Problem], names: list[str], seconds: dict[str, float] | None) -> None:
    print(f"{'method':12s} {'win %':>18s} {'mean':>22s} {'median':>7s} {'worst':>7s} {'>1 %':>5s} {'s per fit':>9s}")
    for name in names:
        change = np.array([100 * (p.nll[name] / p.nll["ts"] - 1) for p in problems])
        wins = np.array([_win_share(p, name) for p in problems])
        low, high = _interval(problems, wins)
        least, most = _interval(problems, change)
        cost = f"{seconds[name] / len(problems):9.3f}" if seconds else ""
        print(
            f"{name:12s} {100 * wins.mean():5.1f} [{100 * low:4.1f}, {100 * high:4.1f}] "
            f"{change.mean():7.2f} [{least:6.2f}, {most:6.2f}] {np.median(change):7.2f} {change.max():7.2f} "
            f"{(change > 1).sum():5d} {cost}"
        )


def _win_share(problem: Problem, name: str) -> float:
    """Return the share of the panel's other methods that this one beats; a tie counts half."""
    rivals = [problem.nll[other] for other in PANEL if other != name]
    return float(np.mean([(problem.nll[name] < rival) + 0.5 * (problem.nll[name] == rival) for rival in rivals]))


def _interval(problems: list[Problem], values: NDArray[np.float64]) -> tuple[float, float]:
    """Return where 95 % of the means lie when data sets are drawn anew."""
    data = np.array([problem.data for problem in problems])
    sums = np.array([(values[data == name].sum(), (data == name).sum()) for name in np.unique(data)])
    rng = np.random.default_rng(0)
    drawn = sums[rng.integers(0, len(sums), (_DRAWS, len(sums)))].sum(axis=1)
    low, high = np.quantile(drawn[:, 0] / drawn[:, 1], [0.025, 0.975])
    return float(low), float(high)


if __name__ == "__main__":
    main()
