"""A plug-in for the public benchmark CalArena, and a runner for files in its layout.

In a clone of CalArena, `custom_calibrators.py` becomes two lines (with this repository on
PYTHONPATH):

    from benchmarks.arena.calarena import calibrators
    CUSTOM_CALIBRATORS = calibrators()

and `python run_benchmark.py --benchmark tabrepo-binary --calibrator recal-auto` runs it. Without
CalArena:

    python -m benchmarks.arena.calarena tabrepo-binary.h5 --methods recal-auto,recal-ensemble,ts,sms

prints win rates on a file `{dataset}/{model}/{probas_cal, labels_cal, probas_test, labels_test}`,
by the Brier score, which CalArena ranks by, and by NLL. Each method is compared with the others
that are named and with the uncalibrated model; a tie is no win, as there. Reading the file needs
h5py.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from benchmarks.arena.summary import Problem, interval
from benchmarks.measuring import describe
from recal.calibrators import find_method

Probs = NDArray[np.float64]
PARTS = ("probas_cal", "labels_cal", "probas_test", "labels_test")
SMALLEST = 1e-12
UNCALIBRATED = "Base-model"


def as_columns(probs: ArrayLike) -> Probs:
    """Return (n, K) probabilities; (n,) and (n, 1) are those of the second of two classes."""
    given = np.asarray(probs, np.float64)
    if given.ndim == 2 and given.shape[1] > 1:
        return given
    positive = given.reshape(-1)
    return np.stack([1 - positive, positive], axis=1)


class RecalCalibrator:
    """One of recal's methods behind CalArena's interface: `fit(probas, labels)` and
    `predict_proba(probas)`.

    Parameters
    ----------
    method : a method's short name, such as `auto`, `ensemble` or `sms`
    answers : "free" lets the most probable class change, as CalArena's own methods do; "kept" never
    changes it

    Examples
    --------
    >>> from benchmarks.arena.calarena import RecalCalibrator
    >>> model = RecalCalibrator("ts").fit(np.array([0.9, 0.8, 0.3, 0.4]), np.array([1, 0, 0, 1]))
    >>> model.predict_proba(np.array([0.9])).shape
    (1, 2)
    """

    def __init__(self, method: str = "auto", answers: str = "free") -> None:
        self.method, self.answers = method, answers

    def fit(self, probas: ArrayLike, labels: ArrayLike) -> Self:
        family, fixed = find_method(self.method)
        if "answers" in family().get_params():
            fixed = {"answers": self.answers} | fixed
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # small sets are part of the benchmark
            self.calibrator_ = family(**fixed).fit(
                _logits(probas), np.asarray(labels).reshape(-1).astype(np.intp)
            )
        return self

    def predict_proba(self, probas: ArrayLike) -> Probs:
        return self.calibrator_.predict_proba(_logits(probas))


def _logits(probas: ArrayLike) -> Probs:
    return np.log(np.maximum(as_columns(probas), SMALLEST))


def calibrators() -> dict[str, Callable[[], RecalCalibrator]]:
    """Return what CalArena's `CUSTOM_CALIBRATORS` takes: names and functions that make a
    calibrator.
    """
    return {f"recal-{name}": partial(RecalCalibrator, name) for name in ("auto", "ensemble")}


def read(path: Path) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield `dataset/model` and the four arrays of each experiment in the file."""
    import h5py

    with h5py.File(path, "r") as file:
        for dataset in file:
            for model in file[dataset]:
                yield (
                    f"{dataset}/{model}",
                    tuple(file[f"{dataset}/{model}/{part}"][:] for part in PARTS),
                )


def judge(
    path: Path, methods: tuple[str, ...]
) -> dict[str, dict[str, tuple[float, tuple[float, float]]]]:
    """Return, for "brier" and "nll", each method's win rate in per cent and its 95 % interval by
    data set.
    """
    names = (UNCALIBRATED, *methods)
    losses: dict[str, list[list[float]]] = {"brier": [], "nll": []}
    problems = []
    for name, (probas, labels, test, truth) in read(path):
        truth = np.asarray(truth).reshape(-1).astype(np.intp)
        found = {UNCALIBRATED: as_columns(test)}
        for method in methods:
            found[method] = (
                RecalCalibrator(method.removeprefix("recal-"))
                .fit(probas, labels)
                .predict_proba(test)
            )
        classes = found[UNCALIBRATED].shape[1]
        losses["brier"].append(
            [float(((found[m] - np.eye(classes)[truth]) ** 2).sum(axis=1).mean()) for m in names]
        )
        chance = {m: np.maximum(found[m][np.arange(len(truth)), truth], SMALLEST) for m in names}
        losses["nll"].append([float(-np.log(chance[m]).mean()) for m in names])
        problems.append(Problem(name, classes, len(labels), 0))
    rates = {}
    for metric, rows in losses.items():
        table = np.array(rows)
        rates[metric] = {}
        for place, method in enumerate(names):
            wins = 100 * (np.delete(table, place, axis=1) > table[:, [place]]).mean(axis=1)
            rates[metric][method] = (float(wins.mean()), interval(problems, wins))
    return rates


def main() -> None:
    parser = describe(__doc__)
    parser.add_argument("file", type=Path)
    names = "recal-auto,recal-ensemble,ts,ets,svs,sms,platt,beta,isotonic"
    parser.add_argument("--methods", default=names)
    given = parser.parse_args()
    for metric, rates in judge(given.file, tuple(given.methods.split(","))).items():
        print(f"Win rate by {metric}, % [95 % interval by data set]")
        for method, (rate, (low, high)) in sorted(rates.items(), key=lambda item: -item[1][0]):
            print(f"  {method:16s} {rate:5.1f} [{low:5.1f}, {high:5.1f}]")


if __name__ == "__main__":
    main()
