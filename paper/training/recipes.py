"""How each network is trained: plain values, so that a recipe can be printed, compared and
fingerprinted.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from math import inf
from typing import Any

from recal.errors import InputError


@dataclass(frozen=True)
class Recipe:
    """SGD with momentum, weight decay, a rate that falls in steps, random crops and mirrored
    pictures.

    Parameters
    ----------
    epochs : int
    batch_size : int
    rate : float
        The learning rate, multiplied by `decay` each time a share of the epochs named in
        `milestones` is done.
    warmup : int
        Epochs at a tenth of the rate before it all; very deep networks do not start otherwise.
    crop : int
        Pixels of black border from which a picture of the same size is cut at random; 0 for none.
    flip : bool
        Whether half of the pictures are mirrored.
    """

    epochs: int
    batch_size: int = 128
    rate: float = 0.1
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 1e-4
    milestones: tuple[float, ...] = (0.5, 0.75)
    decay: float = 0.1
    warmup: int = 0
    crop: int = 4
    flip: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        rules: dict[str, tuple[bool, str]] = {
            "epochs": (self.epochs >= 1, "at least 1"),
            "batch_size": (self.batch_size >= 1, "at least 1"),
            "rate": (0 < self.rate < inf, "above 0"),
            "momentum": (0 <= self.momentum < 1, "in [0, 1)"),
            "nesterov": (self.momentum > 0 or not self.nesterov, "no where the momentum is 0"),
            "weight_decay": (0 <= self.weight_decay < inf, "at least 0"),
            "milestones": (
                all(0 < share < 1 for share in self.milestones),
                "shares of the epochs, between 0 and 1",
            ),
            "decay": (0 < self.decay <= 1, "in (0, 1]"),
            "warmup": (self.warmup >= 0, "at least 0"),
            "crop": (self.crop >= 0, "at least 0"),
            "seed": (self.seed >= 0, "at least 0"),
        }
        for name, (holds, rule) in rules.items():
            if not holds:
                raise InputError(f"A recipe's `{name}` must be {rule}, got {getattr(self, name)}.")

    def rate_in(self, epoch: int) -> float:
        """Return the learning rate in an epoch, counted from 0.

        Examples
        --------
        >>> from paper.training.recipes import Recipe
        >>> [Recipe(epochs=4).rate_in(epoch) for epoch in range(4)]
        [0.1, 0.1, 0.01, 0.001]
        """
        if epoch < self.warmup:
            return self.rate * 0.1
        passed = sum(epoch >= round(share * self.epochs) for share in self.milestones)
        return round(self.rate * self.decay**passed, 12)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "milestones": list(self.milestones)}


# The published recipes: He et al. 2016, Huang et al. 2016 and 2017, Zagoruyko and Komodakis 2016.
_RESNET = Recipe(epochs=164)
RECIPES: dict[str, Recipe] = {
    "lenet5": Recipe(epochs=164, rate=0.01, weight_decay=5e-4),
    "resnet8": _RESNET,
    "resnet14": _RESNET,
    "resnet20": _RESNET,
    "resnet110": replace(_RESNET, warmup=1),
    "resnet110-sd": Recipe(epochs=500, nesterov=True),
    "wrn16-2": Recipe(
        epochs=200, nesterov=True, weight_decay=5e-4, milestones=(0.3, 0.6, 0.8), decay=0.2
    ),
    "wrn28-10": Recipe(
        epochs=200, nesterov=True, weight_decay=5e-4, milestones=(0.3, 0.6, 0.8), decay=0.2
    ),
    "densenet40": Recipe(epochs=300, batch_size=64, nesterov=True),
}


def recipe_for(network: str, dataset: str, **changes: Any) -> Recipe:
    """Return the published recipe with `changes`; grey pictures are not cropped or mirrored."""
    if network not in RECIPES:
        raise InputError(
            f"There is no recipe to train {network!r}; there are: {', '.join(RECIPES)}. "
            f"A network that is trained already is given as a file, --model {network}=FILE."
        )
    recipe = RECIPES[network]
    if dataset in ("mnist", "fashion-mnist"):
        recipe = replace(recipe, crop=0, flip=False)
    return replace(recipe, **changes)
