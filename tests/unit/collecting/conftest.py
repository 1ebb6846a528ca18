"""Small data and models that the tests of collect share."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture
def images():
    return np.random.default_rng(0).integers(0, 256, (20, 8, 8), dtype=np.uint8)


def contents(folder):
    """Return the bytes of every file in a folder, by name."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@pytest.fixture
def labels():
    return np.arange(20) % 3


def three_logits(batch):
    """A model that needs no framework: three numbers of an image."""
    values = np.asarray(batch, dtype=np.float32).reshape(len(batch), -1)
    return np.stack([values.mean(1), values.std(1), values[:, ::2].mean(1)], axis=1) / 20 - 2


@pytest.fixture
def model():
    return three_logits


@pytest.fixture(scope="session")
def vision():
    """A small image classifier of Hugging Face, and its processor."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    size = {"hidden_size": 16, "intermediate_size": 16, "image_size": 16, "patch_size": 8}
    config = transformers.ViTConfig(
        num_hidden_layers=1, num_attention_heads=2, num_labels=3, **size
    )
    torch.manual_seed(0)
    model = transformers.ViTForImageClassification(config)
    # From release 5 on the plain name stands for one that needs torchvision.
    kind = getattr(transformers, "ViTImageProcessorPil", None) or transformers.ViTImageProcessor
    return model, kind(size={"height": 16, "width": 16})
