"""What a model returns, logits, probabilities or votes, and what stands for a probability of 0 before the logarithm."""

from __future__ import annotations

from typing import Any

from recal.errors import InputError

# "logits", "probabilities", "votes", or "probabilities:FLOOR" with a floor of one's own.
Outputs = str

# Probabilities that are computed: a 0 among them has underflowed, and even 1e-10 says something.
PROBABILITY_FLOOR = 1e-12
# Shares of votes, of trees or neighbours: a class without a vote has had too few voters. The floor, times the number of
# classes, was chosen on one half of 28 data sets and confirmed on the other (docs/methods.md).
VOTES_FLOOR = 0.01


def check_outputs(outputs: Any) -> Outputs:
    """Return what was said of the model's outputs; refuse what is none of the four forms."""
    if outputs not in ("logits", "probabilities", "votes"):
        kind, _, floor = outputs.partition(":") if isinstance(outputs, str) else ("", "", "")
        try:
            possible = kind == "probabilities" and 0.0 < float(floor) < 0.5
        except ValueError:
            possible = False
        if not possible:
            raise InputError(
                "says what the model returns: 'logits', 'probabilities', 'votes' or, with a floor between 0 and 0.5, "
                "'probabilities:0.001'",
                argument="outputs",
                came=f"got {outputs!r}",
            )
    return str(outputs)


def least_probability(outputs: Outputs, n_classes: int) -> float:
    """Return the floor: smaller probabilities count as this before their logarithm is taken.

    Examples
    --------
    >>> from recal.transforms.outputs import least_probability
    >>> [least_probability(outputs, 10) for outputs in ("probabilities", "votes", "probabilities:1e-4")]
    [1e-12, 0.001, 0.0001]
    """
    if outputs == "votes":
        return VOTES_FLOOR / n_classes
    floor = outputs.partition(":")[2]
    return float(floor) if floor else PROBABILITY_FLOOR
