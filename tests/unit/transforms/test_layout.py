"""The one rule that tells channels from height and width."""

from __future__ import annotations

import numpy as np
import pytest

from recal.errors import InputError
from recal.transforms import ZoomOut
from recal.transforms.image import image_layout


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((8, 3, 32, 32), "NCHW"),
        ((8, 32, 32, 3), "NHWC"),
        ((8, 1, 28, 28), "NCHW"),
        ((8, 28, 28, 1), "NHWC"),
        ((8, 4, 4, 3), "NHWC"),
        ((8, 3, 4, 4), "NCHW"),
        ((8, 3, 3, 3), "NCHW"),
        ((8, 13, 64, 64), "NCHW"),
        ((8, 64, 64, 13), "NHWC"),
        ((8, 28, 28), "NHW"),
        ((3, 28, 28), "NHW"),
        ((8, 4, 4), "NHW"),
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
