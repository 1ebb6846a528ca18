"""What the paper compares and reports: its methods, pools and parameters, and its numbers as they
were printed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

from recal.calibrators.base import Calibrator
from recal.calibrators.recal import ReCal
from recal.calibrators.scaling import DirichletCalibration, MatrixScaling, VectorScaling
from recal.calibrators.temperature import TemperatureScaling

# Strengths of the group tables, for zoom and for brightness.
GROUP_PARAMETERS = (0.9, 0.8, 0.7, 0.67, 0.5, 0.4, 0.33, 0.2, 0.1)
GROUP_KINDS = ("zoom", "brightness")
UNCALIBRATED = "Uncal."


@dataclass(frozen=True)
class Compared:
    """One column of the paper's tables."""

    name: str
    build: Callable[[int], Calibrator] | None  # from a seed; None for the network as it is
    pool: str | None = None

    @property
    def file_name(self) -> str:
        """The name without what file systems dislike."""
        return "".join(c if c.isalnum() or c in ".-" else "-" for c in self.name.lower()).strip(
            "-."
        )


def _recal(seed: int) -> Calibrator:
    return ReCal(random_state=seed)


# The columns, in the paper's order.
COMPARED: tuple[Compared, ...] = (
    Compared(UNCALIBRATED, None),
    Compared("TS", lambda seed: TemperatureScaling()),
    Compared("VS", lambda seed: VectorScaling()),
    Compared("MS-ODIR", lambda seed: MatrixScaling(random_state=seed)),
    Compared("Dir-ODIR", lambda seed: DirichletCalibration(random_state=seed)),
    Compared("ReCal(z,.1-.9,20)", _recal, "zoom:0.1-0.9:20"),
    Compared("ReCal(z,.5-.9,10)", _recal, "zoom:0.5-0.9:10"),
    Compared("ReCal(b,.1-.9,20)", _recal, "brightness:0.1-0.9:20"),
)

# Our names -> the paper's.
_DATASETS = {"cifar10": "CIFAR10", "cifar100": "CIFAR100", "imagenet": "ImageNet"}
_NETWORKS = {
    "densenet40": "DenseNet40",
    "lenet5": "LeNet5",
    "resnet110": "ResNet110",
    "resnet110-sd": "ResNet110 SD",
    "wrn28-10": "WRN 28-10",
    "densenet161": "DenseNet161",
    "resnet152": "ResNet152",
}
# Networks that the paper does not have, beside the nearest that it has.
_RELATIVES = {
    "resnet8": "resnet110",
    "resnet14": "resnet110",
    "resnet20": "resnet110",
    "wrn16-2": "wrn28-10",
}


@lru_cache(maxsize=1)
def numbers() -> dict[str, Any]:
    """Return the paper's tables as {table: {"CIFAR10/LeNet5": {method: value}}}, and its group
    tables.
    """
    text = files("paper.results").joinpath("paper_numbers.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def paper_groups() -> dict[str, Any]:
    """Return the paper's group tables, which it has for one network (ResNet152 on ImageNet): {kind:
    rows}.
    """
    found: dict[str, Any] = numbers()["groups"]["ImageNet/ResNet152"]
    return found


def printed(table: str, dataset: str, network: str) -> tuple[str, dict[str, float]] | None:
    """Return the paper's name and row for a network, or for its nearest relative; None where it has
    neither.

    Examples
    --------
    >>> from paper.results.paper import printed
    >>> name, row = printed("ece", "cifar10", "resnet20")
    >>> name, row["TS"]
    ('CIFAR10/ResNet110', 0.00877)
    """
    wanted = _NETWORKS.get(_RELATIVES.get(network, network))
    key = f"{_DATASETS.get(dataset)}/{wanted}"
    row = numbers().get(table, {}).get(key)
    return None if row is None else (key, row)
