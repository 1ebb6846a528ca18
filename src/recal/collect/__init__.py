"""From any model to Views: adapters for models, sources of inputs, engines, and the store."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from recal.collect.apply import apply
from recal.collect.local import collect
from recal.collect.models import PROBABILITY_FLOOR, Model, as_model
from recal.collect.preprocess import Normalize
from recal.collect.sources import Source, as_source

# These need Pillow, or a package that is not always installed.
_LATER = {
    "ImageFolder": "recal.collect.folder",
    "OnnxModel": "recal.collect.onnx_models",
    "TorchModel": "recal.collect.torch_models",
    "HuggingFaceModel": "recal.collect.huggingface",
    "RayEngine": "recal.collect.ray",
    "apply_distributed": "recal.collect.ray",
}

__all__ = ["PROBABILITY_FLOOR", "Model", "Normalize", "Source", "apply", "as_model", "as_source", "collect", *_LATER]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)
