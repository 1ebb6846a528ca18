"""Does `decide_crossfitted` keep its risk? Tested on many small samples of views; the other rows
give the truth.

    python -m benchmarks.decide_crossfit views.npz --methods ts,vs,irova-ts --samples 300 --risk
    0.05 --draws 1000

"broken" is the share of draws in which the mistakes among accepted answers exceed the risk on the
rows that were not drawn; it should not exceed 5 %. For comparison: deciding on the rows of the fit,
and deciding on a separate part.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import numpy as np
from sklearn.base import clone

from recal import Views, decide, read_views
from recal.calibrators.base import Calibrator
from recal.comparison.run import method_by_name
from recal.decisions import decide_crossfitted


def outcome(calibrator: Calibrator, rest: Views) -> tuple[float, float]:
    """The share accepted and the share of mistakes among the accepted, on rows that were not drawn."""
    accepted = calibrator.accept(rest)
    wrong = calibrator.predict(rest) != rest.labels
    return float(accepted.mean()), float(wrong[accepted].mean()) if accepted.any() else 0.0


def same_rows(method: Calibrator, views: Views, risk: float) -> Calibrator:
    fitted = clone(method).fit(views)
    probs, sure = fitted.predict_both(views)
    fitted.decision_ = decide(probs, views.labels, risk, confidences=sure).rule
    return fitted


def halves(method: Calibrator, views: Views, risk: float, share: float = 0.5) -> Calibrator:
    cut = round(share * views.n_samples)
    fitted, other = clone(method).fit(views[:cut]), views[cut:]
    probs, sure = fitted.predict_both(other)
    fitted.decision_ = decide(probs, other.labels, risk, confidences=sure).rule
    return fitted


def parts(method: Calibrator, views: Views, risk: float) -> Calibrator:
    """Five eighths to fit and three to decide, as `recal calibrate` splits all but its judging
    inputs.
    """
    return halves(method, views, risk, share=0.625)


def crossed(method: Calibrator, views: Views, risk: float, folds: int = 10) -> Calibrator:
    return decide_crossfitted(method, views, risk=risk, folds=folds)[0]


def crossed_in_5(method: Calibrator, views: Views, risk: float) -> Calibrator:
    """As `recal calibrate --cross-fit`."""
    return crossed(method, views, risk, folds=5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("views", type=Path)
    parser.add_argument("--methods", default="ts,vs,irova-ts")
    parser.add_argument("--samples", type=int, default=300)
    parser.add_argument("--risk", type=float, default=0.05)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument(
        "--ways", default="crossed,halves,same_rows", help="also crossed_in_5 and parts"
    )
    given = parser.parse_args()
    held = read_views(given.views)
    population = Views(held.logits, labels=held.labels)
    ways = {way.__name__: way for way in (crossed, crossed_in_5, halves, parts, same_rows)}
    warnings.simplefilter("ignore")
    print(f"{'method':12} {'way':12} {'broken':>8} {'accepted':>9} {'risk, mean':>10}")
    for name in given.methods.split(","):
        method = method_by_name(name)
        for way in given.ways.split(","):
            rng = np.random.default_rng(0)
            found = []
            for _ in range(given.draws):
                order = rng.permutation(population.n_samples)
                fitted = ways[way](method, population[order[: given.samples]], given.risk)
                found.append(outcome(fitted, population[order[given.samples :]]))
            share, risk = np.array(found).T
            print(
                f"{name:12} {way:12} {(risk > given.risk).mean():8.1%} {share.mean():9.1%} {risk.mean():10.2%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
