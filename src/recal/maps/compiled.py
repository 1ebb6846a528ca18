"""Maps of large numpy arrays by compiled loops, which give the same answers as the maps themselves."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from recal.checks import Floats
from recal.engine import rows
from recal.engine.compiled import over_rows
from recal.engine.scaled import as_rows
from recal.maps.guard import lift_answers

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]
# Up to this many classes numpy takes longer to begin a row than to read it.
_SHORT = 32


def scaled_answers(logits: Floats, scales: Vector) -> tuple[Matrix, Vector]:
    """Return softmax(s z), each row with its scale, and its value where the row's largest logit stands."""
    logits, probs = as_rows(logits), np.empty(logits.shape)
    short = logits.shape[1] <= _SHORT
    columns = np.empty(len(logits), np.intp) if short else logits.argmax(axis=1)
    confidences, close = np.empty(len(logits)), np.empty(len(logits), np.bool_)
    over_rows(rows.softmax, logits, columns, short, scales, probs, confidences, close)
    if close.any():
        probs[close] = lifted = lift_answers(probs[close], columns[close][:, None])
        confidences[close] = lifted.max(axis=1)
    return probs, confidences
