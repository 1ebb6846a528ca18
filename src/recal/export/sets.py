"""Prediction sets for other runtimes: on tensors of any device, and as an ONNX file."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from recal.decisions.sets import PredictionSets, content_uniforms
from recal.errors import InputError
from recal.files.atomic import replacing
from recal.maps.arrays import is_at, take_along, top_column
from recal.maps.base import Array, like, namespace, wide


def keep_classes(sets: PredictionSets, probs: Array) -> Array:
    """Return for each class whether it stays in the set, (n, n_classes), as `PredictionSets.predict` does.

    Probabilities may be arrays of any library, such as torch tensors; the sets are of the same kind.

    Examples
    --------
    >>> import torch
    >>> from recal.decisions import PredictionSets
    >>> from recal.export import keep_classes
    >>> keep_classes(PredictionSets("lac", 0.9, (0.7,)), torch.tensor([[0.6, 0.35, 0.05]])).tolist()
    [[True, True, False]]
    """
    sets.check_classes(probs.shape[1])
    z = wide(probs)
    xp = namespace(z)
    kept = _scores(sets, z) <= like(z, np.asarray(sets.limits))
    if sets.at_least_one:
        kept = kept | (is_at(z, top_column(z)) & ~xp.any(kept, axis=1, keepdims=True))
    return kept


def _scores(sets: PredictionSets, z: Array) -> Array:
    if sets.method == "lac":
        return 1.0 - z
    xp, n_classes = namespace(z), z.shape[1]
    order = xp.argsort(-z, axis=1, stable=True)
    falling = take_along(z, order, axis=1)
    scores = xp.cumulative_sum(falling, axis=1)
    if sets.randomised:
        plain = z.detach().cpu().numpy() if hasattr(z, "detach") else np.asarray(z)
        scores = scores - (1.0 - like(z, content_uniforms(plain)[:, None])) * falling
    if sets.method == "raps":
        beyond = np.maximum(np.arange(1, n_classes + 1) - sets.free_ranks, 0)
        scores = scores + like(z, sets.penalty * beyond)
    return take_along(scores, xp.argsort(order, axis=1), axis=1)


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
    from recal.export.graph import BOOL, FLOAT, OPSET, Nodes, model_of, tensor
    from recal.export.tracer import OPEN, Graph

    if sets.method != "lac" and sets.randomised:
        raise InputError(
            f"Randomised {sets.method} sets read the bits of the probabilities, which ONNX cannot; "
            "make them with randomised=False."
        )
    g, shape = Nodes(), ["n", n_classes]
    g.rename(keep_classes(sets, Graph(g, OPSET).input("probs", "float32", (OPEN, n_classes))).name, "sets")
    model = model_of(g, [tensor("probs", FLOAT, shape)], [tensor("sets", BOOL, shape)])
    with replacing(path) as file:
        file.write(model.SerializeToString())
    return Path(path)
