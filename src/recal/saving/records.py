"""What a file may hold besides calibrators and plans: dataclasses of plain values that check their own fields."""

from __future__ import annotations

from typing import Any

from recal.calibrators.signal_table import SignalTable
from recal.decisions.rule import DecisionRule
from recal.decisions.sets import PredictionSets
from recal.decisions.watching.class_mix import ByClass
from recal.decisions.watching.following import Following
from recal.decisions.watching.profile import Profile
from recal.maps.group_offsets import GroupOffsets
from recal.transforms.preprocessing import Normalize, Preprocessing

RECORDS: tuple[type[Any], ...] = (
    DecisionRule,
    PredictionSets,
    Profile,
    Following,
    ByClass,
    GroupOffsets,
    Normalize,
    Preprocessing,
    SignalTable,
)
# What a calibrator may carry, by the attribute's name.
ATTACHED: dict[str, type[Any]] = {
    "decision_": DecisionRule,
    "sets_": PredictionSets,
    "profile_": Profile,
    "preprocessing_": Preprocessing,
    "group_offsets_": GroupOffsets,
}
