"""ReCal against temperature scaling on random halves of a views file.

    python -m benchmarks.halves VIEWS.npz --kind zoom --halves 10

Fits on one half and tests on the other, and prints the mean of each metric with its paired difference to temperature
scaling: one split proves nothing, since the error of a single ECE is as large as what methods differ by.
"""

from __future__ import annotations

import argparse

import numpy as np

from recal import ReCal, TemperatureScaling, Views, metrics, read_views

METRICS = {name: getattr(metrics, name) for name in ("ece", "brier", "nll", "aurc", "error_rate")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("views")
    parser.add_argument("--kind", default="zoom", help="use the transformations whose spec begins with this")
    parser.add_argument("--halves", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    stored = read_views(arguments.views)
    chosen = {t: stored.transformed(t) for t in stored.transforms if str(t).startswith(arguments.kind)}
    views = Views(stored.logits, chosen, stored.labels)
    rng = np.random.default_rng(arguments.seed)
    scores: dict[str, list[list[float]]] = {"uncalibrated": [], "ts": [], "recal": [], "recal guard=ece": []}
    for half in range(arguments.halves):
        order = rng.permutation(len(views))
        fitting, testing = views[order[: len(views) // 2]], views[order[len(views) // 2 :]]
        methods = {
            "ts": TemperatureScaling(),
            "recal": ReCal(random_state=half),
            "recal guard=ece": ReCal(random_state=half, guard="ece"),
        }
        logits = testing.logits.astype(np.float64)
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        probs = {"uncalibrated": weights / weights.sum(axis=1, keepdims=True)}
        probs |= {name: method.fit(fitting).predict_proba(testing) for name, method in methods.items()}
        for name, values in probs.items():
            scores[name].append([float(metric(values, testing.labels)) for metric in METRICS.values()])
    baseline = np.array(scores["ts"])
    print(f"{arguments.views}: {views}, {arguments.halves} random halves, mean (paired difference to ts ± 1.96 s.e.)")
    for name, rows in scores.items():
        values = np.array(rows)
        difference = values - baseline
        error = 1.96 * difference.std(axis=0, ddof=1) / np.sqrt(len(values))
        cells = [
            f"{metric} {mean:.5f} ({delta:+.5f} ± {wide:.5f})"
            for metric, mean, delta, wide in zip(METRICS, values.mean(0), difference.mean(0), error, strict=True)
        ]
        print(f"{name:<16}" + "  ".join(cells))


if __name__ == "__main__":
    main()
