"""Does a start of the threshold search that is chosen from the confidences alone keep the level, and what does it gain?

    python -m benchmarks.decide_start views.npz more.npz --draws 1000

A third of the rows fits temperature scaling; samples are drawn with replacement from the rest, which are the truth.
Shown: the share of answers accepted and, in brackets, the share of draws in which the risk is broken, with the start at
the smallest set (as without `confidences`) and with the likeliest one. At most 5 % may be broken.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from recal import TemperatureScaling, read_views
from recal.decisions.search import certified, ranked


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("views", type=Path, nargs="+")
    parser.add_argument("--draws", type=int, default=1000)
    given = parser.parse_args()
    print(f"{'population':24} {'risk':>5} {'n':>5} {'possible':>9} {'smallest':>15} {'likeliest':>15}")
    for path in given.views:
        views = read_views(path)
        order = np.random.default_rng(0).permutation(views.n_samples)
        logits, labels = views.logits[order], views.labels[order]
        cut = len(labels) // 3
        probs = TemperatureScaling().fit(logits[:cut], labels[:cut]).predict_proba(logits[cut:])
        sure, wrong = probs.max(axis=1), probs.argmax(axis=1) != labels[cut:]
        falling = np.argsort(-sure, kind="stable")
        rates = np.cumsum(wrong[falling]) / np.arange(1, len(sure) + 1)
        for risk in (0.01, 0.02, 0.05):
            possible = np.flatnonzero(rates <= risk)
            best = (possible[-1] + 1) / len(sure) if len(possible) else 0.0
            for n in (300, 500, 700, 1000, 1500, 2000):
                rng, found = np.random.default_rng(1), np.zeros((2, 2))
                for _ in range(given.draws):
                    rows = rng.integers(len(sure), size=n)
                    answers = ranked(sure[rows], wrong[rows])
                    for place, calibrated in enumerate((False, True)):
                        sizes = certified(answers, risk, 0.05, calibrated=calibrated)
                        if len(sizes):
                            accepted = sure >= answers.threshold(int(sizes[-1]))
                            found[place] += accepted.mean(), wrong[accepted].mean() > risk
                shown = [f"{share:.1%} ({broken:.1%})" for share, broken in found / given.draws]
                print(f"{path.stem:24} {risk:5.2f} {n:5} {best:9.1%} {shown[0]:>15} {shown[1]:>15}", flush=True)


if __name__ == "__main__":
    main()
