"""Prediction sets as ONNX operations: from probabilities to the classes that stay in play."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from recal.decisions.sets import PredictionSets
from recal.errors import InputError
from recal.export.graph import BOOL, DOUBLE, FLOAT, INT64, Nodes, model_of, tensor
from recal.files.atomic import replacing


def export_sets(sets: PredictionSets, path: str | os.PathLike[str], n_classes: int) -> Path:
    """Write prediction sets as an ONNX file: `probs` (n, n_classes) float32 in, `sets` (n, n_classes) bool out.

    The random part of aps and raps is mixed from the bits of the probabilities, which ONNX cannot read: make such sets
    with ``randomised=False``, which keeps the guarantee and makes them a little larger.

    Examples
    --------
    >>> import tempfile
    >>> from recal.decisions import PredictionSets
    >>> from recal.export import export_sets
    >>> export_sets(PredictionSets("lac", 0.9, (0.7,)), tempfile.mkdtemp() + "/sets.onnx", n_classes=3).name
    'sets.onnx'
    """
    sets.check_classes(n_classes)
    if sets.method != "lac" and sets.randomised:
        raise InputError(
            f"Randomised {sets.method} sets read the bits of the probabilities, which ONNX cannot; "
            "make them with randomised=False."
        )
    g = Nodes()
    probs = g.cast("probs", DOUBLE)
    kept = g.op("LessOrEqual", _scores(g, probs, sets, n_classes), g.const(np.asarray(sets.limits, np.float64)))
    if sets.at_least_one:
        none = g.op("Not", g.cast(g.reduce("ReduceMax", g.cast(kept, INT64), 1), BOOL))
        first = g.op("ArgMax", probs, axis=1, keepdims=1)
        likeliest = g.op("Equal", first, g.const(np.arange(n_classes, dtype=np.int64)))
        kept = g.op("Or", kept, g.op("And", likeliest, none))
    kept = g.op("Identity", kept)
    g.rename(kept, "sets")
    shape = ["n", n_classes]
    model = model_of(g, [tensor("probs", FLOAT, shape)], [tensor("sets", BOOL, shape)])
    with replacing(path) as file:
        file.write(model.SerializeToString())
    return Path(path)


def _scores(g: Nodes, probs: str, sets: PredictionSets, n_classes: int) -> str:
    if sets.method == "lac":
        return g.op("Sub", g.const(np.float64(1.0)), probs)
    falling, order = g.ops("TopK", probs, g.const([n_classes]), outputs=2, axis=1, largest=1, sorted=1)
    scores = g.op("CumSum", falling, g.const(np.int64(1)))
    if sets.method == "raps":
        ranks = np.arange(1, n_classes + 1)
        scores = g.op("Add", scores, g.const(sets.penalty * np.maximum(ranks - sets.free_ranks, 0.0)))
    return g.op("ScatterElements", probs, order, scores, axis=1)
