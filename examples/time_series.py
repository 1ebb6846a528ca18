"""Time series: aeon's MiniRocket tells winter days from summer days by a household's electricity, hour by hour.

Needs: pip install aeon, which brings the data
Run:   python examples/time_series.py
"""

from __future__ import annotations

import sys

import numpy as np
from ending import end_in_a_decision, parser

from recal import collect


def main() -> None:
    options = parser(__doc__).parse_args()
    try:
        from aeon.classification.convolution_based import MiniRocketClassifier
        from aeon.datasets import load_italy_power_demand
    except ImportError:
        sys.exit("This example needs aeon: pip install aeon")
    series, y = load_italy_power_demand(split="train")  # 67 days of 24 hours
    model = MiniRocketClassifier(n_kernels=2000, random_state=0).fit(series, y)
    days, season = load_italy_power_demand(split="test")
    features, ridge = model.pipeline_[:-1], model.pipeline_[-1]

    def margins(batch: np.ndarray) -> np.ndarray:
        """MiniRocket's own probabilities are 0 or 1; the distance to its boundary says more."""
        distance = ridge.decision_function(features.transform(batch))
        return np.stack([np.zeros_like(distance), 4 * distance], axis=1)

    # Hours are lost, or sampled more coarsely, or the day begins earlier or later.
    pool = "drop:0.1-0.6:5+coarse:0.2-0.9:4+timeshift:0.05+timeshift:0.05:direction=earlier"
    views = collect(margins, days, pool, labels=season, classes=[str(name) for name in model.classes_])
    end_in_a_decision(views, what="days", record=options.record)


if __name__ == "__main__":
    main()
