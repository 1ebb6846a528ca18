"""Every transformation of images next to Pillow and OpenCV, and its cost in `collect`.

    python -m benchmarks.image_transforms [--small]

The images are photographs from scikit-learn, cut to 224 x 224; each library uses one thread. Pillow
goes from image to image: the conversion from and to arrays is not counted. Its Gaussian is an
approximation by boxes; every other filter equals recal's up to rounding. Pillow does not support
channels first, so it is timed in its own layout.
"""

from __future__ import annotations

import argparse
import gc
import os
from collections.abc import Callable
from functools import partial
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter
from sklearn.datasets import load_sample_images

from benchmarks.measuring import take_turns
from benchmarks.ratios import Ratio, table
from recal import collect
from recal.collecting import Normalize
from recal.transforms import as_transform, pool
from recal.transforms.pool import NAMED

PART = "Transformations of images, 224 x 224"
COLLECT = "Collecting uint8 images with a small network"
SIDE = 224
Filter = Callable[[Any], Any]
# The ratios of release 1.0.0rc1 in the same order: for each form, next to Pillow (if it has the
# filter) and OpenCV.
BEFORE: dict[str, tuple[float, ...]] = {
    "zoom:0.8": (7.81, 9.07, 8.09, 9.4, 5.56, 1.31, 2.4, 1.91, 3.52),
    "zoom:0.5": (9.55, 46.2, 12, 58.1, 7.12, 1.33, 3.17, 2.58, 6.13),
    "zoom:0.2": (13.9, 15.8, 15, 17, 9.5, 1.43, 2.66, 2.54, 4.74),
    "brightness:0.5": (19.9, 36.2, 26.1, 47.5, 10.4, 0.97, 4.12),
    "brightness:1.3": (13, 41.4, 15.1, 48.3, 15.1, 2.46, 6.46),
    "contrast:0.5": (9.23, 26.9, 11.3, 33, 7.26, 1.68, 3.52),
    "blur:0.6": (2.78, 16.9, 3.05, 18.5, 1.73, 3.83, 6.16),
    "blur:1": (2.56, 12.1, 2.7, 12.7, 2.43, 3.59, 4.69),
    "blur:3": (2.92, 3.76, 3.31, 4.26, 2.33, 1.61, 2.9),
    "pixelate:0.5": (17.4, 43, 17.3, 42.9, 9.32, 1.93, 3.76, 3.02, 5.88),
    "pixelate:0.35": (18.6, 15.1, 20.2, 16.4, 10.2, 2.81, 4.14, 4.28, 6.3),
    "crop:0.9": (7.71, 36.5, 8.48, 40.1, 5.07, 1.44, 6.14, 1.93, 8.25),
    "zoomin:1.1": (7.16, 34.7, 8.21, 39.8, 5.89, 1.33, 5.62, 2.11, 8.92),
    "jpeg:50": (8.93, 11.3, 9.36, 11.9, 3.36),
    "flip": (1.22, 1.62, 4.2, 5.57, 0.93, 1.01, 2.16, 2.12, 4.51),
    "auto 224": (4.29,),
    "damage 224": (5.94,),
    "auto 32": (4.09,),
    "damage 32": (10.9,),
}


def photographs(n: int, side: int) -> np.ndarray:
    """Return squares of two photographs, (n, side, side, 3)."""
    pictures, rng = load_sample_images().images, np.random.default_rng(0)
    squares = []
    for index in range(n):
        picture = pictures[index % len(pictures)]
        top, left = (int(rng.integers(0, size - side)) for size in picture.shape[:2])
        squares.append(picture[top : top + side, left : left + side])
    return np.stack(squares)


def _shrunk(scale: float) -> Filter:
    inner = round(SIDE * scale)

    def shrink(image: Image.Image) -> Image.Image:
        black = Image.new(image.mode, image.size)
        black.paste(
            image.resize((inner, inner), Image.Resampling.BILINEAR), ((SIDE - inner) // 2,) * 2
        )
        return black

    return shrink


def _through_jpeg(image: Image.Image) -> Image.Image:
    buffer = BytesIO()
    image.save(buffer, "JPEG", quality=50)
    read = Image.open(buffer)
    read.load()
    return read


def _in_blocks(scale: float) -> Filter:
    blocks = round(SIDE * scale)

    def block(image: Image.Image) -> Image.Image:
        small = image.resize((blocks, blocks), Image.Resampling.BOX)
        return small.resize((SIDE, SIDE), Image.Resampling.NEAREST)

    return block


def _cut(share: float, begin: float = 0.0) -> Filter:
    box = (begin * SIDE, begin * SIDE, (begin + share) * SIDE, (begin + share) * SIDE)
    return lambda image: image.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box=box)


PILLOW: dict[str, Filter] = {
    "zoom:0.8": _shrunk(0.8),
    "zoom:0.5": _shrunk(0.5),
    "zoom:0.2": _shrunk(0.2),
    "brightness:0.5": lambda image: ImageEnhance.Brightness(image).enhance(0.5),
    "brightness:1.3": lambda image: ImageEnhance.Brightness(image).enhance(1.3),
    "contrast:0.5": lambda image: ImageEnhance.Contrast(image).enhance(0.5),
    "blur:0.6": lambda image: image.filter(ImageFilter.GaussianBlur(0.6)),
    "blur:1": lambda image: image.filter(ImageFilter.GaussianBlur(1)),
    "blur:3": lambda image: image.filter(ImageFilter.GaussianBlur(3)),
    "pixelate:0.5": _in_blocks(0.5),
    "pixelate:0.35": _in_blocks(0.35),
    "crop:0.9": _cut(0.9),
    "zoomin:1.1": _cut(1 / 1.1, (1 - 1 / 1.1) / 2),
    "jpeg:50": _through_jpeg,
    "flip": lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
}
# Filters that Pillow also has for images of floats.
OF_FLOATS = ("zoom", "pixelate", "crop", "zoomin", "flip")


def opencv_filters() -> dict[str, Filter]:
    """Return the same work in OpenCV; nothing, and a message, where it is not installed."""
    try:
        import cv2
    except ImportError:
        print("OpenCV is left out: pip install opencv-python-headless")
        return {}
    cv2.setNumThreads(1)

    def shrunk(scale: float) -> Filter:
        inner, after = (
            round(SIDE * scale),
            SIDE - round(SIDE * scale) - (SIDE - round(SIDE * scale)) // 2,
        )
        before = SIDE - inner - after

        def shrink(x: Any) -> Any:
            small = cv2.resize(x, (inner, inner), interpolation=cv2.INTER_AREA)
            return cv2.copyMakeBorder(small, before, after, before, after, cv2.BORDER_CONSTANT)

        return shrink

    def in_blocks(scale: float) -> Filter:
        blocks = round(SIDE * scale)

        def block(x: Any) -> Any:
            small = cv2.resize(x, (blocks, blocks), interpolation=cv2.INTER_AREA)
            return cv2.resize(small, (SIDE, SIDE), interpolation=cv2.INTER_NEAREST)

        return block

    def through_jpeg(x: Any) -> Any:
        return cv2.imdecode(
            cv2.imencode(".jpg", x, [cv2.IMWRITE_JPEG_QUALITY, 50])[1], cv2.IMREAD_COLOR
        )

    def towards_mean(x: Any) -> Any:
        mean = float(np.mean(cv2.mean(x)[:3]))
        return cv2.addWeighted(x, 0.5, x, 0.0, 0.5 * mean)

    edge, share, begin = cv2.BORDER_REPLICATE, int(0.9 * SIDE), int(SIDE * (1 - 1 / 1.1) / 2)
    return {
        "zoom:0.8": shrunk(0.8),
        "zoom:0.5": shrunk(0.5),
        "zoom:0.2": shrunk(0.2),
        "brightness:0.5": lambda x: cv2.addWeighted(x, 0.5, x, 0.0, 0.0),
        "brightness:1.3": lambda x: cv2.addWeighted(x, 1.3, x, 0.0, 0.0),
        "contrast:0.5": towards_mean,
        "blur:0.6": lambda x: cv2.GaussianBlur(x, (7, 7), 0.6, borderType=edge),
        "blur:1": lambda x: cv2.GaussianBlur(x, (9, 9), 1, borderType=edge),
        "blur:3": lambda x: cv2.GaussianBlur(x, (25, 25), 3, borderType=edge),
        "pixelate:0.5": in_blocks(0.5),
        "pixelate:0.35": in_blocks(0.35),
        "crop:0.9": lambda x: cv2.resize(x[:share, :share], (SIDE, SIDE)),
        "zoomin:1.1": lambda x: cv2.resize(
            x[begin : SIDE - begin, begin : SIDE - begin], (SIDE, SIDE)
        ),
        "jpeg:50": through_jpeg,
        "flip": lambda x: cv2.flip(x, 1),
    }


def each(function: Filter, images: Any) -> Callable[[], Any]:
    return lambda: [function(image) for image in images]


def beside_others(small: bool) -> list[Ratio]:
    n, turns = (2, 1) if small else (8, 5)
    last = photographs(n, SIDE)
    floats = last.astype(np.float32) / 255
    forms = {
        "uint8 NCHW": np.ascontiguousarray(last.transpose(0, 3, 1, 2)),
        "uint8 NHWC": last,
        "uint8 NHW": np.ascontiguousarray(last[..., 0]),
        "float32 NCHW": np.ascontiguousarray(floats.transpose(0, 3, 1, 2)),
        "float32 NHWC": floats,
    }
    colour, grey = (
        [Image.fromarray(image) for image in last],
        [Image.fromarray(image) for image in last[..., 0]],
    )
    planes = [Image.fromarray(plane) for image in forms["float32 NCHW"] for plane in image]
    opencv, found = opencv_filters(), []
    for spec, filter_ in PILLOW.items():
        transform: Any = as_transform(spec)
        work: dict[str, Callable[[], Any]] = {
            form: partial(transform, x) for form, x in forms.items()
        }
        work |= {"Pillow": each(filter_, colour), "Pillow, grey": each(filter_, grey)}
        if spec.split(":")[0] in OF_FLOATS:
            work["Pillow, plane by plane"] = each(filter_, planes)
        if opencv:
            work["OpenCV"] = each(opencv[spec], last)
            if not spec.startswith("jpeg"):
                work["OpenCV, floats"] = each(opencv[spec], floats)
        times = {name: timing.cpu / n for name, timing in take_turns(work, turns).items()}
        pairs = [(form, peer) for form in forms for peer in _peers(form) if peer in work]
        earlier = BEFORE[spec] if opencv else (None,) * len(pairs)
        for (form, peer), before in zip(pairs, earlier, strict=True):
            target = 1.5 if peer.startswith("Pillow") else None
            found.append(
                Ratio(PART, f"{spec}, {form}", peer, times[form], times[peer], target, before)
            )
    return found


def _peers(form: str) -> tuple[str, ...]:
    """Who does the same to images of this form."""
    if form.startswith("float"):
        return "Pillow, plane by plane", "OpenCV, floats"
    return ("Pillow, grey",) if form == "uint8 NHW" else ("Pillow", "OpenCV")


def in_a_collect(small: bool) -> list[Ratio]:
    """collect of the two usual pools beside the network alone, asked as often: what is above 1 is
    the pixels' work.
    """
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.AvgPool2d(8), torch.nn.Flatten(), torch.nn.LazyLinear(10)
    ).eval()
    prepare, found = Normalize(mean=0.5, std=0.25), []
    for side, n in ((SIDE, 4 if small else 32), (32, 16 if small else 512)):
        images = np.ascontiguousarray(photographs(n, side).transpose(0, 3, 1, 2))
        network[2] = torch.nn.Linear(3 * (side // 8) ** 2, 10)
        for name, specs in (("auto", NAMED["auto"]["image"]), ("damage", NAMED["damage"]["image"])):
            transforms = pool(specs)

            def alone(images: Any = images, passes: int = len(transforms) + 1) -> None:
                with torch.no_grad():
                    for _ in range(passes):
                        network(prepare(torch.from_numpy(images)))

            work = {
                "collect": lambda x=images, specs=specs, n=n: collect(
                    network, x, specs, preprocess=prepare, batch_size=n
                ),
                "alone": alone,
            }
            times = take_turns(work, 1 if small else 3)
            what = f"pool {name}, {len(transforms)} views, {n} images of {side} x {side}"
            before = BEFORE[f"{name} {side}"][0]
            ours, theirs = times["collect"].cpu, times["alone"].cpu
            found.append(Ratio(COLLECT, what, "the network alone", ours, theirs, None, before))
    return found


def ratios(small: bool) -> list[Ratio]:
    threads = os.environ.get("RECAL_NUM_THREADS")
    os.environ["RECAL_NUM_THREADS"] = "1"
    gc.freeze()  # each turn starts with a garbage collection, which would take longer than the measured work
    try:
        return beside_others(small) + in_a_collect(small)
    finally:
        gc.unfreeze()
        if threads is None:
            del os.environ["RECAL_NUM_THREADS"]
        else:
            os.environ["RECAL_NUM_THREADS"] = threads


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--small", action="store_true", help="a few images, once: to see that it runs"
    )
    found = ratios(parser.parse_args().small)
    print("\n".join(table(found)))


if __name__ == "__main__":
    main()
