"""Does the default overfit if rows are near-copies of each other, and do clusters prevent it?

    python -m benchmarks.cluster_fits --draws 20

Rows come in clusters: frames of a video, samples of a patient, copies. Calibrators are fitted to
500 or 1,000 such rows and tested on 20,000 independent rows. The script prints the test NLL
relative to temperature scaling on the same rows, in per cent: the mean and the worst draw, with and
without `clusters`. Lower is better; 0 equals temperature scaling.
"""

from __future__ import annotations

import argparse
import warnings
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from recal.calibrators import AutoCalibration, TemperatureScaling
from recal.calibrators.base import Calibrator

N_CLASSES = 5
TEST_ROWS = 20_000


class Setting(NamedTuple):
    name: str
    n_clusters: int
    size: int
    within: float  # standard deviation of the logits within a cluster; 0 for copies
    overconfidence: float = 2.0
    drift: float = 0.0  # standard deviation of the bias that all rows of one class share


SETTINGS = (
    Setting("50 videos of 10 near-copies", 50, 10, 0.01),
    Setting("100 videos of 10 near-copies", 100, 10, 0.01),
    Setting("50 inputs copied 10 times", 50, 10, 0.0),
    Setting("250 inputs copied twice", 250, 2, 0.0),
    Setting("100 patients of 5 samples", 100, 5, 0.6),
    Setting("100 videos of 10, biased classes", 100, 10, 0.01, drift=1.0),
    Setting("500 independent rows", 500, 1, 0.0),
    Setting("500 independent rows, biased classes", 500, 1, 0.0, drift=1.0),
)


class Rows(NamedTuple):
    logits: NDArray[np.float64]
    labels: NDArray[np.intp]
    clusters: NDArray[np.intp]


def draw(
    setting: Setting,
    n_clusters: int,
    size: int,
    bias: NDArray[np.float64],
    rng: np.random.Generator,
) -> Rows:
    calibrated = rng.normal(scale=1.5, size=(n_clusters, N_CLASSES))
    labels = (calibrated + rng.gumbel(size=calibrated.shape)).argmax(axis=1)
    logits = np.repeat(setting.overconfidence * calibrated + bias, size, axis=0)
    logits += setting.within * rng.normal(size=logits.shape)
    return Rows(logits, np.repeat(labels, size), np.repeat(np.arange(n_clusters), size))


def nll(calibrator: Calibrator, test: Rows) -> float:
    probs = calibrator.predict_proba(test.logits)
    return float(-np.log(probs[np.arange(len(test.labels)), test.labels]).mean())


def change(setting: Setting, seed: int) -> tuple[float, float]:
    """Return the change of the NLL beside temperature scaling, in per cent, without and with
    clusters.
    """
    rng = np.random.default_rng(seed)
    bias = setting.drift * rng.normal(size=N_CLASSES)
    rows = draw(setting, setting.n_clusters, setting.size, bias, rng)
    test = draw(setting, TEST_ROWS, 1, bias, rng)
    plain = nll(TemperatureScaling().fit(rows.logits, rows.labels), test)
    losses = [
        nll(AutoCalibration().fit(rows.logits, rows.labels, clusters=clusters), test)
        for clusters in (None, rows.clusters)
    ]
    return 100 * (losses[0] / plain - 1), 100 * (losses[1] / plain - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=20)
    draws = parser.parse_args().draws
    print(
        f"{'':38}{'without clusters':>20}{'with clusters':>20}\n{'':38}{'mean    worst':>20}{'mean    worst':>20}"
    )
    for setting in SETTINGS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            changes = np.array([change(setting, seed) for seed in range(draws)])
        columns = "".join(
            f"{f'{part.mean():+.1f} % {part.max():+.1f} %':>20}" for part in changes.T
        )
        print(f"{setting.name:38}{columns}", flush=True)


if __name__ == "__main__":
    main()
