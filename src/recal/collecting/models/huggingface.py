"""Hugging Face image-classification models with their processors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.collecting.fingerprint import digest
from recal.collecting.models.torch import TorchModel
from recal.errors import FileError, InputError, MissingExtraError


class HuggingFaceModel(TorchModel):
    """A model and the processor it was trained with.

    The processor resizes and normalises, so it runs after the transformation, and images come to it as they are:
    uint8, channels first or last. Transformations run in numpy, where the processor expects its images.
    """

    def __init__(self, model: Any, processor: Any, *, device: Any = None) -> None:
        if not callable(processor) or not hasattr(model, "state_dict"):
            raise InputError(
                "A pair must be (model, processor) from transformers, such as "
                f"(AutoModelForImageClassification, AutoImageProcessor); got {_names(model, processor)}."
            )
        super().__init__(model, device=device)
        self.processor = processor

    def fingerprint(self) -> str:
        settings = self.processor.to_dict() if hasattr(self.processor, "to_dict") else {}
        return digest([super().fingerprint(), {key: repr(value) for key, value in settings.items()}])

    def prepare(self, inputs: Any) -> Any:
        return np.asarray(inputs.detach().cpu() if hasattr(inputs, "detach") else inputs)

    def answer(self, batch: Any) -> NDArray:
        return super().answer(self.processor(images=list(batch), return_tensors="pt")["pixel_values"])


def _names(*values: Any) -> str:
    return ", ".join(type(value).__name__ for value in values)


def open_folder(path: Path, *, device: Any = None) -> HuggingFaceModel:
    """Open a folder written by `save_pretrained`: only safetensors weights are read, and none of its code is run."""
    try:
        from transformers import AutoImageProcessor, AutoModelForImageClassification
    except ImportError as error:
        raise MissingExtraError("transformers", "huggingface", f"Opening the folder {path}") from error
    check_folder(path)
    safely: Any = {"local_files_only": True, "trust_remote_code": False}
    try:
        model = AutoModelForImageClassification.from_pretrained(path, use_safetensors=True, **safely)
        opener: Any = AutoImageProcessor  # it has no types
        processor = opener.from_pretrained(path, **safely)
    except Exception as error:  # safetensors has errors of its own
        raise FileError(f"{path} is not a Hugging Face image classifier with its processor: {error}") from error
    return HuggingFaceModel(model, processor, device=device)


def check_folder(path: Path) -> None:
    """Refuse a folder that brings pickled weights only, code of its own, or names what lies elsewhere."""
    weights = "model.safetensors"
    if not (path / weights).is_file() and not (path / f"{weights}.index.json").is_file():
        raise FileError(
            f"{path} is not opened: it holds no {weights}. Other weights (.bin) are pickles, which may run any code; "
            "write it again with save_pretrained(folder, safe_serialization=True)."
        )
    if (path / "adapter_config.json").exists():
        raise FileError(f"{path} is not opened: it is an adapter to another model. Merge the two, and save the result.")
    for name in ("config.json", "preprocessor_config.json", "processor_config.json", f"{weights}.index.json"):
        settings = _settings(path / name)
        code = next((key for key in ("auto_map", "transformers_weights", "custom_pipelines") if key in settings), None)
        if code is not None:
            raise FileError(
                f"{path} is not opened: `{code}` in its {name} asks for code or files of its own. Load it yourself, "
                "where you trust it, and pass (model, processor)."
            )
        shards = settings.get("weight_map", {})
        outside = [value for value in shards.values() if not isinstance(value, str) or Path(value).name != value]
        if outside:
            raise FileError(f"{path} is not opened: its {name} keeps weights in {outside[0]!r}, outside the folder.")
        kernels = [value for key, value in settings.items() if "attn_implementation" in key]
        if any(value is not None and "/" in str(value) for value in kernels):
            raise FileError(f"{path} is not opened: its {name} asks for code from elsewhere, {kernels[0]!r}.")


def _settings(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise FileError(f"{path} cannot be read: {error}.") from error
    if not isinstance(found, dict) or not isinstance(found.get("weight_map", {}), dict):
        raise FileError(f"{path} is not an object of settings.")
    return found
