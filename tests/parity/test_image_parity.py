"""Images beside slow, obvious arithmetic in float64, and beside the pixels of release 1.0.0rc1."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from recal.engine import SMALL
from recal.transforms import as_transform
from recal.transforms.image import Bands, blurred, in_blocks, middle, zoomed

HEIGHT, WIDTH = 61, 90
RESAMPLED: dict[str, tuple[Bands, Bands]] = {
    "zoom:0.8": (zoomed(HEIGHT, 0.8), zoomed(WIDTH, 0.8)),
    "zoom:0.13": (zoomed(HEIGHT, 0.13), zoomed(WIDTH, 0.13)),
    "blur:0.6": (blurred(HEIGHT, 0.6), blurred(WIDTH, 0.6)),
    "blur:3": (blurred(HEIGHT, 3.0), blurred(WIDTH, 3.0)),
    "pixelate:0.35": (in_blocks(HEIGHT, 0.35), in_blocks(WIDTH, 0.35)),
    "zoomin:1.1": (middle(HEIGHT, 1 / 1.1), middle(WIDTH, 1 / 1.1)),
}
# What release 1.0.0rc1 made of `noise(8)`: no byte has changed since, so views of both may be
# mixed. JPEG is left out: its bytes are those of the installed library.
RC1: dict[str, str] = {
    "zoom:0.5": "2dc42e81c9a41ff0",
    "zoom:0.37": "2ede75e26387daad",
    "brightness:0.5": "3741fddb939b93c9",
    "brightness:1.3": "fc7a8174e6f2c252",
    "contrast:0.5": "e1c9e6b90a41a596",
    "blur:1": "e9c77244cc326ed2",
    "blur:3": "3ad96d8fb4a5d9d2",
    "pixelate:0.35": "3a403a19aa848e68",
    "zoomin:1.1": "f4e6127dd159ea25",
    "pixels:0.07": "e7ae54b624f53401",
    "pixels:0.2:seed=3": "faecb02c92cfcfbb",
    "flip": "21dad27818bc5869",
    "shift": "08234761918211d1",
}


def noise(n: int) -> np.ndarray:
    """Return random bytes, (n, height, width, 3): large enough together, and too small alone, for a
    compiled kernel.
    """
    images = np.random.default_rng(0).integers(0, 256, (n, HEIGHT, WIDTH, 3), dtype=np.uint8)
    assert images[:1].size < SMALL
    return images


def rounded(values: np.ndarray) -> np.ndarray:
    return np.rint(np.rint(values * 2**20) / 2**20).clip(0, 255).astype(np.uint8)


@pytest.mark.parametrize("spec", RESAMPLED)
@pytest.mark.parametrize("n", [2, 8], ids=["few", "many"])
def test_bytes_are_the_matrices_products_rounded(spec: str, n: int) -> None:
    rows, columns = (bands.matrix for bands in RESAMPLED[spec])
    images, transform = noise(n), as_transform(spec)
    assert (images.size >= SMALL) == (n == 8)
    wanted = rounded(
        np.einsum("ij,njkc,lk->nilc", rows, images.astype(np.float64), columns, optimize=True)
    )
    np.testing.assert_array_equal(transform(images), wanted)
    np.testing.assert_array_equal(
        transform(images.transpose(0, 3, 1, 2)), wanted.transpose(0, 3, 1, 2)
    )
    np.testing.assert_array_equal(transform(images[..., 1]), wanted[..., 1])


@pytest.mark.parametrize("spec", RESAMPLED)
def test_floats_are_the_matrices_products_to_their_last_bits(spec: str) -> None:
    rows, columns = (bands.matrix for bands in RESAMPLED[spec])
    images, transform = noise(8) / np.float32(255), as_transform(spec)
    wanted = np.einsum("ij,njkc,lk->nilc", rows, images.astype(np.float64), columns, optimize=True)
    result = transform(images)
    np.testing.assert_allclose(result, wanted, rtol=0, atol=1e-6)
    for row in (0, 5):  # alone, numpy computes them
        np.testing.assert_array_equal(transform(images[row : row + 1])[0], result[row])


@pytest.mark.parametrize("factor", [0.1, 0.35, 0.5, 0.9, 7.0])
def test_brightness_and_contrast_move_levels_from_black_and_from_the_mean(factor: float) -> None:
    images = noise(3) // np.array([1, 2, 5], dtype=np.uint8)[:, None, None, None]
    mean = images.astype(np.float64).mean(axis=(1, 2, 3), keepdims=True)
    wanted = rounded(images * factor), rounded(mean + (images - mean) * factor)
    for name, expected in zip(("brightness", "contrast"), wanted):
        if name == "brightness" or factor < 1:
            np.testing.assert_array_equal(as_transform(f"{name}:{factor}")(images), expected)


@pytest.mark.parametrize("spec", RC1)
def test_bytes_are_those_of_the_earlier_release(spec: str) -> None:
    images = noise(8)
    last, first = as_transform(spec)(images), as_transform(spec)(images.transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(first, last.transpose(0, 3, 1, 2))
    assert hashlib.md5(last.tobytes()).hexdigest()[:16] == RC1[spec]


@pytest.mark.parametrize("spec", ["zoom:0.8", "jpeg:50", "pixels:0.2"])
def test_threads_share_the_images_and_change_nothing(
    spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, transform = noise(13), as_transform(spec)
    monkeypatch.setenv("RECAL_NUM_THREADS", "1")
    alone = transform(images)
    monkeypatch.setenv("RECAL_NUM_THREADS", "3")
    np.testing.assert_array_equal(transform(images), alone)


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (3, 2), (5, 4)])
@pytest.mark.parametrize("n", [1, SMALL], ids=["few", "many"])
def test_images_of_few_pixels_have_weights_for_all(shape: tuple[int, int], n: int) -> None:
    """The weights of a band are read in pairs, and an image may have fewer pixels than a pair."""
    image = np.random.default_rng(1).integers(0, 256, (1, *shape), dtype=np.uint8)
    for spec, make in {
        "blur:1": (blurred, 1.0),
        "zoom:0.6": (zoomed, 0.6),
        "pixelate:0.5": (in_blocks, 0.5),
    }.items():
        rows, columns = (make[0](size, make[1]).matrix for size in shape)
        transform: Any = as_transform(f"{spec}:layout=NHW")
        result = transform(np.broadcast_to(image, (n, *shape)))
        np.testing.assert_array_equal(
            result[-1], rounded(rows @ image[0] @ columns.T), err_msg=spec
        )
