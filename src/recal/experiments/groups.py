"""The paper's group tables: calibration error and size of each group, per kind and strength of transformation."""

from __future__ import annotations

from typing import Any

import numpy as np

from recal.calibrators import TemperatureScaling
from recal.calibrators.probabilities import softmax
from recal.experiments.paper import GROUP_KINDS, GROUP_PARAMETERS
from recal.grouping import Group, group
from recal.metrics import ece
from recal.transforms import Transform, as_transform, format_strength
from recal.views import Views

Rows = dict[str, dict[str, dict[str, float | None]]]  # strength -> {"ece" | "count": {group: value}}


def group_transforms() -> tuple[Transform, ...]:
    """Return the transformations of the group tables."""
    return tuple(
        as_transform(f"{kind}:{format_strength(strength)}") for kind in GROUP_KINDS for strength in GROUP_PARAMETERS
    )


def group_tables(fit: Views, test: Views) -> dict[str, Any]:
    """Return {kind: rows} for test views that hold `group_transforms`.

    As in the paper's supplement the logits are first scaled by one temperature (learnt here on `fit`, not on the test
    images), and a copy's confidence is the maximum of its own softmax.
    """
    beta = TemperatureScaling().fit(fit).beta_
    labels = test.labels
    assert labels is not None  # collected with them
    original = test.logits.astype(np.float64) * beta
    probs = softmax(original)
    tables: dict[str, Any] = {kind: {} for kind in GROUP_KINDS}
    for transform in test.transforms:
        kind, strength = str(transform).split(":")[:2]
        numbers = group(original, test.transformed(transform).astype(np.float64) * beta, confidence_at="own")
        members = {number: numbers == number for number in Group}
        tables[kind][strength] = {
            "ece": {str(int(g)): ece(probs[rows], labels[rows]) if rows.any() else None for g, rows in members.items()},
            "count": {str(int(g)): int(rows.sum()) for g, rows in members.items()},
        }
    return {"temperature": 1.0 / beta, "ece": ece(probs, labels), "kinds": tables}


def ranks(rows: Rows) -> dict[str, list[int]]:
    """Return, per group, how often it has the smallest, second, third and largest error over the strengths.

    An empty group has no error and ranks last; equal errors rank in the groups' order.

    Examples
    --------
    >>> from recal.experiments.groups import ranks
    >>> ranks({"0.5": {"ece": {"1": 0.3, "2": 0.1, "3": None, "4": 0.2}, "count": {}}})
    {'1': [0, 0, 1, 0], '2': [1, 0, 0, 0], '3': [0, 0, 0, 1], '4': [0, 1, 0, 0]}
    """
    counts = {str(int(g)): [0, 0, 0, 0] for g in Group}
    for row in rows.values():
        errors = {g: row["ece"][g] for g in counts}
        order = sorted(counts, key=lambda g: (errors[g] is None, errors[g] or 0.0))
        for place, number in enumerate(order):
            counts[number][place] += 1
    return counts
