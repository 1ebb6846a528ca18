"""The whole job in one call: a model and labelled inputs in, a folder with a calibration, a rule and a page out."""

from __future__ import annotations

from recal.workflow.folder import CALIBRATION, calibration_in
from recal.workflow.job import Calibrated, calibrate

__all__ = ["CALIBRATION", "Calibrated", "calibrate", "calibration_in"]
