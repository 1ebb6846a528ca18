"""A calibration without its model as an ONNX file: for logits, for signals, or from probabilities
to sets.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recal.calibrators.signals import SignalCalibration
from recal.collecting.models.onnx import open_session
from recal.decisions.sets import PredictionSets
from recal.errors import InputError
from recal.export import traced_functions as xp
from recal.export.calibration import Calibration, calibration_of, keep_classes
from recal.export.network import ON_ONE_THREAD
from recal.export.tracer import OPEN, Graph, Symbol, onnx
from recal.files.paths import replacing
from recal.maps.guard import bounded, guarded
from recal.maps.steps import Plan
from recal.transforms import Transform


def export_calibration(
    plan: Plan | Any, path: str | os.PathLike[str], n_classes: int | None = None
) -> Path:
    """Write only the calibration: from logits to calibrated probabilities.

    Parameters
    ----------
    plan : Plan, or a fitted calibrator
    path : where to write
    n_classes : int, needed for a plan because it does not know its classes

    Returns
    -------
    The path. The file's inputs are `logits` (n, n_classes) and, if views are needed, `transformed`
    (m, n, n_classes), the logits through ``plan.transforms`` in that order, both float32. Its
    outputs are `probs` and `confidence`, the chance that each prediction is right. Views of samples
    above a plan's gate are not read.
    """
    calibration = calibration_of(plan)
    classes = n_classes if n_classes is not None else len(getattr(plan, "classes_", ()))
    if not classes:
        raise InputError("A plan does not know how many classes there are: pass n_classes.")
    rule = getattr(plan, "decision_", None)
    rule = getattr(rule, "rule", rule)  # of a Decision
    return write(
        calibration_model(calibration, int(classes)),
        path,
        metadata(plan, calibration.map.transforms, rule),
    )


def calibration_model(calibration: Calibration, n_classes: int) -> onnx.ModelProto:
    """Return the ONNX model that `export_calibration` writes."""
    calibration.check_classes(n_classes)
    graph, n_views = Graph(), len(calibration.map.transforms)
    inputs = [graph.input("logits", "float32", (OPEN, n_classes))]
    if n_views:
        inputs.append(graph.input("transformed", "float32", (n_views, OPEN, n_classes)))
    own = own_probs(calibration, *inputs)
    probs, _, confidence = answers(calibration, own, inputs[0])
    outputs = {"probs": bounded(probs.float()), "confidence": bounded(confidence.float())}
    return graph.model(inputs, outputs)


def own_probs(
    calibration: Calibration, logits: Symbol, transformed: Symbol | None = None
) -> Symbol:
    """Return the map's own probabilities, (n, K) float64, from logits, (n, K), and those of all
    views, (m, n, K).

    Without views, all samples count as above the gate.
    """
    views: list[Symbol] = []
    if transformed is not None:
        stack = transformed.to("float64")
        views = [stack[number] for number in range(len(calibration.map.transforms))]
    probs: Symbol = calibration.map.probs(logits.to("float64"), views)
    return probs


def answers(calibration: Calibration, own: Symbol, logits: Symbol) -> tuple[Symbol, Symbol, Symbol]:
    """Return probabilities, (n, K), the index of the prediction and the confidence in it, both
    (n,).

    All come from the map's own probabilities, and the first and the last are float64. The
    confidence is the prediction's probability before the guard raises it to keep the model's answer.
    """
    probs, confidence = guarded(calibration.map, own, logits.to("float64"), kept=calibration.kept)
    return probs, xp.argmax(probs, axis=1), confidence


def export_signals(calibration: SignalCalibration, path: str | os.PathLike[str]) -> Path:
    """Write a fitted SignalCalibration to one ONNX file.

    The input `signals` is (n, n_signals) float64, with NaN for missing signals. Columns of text and
    groups hold codes: the position of the level among the levels of the fit, and NaN for any other
    level. The file's metadata `recal_signals` lists the levels as JSON. The output `confidence`
    (n,) is the probability that each answer is right.
    """
    calibration.state()  # refuses one that is not fitted
    table, graph = calibration.table_, Graph()
    signals = graph.input("signals", "float64", (OPEN, len(table.names)))
    model = graph.model([signals], {"confidence": calibration.map_.confidence(signals)})
    onnx.checker.check_model(model, full_check=True)
    columns = [
        {"name": name, "levels": list(levels)} for name, levels in zip(table.names, table.levels)
    ]
    return write(model, path, {"signals": columns})


def export_sets(sets: PredictionSets, path: str | os.PathLike[str], n_classes: int) -> Path:
    """Write prediction sets as an ONNX file: `probs` (n, n_classes) float32 in, `sets` (n,
    n_classes) bool out.

    aps and raps derive random numbers from the bits of the probabilities, which ONNX cannot read.
    Make such sets with ``randomised=False``, which keeps the guarantee and makes them a little
    larger.

    Examples
    --------
    >>> import tempfile
    >>> from recal.decisions import PredictionSets
    >>> from recal.export import export_sets
    >>> export_sets(PredictionSets("lac", 0.9, (0.7,)), tempfile.mkdtemp() + "/sets.onnx", n_classes=3).name
    'sets.onnx'
    """
    if sets.method != "lac" and sets.randomised:
        raise InputError(
            f"Randomised {sets.method} sets read the bits of the probabilities, which ONNX cannot; "
            "make them with randomised=False."
        )
    graph = Graph()
    probs = graph.input("probs", "float32", (OPEN, n_classes))
    return write(graph.model([probs], {"sets": keep_classes(sets, probs)}), path, {})


def metadata(source: Any, transforms: tuple[Transform, ...], rule: Any) -> dict[str, Any]:
    """Return what a service needs besides the graph: class names, thresholds, preprocessing."""
    stored = getattr(source, "preprocessing_", None)
    values: dict[str, Any] = {"transforms": [str(transform) for transform in transforms]}
    if (classes := getattr(source, "classes_", None)) is not None:
        values["classes"] = np.asarray(classes).tolist()
    if rule is not None:
        values["thresholds"] = [
            None if np.isinf(limit) else float(limit) for limit in rule.thresholds
        ]
        values |= {"reads": rule.reads, "risk": rule.risk, "confidence": rule.confidence}
        values["groups"] = list(rule.groups) or None
    if stored is not None:
        values["preprocessing"] = stored.as_json()
    return {name: value for name, value in values.items() if value is not None}


def write(model: onnx.ModelProto, path: str | os.PathLike[str], facts: dict[str, Any]) -> Path:
    """Write a model, with facts in its metadata as JSON."""
    for name, value in facts.items():
        model.metadata_props.add(key=f"recal_{name}", value=json.dumps(value))
    with replacing(path) as file:
        file.write(model.SerializeToString())
    return Path(path)


@dataclass(frozen=True)
class Cost:
    """Milliseconds per row: for the whole file (None if it holds no model), and for the calibration
    alone.
    """

    whole: float | None
    calibration: float


def measure(
    path: str | os.PathLike[str], calibration: Calibration, n_classes: int, *, with_model: bool
) -> Cost:
    """Return how long one row takes: the median of a few runs on one thread, with random inputs."""
    alone = _median(calibration_model(calibration, n_classes).SerializeToString())
    return Cost(_median(os.fspath(path)) if with_model else None, alone)


def _median(model: str | bytes, n_runs: int = 15) -> float:
    session, rng, feeds = open_session(model, *ON_ONE_THREAD), np.random.default_rng(0), {}
    for value in session.get_inputs():
        kind = {"tensor(float)": "float32", "tensor(double)": "float64"}.get(
            value.type, value.type[7:-1]
        )
        shape = [size if isinstance(size, int) else 1 for size in value.shape]
        feeds[value.name] = rng.random(shape).astype(kind)
    session.run(None, feeds)  # warm up
    times = []
    for _ in range(n_runs):
        start = time.perf_counter()
        session.run(None, feeds)
        times.append(time.perf_counter() - start)
    return 1000 * float(np.median(times))
