"""Zoom and brightness to the pixel, and the rule that finds channels in a shape."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from recal.errors import InputError
from recal.transforms import Brightness, Jpeg, ZoomOut
from recal.transforms.image import image_layout

SIZES = [(28, 28), (32, 32), (17, 41), (90, 64), (1, 1), (5, 3)]
SCALES = [0.1, 0.13, 0.37, 0.5, 2 / 3, 0.8, 0.89, 0.99]


def padded(plane: np.ndarray, scale: float) -> np.ndarray:
    height, width = plane.shape
    down, across = int(height * (1 - scale) / scale), int(width * (1 - scale) / scale)
    return np.pad(plane, ((down // 2, down - down // 2), (across // 2, across - across // 2)))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scale", SCALES)
def test_zoom_is_pad_and_antialiased_resize(size: tuple[int, int], scale: float) -> None:
    plane = np.random.default_rng(0).random(size)
    ours = ZoomOut(scale)(plane[None])[0]
    border = padded(plane, scale)
    picture = Image.fromarray(border.astype(np.float32))
    pillow = picture.resize(size[::-1], Image.Resampling.BILINEAR)
    batch, how = torch.from_numpy(border)[None, None], {"mode": "bilinear", "antialias": True}
    theirs = torch.nn.functional.interpolate(batch, size, **how)
    np.testing.assert_allclose(ours, np.asarray(pillow), atol=1e-6)
    np.testing.assert_allclose(ours, theirs[0, 0].numpy(), atol=1e-12)


def test_odd_border_pixel_goes_right_and_below() -> None:
    # 3 pixels at 0.75 get one pixel of border: it must be the last row and column, so the first
    # ones stay brighter.
    zoomed = ZoomOut(0.7)(np.ones((1, 3, 3)))[0]
    assert zoomed[0, 0] > zoomed[2, 2]


def test_bright_floats_are_clipped_at_white_and_never_guessed() -> None:
    image = np.array([[[0.2, 0.9]]])
    np.testing.assert_allclose(Brightness(1.5)(image), [[[0.3, 1.0]]])
    np.testing.assert_allclose(Brightness(1.5, white=255)(image * 255), [[[76.5, 255.0]]])
    with pytest.raises(InputError, match=r"up to 1, got 229.5.*white=255"):
        Brightness(1.5)(image * 255)


def test_flat_rows_are_refused_with_the_remedy() -> None:
    with pytest.raises(InputError, match=r"got \(5, 784\).*Reshape flat rows"):
        ZoomOut(0.5)(np.zeros((5, 784)))


def test_jpeg_refuses_what_it_has_no_code_for() -> None:
    image = np.full((1, 8, 8), 0.5)
    image[0, 2, 3] = np.nan
    with pytest.raises(InputError, match="NaN"):
        Jpeg(50)(image)


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((8, 1, 28, 28), "NCHW"),
        ((8, 4, 4, 3), "NHWC"),
        ((8, 3, 4, 4), "NCHW"),
        ((8, 3, 3, 3), "NCHW"),
        ((8, 13, 64, 64), "NCHW"),
        ((8, 64, 64, 13), "NHWC"),
        ((3, 28, 28), "NHW"),
        ((32, 48, 3), "NHW"),
        ((2, 16, 3, 32, 48), "NCHW"),
        ((2, 16, 32, 48, 3), "NHWC"),
    ],
)
def test_layout_is_read_from_the_shape(shape: tuple[int, ...], layout: str) -> None:
    assert image_layout(shape) == layout


def test_undecidable_channels_are_refused_with_the_remedy() -> None:
    with pytest.raises(InputError, match=r"\(8, 13, 64, 48\).*layout='NCHW'"):
        image_layout((8, 13, 64, 48))


def test_given_layout_must_fit_the_axes() -> None:
    with pytest.raises(InputError, match=r"NHWC has 4 axes.*\(8, 28, 28\)"):
        ZoomOut(0.5, layout="NHWC")(np.zeros((8, 28, 28)))


def test_unknown_layout_is_refused_with_the_choices() -> None:
    with pytest.raises(InputError, match=r"'NCHW', 'NHWC'.*got 'BCHW'"):
        ZoomOut(0.5, layout="BCHW")
