"""From any model to Views: adapters for models, sources of inputs, engines, and the store."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from recal.collecting.applying import apply
from recal.collecting.inputs.sources import Source, as_source
from recal.collecting.local import collect
from recal.collecting.models.base import PROBABILITY_FLOOR, Model, as_model
from recal.preprocessing import Normalize

if TYPE_CHECKING:
    from recal.collecting.inputs.folder import ImageFolder
    from recal.collecting.inputs.other_folders import ByteFolder, SoundFolder, TextFolder
    from recal.collecting.models.huggingface import HuggingFaceModel
    from recal.collecting.models.multiple_choice import language_model, multiple_choice
    from recal.collecting.models.onnx import OnnxModel
    from recal.collecting.models.torch import TorchModel
    from recal.collecting.parts import AppliedParts, apply_distributed
    from recal.collecting.pilot import Pilot, run_pilot
    from recal.collecting.ray import RayEngine

# These need Pillow, a calibrator, or a package that is not always installed.
_LATER = {
    "ImageFolder": "recal.collecting.inputs.folder",
    "SoundFolder": "recal.collecting.inputs.other_folders",
    "TextFolder": "recal.collecting.inputs.other_folders",
    "ByteFolder": "recal.collecting.inputs.other_folders",
    "multiple_choice": "recal.collecting.models.multiple_choice",
    "language_model": "recal.collecting.models.multiple_choice",
    "OnnxModel": "recal.collecting.models.onnx",
    "TorchModel": "recal.collecting.models.torch",
    "HuggingFaceModel": "recal.collecting.models.huggingface",
    "Pilot": "recal.collecting.pilot",
    "run_pilot": "recal.collecting.pilot",
    "RayEngine": "recal.collecting.ray",
    "apply_distributed": "recal.collecting.parts",
    "AppliedParts": "recal.collecting.parts",
}

__all__ = [
    "PROBABILITY_FLOOR",
    "AppliedParts",
    "ByteFolder",
    "HuggingFaceModel",
    "ImageFolder",
    "Model",
    "Normalize",
    "OnnxModel",
    "Pilot",
    "RayEngine",
    "SoundFolder",
    "Source",
    "TextFolder",
    "TorchModel",
    "apply",
    "apply_distributed",
    "as_model",
    "as_source",
    "collect",
    "language_model",
    "multiple_choice",
    "run_pilot",
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)
