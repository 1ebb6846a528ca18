"""The paper's group tables: calibration error and size of each group, per kind and strength of
transformation.
"""

from __future__ import annotations

from math import isnan
from typing import Any

from paper.results.paper import GROUP_KINDS, GROUP_PARAMETERS
from recal.calibrators.temperature import TemperatureScaling
from recal.maps.arrays import softmax
from recal.maps.steps import Group
from recal.metrics import ece
from recal.reporting import group_study
from recal.reporting.figure_data import places
from recal.transforms import Transform, as_transform, format_strength
from recal.views import Views

Rows = dict[
    str, dict[str, dict[str, float | None]]
]  # strength -> {"ece" | "count": {group: value}}


def group_transforms() -> tuple[Transform, ...]:
    """Return the transformations of the group tables."""
    return tuple(
        as_transform(f"{kind}:{format_strength(strength)}")
        for kind in GROUP_KINDS
        for strength in GROUP_PARAMETERS
    )


def group_tables(fit: Views, test: Views) -> dict[str, Any]:
    """Return {kind: rows} for test views that hold `group_transforms`.

    As in the paper's supplement the logits are first scaled by one temperature (learnt here on
    `fit`, not on the test images), and a copy's confidence is the maximum of its own softmax.
    """
    beta = TemperatureScaling().fit(fit).beta_
    scaled = Views(
        test.logits * beta, {t: test.transformed(t) * beta for t in test.transforms}, test.labels
    )
    study = group_study(scaled, confidence_at="own")
    tables: dict[str, Any] = {kind: {} for kind in GROUP_KINDS}
    for spec, errors, sizes in zip(study.transforms, study.errors.tolist(), study.sizes.tolist()):
        kind, strength = spec.split(":")[:2]
        tables[kind][strength] = {
            "ece": {
                str(int(g)): None if isnan(error) else error for g, error in zip(Group, errors)
            },
            "count": {str(int(g)): size for g, size in zip(Group, sizes)},
        }
    assert scaled.labels is not None  # collected with them
    return {
        "temperature": 1.0 / beta,
        "ece": ece(softmax(scaled.logits), scaled.labels),
        "kinds": tables,
    }


def ranks(rows: Rows) -> dict[str, list[int]]:
    """Return, per group, how often it has the smallest, second, third and largest error over the
    strengths.

    Empty groups and those of fewer than 20 samples are not ranked; see
    `recal.reporting.figure_data.places`.

    Examples
    --------
    >>> from paper.results.groups import ranks
    >>> ranks({"0.5": {"ece": {"1": 0.3, "2": 0.1, "3": None, "4": 0.2}, "count": {}}})
    {'1': [0, 0, 0, 1], '2': [1, 0, 0, 0], '3': [0, 0, 0, 0], '4': [0, 1, 0, 0]}
    """
    counts = {str(int(g)): [0, 0, 0, 0] for g in Group}
    for row in rows.values():
        errors, sizes = ([row[part].get(g) for g in counts] for part in ("ece", "count"))
        for index, place in places(errors, sizes).items():
            counts[list(counts)[index]][place] += 1
    return counts
