"""ReCal: `estimator` is what users see, `loop` the fit."""

from recal.calibrators.recal.estimator import ReCal

__all__ = ["ReCal"]
