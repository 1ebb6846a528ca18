"""Shares that a rule from 500 labels accepts, under both promises: the README's guaranteed rows.

    python -m benchmarks.rules_from_labels --signals llm_signals.npz --panel llm_panel.npz

500 other labels fit the calibration. Medians over models; errors over all accepted answers.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator

import numpy as np

from recal import PanelCalibration, SignalCalibration, decide

NAMES = ("stated", "hedging", "token", "length")
Scores = tuple[str, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def graded(path: str, draws: int = 3) -> Iterator[Scores]:
    """Yield confidences and grades to decide and to test on, for every second model."""
    with np.load(path, allow_pickle=False) as data:
        for model in sorted({key.split("/")[0] for key in data.files})[1::2]:
            signals, right = data[f"{model}/signals"], data[f"{model}/correct"]
            groups = data[f"{model}/category"].astype(str)
            for draw in range(draws):
                order = np.random.default_rng(draw).permutation(len(right))
                fit, rule, test = order[:500], order[500:1000], order[1000:]
                columns = [dict(zip(NAMES, signals[rows].T)) for rows in (fit, rule, test)]
                calibrator = SignalCalibration().fit(columns[0], right[fit], groups[fit])
                deciding = calibrator.predict_confidence(columns[1], groups[rule])
                testing = calibrator.predict_confidence(columns[2], groups[test])
                yield model, deciding, right[rule], testing, right[test]


def panels(path: str, draws: int = 2) -> Iterator[Scores]:
    """Yield the same for the eight most accurate models, each with the three cheapest others."""
    with np.load(path, allow_pickle=False) as data:
        answers, signals, truth, cost = (data[k] for k in ("answers", "signals", "truth", "cost"))
    key = truth.astype(str)
    strong = np.argsort(-(answers == truth[:, None]).mean(axis=0))[:8]
    priced = [one for one in np.argsort(cost) if np.isfinite(cost[one])]
    for main in strong:
        systems = [main, *[one for one in priced if one != main][:3]]
        for draw in range(draws):
            order = np.random.default_rng(draw).permutation(len(truth))
            fit, rule, test = order[:500], order[500:1000], order[1000:5000]

            def table(rows: np.ndarray, systems: list[int] = systems) -> tuple[dict, dict]:
                given = {
                    str(s): [None if a < 0 else str(a) for a in answers[rows, s]] for s in systems
                }
                return given, {str(s): dict(zip(NAMES, signals[rows, s].T)) for s in systems}

            given, columns = table(fit)
            panel = PanelCalibration().fit(given, key[fit], columns)
            scored = [panel.predict_both(*table(rows)) for rows in (rule, test)]
            right = [found == key[rows] for (found, _), rows in zip(scored, (rule, test))]
            yield str(main), scored[0][1], right[0], scored[1][1], right[1]


def show(name: str, risk: float, scores: list[Scores]) -> None:
    for guarantee in ("confidence", "average"):
        shares: dict[str, list[float]] = {}
        wrong = total = 0
        for model, deciding, right, testing, truth in scores:
            accepted = decide(deciding, right, risk, guarantee=guarantee).accept(testing)
            shares.setdefault(model, []).append(float(accepted.mean()))
            wrong, total = wrong + int((~truth[accepted]).sum()), total + int(accepted.sum())
        median = np.median([np.mean(one) for one in shares.values()])
        print(f"{name}, {guarantee}: {median:.1%} accepted, {wrong / max(total, 1):.1%} wrong")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--signals", required=True)
    parser.add_argument("--panel", required=True)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    show("graded answers, risk 20 %", 0.2, list(graded(given.signals)))
    show("panels, risk 5 %", 0.05, list(panels(given.panel)))


if __name__ == "__main__":
    main()
