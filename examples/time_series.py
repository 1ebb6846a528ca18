"""Honest confidence for a classifier of time series: when does a household's day of electricity belong to winter?

Needs aeon, which brings the data: pip install aeon
"""

from __future__ import annotations

import numpy as np
from aeon.datasets import load_italy_power_demand
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from recal import CalibratedClassifier, ReCal, TemperatureScaling, metrics


def main() -> None:
    series, y = load_italy_power_demand(split="train")  # 67 days of 24 hours
    model = make_pipeline(FunctionTransformer(lambda x: x[:, 0]), StandardScaler(), LogisticRegression(C=100.0))
    model.fit(series, y)

    # Days the model has not seen: half to calibrate, half to judge.
    days, season = load_italy_power_demand(split="test")
    held_out, test = slice(0, 500), slice(500, None)
    truth = np.searchsorted(model.classes_, season[test])
    answers = {"as it is": model.predict_proba(days[test])}
    # 500 days with few mistakes are too few for ReCal as published: it would warn. The guard keeps it from harm, and
    # here it is no better than one temperature.
    for calibrator in (TemperatureScaling(), ReCal(guard="ece", random_state=0)):
        # Hours are lost, or sampled more coarsely: an honest classifier should become less sure.
        classifier = CalibratedClassifier(model, calibrator, pool="drop:0.1-0.6:10+coarse:0.2-0.9:10")
        classifier.fit(days[held_out], season[held_out])
        answers[type(calibrator).__name__] = classifier.predict_proba(days[test])

    print(f"{'':<20}{'accuracy':>10}{'ECE':>10}{'NLL':>10}")
    for name, probs in answers.items():
        accuracy = 1 - metrics.error_rate(probs, truth)
        print(f"{name:<20}{accuracy:>10.3f}{metrics.ece(probs, truth):>10.4f}{metrics.nll(probs, truth):>10.4f}")


if __name__ == "__main__":
    main()
