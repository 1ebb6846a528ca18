"""What an installation must do: everything that needs no extra, and each extra's feature or a
refusal that names it.

Run by tests/install/extras.py with the Python of an environment that holds the wheel and at most
one extra; with the argument `core` also what needs no extra. Imports nothing of the project but the
installed `recal`. Prints a line for each feature and ends with 1 where one is wrong.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import traceback
import wave
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np

RECAL = Path(sysconfig.get_path("scripts")) / "recal"
Feature = Callable[[Path], None]
FEATURES: list[
    tuple[str, tuple[str, ...], Feature]
] = []  # the extra, or "core"; the packages that it needs; what to do


class Refused(Exception):
    """A command ended with the exit code of bad input."""


def feature(extra: str, *packages: str) -> Callable[[Feature], Feature]:
    def add(function: Feature) -> Feature:
        FEATURES.append((extra, packages, function))
        return function

    return add


def recal(line: str, cwd: Path) -> str:
    """Run a command as users do, and return what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(cwd), "NO_COLOR": "1", "COLUMNS": "200"}
    command = [str(RECAL), *line.split()]
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=600
    )
    if done.returncode == 2:
        raise Refused(done.stderr.strip())
    if done.returncode:
        raise RuntimeError(f"{line} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def make_files(folder: Path) -> None:
    """Views of overconfident made-up logits, images, a model of one's own, and a table."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 1500)
    evidence = rng.normal(size=(1500, 3)) + 1.5 * np.eye(3)[y]
    views = {"logits": 4 * evidence, "transforms": np.array(["zoom:0.8", "zoom:0.5"])}
    views["transformed"] = np.stack(
        [4 * (evidence + rng.normal(size=evidence.shape)) for _ in range(2)]
    )
    for name, rows in (("fit", slice(0, 1000)), ("new", slice(1000, 1500))):
        parts = {key: value[rows] if key == "logits" else value for key, value in views.items()}
        parts["transformed"] = views["transformed"][:, rows]
        np.savez(folder / f"{name}.npz", labels=y[rows], **parts)
    np.save(folder / "images.npy", rng.integers(0, 256, (40, 8, 8), dtype=np.uint8))
    np.save(folder / "y.npy", rng.integers(0, 3, 40))
    (folder / "own.py").write_text(
        "import numpy as np\n"
        "def model(batch):\n"
        "    flat = np.asarray(batch, dtype=float).reshape(len(batch), -1)\n"
        "    return np.stack([flat.sum(1), flat[:, ::2].sum(1), flat[:, 1::2].sum(1)], 1) / 1000\n"
        "def table(batch):\n"
        "    return np.stack([batch['a'], batch['b'], batch['a'] - batch['b']], 1).astype(float)\n"
    )
    rows = (f"{a:.3f},{b:.3f},{index % 3}" for index, (a, b) in enumerate(rng.normal(size=(40, 2))))
    (folder / "table.csv").write_text("\n".join(["a,b,label", *rows]))


# --- the core: commands in the order in which people use them


@feature("core")
def tells_what_it_can(folder: Path) -> None:
    for command in ("collect", "fit", "evaluate"):
        assert command in recal("--help", folder)
        assert "Usage" in recal(f"{command} --help", folder)
    assert recal("--version", folder).startswith("recal ")
    assert "zoom" in recal("transforms", folder)
    assert "brightness" in recal("transforms brightness", folder)
    told = json.loads(recal("doctor --json", folder))
    assert all(package["works"] for package in told["packages"].values()), told["packages"]


@feature("core")
def collects_fits_and_decides(folder: Path) -> None:
    shared = "--model own:model --data images.npy --labels y.npy"
    recal(f"collect {shared} --pool zoom:0.5-0.9:2+brightness:0.5 --out own.zarr", folder)
    assert "zoom" in recal("groups own.zarr", folder)
    for method in ("ts", "recal", "auto"):
        recal(f"fit fit.npz --method {method} --out {method}.recal", folder)
        recal(f"apply {method}.recal new.npz --out {method}.npz", folder)
    assert "ece" in recal("evaluate ts.npz --json", folder).lower()
    assert "threshold" in recal("decide ts.npz --risk 0.2 --json", folder)
    recal("report fit.npz new.npz --methods ts,stack --out page.html", folder)
    assert "</html>" in (folder / "page.html").read_text(encoding="utf-8")


# --- the extras


@feature("demo", "mlxtend", "matplotlib")
def shows_the_demo(folder: Path) -> None:
    recal("demo --out demo", folder)
    assert list((folder / "demo").glob("*.html"))


@feature("report", "matplotlib")
def draws_reliability(folder: Path) -> None:
    from recal import reliability_diagram

    assert reliability_diagram([0.9, 0.6], [True, False]).get_xlabel() == "confidence"


@feature("tables", "pyarrow")
def writes_parquet(folder: Path) -> None:
    recal("fit fit.npz --method ts --out scaled.recal", folder)
    recal("apply scaled.recal new.npz --out scaled.parquet", folder)
    recal("evaluate scaled.parquet", folder)


@feature("tables", "pandas")
def reads_a_table(folder: Path) -> None:
    shared = "--model own:table --data table.csv --label-column label"
    recal(f"collect {shared} --pool none --out table.npz", folder)


@feature("audio", "soundfile")
def reads_sounds(folder: Path) -> None:
    for name in ("low/a", "low/b", "high/c", "high/d"):
        path = folder / "sounds" / f"{name}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        with wave.open(str(path), "wb") as file:
            file.setparams((1, 2, 8000, 0, "NONE", "none"))
            file.writeframes(np.zeros(800, np.int16).tobytes())
    shared = "--model own:model --data sounds --classes low,high,none"
    recal(f"collect {shared} --pool none --out sounds.npz", folder)


@feature("zarr", "zarr")
def reads_a_zarr_group(folder: Path) -> None:
    from recal import read_views

    (folder / "foreign.zarr").mkdir()
    (folder / "foreign.zarr" / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    if find_spec("zarr"):
        import zarr

        group = zarr.open_group(folder / "foreign.zarr")
        group.create_array("logits", data=np.eye(3, dtype=np.float32) - 2, compressors=None)
    assert read_views(folder / "foreign.zarr").n_samples == 3


@feature("skops", "skops")
def opens_a_model_of_skops(folder: Path) -> None:
    if find_spec("skops"):
        from sklearn.linear_model import LogisticRegression
        from skops.io import dump

        flat = np.load(folder / "images.npy").reshape(40, -1)
        model = LogisticRegression(max_iter=50).fit(flat, np.load(folder / "y.npy"))
        dump(model, folder / "model.skops")
    else:
        (folder / "model.skops").write_bytes(b"")
    recal("collect --model model.skops --data images.npy --pool none --out s.npz", folder)


@feature("onnx", "onnx", "onnxruntime")
def writes_a_calibration_as_onnx(folder: Path) -> None:
    recal("fit fit.npz --method recal --out r.recal", folder)
    recal("export r.recal --classes 3 --out r.onnx", folder)


@feature("onnx", "onnxruntime")
def runs_a_model_of_onnx(folder: Path) -> None:
    if find_spec("onnx"):
        from onnx import TensorProto, helper, numpy_helper, save

        weights = numpy_helper.from_array(
            np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32) / 100, "w"
        )
        nodes = [
            helper.make_node("Flatten", ["x"], ["f"]),
            helper.make_node("MatMul", ["f", "w"], ["logits"]),
        ]
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1, 8, 8])
        logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 3])
        graph = helper.make_graph(nodes, "net", [x], [logits], [weights])
        opset = helper.make_opsetid("", 18)
        save(helper.make_model(graph, opset_imports=[opset], ir_version=8), folder / "net.onnx")
    else:
        (folder / "net.onnx").write_bytes(b"")
    shared = "--model net.onnx --data images.npy --labels y.npy --divide 255"
    recal(f"collect {shared} --pool zoom:0.5-0.9:2 --out net.npz", folder)
    if find_spec("onnx"):  # the views too are written without torch
        recal("fit net.npz --method recal --out net.recal", folder)
        recal("export net.recal --model net.onnx --out whole.onnx", folder)


@feature("torch", "torch")
def calibrates_a_module_of_torch(folder: Path) -> None:
    from recal import CalibratedModule, Plan, collect

    if find_spec("torch"):
        import torch

        net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))
        images = np.load(folder / "images.npy")
        assert collect(net, images, "zoom:0.5", progress=False).logits.shape == (40, 3)
        assert CalibratedModule(net, Plan(start=0.5))(torch.zeros(2, 1, 8, 8)).shape == (2, 3)
    else:
        CalibratedModule(None, Plan(start=0.5))


@feature("huggingface", "transformers", "torch")
def opens_a_folder_of_hugging_face(folder: Path) -> None:
    path = folder / "vit"
    path.mkdir(exist_ok=True)
    if find_spec("transformers") and find_spec("torch"):
        import transformers
        from transformers import ViTConfig, ViTForImageClassification

        size = {"hidden_size": 8, "intermediate_size": 8, "image_size": 8, "patch_size": 4}
        config = ViTConfig(**size, num_hidden_layers=1, num_attention_heads=2, num_labels=3)
        ViTForImageClassification(config).save_pretrained(path)
        # From release 5 on the plain name stands for one that needs torchvision.
        processor = (
            getattr(transformers, "ViTImageProcessorPil", None) or transformers.ViTImageProcessor
        )
        processor(size={"height": 8, "width": 8}).save_pretrained(path)
    else:
        (path / "config.json").write_text("{}")
    np.save(folder / "rgb.npy", np.zeros((6, 8, 8, 3), np.uint8))
    recal("collect --model vit --data rgb.npy --pool zoom:0.5 --out vit.npz", folder)


@feature("ray", "ray")
def collects_on_ray(folder: Path) -> None:
    shared = "--model own:model --data images.npy --engine ray"
    recal(f"collect {shared} --pool zoom:0.5 --out ray.zarr", folder)


def outcome(extra: str, packages: tuple[str, ...], function: Feature, folder: Path) -> str:
    """Do it. Where a package is missing, only a refusal that names the extra is right."""
    missing = [package for package in packages if find_spec(package) is None]
    try:
        function(folder)
    except Exception as error:
        from recal.errors import MissingExtraError

        told = isinstance(error, MissingExtraError | Refused) and f"[{extra}]'" in str(error)
        if missing and told:
            return f"refused, names [{extra}]"
        return f"WRONG: {''.join(traceback.format_exception(error)[-3:])}"
    return f"WRONG: worked without {', '.join(missing)}" if missing else "works"


def main(with_core: bool) -> int:
    wrong = 0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        make_files(folder)
        for extra, packages, function in FEATURES:
            if extra == "core" and not with_core:
                continue
            told = outcome(extra, packages, function, folder)
            wrong += told.startswith("WRONG")
            print(f"  {extra:<12} {function.__name__.replace('_', ' '):<42} {told}", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main("core" in sys.argv[1:]))
