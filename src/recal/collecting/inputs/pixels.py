"""One image file as eight-bit RGB pixels: which formats are opened, and what becomes of each kind of pixel.

Pixels are those that the common loaders give (Pillow's ``convert("RGB")``), with two exceptions, where those are wrong
without a word: sixteen-bit grey, which they clip to white, and a photograph that says it lies on its side.
"""

from __future__ import annotations

import os

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from recal.errors import FileError

# Pillow would try every format that it knows on a file of any name; some of them start other programs (EPS).
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")

_UNREADABLE = (OSError, UnidentifiedImageError, SyntaxError, ValueError, KeyError, Image.DecompressionBombError)


def read_image(path: str | os.PathLike[str]) -> Image.Image:
    """Return an image file as upright RGB.

    Sixteen-bit grey keeps its high byte, as sixteen-bit colours do in Pillow. Palettes become their colours, CMYK and
    grey become RGB, alpha is dropped, of several frames the first is read. Thirty-two-bit pixels are refused: nothing
    in the file says which value is white.
    """
    try:
        with Image.open(path, formats=FORMATS) as file:
            return _as_rgb(ImageOps.exif_transpose(file), file.format)
    except _UNREADABLE as error:
        raise FileError(
            f"The image {os.fspath(path)} cannot be read: {str(error).rstrip('.')}. Mend or remove it, or leave such "
            "out with on_error='skip'."
        ) from error


def _as_rgb(image: Image.Image, kind: str | None) -> Image.Image:
    # "I" means thirty-two bits, but Pillow opens sixteen-bit PGM files so, and before its version 11 PNG files, too.
    if image.mode.startswith("I;16") or (image.mode == "I" and kind in ("PNG", "PPM")):
        return Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8)).convert("RGB")
    if image.mode in ("I", "F"):
        raise ValueError("its pixels have 32 bits, and nothing says which value is white; store it with 8 or 16 bits")
    if image.mode in ("P", "PA") and "transparency" in image.info:
        image = image.convert("RGBA")  # Pillow warns where this step is left out
    return image.convert("RGB")
