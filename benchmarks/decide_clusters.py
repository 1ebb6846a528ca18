"""Does the guarantee of `decide` hold for dependent rows, and how much do three bounds for clusters
accept?

    python -m benchmarks.decide_clusters --draws 300
    python -m benchmarks.decide_clusters --draws 100 --workflow

Rows come in clusters: frames of a video, samples of a patient, copies. Each cluster has its own
class and its own difficulty, so its rows are often right or wrong together. "broken" is the share
of draws in which more than the allowed share of accepted predictions is wrong in the population; it
should be at most 5 %. The study compares the bound of `decide` without clusters and with clusters
(one random row per cluster), the mean p-value of many such draws, betting on the loss per cluster,
and Hoeffding's bound on it.

With --workflow each draw runs all of `recal calibrate`: split, fit of the default and decision, for
the first three settings, without and with clusters. The model looks up its logits by row.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from recal.collecting import as_source
from recal.decisions.certify import Ranked, certified, chance_of_so_few, one_row_per_cluster, ranked
from recal.workflow.job import calibrate
from recal.workflow.result import Settings

N_CLASSES = 5
RISK, LEVEL = 0.1, 0.05
Vector = NDArray[np.float64]


class Sample(NamedTuple):
    confidence: Vector
    wrong: NDArray[np.bool_]
    clusters: NDArray[np.intp]


class Setting(NamedTuple):
    name: str
    n_clusters: int
    size: int
    within: float  # standard deviation of the logits within a cluster; 0 for copies


SETTINGS = (
    Setting("100 videos of 20 frames", 100, 20, 0.3),
    Setting("200 patients of 5 samples", 200, 5, 0.6),
    Setting("200 rows copied 10 times", 200, 10, 0.0),
    Setting("1,000 patients of 5 samples", 1000, 5, 0.6),
    Setting("500 independent rows", 500, 1, 0.0),
)


def draw_logits(
    setting: Setting, n_clusters: int, rng: np.random.Generator
) -> tuple[Vector, NDArray[np.intp], NDArray[np.intp]]:
    """Return logits, labels and clusters of rows."""
    y = rng.integers(0, N_CLASSES, n_clusters)
    centre = 2.2 * np.eye(N_CLASSES)[y] + rng.normal(size=(n_clusters, N_CLASSES))
    logits = np.repeat(centre, setting.size, axis=0)
    logits += setting.within * rng.normal(size=logits.shape)
    return logits, np.repeat(y, setting.size), np.repeat(np.arange(n_clusters), setting.size)


def draw(setting: Setting, n_clusters: int, rng: np.random.Generator) -> Sample:
    logits, y, clusters = draw_logits(setting, n_clusters, rng)
    probs = np.exp(2.2 * (logits - logits.max(axis=1, keepdims=True)))
    confidence = (probs / probs.sum(axis=1, keepdims=True)).max(axis=1)
    return Sample(confidence, logits.argmax(axis=1) != y, clusters)


def of_rows(sample: Sample) -> float:
    return _threshold(ranked(sample.confidence, sample.wrong))


def of_clusters(sample: Sample) -> float:
    rows = one_row_per_cluster(*sample)
    return _threshold(ranked(sample.confidence[rows], sample.wrong[rows]))


def betting(sample: Sample) -> float:
    """Bet on the loss per cluster: the product of (1 - bet x loss) is an e-value (Waudby-Smith and
    Ramdas, 2024).
    """
    return _largest(sample, _betting_evidence)


def hoeffding(sample: Sample) -> float:
    """Bound the mean loss per cluster by Hoeffding's inequality."""
    return _largest(sample, _hoeffding_evidence)


def _largest(sample: Sample, evidence: Callable[[Vector, int], float]) -> float:
    """Test growing sets in a fixed sequence that starts where a set without mistakes would have
    twice the evidence.
    """
    order = np.argsort(-sample.confidence, kind="stable")
    size, n_clusters = np.bincount(sample.clusters).max(), len(np.unique(sample.clusters))
    threshold = np.inf
    for count in np.unique(np.geomspace(1, len(order), 200).astype(int)):
        rows = order[:count]
        clusters = sample.clusters[rows]
        accepted = np.bincount(clusters, minlength=n_clusters)
        if evidence(-RISK * accepted, size) < -2 * np.log(LEVEL):
            continue
        if evidence(
            np.bincount(clusters, sample.wrong[rows], n_clusters) - RISK * accepted, size
        ) < -np.log(LEVEL):
            break
        threshold = float(sample.confidence[order[count - 1]])
    return threshold


def _betting_evidence(losses: Vector, size: int) -> float:
    bets = np.array([0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 0.98]) / ((1 - RISK) * size)
    return float(np.log(np.exp(np.log1p(-np.outer(bets, losses)).sum(axis=1)).mean()))


def _hoeffding_evidence(losses: Vector, size: int) -> float:
    return float(2 * len(losses) * min(losses.mean() / size, 0.0) ** 2)


def many_draws(sample: Sample) -> float:
    """Draw one row per cluster many times; twice the mean p-value is valid (Rueschendorf, 1982)."""
    order = np.argsort(-sample.confidence, kind="stable")
    rng, size = np.random.default_rng(0), np.bincount(sample.clusters).max()
    turns = [_one_each(sample.clusters, rng)[order] for _ in range(20)]
    wrong, threshold = sample.wrong[order], np.inf
    counts = np.unique(np.geomspace(1, len(order), 200).astype(int))
    chances = [
        chance_of_so_few(np.cumsum(turn & wrong)[counts - 1], np.cumsum(turn)[counts - 1], RISK)
        for turn in turns
    ]
    for count, chance in zip(counts, 2 * np.mean(chances, axis=0)):
        if (1 - RISK) ** (count / size) > LEVEL**2:  # start with a margin
            continue
        if chance > LEVEL:
            break
        threshold = float(sample.confidence[order[count - 1]])
    return threshold


def _one_each(clusters: NDArray[np.intp], rng: np.random.Generator) -> NDArray[np.bool_]:
    order = rng.permutation(len(clusters))
    _, first = np.unique(clusters[order], return_index=True)
    chosen = np.zeros(len(clusters), np.bool_)
    chosen[order[first]] = True
    return chosen


def _threshold(answers: Ranked) -> float:
    sizes = certified(answers, RISK, LEVEL)
    return answers.threshold(int(sizes[-1])) if len(sizes) else np.inf


BOUNDS: dict[str, Callable[[Sample], float]] = {
    "rows": of_rows,
    "clusters": of_clusters,
    "many draws": many_draws,
    "betting": betting,
    "Hoeffding": hoeffding,
}


def study(setting: Setting, draws: int, seed: int = 0) -> dict[str, tuple[float, float]]:
    """Return, for each bound, how often the guarantee is broken and the mean share that is
    accepted.
    """
    rng = np.random.default_rng(seed)
    population = draw(setting, 400_000 // setting.size, rng)
    outcomes: dict[str, list[tuple[bool, float]]] = {name: [] for name in BOUNDS}
    for _ in range(draws):
        sample = draw(setting, setting.n_clusters, rng)
        for name, bound in BOUNDS.items():
            accepted = population.confidence >= bound(sample)
            error = float(population.wrong[accepted].mean()) if accepted.any() else 0.0
            outcomes[name].append((error > RISK, float(accepted.mean())))
    return {name: tuple(np.mean(rows, axis=0).tolist()) for name, rows in outcomes.items()}  # type: ignore[misc]


def study_workflow(
    setting: Setting, draws: int, with_clusters: bool, seed: int = 0
) -> tuple[float, float]:
    """Return how often the guarantee of `recal calibrate` is broken, and the mean share that it
    accepts.
    """
    rng = np.random.default_rng(seed)
    population, truth, _ = draw_logits(setting, 100_000 // setting.size, rng)
    outcomes = []
    for number in range(draws):
        logits, y, clusters = draw_logits(setting, setting.n_clusters, rng)

        def model(rows: NDArray[np.float32], table: Vector = logits) -> Vector:
            return 2.2 * table[rows[:, 0].astype(np.intp)]

        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            inputs = as_source(np.arange(len(y), dtype=np.float32)[:, None])
            inputs.clusters = clusters if with_clusters else None
            settings = Settings(risk=RISK, confidence=1 - LEVEL, random_state=number)
            result = calibrate(model, inputs, folder, settings, pool=None, labels=y, progress=False)
        accepted = result.calibrator.accept(2.2 * population)
        error = (
            float((population.argmax(axis=1) != truth)[accepted].mean()) if accepted.any() else 0.0
        )
        outcomes.append((error > RISK, float(accepted.mean())))
    broken, share = np.mean(outcomes, axis=0).tolist()
    return broken, share


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=300)
    parser.add_argument("--workflow", action="store_true", help="run `recal calibrate` as a whole")
    arguments = parser.parse_args()
    if arguments.workflow:
        print("| data | without clusters | with clusters |\n|---|---|---|")
        for setting in SETTINGS[:3]:
            results = [
                study_workflow(setting, arguments.draws, with_clusters)
                for with_clusters in (False, True)
            ]
            print(
                f"| {setting.name} | "
                + " | ".join(f"{b:.1%} / {s:.1%}" for b, s in results)
                + " |",
                flush=True,
            )
        return
    print(
        f"Broken / accepted over {arguments.draws} draws, risk {RISK:.0%}, confidence {1 - LEVEL:.0%}\n"
    )
    print("| data | " + " | ".join(BOUNDS) + " |\n|---|" + "---|" * len(BOUNDS))
    for setting in SETTINGS:
        results = study(setting, arguments.draws)
        cells = [f"{broken:.1%} / {share:.1%}" for broken, share in results.values()]
        print(f"| {setting.name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
