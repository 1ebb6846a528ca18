"""Accuracy of a batch without labels, by the estimators that the literature knows: shown beside the followed one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from recal.calibrators.machinery.probabilities import softmax
from recal.checks import Floats
from recal.decisions.following.prior_shift import class_shares

if TYPE_CHECKING:
    from recal.decisions.profiles import Profile

# Class shares need no more rows than this.
_MAX_ROWS = 20_000


def known_estimates(profile: Profile, logits: Floats) -> dict[str, float]:
    """Return the estimates by name, all read off calibrated confidences.

    "prior shift" is what accuracy would be if nothing but the shares of the classes had changed; the others take all
    change for damage. Where they lie far apart, none of them can be relied on.
    """
    probs = softmax(logits, profile.beta)
    sure = probs.max(axis=1)
    estimates = {
        "average confidence": float(sure.mean()),
        "difference of confidences": float(np.clip(profile.accuracy + sure.mean() - profile.confidence, 0.0, 1.0)),
        "ATC": float((sure > profile.cut).mean()),
    }
    if profile.class_shares is not None and profile.class_recalls is not None:
        rows = slice(None, None, -(-len(probs) // _MAX_ROWS))
        estimates["prior shift"] = float(class_shares(probs[rows], profile.class_shares) @ profile.class_recalls)
    return estimates
