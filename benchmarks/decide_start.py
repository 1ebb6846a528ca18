"""Which search for a threshold certifies most answers from few labels, and does it keep the level?

    python -m benchmarks.decide_start views.npz arena.npz --draws 1000 --problems letter/mlp,adult/lgbm

Populations are files of views, or problems of a file of many. A third of the rows fits temperature scaling; samples are
drawn with replacement from the rest, which are the truth. Shown: the share of answers accepted and, in brackets, the
share of draws in which the risk is broken; at most 5 % may be.

- smallest: the sequence begins at the smallest set that could show anything, as without `confidences`.
- likeliest: it begins at the set that the confidences make likeliest to be certified, as with `confidences`.
- betting: as likeliest, each set tested by the capital of a bet against the risk (Waudby-Smith and Ramdas, 2024)
  instead of the binomial.
- naive: the largest set that passes its own test. Nothing is proven of it; no valid search can accept much more.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from recal import TemperatureScaling, read_views
from recal.decisions.certify import Ranked, _sequence, certified, chance_of_so_few, likely_start, ranked

Vector = NDArray[np.float64]
LEVEL = 0.05
# How boldly each of several players bets that mistakes are rarer than the risk; 1 would lose all by one mistake.
BETS = np.array([0.2, 0.4, 0.6, 0.8, 0.9, 0.95])


def capital(errors: Vector, sizes: Vector, risk: float) -> Vector:
    """What bets against "at least `risk` are wrong" made of one unit, on average over the players.

    A player stakes a share b: a right answer multiplies the capital by 1 + b risk / (1 - risk), a mistake by 1 - b.
    The order of answers does not matter, so the mean over players is one number for each set.
    """
    grown = (sizes - errors)[:, None] * np.log1p(BETS * risk / (1 - risk)) + errors[:, None] * np.log1p(-BETS)
    return np.exp(grown).mean(axis=1)


def betting(answers: Ranked, risk: float) -> int:
    planned, _ = _sequence(len(answers), risk, LEVEL, likely_start(answers, risk, LEVEL))
    if not len(planned):
        return 0
    sizes = answers.ends[np.searchsorted(answers.ends, planned)]
    good = capital(answers.errors[sizes], sizes.astype(float), risk) >= 1 / LEVEL
    length = len(good) if good.all() else int(np.argmin(good))
    return int(sizes[length - 1]) if length else 0


def naive(answers: Ranked, risk: float) -> int:
    good = chance_of_so_few(answers.errors[answers.ends], answers.ends, risk) <= LEVEL
    return int(answers.ends[good][-1]) if good.any() else 0


def largest(answers: Ranked, risk: float, calibrated: bool) -> int:
    sizes = certified(answers, risk, LEVEL, calibrated=calibrated)
    return int(sizes[-1]) if len(sizes) else 0


SEARCHES = {
    "smallest": lambda answers, risk: largest(answers, risk, False),
    "likeliest": lambda answers, risk: largest(answers, risk, True),
    "betting": betting,
    "naive": naive,
}


def populations(paths: list[Path], problems: list[str]) -> Iterator[tuple[str, Vector, NDArray[np.bool_]]]:
    """The name of each, the confidences of its rows, and which are wrong."""
    for path in paths:
        with np.load(path) as file:
            many = "logits" not in file
            for name in problems if many else [path.stem]:
                if many:
                    parts = {part: file[f"{name}/{part}"] for part in ("cal_logits", "test_logits")}
                    labels = {part: file[f"{name}/{part}_labels"] for part in ("cal", "test")}
                    fit, rest = parts["cal_logits"], parts["test_logits"]
                    known, truth = labels["cal"], labels["test"]
                else:
                    views = read_views(path)
                    order = np.random.default_rng(0).permutation(views.n_samples)
                    cut = len(order) // 3
                    fit, known = views.logits[order[:cut]], views.labels[order[:cut]]
                    rest, truth = views.logits[order[cut:]], views.labels[order[cut:]]
                probs = TemperatureScaling().fit(fit, known).predict_proba(rest)
                yield name, probs.max(axis=1).astype(np.float64), probs.argmax(axis=1) != truth


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--sizes", default="300,1000,3000")
    parser.add_argument("--risks", default="0.01,0.02,0.05")
    parser.add_argument("--problems", default="letter/mlp,satellite/lgbm,spam/rf,phoneme/rf,surveys/lgbm,adult/lgbm")
    given = parser.parse_args()
    print(f"{'population':20} {'risk':>5} {'n':>5} {'possible':>9}" + "".join(f"{name:>16}" for name in SEARCHES))
    for title, sure, wrong in populations(given.files, given.problems.split(",")):
        falling = np.argsort(-sure, kind="stable")
        rates = np.cumsum(wrong[falling]) / np.arange(1, len(sure) + 1)
        for risk in map(float, given.risks.split(",")):
            possible = np.flatnonzero(rates <= risk)
            best = (possible[-1] + 1) / len(sure) if len(possible) else 0.0
            for n in map(int, given.sizes.split(",")):
                rng, found = np.random.default_rng(1), np.zeros((len(SEARCHES), 2))
                for _ in range(given.draws):
                    rows = rng.integers(len(sure), size=n)
                    answers = ranked(sure[rows], wrong[rows])
                    for place, search in enumerate(SEARCHES.values()):
                        if size := search(answers, risk):
                            accepted = sure >= answers.threshold(size)
                            found[place] += accepted.mean(), wrong[accepted].mean() > risk
                shown = [f"{share:.1%} ({broken:.1%})" for share, broken in found / given.draws]
                print(f"{title:20} {risk:5.2f} {n:5} {best:9.1%}" + "".join(f"{one:>16}" for one in shown), flush=True)


if __name__ == "__main__":
    main()
