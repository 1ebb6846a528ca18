"""What does a rule that chooses among methods of equal cost lose against the best one? Its regret on rows never seen.

    python -m benchmarks.recommend_regret views.npz arena.npz --problems letter/mlp,adult/knn --splits 4

Some rows fit seven methods, as many others judge them, and the rest are the truth. Regret: how much higher the loss of
the chosen method is on the rest than that of the best of the seven, in per cent. Rules: the first method that no other
beats at a corrected level of 95 % (as `recommend` did), the first one within so many standard errors of the best by
both scores, and the lowest NLL.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t

from recal import Views, read_views
from recal.comparison.run import find_method
from recal.metrics.rows import score

METHODS = ("ts", "ets", "beta (kept)", "isotonic (kept)", "svs (kept)", "sms (kept)", "sms")
Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Judged:
    """NLL and Brier score of each method: means on the judging rows, errors of differences, and means on the rest."""

    means: Matrix  # (methods, 2)
    errors: Matrix  # (methods, methods, 2)
    truth: Matrix  # (methods, 2)
    n_rows: int


def judged(views: Views, n: int, seed: int) -> Judged:
    order = np.random.default_rng(seed).permutation(views.n_samples)
    n = min(n, len(order) // 3)
    fit, judge, rest = (views[np.sort(rows)] for rows in np.split(order, [n, 2 * n]))
    rows, truth = [], []
    for name in METHODS:
        fitted = find_method(name).fit(fit)
        on, off = (score(fitted.predict_proba(part), part.labels) for part in (judge, rest))
        rows.append((on.nll, on.brier))
        truth.append((off.nll.mean(), off.brier.mean()))
    found = np.array(rows)
    apart = found[:, None] - found[None]
    return Judged(found.mean(axis=2), apart.std(axis=-1, ddof=1) / np.sqrt(n), np.array(truth), n)


def first_unbeaten(one: Judged) -> int:
    level = 1 - 0.05 / (len(METHODS) - 1) / 2
    half = t.ppf(0.5 + level / 2, one.n_rows - 1) * one.errors
    apart = one.means[:, None] - one.means[None]
    better = (apart + half < 0).any(axis=-1) & ~(apart - half > 0).any(axis=-1)
    return int(np.argmin(better.any(axis=0)))


def first_near(one: Judged, errors: float) -> int:
    best = one.means.argmin(axis=0)
    near = [one.means[:, s] - one.means[b, s] <= errors * one.errors[:, b, s] for s, b in enumerate(best)]
    both = near[0] & near[1]
    return int(np.argmax(both if both.any() else near[0]))


RULES = {
    "first unbeaten": first_unbeaten,
    **{f"within {k:g} errors": (lambda one, k=k: first_near(one, k)) for k in (2.0, 1.0, 0.5, 0.25)},
    "lowest NLL": lambda one: int(one.means[:, 0].argmin()),
}


def problems(paths: list[Path], names: list[str]) -> Iterator[tuple[str, Views]]:
    for path in paths:
        with np.load(path) as file:
            if "logits" in file:
                views = read_views(path)
                yield path.stem, Views(views.logits, labels=views.labels)
                continue
            for name in names:
                parts = [
                    np.concatenate([file[f"{name}/{part}_{kind}"] for part in ("cal", "test")])
                    for kind in ("logits", "labels")
                ]
                yield name, Views(parts[0], labels=parts[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--problems", default="letter/mlp,adult/knn,satellite/lgbm,surveys/rf")
    parser.add_argument("--splits", type=int, default=4)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    chosen = list(problems(given.files, given.problems.split(",")))
    for n in (500, 2000):
        by_rule: dict[str, list[Matrix]] = {name: [] for name in RULES}
        for _, views in chosen:
            found = [judged(views, n, split) for split in range(given.splits)]
            for name, rule in RULES.items():
                lost = [100 * (one.truth[rule(one)] / one.truth.min(axis=0) - 1) for one in found]
                by_rule[name].append(np.mean(lost, axis=0))
        for name, lost in by_rule.items():
            nll, brier = np.mean(lost, axis=0)
            print(f"{n:5} rows  {name:18} regret: NLL {nll:5.2f} %, Brier {brier:5.2f} %", flush=True)


if __name__ == "__main__":
    main()
