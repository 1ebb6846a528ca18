"""The torch runtime: a model and its plan as one module, on any device, ready for export; prediction sets."""

from recal.runtime.torch.module import CalibratedModule
from recal.runtime.torch.sets import SetsModule

__all__ = ["CalibratedModule", "SetsModule"]
