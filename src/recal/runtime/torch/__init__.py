"""The torch runtime: a model and its plan as one module, on any device, ready for export."""

from recal.runtime.torch.module import CalibratedModule

__all__ = ["CalibratedModule"]
