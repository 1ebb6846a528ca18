"""What each kind of image file becomes: eight-bit RGB, upright, and nothing opened that could start
a program.
"""

from __future__ import annotations

import io
import warnings

import numpy as np
import pytest
from PIL import Image
from sklearn.linear_model import LogisticRegression

from recal import collect
from recal.collecting.files import read_image
from recal.collecting.models.base import to_dtype
from recal.errors import FileError, InputError

RAMP = np.arange(256, dtype=np.uint8).reshape(16, 16)
COLOURS = np.random.default_rng(0).integers(0, 256, (6, 5, 3), dtype=np.uint8)


def written(tmp_path, image, name="a.png", **options):
    image.save(tmp_path / name, **options)
    return np.asarray(read_image(tmp_path / name))


def grey16():
    return Image.fromarray((RAMP.astype(np.uint16) << 8) + 200)


@pytest.mark.parametrize("name", ["a.png", "a.tif"])
def test_sixteen_bit_grey_keeps_its_high_byte(tmp_path, name):
    pixels = written(tmp_path, grey16(), name)
    np.testing.assert_array_equal(pixels, np.stack([RAMP] * 3, axis=-1))


def test_sixteen_bit_pgm_is_the_same(tmp_path):
    body = ((RAMP.astype(np.uint16) << 8) + 200).astype(">u2").tobytes()
    (tmp_path / "a.pgm").write_bytes(b"P5 16 16 65535\n" + body)
    pixels = np.asarray(read_image(tmp_path / "a.pgm"))
    np.testing.assert_array_equal(pixels[..., 0], RAMP)


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_thirty_two_bits_have_no_white_and_are_refused(tmp_path, dtype):
    Image.fromarray(RAMP.astype(dtype)).save(tmp_path / "a.tif")
    with pytest.raises(FileError, match=r"a\.tif .*32 bits.*8 or 16 bits"):
        read_image(tmp_path / "a.tif")


def test_a_palette_becomes_its_colours(tmp_path):
    image = Image.fromarray(COLOURS).quantize(16)
    np.testing.assert_array_equal(written(tmp_path, image), np.asarray(image.convert("RGB")))


def test_a_palette_with_transparency_becomes_its_colours_without_a_warning(tmp_path):
    image = Image.fromarray(COLOURS).quantize(16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pixels = written(tmp_path, image, transparency=bytes([0, 128] + [255] * 14))
    np.testing.assert_array_equal(pixels, np.asarray(image.convert("RGB")))


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_alpha_is_dropped(tmp_path, mode):
    image = Image.fromarray(COLOURS).convert(mode)
    image.putalpha(Image.fromarray(np.arange(30, dtype=np.uint8).reshape(6, 5)))
    bare = image.copy()
    bare.putalpha(255)
    np.testing.assert_array_equal(written(tmp_path, image), np.asarray(bare.convert("RGB")))


def test_cmyk_becomes_rgb(tmp_path):
    image = Image.new("CMYK", (8, 8), (0, 255, 255, 0))
    pixels = written(tmp_path, image, "a.jpg", quality=100)
    assert np.abs(pixels.astype(int) - [255, 0, 0]).max() <= 3


def test_grey_and_black_and_white_have_three_equal_channels(tmp_path):
    np.testing.assert_array_equal(
        written(tmp_path, Image.fromarray(RAMP)), np.stack([RAMP] * 3, axis=-1)
    )
    assert set(written(tmp_path, Image.fromarray(RAMP > 99)).ravel().tolist()) == {0, 255}


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_photograph_that_lies_on_its_side_is_stood_up(tmp_path, orientation):
    stored = Image.fromarray(COLOURS)
    exif = Image.Exif()
    exif[0x0112] = orientation
    turned = {
        1: lambda a: a,
        2: lambda a: a[:, ::-1],
        3: lambda a: a[::-1, ::-1],
        4: lambda a: a[::-1],
        5: lambda a: a.transpose(1, 0, 2),
        6: lambda a: a[::-1].transpose(1, 0, 2),
        7: lambda a: a[::-1, ::-1].transpose(1, 0, 2),
        8: lambda a: a[:, ::-1].transpose(1, 0, 2),
    }[orientation](COLOURS)
    np.testing.assert_array_equal(written(tmp_path, stored, exif=exif), turned)


@pytest.mark.parametrize("kind", ["EPS", "PDF", "ICO"])
def test_a_file_of_another_format_named_png_is_not_opened(tmp_path, kind, monkeypatch):
    """An EPS file would be given to Ghostscript, another program."""
    from PIL import EpsImagePlugin

    monkeypatch.setattr(
        EpsImagePlugin, "Ghostscript", lambda *_: pytest.fail("Ghostscript was called")
    )
    held = io.BytesIO()
    Image.new("RGB", (16, 16)).save(held, kind)
    (tmp_path / "a.png").write_bytes(held.getvalue())
    with pytest.raises(FileError, match=r"cannot be read.*cannot identify"):
        read_image(tmp_path / "a.png")


def test_pixels_from_0_to_1_are_not_cast_to_bytes():
    assert to_dtype(np.array([0.0, 255.0]), np.uint8, "net").tolist() == [0, 255]
    assert to_dtype(np.array([3]), np.float32, "net").dtype == np.float32
    for wrong in ([0.0, 0.5, 1.0], [256.0], [-1], [np.nan]):
        with pytest.raises(InputError, match="uint8"):
            to_dtype(np.array(wrong), np.uint8, "net")


def test_colour_images_for_a_classifier_of_grey_ones_name_the_option():
    pixels = np.random.default_rng(0).random((30, 4, 4, 3))
    model = LogisticRegression().fit(pixels[..., 0].reshape(30, 16), np.arange(30) % 2)
    with pytest.raises(InputError, match="--pixels gray"):
        collect(model, pixels, None)
    assert len(collect(model, pixels[..., 0], None)) == 30
