"""From any model to Views: adapters for models, sources of inputs, engines, and the store.

Names load on first use: some need Pillow, a calibrator, or a package that is not always installed.
`__init__.pyi` gives type checkers the same names.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# Each public name with the module that defines it.
_HOMES = {
    "collect": "collecting.local",
    "apply": "collecting.predictions",
    "PredictionFolder": "collecting.predictions",
    "apply_distributed": "collecting.predictions",
    "Pilot": "collecting.pools",
    "run_pilot": "collecting.pools",
    "RayEngine": "collecting.ray",
    "Normalize": "transforms.preprocessing",
    "PROBABILITY_FLOOR": "transforms.preprocessing",
    "Source": "collecting.sources",
    "as_source": "collecting.sources",
    "ImageFolder": "collecting.folders",
    "ByteFolder": "collecting.folders",
    "SoundFolder": "collecting.folders",
    "TextFolder": "collecting.folders",
    "Model": "collecting.models.base",
    "as_model": "collecting.models.base",
    "HuggingFaceModel": "collecting.models.huggingface",
    "OnnxModel": "collecting.models.onnx",
    "TorchModel": "collecting.models.torch",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"recal.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
