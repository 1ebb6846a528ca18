"""Hugging Face image-classification models with their processors."""

from __future__ import annotations

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
    """Open a folder written by `save_pretrained`; only safetensors weights are read."""
    try:
        from transformers import AutoImageProcessor, AutoModelForImageClassification
    except ImportError as error:
        raise MissingExtraError("transformers", "huggingface", f"Opening the folder {path}") from error
    try:
        model = AutoModelForImageClassification.from_pretrained(path, use_safetensors=True, local_files_only=True)
        opener: Any = AutoImageProcessor  # it has no types
        processor = opener.from_pretrained(path, local_files_only=True)
    except Exception as error:  # safetensors has errors of its own
        raise FileError(f"{path} is not a Hugging Face image classifier with its processor: {error}") from error
    return HuggingFaceModel(model, processor, device=device)
