"""The pixels of every view in an exported file, beside numpy's.

Views act on answers only through comparisons, so a wrong pixel may not show there: the views
themselves are looked at, as one more output of the very file that is written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recal import Plan, Step, pool
from recal.export import export_onnx
from recal.transforms import TRANSFORMS, Transform
from tests.unit.export.onnx_zoo import linear, with_views

IMAGES = pool(
    "zoom:0.8+zoom:0.33+zoom:0.1+brightness:0.35+brightness:0.7+brightness:1.3+"
    "contrast:0.1+contrast:0.7+blur:0.3+blur:1.3+blur:3+pixelate:0.17+pixelate:0.5+"
    "flip+shift+shift:3:direction=left+shift:1:direction=up+zoomin:1.1+zoomin:1.3"
)
SERIES = pool(
    "coarse:0.5+coarse:0.13:fill=hold+timeshift:0.1+lowpass:0.5+lowpass:0.1+bits:8+"
    "bits:3+quieter:0.5"
)
# One of each kind, for shapes and dtypes beyond the first.
EACH = pool("zoom:0.8+brightness:1.3+contrast:0.7+blur:1.3+pixelate:0.17+flip+shift+zoomin:1.1")
# What is summed in another order differs in its last bits; what is only moved or looked up does not
# differ at all.
MOVED = ("flip", "shift", "timeshift")


def written(
    folder: Path, inputs: np.ndarray, specs: tuple[Transform, ...], opset: int = 18
) -> tuple[tuple[Transform, ...], np.ndarray]:
    """Export a plan of all these views behind a model of such inputs; return them and what the file
    makes of them.
    """
    net, _ = linear(folder / "net.onnx", inputs.shape[1:], 3, opset=opset)
    plan = Plan(tuple(Step(spec, (0.9, 1.1, 0.8, 1.0)) for spec in specs))
    path = export_onnx(net, inputs[:1], folder / "whole.onnx", plan=plan)
    return plan.transforms, with_views(path, inputs)[0].reshape(-1, *inputs.shape)


def pixels(*shape: int) -> np.ndarray:
    """Return random bytes, with all 256 values among them."""
    values = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    values.reshape(-1)[:256] = np.arange(256)
    return values


def test_every_kind_that_exports_is_looked_at() -> None:
    looked_at = {one.kind for one in (*IMAGES, *SERIES)}
    assert looked_at == {transform.kind for transform in TRANSFORMS if transform.traceable}


@pytest.mark.parametrize(
    ("shape", "specs"),
    [((9, 3, 13, 20), IMAGES), ((5, 17, 7, 3), EACH)],
    ids=["channels first", "channels last"],
)
def test_bytes_are_those_of_numpy(
    tmp_path: Path, shape: tuple[int, ...], specs: tuple[Transform, ...]
) -> None:
    inputs = pixels(*shape)
    for transform, view in zip(*written(tmp_path, inputs, specs), strict=True):
        np.testing.assert_array_equal(view, transform(inputs), err_msg=str(transform))


@pytest.mark.parametrize("specs", [EACH, SERIES], ids=["images", "series"])
def test_floats_are_those_of_numpy_to_the_last_bits(
    tmp_path: Path, specs: tuple[Transform, ...]
) -> None:
    inputs: Any = (pixels(6, 1, 11, 18) if specs is EACH else pixels(6, 2, 61)) / np.float32(255)
    for transform, view in zip(*written(tmp_path, inputs, specs), strict=True):
        rounding = 0 if str(transform).startswith(MOVED) else 1e-6
        np.testing.assert_allclose(
            view, transform(inputs), rtol=0, atol=rounding, err_msg=str(transform)
        )


@pytest.mark.parametrize(
    ("shape", "specs"),
    [
        ((2, 3, 3, 9, 14), EACH),
        ((4, 9, 14), EACH),
        ((3, 700), pool("lowpass:0.3+timeshift:0.1")),
        ((3, 40, 2), pool("coarse:0.5:axis=1+lowpass:0.3:axis=1")),
    ],
    ids=["videos", "grey", "a long series", "time in the middle"],
)
def test_other_shapes_are_written_too(
    tmp_path: Path, shape: tuple[int, ...], specs: tuple[Transform, ...]
) -> None:
    inputs: Any = np.random.default_rng(0).integers(0, 256, shape).astype(np.float32) / np.float32(
        255
    )
    for opset in (18, 21):
        for transform, view in zip(*written(tmp_path, inputs, specs, opset), strict=True):
            np.testing.assert_allclose(
                view, transform(inputs), rtol=0, atol=1e-6, err_msg=str(transform)
            )
