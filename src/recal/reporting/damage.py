"""How damage changes temperature and accuracy, as learned from views, and the state of new inputs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recal.checks import Floats
from recal.decisions import Profile, class_mix
from recal.decisions.watching.following import FEWEST_KINDS
from recal.decisions.watching.profile import sigmoid

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class DamageStudy:
    """The views of a fit, seen as damaged data sets with known labels.

    Attributes
    ----------
    kinds : the kind of each view
    accuracy, temperature : of each view; its best temperature relative to that of the fit
    usual : accuracy on the inputs as they are
    damaging : the kinds that lower the accuracy
    n_samples : number of labelled samples
    notes : sentences on new inputs, if there are any
    place : estimated accuracy and temperature of the new inputs; None where they cannot be estimated
    """

    kinds: tuple[str, ...]
    accuracy: Vector
    temperature: Vector
    usual: float
    damaging: tuple[str, ...]
    n_samples: int
    notes: tuple[str, ...] = ()
    place: tuple[float, float] | None = None

    @property
    def follows(self) -> bool:
        return len(self.damaging) >= FEWEST_KINDS

    @property
    def words(self) -> str:
        n = len(self.damaging)
        if not self.follows:
            return (
                f"These views have {n} damaging kind{'' if n == 1 else 's'} and {FEWEST_KINDS} are needed, so the "
                "temperature is not adapted to damage. Collect views with --pool damage."
            )
        worst = int(self.accuracy.argmin())
        return (
            f"Learned from {len(self.kinds)} views of {n} damaging kinds, {self.n_samples:,} labelled samples. "
            f"Accuracy falls from {self.usual:.1%} to {self.accuracy[worst]:.1%} ({self.kinds[worst]}), and the best "
            f"temperature is {self.temperature.min():.2f} to {self.temperature.max():.2f} times the fit's."
        )

    def rows(self) -> list[tuple[str, int, tuple[float, float], tuple[float, float]]]:
        """Return kind, number of views, and ranges of accuracy and temperature; the most damaging kind first."""
        rows = []
        for kind in dict.fromkeys(self.kinds):
            own = np.array([one == kind for one in self.kinds])
            accuracy, heat = self.accuracy[own], self.temperature[own]
            ranges = (float(accuracy.min()), float(accuracy.max())), (float(heat.min()), float(heat.max()))
            rows.append((kind, int(own.sum()), *ranges))
        return sorted(rows, key=lambda row: row[2])


def damage_study(profile: Profile, logits: Floats | None = None) -> DamageStudy | None:
    """Return what a profile knows about damage and about new inputs; None if it has no labelled views."""
    learned = profile.following
    if learned is None:
        return None
    whole = np.flatnonzero([kind != "" and size == 0 for kind, size in zip(learned.kinds, learned.sizes)])
    views = whole[: len(whole) // 2]  # the other half mixes these with inputs as they are
    if not len(views):
        return None
    notes: tuple[str, ...] = ()
    place = None
    if logits is not None:
        condition, mix = profile.condition(logits), class_mix(profile, logits)
        notes = (f"{len(logits):,} new inputs: {condition}",)
        if mix.changed:
            notes += (f"A different class mix alone explains them: {mix.moves()}.",)
        place = (condition.accuracy, 1 / condition.ratio) if condition.known else None
    return DamageStudy(
        kinds=tuple(learned.kinds[view] for view in views),
        accuracy=sigmoid(learned.clean_log_odds + learned.changes[views, 1]),
        temperature=np.exp(-learned.changes[views, 0]),
        usual=learned.accuracy,
        damaging=learned.damaging,
        n_samples=learned.n_samples,
        notes=notes,
        place=place,
    )
