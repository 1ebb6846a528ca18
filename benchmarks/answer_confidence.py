"""Does `predict_confidence` rank kept answers better than the largest probability, and what does it do to the ECE?

    python -m benchmarks.answer_confidence views.npz --methods stack,svs,isotonic --splits 4

Random halves: fitted on one, measured on the other, answers kept. Both figures are means over the splits.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import numpy as np

from recal import evaluate, read_views
from recal.comparison.run import find_method


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("views", type=Path, nargs="+")
    parser.add_argument("--methods", default="stack,svs (kept),isotonic (kept)")
    parser.add_argument("--splits", type=int, default=4)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"{'views':20} {'method':16}  AURC max AURC conf  change  ECE max ECE conf lifted")
    for path in given.views:
        views = read_views(path)
        for name in given.methods.split(","):
            found = []
            for split in range(given.splits):
                order = np.random.default_rng(split).permutation(views.n_samples)
                half = views.n_samples // 2
                fitted = find_method(name).fit(views[np.sort(order[:half])])
                test = views[np.sort(order[half:])]
                probs, sure = fitted.predict_both(test)
                one, other = (evaluate(probs, test.labels, confidences=c) for c in (None, sure))
                lifted = float((probs.max(axis=1) > sure * (1 + 1e-5)).mean())
                found.append((one["aurc"], other["aurc"], one["ece"], other["ece"], lifted))
            a, b, c, d, lifted = np.mean(found, axis=0)
            print(
                f"{path.stem:20} {name:16} {a:9.5f} {b:9.5f} {b / a - 1:7.1%} {c:8.4f} {d:8.4f} {lifted:.1%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
