"""Does calibration do harm on small sets? Every method on sets of 100 to 500 fitting samples, several classifiers each.

    python -m benchmarks.small_sets --draws 5 --out docs/results/small-sets.md

The sets are those inside aeon and scikit-learn, so nothing is downloaded. Each draw splits a set at random into samples
for the classifier, for the calibration and for the test. Two things are asked: by how much ReCal's NLL lies above
temperature scaling's, and which methods are worse than none by more than a tenth although the fit did not warn.
"""

from __future__ import annotations

import argparse
import inspect
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from sklearn import datasets
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import SGDClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from recal import Views, pool
from recal.calibrators import CALIBRATORS, ReCal
from recal.calibrators.base import Calibrator
from recal.calibrators.machinery.probabilities import bounded_probs, softmax
from recal.errors import DoubtfulLabelsWarning, FewSamplesWarning
from recal.metrics import nll

SERIES = ("OSULeaf", "ItalyPowerDemand", "ArrowHead", "GunPoint", "ACSF1", "JapaneseVowels")
TABLES = ("breast_cancer", "digits", "wine", "iris")
LOGIT_FLOOR = 1e-12
Found = dict[tuple[str, str], list[tuple[float, float, bool]]]  # (set / model, method): NLL without, with, warned


def load(name: str) -> tuple[np.ndarray, np.ndarray, bool]:
    """Return inputs, labels 0..K-1, and whether the inputs are series of the shape (n, channels, time)."""
    if name in TABLES:
        found = getattr(datasets, f"load_{name}")()
        return found.data, found.target, False
    from aeon.datasets import load_classification

    series, words = load_classification(name)
    if isinstance(series, list):  # of unequal length
        longest = max(one.shape[1] for one in series)
        series = np.stack([np.pad(one, ((0, 0), (0, longest - one.shape[1]))) for one in series])
    return series, np.unique(words, return_inverse=True)[1], True


def classifiers(seed: int) -> dict[str, object]:
    return {
        "forest": RandomForestClassifier(100, random_state=seed, n_jobs=1),
        "network": make_pipeline(StandardScaler(), MLPClassifier((50,), max_iter=300, random_state=seed)),
        "sgd": make_pipeline(StandardScaler(), SGDClassifier(random_state=seed)),
    }


def logits_of(model: object, inputs: np.ndarray) -> np.ndarray:
    rows = inputs.reshape(len(inputs), -1)
    if hasattr(model, "decision_function"):
        scores = np.asarray(model.decision_function(rows))
        return np.stack([np.zeros_like(scores), scores], axis=1) if scores.ndim == 1 else scores
    return np.log(np.maximum(model.predict_proba(rows), LOGIT_FLOOR))  # type: ignore[attr-defined]


def splits(n_samples: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the rows for the classifier, 100 to 500 for the fit, and the rest for the test."""
    order = np.random.default_rng(seed).permutation(n_samples)
    n_fit = int(np.clip(0.4 * n_samples, 100, 500))
    n_train = int(min(0.3 * n_samples, (n_samples - n_fit) * 0.6))
    return order[:n_train], order[n_train : n_train + n_fit], order[n_train + n_fit :]


def views_of(model: object, inputs: np.ndarray, y: np.ndarray, transforms: tuple) -> Views:
    seen = {transform: logits_of(model, transform(inputs)) for transform in transforms}
    return Views(logits_of(model, inputs), seen, y)


def problems(name: str, draws: int) -> Iterator[tuple[str, int, Views, Views]]:
    """Yield (classifier, draw, fitting views, test views)."""
    inputs, y, is_series = load(name)
    for draw in range(draws):
        train, fitting, test = splits(len(y), draw)
        if len(np.unique(y[train])) < y.max() + 1:  # a classifier that does not know a class has no column for it
            continue
        spec = "drop:0.1-0.6:4+coarse:0.3-0.9:4" if is_series else "median:0.1-0.7:8"
        transforms = pool(spec, seed=draw, data=None if is_series else inputs[train])
        for kind, model in classifiers(draw).items():
            model.fit(inputs[train].reshape(len(train), -1), y[train])  # type: ignore[attr-defined]
            yield kind, draw, *(views_of(model, inputs[part], y[part], transforms) for part in (fitting, test))


def methods(only: set[str], seed: int) -> dict[str, Calibrator]:
    def make(kind: Callable[..., Calibrator], **options: str) -> Calibrator:
        return kind(random_state=seed, **options) if "random_state" in inspect.signature(kind).parameters else kind()

    found = {kind.short_name: make(kind) for kind in CALIBRATORS if not only or kind.short_name in only}
    return {**found, "recal, bound": make(ReCal, separable="bound")}


def run(names: tuple[str, ...], draws: int, only: set[str]) -> Found:
    found: Found = defaultdict(list)
    for name in names:
        for kind, draw, fitting, test in problems(name, draws):
            plain = float(nll(bounded_probs(softmax(test.logits)), test.labels))
            for short, method in methods(only, draw).items():
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    loss = float(nll(method.fit(fitting).predict_proba(test), test.labels))
                warned = any(issubclass(w.category, FewSamplesWarning | DoubtfulLabelsWarning) for w in caught)
                found[f"{name}, {len(fitting)} / {kind}", short].append((plain, loss, warned))
        print(name, "done", flush=True)
    return found


def mean_ratio(found: Found, place: str, one: str, other: str) -> float:
    return float(np.mean([r[1] for r in found[place, one]]) / np.mean([r[1] for r in found[place, other]]))


def page(found: Found) -> str:
    places = list(dict.fromkeys(place for place, _ in found))
    shorts = list(dict.fromkeys(short for _, short in found))
    lines = [
        "# Small sets", "",
        "NLL on test samples, means over the draws; `python -m benchmarks.small_sets` makes this page. The number "
        "after a name is that of its fitting samples. *worst* is the method with the largest NLL relative to none.", "",
        "| set / classifier | none | ts | recal | recal, bound | recal / ts | worst | its NLL | fits that warned |",
        "|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for place in places:
        mean = {short: float(np.mean([r[1] for r in found[place, short]])) for short in shorts}
        plain = float(np.mean([r[0] for r in found[place, "ts"]]))
        worst = max((short for short in shorts if short not in ("tta", "recal, bound")), key=lambda short: mean[short])
        warned = sum(r[2] for r in found[place, worst])
        lines.append(
            f"| {place} | {plain:.4f} | {mean['ts']:.4f} | {mean['recal']:.4f} | {mean['recal, bound']:.4f} | "
            f"{mean['recal'] / mean['ts']:.3f} | {worst} | {mean[worst]:.4f} | {warned} of {len(found[place, worst])} |"
        )
    ratios = [mean_ratio(found, place, "recal", "ts") for place in places]
    bound = [mean_ratio(found, place, "recal, bound", "ts") for place in places]
    lines += [
        "",
        f"ReCal's NLL over temperature scaling's: {np.mean(ratios):.3f} in the mean of {len(places)} rows, at most "
        f'{max(ratios):.3f}; with `separable="bound"` {np.mean(bound):.3f} and {max(bound):.3f}.',
        "",
        "## Harm without a warning",
        "",
        "Methods whose mean NLL over the fits that did not warn is more than a tenth above none.",
        "",
    ]
    harm = []
    for (place, short), rows in found.items():
        quiet = [row for row in rows if not row[2]]
        if quiet and np.mean([row[1] for row in quiet]) > 1.1 * np.mean([row[0] for row in quiet]):
            before, after = (float(np.mean([row[i] for row in quiet])) for i in (0, 1))
            harm.append(f"| {place} | {short} | {before:.4f} | {after:.4f} | {len(quiet)} |")
    lines += (
        ["| set / classifier | method | none | NLL | quiet fits |", "|---|---|---|---|---|", *harm]
        if harm
        else ["None."]
    )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="*", default=[*SERIES, *TABLES])
    parser.add_argument("--methods", nargs="*", default=[], help="short names; all where none is given")
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    only = {*options.methods, "ts", "recal"} if options.methods else set()
    text = page(run(tuple(options.sets), options.draws, only))
    if options.out:
        options.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
