"""One method, one file. `CALIBRATORS` is the one list that the command line, the loader and the contract tests read."""

from __future__ import annotations

from recal.calibrators.base import Calibrator

CALIBRATORS: tuple[type[Calibrator], ...] = ()

__all__ = ["CALIBRATORS", "Calibrator"]
