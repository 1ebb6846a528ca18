"""The reference runtime: numpy and compiled loops. Every other runtime must agree with it."""

from __future__ import annotations

from recal.engine.replay import calibrate_arrays, calibrated_probs, calibrated_scales, replay

__all__ = ["calibrate_arrays", "calibrated_probs", "calibrated_scales", "replay"]
