"""What offsets per subject add to the default for a language model on MMLU.

    python -m benchmarks.group_offsets --data llm_options.npz --model gpt4o-mini --draws 3

The logits are the log-probabilities of the options after reasoning, with the direct answer as a
view. Options that were not returned get min(half of the smallest returned probability, 1e-5).
"automated" is the largest share of test answers with at most 5 or 10 % errors.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from recal import AutoCalibration, TemperatureScaling, Views, evaluate

Vector = NDArray[np.float64]


def logits_of(probs: Vector) -> Vector:
    """Return log-probabilities, with a floor for options that were not returned."""
    returned = np.where(np.isfinite(probs) & (probs > 0), probs, np.inf)
    floor = np.minimum(0.5 * returned.min(axis=1, keepdims=True), 1e-5)
    return np.asarray(np.log(np.where(np.isfinite(returned), returned, floor)))


def automated(confidence: Vector, right: NDArray[np.bool_], risk: float) -> float:
    order = np.argsort(-confidence, kind="stable")
    rates = np.cumsum(~right[order]) / np.arange(1, len(order) + 1)
    good = np.flatnonzero(rates <= risk)
    return float((good[-1] + 1) / len(order)) if len(good) else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default="gpt4o-mini")
    parser.add_argument("--labels", type=int, default=1000)
    parser.add_argument("--draws", type=int, default=3)
    arguments = parser.parse_args()
    with np.load(arguments.data, allow_pickle=False) as file:
        direct, reasoned, y, subject = (
            file[f"{arguments.model}/{name}"]
            for name in ("direct", "reasoned", "labels", "subject")
        )
    main_logits, other = logits_of(reasoned), logits_of(direct)
    views = Views(main_logits, {"direct": other}, y)
    rows: dict[str, list[list[float]]] = {}
    for draw in range(arguments.draws):
        order = np.random.default_rng(draw).permutation(len(y))
        fit, test = order[: arguments.labels], order[arguments.labels :]
        right = main_logits[test].argmax(axis=1) == y[test]
        temperature = TemperatureScaling().fit(main_logits[fit], y[fit])
        auto = AutoCalibration().fit(views[fit], y[fit], groups=subject[fit])
        confidences = {
            "temperature scaling": temperature.predict_confidence(main_logits[test]),
            "default with the direct answer": auto.predict_confidence(views[test]),
            "the same with subjects": auto.predict_confidence(views[test], groups=subject[test]),
        }
        for name, confidence in confidences.items():
            metrics = evaluate(confidence, right)
            shares = [automated(confidence, right, risk) for risk in (0.05, 0.1)]
            rows.setdefault(name, []).append(
                [metrics["nll"], metrics["ece"], metrics["aurc"], *shares]
            )
    print(
        f"| {arguments.model}, {arguments.labels:,} labels | NLL | ECE | AURC | at 5 % | at 10 % |"
    )
    print("|---|---|---|---|---|---|")
    for name, values in rows.items():
        nll, ece, aurc, five, ten = np.mean(values, axis=0)
        print(f"| {name} | {nll:.3f} | {ece:.3f} | {aurc:.3f} | {five:.1%} | {ten:.1%} |")


if __name__ == "__main__":
    main()
