"""Fit every method to every problem and keep its NLL on the test part, so that a run can be
resumed.
"""

from __future__ import annotations

import importlib.util
import json
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.arena.summary import PANEL, Problem
from recal.calibrators import find_method
from recal.maps.arrays import softmax
from recal.maps.guard import keep_answers

JUDGED = ("ensemble", "auto")
# More of our methods, which are judged by the panel and are not part of it.
OTHERS = ("bbq", "irova-ts", "venn-abers")
# Peers by the name in tables: the names of probmetrics' own factory, and netcal's BBQ.
PROBMETRICS = ("ts-mix", "svs", "sms", "logistic-mix", "isotonic")
MODES = ("kept", "free")

Parts = tuple[NDArray[np.float32], NDArray[np.intp], NDArray[np.float32], NDArray[np.intp]]
Fit = Callable[[NDArray[Any], NDArray[np.intp], NDArray[Any]], NDArray[np.float64]]


def read(path: Path) -> Iterator[tuple[str, Parts]]:
    """Yield the problems of one file, or of every file of a folder, by name."""
    files = sorted(path.glob("*.npz")) if path.is_dir() else [path]
    for file in files:
        with np.load(file) as arrays:
            for name in sorted({key.rsplit("/", 1)[0] for key in arrays.files if "/" in key}):
                keys = ("cal_logits", "cal_labels", "test_logits", "test_labels")
                logits, labels, test, truth = (arrays[f"{name}/{key}"] for key in keys)
                yield name, (logits, labels.astype(np.intp), test, truth.astype(np.intp))


def ours(name: str, answers: str) -> Fit:
    def run(
        logits: NDArray[Any], labels: NDArray[np.intp], test: NDArray[Any]
    ) -> NDArray[np.float64]:
        if name == "none":
            return softmax(test)
        family, fixed = find_method(name)
        fixed |= {"answers": answers} if "answers" in family().get_params() else {}
        return family(**fixed).fit(logits, labels).predict_proba(test)

    return run


def of_probmetrics(name: str) -> Fit:
    import torch
    from probmetrics.calibrators import get_calibrator

    torch.set_num_threads(1)

    def run(
        logits: NDArray[Any], labels: NDArray[np.intp], test: NDArray[Any]
    ) -> NDArray[np.float64]:
        model = get_calibrator(name, calibrate_with_mixture=name.endswith("-mix"))
        model.fit(softmax(logits), labels)
        return np.asarray(model.predict_proba(softmax(test)), np.float64)

    return run


def of_netcal() -> Fit:
    from netcal.binning import BBQ

    def run(
        logits: NDArray[Any], labels: NDArray[np.intp], test: NDArray[Any]
    ) -> NDArray[np.float64]:
        model = BBQ()
        fitted, tested = softmax(logits), softmax(test)
        if fitted.shape[1] == 2:
            model.fit(fitted[:, 1], labels)
            positive = np.asarray(model.transform(tested[:, 1]), np.float64).ravel()
            return np.stack([1 - positive, positive], axis=1)
        model.fit(fitted, labels)
        return np.asarray(model.transform(tested), np.float64)

    return run


def peers() -> dict[str, Fit]:
    """Return the other libraries' methods that are installed (dependency group `peers`)."""
    found: dict[str, Fit] = {}
    if importlib.util.find_spec("probmetrics"):
        found |= {f"probmetrics {name}": of_probmetrics(name) for name in PROBMETRICS}
    if importlib.util.find_spec("netcal"):
        found["netcal bbq"] = of_netcal()
    return found


class Scores:
    """NLL and CPU seconds by problem and method, kept in a file after each problem.

    Methods of the panel and peers are fitted once and then judged twice: as they are ("free"), and
    with the model's own answers kept by the same guard ("kept"). The methods of `JUDGED` are fitted
    for each.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.found: dict[str, dict[str, Any]] = (
            json.loads(file.read_text()) if file.exists() else {}
        )

    def forget(self, methods: tuple[str, ...]) -> None:
        """Drop the scores of methods that are to be fitted again."""
        for entry in self.found.values():
            for method in methods:
                for mode in MODES:
                    entry["nll"][mode].pop(method, None)
                entry["failed"] = [
                    line for line in entry["failed"] if line.partition(":")[0] != method
                ]

    def add(self, name: str, parts: Parts, others: dict[str, Fit]) -> None:
        logits, labels, _, _ = parts
        entry = self.found.setdefault(
            name, {"nll": {mode: {} for mode in MODES}, "seconds": {}, "failed": []}
        )
        entry |= {"classes": logits.shape[1], "samples": len(labels)}
        entry["mistakes"] = int((logits.argmax(axis=1) != labels).sum())
        for method in (*PANEL, *OTHERS):
            self._run(entry, method, ours(method, "free"), parts, MODES)
        for method in JUDGED:
            for mode in MODES:
                self._run(entry, method, ours(method, mode), parts, (mode,))
        for method, fit in others.items():
            self._run(entry, method, fit, parts, MODES)
        self.file.write_text(json.dumps(self.found, indent=1))

    def _run(
        self, entry: dict[str, Any], method: str, fit: Fit, parts: Parts, modes: tuple[str, ...]
    ) -> None:
        if all(method in entry["nll"][mode] for mode in modes):
            return
        logits, labels, test, truth = parts
        begun = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                probs = fit(logits, labels, test)
                if not np.isfinite(probs).all():
                    raise FloatingPointError("probabilities that are not finite")
            except (
                Exception
            ) as error:  # another library's failure is a result: the model stays uncalibrated
                if method in (*PANEL, *OTHERS, *JUDGED):
                    raise
                entry["failed"].append(f"{method}: {type(error).__name__}")
                probs = softmax(test)
        entry["seconds"][method] = time.process_time() - begun
        for mode in modes:
            final = keep_answers(probs, test.argmax(axis=1)[:, None]) if mode == "kept" else probs
            chance = np.maximum(final[np.arange(len(truth)), truth], 1e-12)
            entry["nll"][mode][method] = float(-np.log(chance).mean())

    def problems(self, mode: str) -> list[Problem]:
        return [
            Problem(name, entry["classes"], entry["samples"], entry["mistakes"], entry["nll"][mode])
            for name, entry in sorted(self.found.items())
        ]
