"""Series: a year of a household's electricity, by MiniRocket of aeon; is a day in winter or in
summer?

Needs `pip install aeon`, which brings the data. Run it with `python examples/series.py`, or cell by
cell in an editor or a notebook. It takes one to two minutes, most of them to compile aeon.
"""

# %% A trained model: 67 days of 24 hours
import numpy as np
from aeon.classification.convolution_based import MiniRocketClassifier
from aeon.datasets import load_italy_power_demand

from recal import AutoCalibration, collect, decide

series, season = load_italy_power_demand(split="train")
fitted = MiniRocketClassifier(n_kernels=2000, random_state=0).fit(series, season)
features, ridge = fitted.pipeline_[:-1], fitted.pipeline_[-1]


def margins(batch):
    """Return the distance to the boundary as logits. MiniRocket's own probabilities are 0 or 1."""
    distance = ridge.decision_function(features.transform(batch))
    return np.stack([np.zeros_like(distance), 4 * distance], axis=1)


# %% Views: hours are missing, or the day starts an hour earlier or later
days, season = load_italy_power_demand(split="test")
pool = "drop:0.2+timeshift:0.05+timeshift:0.1"
views = collect(margins, days, pool, labels=season, classes=[str(name) for name in fitted.classes_])
fit, rest = views[: len(views) // 2], views[len(views) // 2 :]

# %% Fit on one half, decide on the other
calibrator = AutoCalibration().fit(fit)
print(calibrator.reason_)
probs, confidence = calibrator.predict_both(rest)
decision = decide(probs, rest.labels, risk=0.05, confidences=confidence, calibrator=calibrator)
print(decision)
