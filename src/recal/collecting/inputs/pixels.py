"""One image file as the pixels that a model wants: which formats are opened, and what becomes of each kind of pixel.

Pixels are those that the common loaders give (Pillow's ``convert("RGB")``), with two exceptions, where those are wrong
without a word: sixteen-bit grey, which they clip to white, and a photograph that says it lies on its side.
"""

from __future__ import annotations

import os
from typing import Literal

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from recal.errors import FileError, Remedy
from recal.files.gate import admit

# Pillow would try every format that it knows on a file of any name; some of them start other programs (EPS).
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")

Pixels = Literal["rgb", "gray", "rgba", "gray16"]

_UNREADABLE = (OSError, UnidentifiedImageError, SyntaxError, ValueError, KeyError, Image.DecompressionBombError)


def read_image(path: str | os.PathLike[str], pixels: Pixels = "rgb") -> Image.Image:
    """Return an image file, upright, as `pixels` says: "rgb", "gray", "rgba" with its alpha, or "gray16".

    Sixteen-bit grey keeps its high byte, as sixteen-bit colours do in Pillow. Palettes become their colours, CMYK and
    grey become RGB, alpha is dropped, of several frames the first is read. Thirty-two-bit pixels are refused: nothing
    in the file says which value is white. With "gray16" sixteen bits stay as they are, and eight are spread over them.
    """
    try:
        with Image.open(path, formats=FORMATS) as file:
            admit(path, 4 * file.width * file.height)  # from the header: nothing is decoded yet
            return _as_wanted(ImageOps.exif_transpose(file), file.format, pixels)
    except _UNREADABLE as error:
        raise FileError(
            f"The image {os.fspath(path)} cannot be read: {str(error).rstrip('.')}",
            remedy=Remedy(
                "Repair or remove it, or leave such files out with on_error='skip'",
                typed="Repair or remove it, or leave such files out with --on-error skip",
            ),
        ) from error


def _as_wanted(image: Image.Image, kind: str | None, pixels: Pixels) -> Image.Image:
    mode = {"rgb": "RGB", "gray": "L", "rgba": "RGBA", "gray16": "L"}[pixels]
    # "I" means thirty-two bits, but Pillow opens sixteen-bit PGM files so, and before its version 11 PNG files, too.
    if image.mode.startswith("I;16") or (image.mode == "I" and kind in ("PNG", "PPM")):
        values = np.asarray(image).astype(np.uint16)
        if pixels == "gray16":
            return Image.fromarray(values)
        return Image.fromarray((values >> 8).astype(np.uint8)).convert(mode)
    if image.mode in ("I", "F"):
        raise ValueError("its pixels have 32 bits, and nothing says which value is white; store it with 8 or 16 bits")
    if image.mode in ("P", "PA") and "transparency" in image.info:
        image = image.convert("RGBA")  # Pillow warns where this step is left out
    if pixels == "gray16":
        return Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)
    return image.convert(mode)
