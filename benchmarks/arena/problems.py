"""Build calibration problems: several classifiers on each data set, and what they say about rows
kept apart.

`build_all` writes FOLDER/<data>.npz with `<data>/<model>/cal_logits`, `cal_labels`, `test_logits`
and `test_labels`. Logits are log-probabilities floored at 1e-12. Half of the rows train the
classifier, a fifth are for calibration, the rest for testing; one split at random for each data
set. Files that exist are kept.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.ensemble import (
    ExtraTreesClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler

from benchmarks.arena.sources import Source, Table, sources

MOST_ROWS = 5000
FEWEST_OF_A_CLASS = 25  # rarer classes are left out: some would be missing from a part
MOST_CATEGORIES = 25
FLOOR = 1e-12

CLASSIFIERS: dict[str, Callable[[], Any]] = {
    "forest": lambda: RandomForestClassifier(100, random_state=0),
    "boosting": lambda: HistGradientBoostingClassifier(
        max_iter=60, max_leaf_nodes=15, random_state=0
    ),
    "mlp": lambda: MLPClassifier((64,), max_iter=60, random_state=0),
    "naive_bayes": GaussianNB,
    "logistic": lambda: LogisticRegression(max_iter=300),
    "neighbours": lambda: KNeighborsClassifier(15),
    "extra_trees": lambda: ExtraTreesClassifier(100, random_state=0),
}
ALWAYS = ("forest", "boosting", "mlp")
IN_TURN = ("naive_bayes", "logistic", "neighbours", "extra_trees")


def encode(table: Table, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return numbers and class numbers: rows shuffled and at most MOST_ROWS, categories one-hot,
    gaps the median.
    """
    features, labels = table[0], table[1].astype(str)
    size = labels.map(labels.value_counts())
    rows = np.flatnonzero((size >= FEWEST_OF_A_CLASS).to_numpy())
    rows = rng.permutation(rows)[:MOST_ROWS]
    features, labels = features.iloc[rows], labels.iloc[rows]
    columns = []
    for _, values in features.items():
        if pd.api.types.is_numeric_dtype(values):
            columns.append(values.astype(float).fillna(values.median()).to_numpy()[:, None])
        else:
            text = values.astype(str)
            common = text.value_counts().index[:MOST_CATEGORIES]
            columns.append((text.to_numpy()[:, None] == common.to_numpy()[None, :]).astype(float))
    return np.nan_to_num(np.hstack(columns)), np.unique(labels, return_inverse=True)[1]


def build(source: Source, turn: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Train the classifiers on one data set; return the arrays of the problems and what the page
    says about them.
    """
    rng = np.random.default_rng(zlib.crc32(source.name.encode()))
    features, labels = encode(source.read(), rng)
    n, k = len(labels), int(labels.max()) + 1
    train, cal, test = slice(0, n // 2), slice(n // 2, int(0.7 * n)), slice(int(0.7 * n), n)
    scaler = StandardScaler().fit(features[train])
    features = scaler.transform(features)
    arrays: dict[str, np.ndarray] = {}
    accuracy = {}
    for name in (*ALWAYS, IN_TURN[turn % len(IN_TURN)]):
        model = CLASSIFIERS[name]()
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # a network that has not converged is a classifier like any other
            model.fit(features[train], labels[train])
        for part, rows in (("cal", cal), ("test", test)):
            probs = np.zeros((len(labels[rows]), k))
            probs[:, model.classes_] = model.predict_proba(features[rows])
            arrays[f"{source.name}/{name}/{part}_logits"] = np.log(np.maximum(probs, FLOOR)).astype(
                np.float32
            )
            arrays[f"{source.name}/{name}/{part}_labels"] = labels[rows].astype(np.int32)
        accuracy[name] = round(float((probs.argmax(axis=1) == labels[rows]).mean()), 3)
    about = {"origin": source.origin, "known": source.known, "classes": k, "accuracy": accuracy}
    return arrays, about | {"cal": len(labels[cal]), "test": len(labels[test])}


def build_all(folder: Path, only: tuple[str, ...] = (), root: Path = Path("/")) -> None:
    """Build what does not exist yet; name data sets whose package is not installed."""
    folder.mkdir(parents=True, exist_ok=True)
    for turn, source in enumerate(sources(root)):
        path = folder / f"{source.name}.npz"
        if path.exists() or (only and source.name not in only):
            continue
        begun = time.process_time()
        try:
            arrays, about = build(source, turn)
        except (FileNotFoundError, ModuleNotFoundError) as error:
            print(f"{source.name} is left out: {error}", file=sys.stderr)
            continue
        np.savez_compressed(path.with_suffix(".part.npz"), about=json.dumps(about), **arrays)
        path.with_suffix(".part.npz").replace(path)
        rows, spent = f"{about['cal']:5d} + {about['test']:5d} rows", time.process_time() - begun
        words = f"{about['classes']:3d} classes, {rows}, {spent:5.1f} CPU s  {about['accuracy']}"
        print(f"{source.name:14s} {words}", flush=True)
