"""Kinds that lose nothing: each against the plain statement of what it does."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from recal.transforms import Cut, Flip, Shift, TimeShift, ZoomIn

RNG = np.random.default_rng(0)
LAYOUTS = [("NCHW", (4, 3, 6, 5)), ("NHWC", (4, 6, 5, 3)), ("NHW", (4, 6, 5))]


@pytest.mark.parametrize(("layout", "shape"), LAYOUTS)
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float16", "float64"])
def test_pixels_go_where_they_should(layout: str, shape: tuple[int, ...], dtype: str) -> None:
    images = RNG.uniform(0, 200, shape).astype(dtype)
    rows, columns = layout.index("H"), layout.index("W")
    np.testing.assert_array_equal(Flip(layout)(images), np.flip(images, columns))
    moves = {"down": (rows, 1), "up": (rows, -1), "right": (columns, 1), "left": (columns, -1)}
    for pixels, (direction, (axis, sign)) in itertools.product((1, 2, 4, 7), moves.items()):
        moved = Shift(pixels, direction, layout=layout)(images)
        np.testing.assert_array_equal(moved, np.roll(images, sign * pixels, axis))


@pytest.mark.parametrize("scale", [0.6, 0.83, 0.95])
def test_an_enlarged_middle_is_what_torch_samples_there(scale: float) -> None:
    images = RNG.uniform(size=(2, 3, 11, 14))
    theta = torch.tensor([[[scale, 0, 0], [0, scale, 0]]], dtype=torch.float64).expand(2, -1, -1)
    grid = torch.nn.functional.affine_grid(theta, [2, 3, 11, 14], align_corners=False)
    how = {"padding_mode": "border", "align_corners": False}
    wanted = torch.nn.functional.grid_sample(torch.from_numpy(images), grid, **how)
    np.testing.assert_allclose(ZoomIn(1 / scale)(images), wanted.numpy(), atol=1e-10)


def test_time_moves_round() -> None:
    series = np.arange(1, 9, dtype=np.int16).reshape(1, 1, 8)
    assert TimeShift(0.25)(series).tolist() == [[[7, 8, 1, 2, 3, 4, 5, 6]]]
    assert TimeShift(0.01)(series).tolist() == [[[8, 1, 2, 3, 4, 5, 6, 7]]], "at least one sample"
    rows = np.arange(6, dtype=np.int32).reshape(1, 6, 1)
    assert TimeShift(0.5, axis=1)(rows).ravel().tolist() == [3, 4, 5, 0, 1, 2]


def test_cuts_keep_order_and_at_least_one_word() -> None:
    assert Cut(0.9)(["one two three"]) == ["one"]
    assert Cut(0.01, "start")(["one two three"]) == ["two three"]
    assert Cut(0.5)(["one", ""]) == ["one", ""]
