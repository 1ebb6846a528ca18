"""What a profile knows of damage: how temperature and accuracy move with each view, and what new inputs show."""

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
    """The views of a fit as damaged sets whose labels are known.

    Attributes
    ----------
    kinds : the kind of each view
    accuracy, temperature : of each view; the temperature that suits it over the fit's
    usual : accuracy of the inputs as they are
    damaging : the kinds that do damage
    n_samples : labelled samples
    found : sentences on new inputs, if there are any
    place : accuracy and temperature that new inputs were found to have, where they are known
    """

    kinds: tuple[str, ...]
    accuracy: Vector
    temperature: Vector
    usual: float
    damaging: tuple[str, ...]
    n_samples: int
    found: tuple[str, ...] = ()
    place: tuple[float, float] | None = None

    @property
    def follows(self) -> bool:
        return len(self.damaging) >= FEWEST_KINDS

    @property
    def words(self) -> str:
        n = len(self.damaging)
        if not self.follows:
            return (
                f"These views are of {n} damaging kind{'' if n == 1 else 's'} and {FEWEST_KINDS} are needed, so the "
                "temperature stays on damaged inputs. Collect with --pool damage."
            )
        worst = int(self.accuracy.argmin())
        return (
            f"Learned from {len(self.kinds)} views of {n} damaging kinds, {self.n_samples:,} labelled samples. "
            f"Accuracy falls from {self.usual:.1%} to {self.accuracy[worst]:.1%} ({self.kinds[worst]}), and the best "
            f"temperature is {self.temperature.min():.2f} to {self.temperature.max():.2f} times the fit's."
        )

    def rows(self) -> list[tuple[str, int, tuple[float, float], tuple[float, float]]]:
        """For each kind the number of views, and the range of accuracies and of temperatures; most damaging first."""
        found = []
        for kind in dict.fromkeys(self.kinds):
            own = np.array([one == kind for one in self.kinds])
            accuracy, heat = self.accuracy[own], self.temperature[own]
            ranges = (float(accuracy.min()), float(accuracy.max())), (float(heat.min()), float(heat.max()))
            found.append((kind, int(own.sum()), *ranges))
        return sorted(found, key=lambda row: row[2])


def damage_study(profile: Profile, logits: Floats | None = None) -> DamageStudy | None:
    """Return what a profile knows of damage, and what it says of new inputs; None where it has no labelled views."""
    known = profile.following
    if known is None:
        return None
    whole = np.flatnonzero([kind != "" and size == 0 for kind, size in zip(known.kinds, known.sizes)])
    views = whole[: len(whole) // 2]  # the other half are their mixtures with inputs as they are
    if not len(views):
        return None
    found: tuple[str, ...] = ()
    place = None
    if logits is not None:
        condition, mix = profile.condition(logits), class_mix(profile, logits)
        found = (f"{len(logits):,} new inputs: {condition}",)
        if mix.changed:
            found += (f"Another class mix alone explains them: {mix.moves()}.",)
        place = (condition.accuracy, 1 / condition.ratio) if condition.known else None
    return DamageStudy(
        kinds=tuple(known.kinds[view] for view in views),
        accuracy=sigmoid(known.clean_log_odds + known.changes[views, 1]),
        temperature=np.exp(-known.changes[views, 0]),
        usual=known.accuracy,
        damaging=known.damaging,
        n_samples=known.n_samples,
        found=found,
        place=place,
    )
