"""The reference runtime: numpy and compiled loops. Every other runtime must agree with it."""

from __future__ import annotations

from recal.engine.replay import answers_of, calibrate_arrays, calibrated_probs, calibrated_scales, replay

__all__ = ["answers_of", "calibrate_arrays", "calibrated_probs", "calibrated_scales", "replay"]
