"""Following beyond photographs: sounds, series, images of digits and a table, each with damage that
no view resembles.

    python -m benchmarks.following_elsewhere --draws 3

Sounds and series are synthesised, digits and table come from scikit-learn, and each model is a
small network trained here. Views are those of the pool "damage" of the modality; the damages below
are of other kinds. The columns are those of `benchmarks.following`.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

from benchmarks.following import HEAD, Fit, Judged, judge, row
from recal import TemperatureScaling, collect, decide, pool, profile
from recal.errors import DoubtfulLabelsWarning, FewSamplesWarning, SameRowsWarning

Damage = Callable[[np.ndarray, np.random.Generator], np.ndarray]


class World(NamedTuple):
    """Inputs with labels, what a model reads of them, the views, and damages of other kinds."""

    inputs: np.ndarray
    labels: np.ndarray
    features: Callable[[np.ndarray], np.ndarray]
    pool: str
    damages: dict[str, Damage]
    confident: float = 6.0


def sounds() -> World:
    """Ten words, each two vowels of three formants and a burst of noise between them, at 4 kHz."""
    rng, n, length = np.random.default_rng(0), 4000, 2000
    y, time = rng.integers(0, 10, n), np.arange(length) / 4000
    formants = np.random.default_rng(7).uniform([250, 700, 1300], [700, 1300, 1900], (10, 2, 3))
    waves = np.zeros((n, length))
    for half in range(2):
        pitch = formants[y, half] * rng.normal(1, 0.06, (n, 3))
        loud = rng.uniform(0.3, 1, (n, 3, 1))
        begin = rng.uniform(0.02, 0.08, (n, 1)) + 0.22 * half
        envelope = np.exp(-((((time - begin - 0.1) / 0.06) ** 2) / 2))
        tones = np.sin(2 * np.pi * (pitch[:, :, None] * time) + rng.uniform(0, 6.3, (n, 3, 1)))
        waves += envelope * (loud * tones).sum(1)
    waves += rng.normal(0, 0.25, waves.shape) * rng.uniform(0.3, 1.5, (n, 1))
    waves = (0.2 * waves).astype(np.float32)

    def spectra(batch: np.ndarray) -> np.ndarray:
        frames = np.asarray(batch, np.float64)[:, : 2000 // 125 * 125].reshape(
            len(batch), -1, 125
        ) * np.hanning(125)
        return np.log(np.abs(np.fft.rfft(frames, axis=2))[:, :, ::2] + 0.01).reshape(len(batch), -1)

    def band(batch: np.ndarray, keep: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        bins = np.fft.rfftfreq(length, 1 / 4000)
        return np.fft.irfft(np.fft.rfft(batch, axis=1) * keep(bins), length, axis=1)

    def reverb(batch: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        room = rng.normal(size=800) * np.exp(-np.arange(800) / 200)
        room[0] = 4
        size = length + 799
        return np.fft.irfft(np.fft.rfft(batch, size) * np.fft.rfft(room / 6, size), size)[
            :, :length
        ]

    def faster(batch: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return np.stack(
            [np.interp(np.arange(length) * 1.15, np.arange(length), one, right=0) for one in batch]
        )

    return World(
        waves,
        y,
        spectra,
        "damage:audio",
        {
            "clipping": lambda x, rng: np.clip(x, -0.05, 0.05),
            "reverb": reverb,
            "hum": lambda x, rng: (
                x + 0.3 * np.sin(2 * np.pi * 200 * time) + 0.2 * np.sin(2 * np.pi * 400 * time)
            ),
            "high-pass": lambda x, rng: band(x, lambda bins: (bins > 700) * 1.0),
            "faster": faster,
            "rumble": lambda x, rng: (
                x + band(rng.normal(0, 0.5, x.shape), lambda bins: (bins < 300) * 1.0)
            ),
            "late start": lambda x, rng: np.roll(x, 250, axis=1) * (np.arange(length) >= 250),
            "band with noise": lambda x, rng: band(
                x + rng.normal(0, 0.1, x.shape), lambda b: (abs(b - 1000) < 500) * 1.0
            ),
            "crackle": lambda x, rng: np.where(
                rng.random(x.shape) < 0.02, rng.normal(0, 1, x.shape), x
            ),
        },
    )


def series() -> World:
    """Six classes of two-wave series with a trend, 128 values."""
    rng, n, length = np.random.default_rng(1), 4000, 128
    y, time = rng.integers(0, 6, n), np.arange(length) / 128
    slow, fast = np.array([2, 3, 4, 2, 3, 4])[y], np.array([9, 9, 9, 13, 13, 13])[y]
    phase = rng.uniform(0, 6.3, (2, n, 1))
    values = np.sin(2 * np.pi * slow[:, None] * rng.normal(1, 0.05, (n, 1)) * time + phase[0])
    values += 0.6 * np.sin(
        2 * np.pi * fast[:, None] * rng.normal(1, 0.05, (n, 1)) * time + phase[1]
    )
    values = (values + rng.normal(0, 0.5, values.shape)).astype(np.float32)

    def spectra(batch: np.ndarray) -> np.ndarray:
        return np.log(np.abs(np.fft.rfft(np.asarray(batch, np.float64), axis=1))[:, :32] + 0.1)

    return World(
        values,
        y,
        spectra,
        "damage:series",
        {
            "drift": lambda x, rng: x + 3 * time,
            "spikes": lambda x, rng: np.where(
                rng.random(x.shape) < 0.03, x + rng.normal(0, 5, x.shape), x
            ),
            "clipping": lambda x, rng: np.clip(x, -0.4, 0.4),
            "warped": lambda x, rng: x[:, (length * time**1.15).astype(int)],
            "smooth": lambda x, rng: np.stack(
                [np.convolve(one, np.ones(9) / 9, "same") for one in x]
            ),
            "walk": lambda x, rng: x + 0.1 * rng.normal(size=x.shape).cumsum(1),
            "stuck": lambda x, rng: np.where(np.arange(length) > 80, x[:, 80:81], x),
        },
    )


def digits() -> World:
    """Handwritten digits of 8 x 8 pixels, enlarged to 24 x 24."""
    data = load_digits()
    images = np.kron(data.images * 15.9, np.ones((3, 3))).astype(np.uint8)[..., None]

    def gray(batch: np.ndarray) -> np.ndarray:
        return np.asarray(batch, np.float64).reshape(len(batch), -1) / 255

    def shifted(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return np.roll(x, 4, axis=2)

    def fog(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return 0.5 * x + 100 + 40 * np.sin(np.arange(24) / 5)[None, :, None, None]

    def occluded(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        out = np.array(x)
        out[:, 6:13, 6:13] = 0
        return out

    return World(
        images,
        data.target,
        gray,
        "damage",
        {
            "noise": lambda x, rng: x + rng.normal(0, 110, x.shape),
            "fog": fog,
            "bright": lambda x, rng: x * 1.0 + 90,
            "inverted contrast": lambda x, rng: 200 - 0.6 * x,
            "occluded": occluded,
            "shifted": shifted,
            "motion": lambda x, rng: (
                sum(np.roll(x.astype(float), k, axis=2) for k in range(-5, 6)) / 11
            ),
            "stripes": lambda x, rng: np.where(np.arange(24)[:, None, None] % 6 < 2, 0, x),
        },
        confident=3.0,
    )


def table() -> World:
    """A table of 20 numbers, of which some are measured twice: the class is that of the nearest of
    24 centres.
    """
    rng, n = np.random.default_rng(3), 4000
    centres = rng.normal(0, 1.3, (24, 20))
    which = rng.integers(0, 24, n)
    values = (centres[which] + rng.normal(0, 1.6, (n, 20))).astype(np.float32)
    return World(
        values,
        which % 4,
        lambda batch: np.nan_to_num(np.asarray(batch, np.float64)),
        "damage:tabular",
        {
            "two columns missing": lambda x, rng: np.where(np.arange(20) < 2, np.nan, x),
            "eight columns missing": lambda x, rng: np.where(np.arange(20) < 8, np.nan, x),
            "other unit": lambda x, rng: np.where(np.arange(20) < 2, 2.5 * x, x),
            "drift": lambda x, rng: x + 0.6,
            "outliers": lambda x, rng: np.where(
                rng.random(x.shape) < 0.05, rng.normal(0, 10, x.shape), x
            ),
            "sign lost": lambda x, rng: np.where(np.arange(20) < 3, np.abs(x), x),
        },
    )


def silence_warnings() -> None:
    for kind in (SameRowsWarning, FewSamplesWarning, DoubtfulLabelsWarning, ConvergenceWarning):
        warnings.simplefilter("ignore", kind)


def study(name: str, world: World, draws: int, apart: Sequence[str] = ()) -> None:
    """Print a row for all damages, one for those in `apart`, one for undamaged inputs and one for
    each damage.
    """
    judged: list[Judged] = []
    clean: list[Judged] = []
    lines: dict[str, list[Judged]] = {}
    for draw in range(draws):
        rng = np.random.default_rng(draw)
        order = rng.permutation(len(world.labels))
        n = len(order)
        train, pilot, rest = np.split(order, [int(0.35 * n), int(0.6 * n)])
        hidden = MLPClassifier((64,), alpha=1e-4, max_iter=150, random_state=draw)
        hidden.fit(world.features(world.inputs[train]), world.labels[train])

        def model(batch: np.ndarray, hidden: MLPClassifier = hidden) -> np.ndarray:
            logs = hidden.predict_log_proba(world.features(batch))
            return world.confident / 3.0 * np.maximum(logs, -60).astype(np.float32)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            drawn = (
                pool(world.pool, data=world.inputs[train])
                if "tabular" in world.pool
                else world.pool
            )
            views = collect(
                model, world.inputs[pilot], drawn, labels=world.labels[pilot], progress=False
            )
        kept = profile(views)
        calibrator = TemperatureScaling().fit(views.logits, views.labels)
        half = len(rest) // 3
        rule = decide(
            calibrator.predict_proba(model(world.inputs[rest[:half]])),
            world.labels[rest[:half]],
            risk=0.05,
        ).rule
        made, tested = Fit(kept, calibrator, rule), rest[half:]
        clean.append(judge(made, model(world.inputs[tested]), world.labels[tested]))
        for damage, change in world.damages.items():
            inputs = change(world.inputs[tested], np.random.default_rng([draw, 1]))
            inputs = (
                np.clip(inputs, 0, 255).astype(np.uint8)
                if world.inputs.dtype == np.uint8
                else inputs
            )
            found = judge(made, model(inputs), world.labels[tested])
            lines.setdefault(damage, []).append(found)
            judged.append(found)
    print(row(f"**{name}**, {len(world.damages)} damages", judged), flush=True)
    if apart:
        print(
            row(f"{name}, unlike any view", [one for damage in apart for one in lines[damage]]),
            flush=True,
        )
    print(row(f"{name}, undamaged", clean), flush=True)
    for damage, found_of_it in lines.items():
        print(row(f"{name}: {damage}", found_of_it), flush=True)


WORLDS = {"sounds": sounds, "series": series, "digits": digits, "table": table}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--only", choices=WORLDS)
    given = parser.parse_args()
    silence_warnings()
    print(HEAD)
    for name, make in WORLDS.items():
        if given.only in (None, name):
            study(name, make(), given.draws)


if __name__ == "__main__":
    main()
