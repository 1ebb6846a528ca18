"""Write docs/transformations.md and its pictures from the classes themselves: python
docs/make/transformations.py
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from recal.transforms import TRANSFORMS, BuiltIn, format_strength, pool
from recal.transforms.pools import USUAL

DOCS = Path(__file__).parents[1]
PAGE, PICTURES = DOCS / "transformations.md", DOCS / "images" / "transformations"
SIDE, WIDE, HIGH = 96, 150, 70
TEXT = "It rains. The cat is wet, and does not mind at all. Nobody else is out in the street."
ROW = np.array([[5.1, 3.5, 1.4, 0.2, 37.0, 12.0]])
DATA = (
    np.random.default_rng(0)
    .normal([5, 3, 1, 0, 40, 10], [1, 1, 0.5, 0.2, 10, 3], (200, 6))
    .round(1)
)
ORDER = ("image", "video", "series", "audio", "text", "tabular")
TITLES = {
    "image": "Images",
    "video": "Video",
    "series": "Series",
    "audio": "Sound",
    "text": "Text",
    "tabular": "Tables",
}
FIRST = {
    "image": "Mirrors and shifts of a pixel or two gain most with stacking, where a mirrored "
    "object is still the same object (not for digits or letters). For ReCal begin with "
    "`zoom:0.5-0.9:10`, then add `brightness`. An image of 224 x 224 x 3 bytes takes 0.1 to 3 ms "
    "per transformation and core; `RECAL_NUM_THREADS` limits the cores.",
    "video": "Every kind for images acts on each frame, too.",
    "series": "`timeshift` where it does not matter when something happens; for ReCal `drop` and "
    "`coarse`. Time is the last axis; for (n, time, channels) add `:axis=1`. Series of different "
    "lengths come as a list of arrays.",
    "audio": "`timeshift`, then `noise` and `lowpass` as a poor line would. All kinds for series "
    "act on sounds, too.",
    "text": "`cut` keeps sentences as they were written and is the cheapest first try; `tokendrop` "
    "is harsher. A token is a word between blanks; a tokenizer of your own goes into the "
    "preprocessing.",
    "tabular": "`missing` where the model knows missing values (boosted trees, pipelines with an "
    "imputer), otherwise `median`. `median` and `permute` learn from training rows: "
    "`pool('median:0.1-0.6:8', data=X_train)`. Frames of pandas, polars and pyarrow keep their "
    "columns' names.",
}

EXAMPLES = {"text": f"*{TEXT}*", "tabular": "5.1; 3.5; 1.4; 0.2; 37; 12"}


def main() -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    for kind in TRANSFORMS:
        if kind.modality in ("image", "video", "series", "audio"):
            strip(kind).save(PICTURES / f"{kind.kind}.png", optimize=True)
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE} and {len(list(PICTURES.glob('*.png')))} pictures written")


def page() -> str:
    """Return the page's text."""
    parts = [HEAD]
    for modality in ORDER:
        parts.append(f"## {TITLES[modality]}\n\n{FIRST[modality]}\n")
        if modality in EXAMPLES:
            parts.append(f"The examples begin with: {EXAMPLES[modality]}\n")
        if modality in USUAL:
            parts.append(f"Default pool:\n\n```text\n{USUAL[modality]}\n```\n")
        parts += [section(kind) for kind in TRANSFORMS if kind.modality == modality]
    return "\n".join(parts)


HEAD = """# Transformations

`recal transforms` prints this list, `recal transforms KIND` the details of one kind.

A transformation keeps an input's label and removes or moves other information. How the model reacts
shows how confident it should be. ReCal uses kinds that *lose* information; stacking prefers kinds
that *keep* it. Each kind makes an assumption about the task: check it before you choose.

> **The spec language.** A [pool](glossary.md) is parts joined by `+`. A part is
>
> | written | means |
> |---|---|
> | `zoom:0.8` | one transformation, of that strength |
> | `zoom:0.5-0.9:10` | ten strengths from a grid of step 0.01; the seed decides which |
> | `zoom` | ten strengths from its useful range; for `flip` and `shift` the one that is meant |
> | `zoom:0.8:layout=NHWC` | options come last, as `name=value` |
> | `zoom:0.8+flip` | both |
>
> The same text is typed after `--pool`, passed to `recal.pool(...)`, and stored as the names of
> views.

`--pool auto` is the default pool of the kind of input; name it, such as `auto:image`, where the
inputs do not say what they are. All kinds for images take the option `layout`, those for video,
series and sound `axis`, and random ones `seed`. Pictures show the input as it is, then from weak to
strong.
"""


def section(kind: type[BuiltIn]) -> str:
    what = " ".join((inspect.getdoc(kind) or "").partition("\n\n")[0].split()).replace("``", "`")
    low, high = sorted((kind.strengths.weak, kind.strengths.strong))
    facts = ["keeps everything" if kind.keeps_information else "loses"]
    if kind.has_strength:
        useful = f"useful {low:g} to {high:g}"
        facts.append(f"{useful}, {kind.strengths.identity:g} changes nothing")
    shown_options = ", ".join(
        f"`{name}={_shown(value)}`"
        for name, value in kind.options().items()
        if name not in ("layout", "axis", "seed")
    )
    options = f" Options: {shown_options}." if shown_options else ""
    lines = [
        f"### {kind.kind}\n",
        f"{what}\n",
        f"*{'; '.join(facts)}.* Assumes that {kind.assumes}.{options}\n",
    ]
    return "\n".join([*lines, shown(kind)])


def shown(kind: type[BuiltIn]) -> str:
    """The kind at work: a picture, or what it makes of the section's example."""
    if kind.modality in ("image", "video", "series", "audio"):
        names = ", ".join(str(t) for t in examples(kind))
        return f"![{names}](images/transformations/{kind.kind}.png)\n"
    middle = examples(kind)[1]
    if kind.modality == "text":
        return f"`{middle}`: *{middle([TEXT])[0]}*\n"
    return f"`{kind.kind}:{middle.strength:g}`: {_cells(middle(ROW))}\n"


def examples(kind: type[BuiltIn]) -> tuple[Any, ...]:
    """Three strengths from weak to strong; the one there is, for a kind without strengths."""
    if not kind.has_strength:
        return pool(kind.kind)
    weak, strong, step = kind.strengths.weak, kind.strengths.strong, kind.strengths.step
    values = [round(value / step) * step for value in (weak, (weak + strong) / 2, strong)]
    return tuple(
        pool(
            [f"{kind.kind}:{format_strength(value)}" for value in dict.fromkeys(values)], data=DATA
        )
    )


def strip(kind: type[BuiltIn]) -> Image.Image:
    """The original and three strengths side by side."""
    if kind.modality == "image":
        tiles = [
            scene(),
            *(Image.fromarray(t(np.asarray(scene())[None])[0]) for t in examples(kind)),
        ]
    elif kind.modality == "video":
        film = np.stack(
            [np.roll(np.asarray(scene().resize((48, 48))), 6 * step, axis=1) for step in range(6)]
        )[None]
        tiles = [
            Image.fromarray(np.concatenate(list(video[0]), axis=1))
            for video in (film, *(t(film) for t in examples(kind)))
        ]
        return stacked(tiles, down=True)
    else:
        wave = sound()
        tiles = [curve(wave), *(curve(t(wave[None])[0]) for t in examples(kind))]
    return stacked(tiles)


def stacked(tiles: list[Image.Image], down: bool = False) -> Image.Image:
    width, height = tiles[0].size
    gap = 4
    size = (
        (width, len(tiles) * (height + gap) - gap)
        if down
        else (len(tiles) * (width + gap) - gap, height)
    )
    whole = Image.new("RGB", size, "white")
    for place, tile in enumerate(tiles):
        whole.paste(tile, (0, place * (height + gap)) if down else (place * (width + gap), 0))
    return whole.quantize(64, dither=Image.Dither.NONE)


def scene() -> Image.Image:
    """A house, a tree and the sun: something with an inside, an outside, and a left and a right."""
    picture = Image.new("RGB", (SIDE, SIDE), "#8ecae6")
    draw = ImageDraw.Draw(picture)
    draw.rectangle((0, 66, SIDE, SIDE), fill="#6a994e")
    draw.ellipse((68, 8, 88, 28), fill="#ffd166")
    draw.rectangle((14, 44, 54, 80), fill="#e5989b", outline="#6d6875")
    draw.polygon(((9, 44), (34, 22), (59, 44)), fill="#9d0208")
    draw.rectangle((28, 60, 40, 80), fill="#5e503f")
    draw.rectangle((19, 50, 27, 58), fill="#fefae0", outline="#6d6875")
    draw.rectangle((74, 58, 79, 80), fill="#7f5539")
    draw.ellipse((63, 34, 90, 64), fill="#386641")
    return picture


def sound() -> np.ndarray:
    """Two strokes that die away, the second one higher."""
    time = np.arange(300)
    early = np.exp(-time / 60) * np.sin(time / 4)
    late = np.where(time > 150, np.exp(-(time - 150) / 40) * np.sin((time - 150) / 2), 0)
    return 0.6 * early + 0.5 * late


def curve(wave: np.ndarray) -> Image.Image:
    picture = Image.new("RGB", (WIDE, HIGH), "#f4f4f4")
    draw = ImageDraw.Draw(picture)
    draw.line((0, HIGH / 2, WIDE, HIGH / 2), fill="#c8c8c8")
    heights = HIGH / 2 - wave.clip(-1, 1) * (HIGH / 2 - 3)
    places = np.linspace(0, WIDE - 1, len(wave))
    draw.line([(float(x), float(y)) for x, y in zip(places, heights)], fill="#1d3557")
    return picture


def _cells(rows: np.ndarray) -> str:
    return "; ".join(f"{value:.3g}" if np.isfinite(value) else "missing" for value in rows[0])


def _shown(value: Any) -> str:
    return "from data" if value == () else str(value)


if __name__ == "__main__":
    main()
