"""One scale for all samples: where the parametric methods start from, and what they are drawn back to."""

from __future__ import annotations

from recal.calibrators._temperature import fit_betas
from recal.checks import Floats, Labels
from recal.scaled import ScaledLogits


def fit_beta(logits: Floats, labels: Labels) -> float:
    """Return the beta = 1/T that minimises the mean NLL of softmax(beta * logits), as temperature scaling does."""
    return float(fit_betas(ScaledLogits(logits), labels).values[0])
