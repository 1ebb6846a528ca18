"""Following on recorded speech: a classifier of speakers, with nine kinds of damage.

    apt-get download asterisk-core-sounds-{en,es,fr,it,ru}-wav && for one in *.deb; do dpkg -x $one
    speech; done python -m benchmarks.following_speech speech/usr/share/asterisk/sounds --draws 2

Each folder below the given one is a class: its .wav files (8 kHz, 16 bits) are cut into pieces of
0.3 s. A small network reads their spectra. The columns are those of `benchmarks.following`; four of
the damages resemble a view (clipping, reverb, high-pass, faster), five do not.
"""

from __future__ import annotations

import argparse
import wave
from pathlib import Path

import numpy as np

from benchmarks.following import HEAD
from benchmarks.following_elsewhere import Damage, World, silence_warnings, study

RATE, LENGTH, FRAME, PER_CLASS = 8000, 2400, 200, 1000
LOUD = 0.03  # root mean square of a piece that is not a pause
UNSEEN = ("hum", "drops", "rumble", "band with noise", "late start")


def speech(folder: Path) -> World:
    pieces, labels, rng = [], [], np.random.default_rng(0)
    for label, speaker in enumerate(sorted(path for path in folder.iterdir() if path.is_dir())):
        files = sorted(path for path in speaker.rglob("*.wav") if not path.is_symlink())
        own: list[np.ndarray] = []
        for at in rng.permutation(len(files)):
            with wave.open(str(files[at])) as heard:
                sound = np.frombuffer(heard.readframes(heard.getnframes()), "<i2") / 32768
            cut = sound[: len(sound) // LENGTH * LENGTH].reshape(-1, LENGTH)
            own += list(cut[np.sqrt((cut**2).mean(axis=1)) > LOUD])
            if len(own) >= PER_CLASS:
                break
        pieces += own
        labels += [label] * len(own)
    sounds = np.array(pieces) + rng.normal(0, 0.003, (len(pieces), LENGTH))
    return World(
        np.clip(sounds, -1, 1).astype(np.float32),
        np.array(labels),
        spectra,
        "damage:audio",
        damages(),
    )


def spectra(batch: np.ndarray) -> np.ndarray:
    frames = np.asarray(batch, np.float64).reshape(len(batch), -1, FRAME) * np.hanning(FRAME)
    loud = np.log(np.abs(np.fft.rfft(frames, axis=2))[:, :, 1:100] + 0.02)
    return loud.reshape(len(batch), LENGTH // FRAME, 33, 3).mean(axis=3).reshape(len(batch), -1)


def damages() -> dict[str, Damage]:
    time, bins = np.arange(LENGTH) / RATE, np.fft.rfftfreq(LENGTH, 1 / RATE)

    def band(x: np.ndarray, kept: np.ndarray) -> np.ndarray:
        return np.fft.irfft(np.fft.rfft(x, axis=1) * kept, LENGTH, axis=1)

    def reverb(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        room = rng.normal(size=LENGTH) * np.exp(-np.arange(LENGTH) / 800)
        room[0] = 8
        return np.fft.irfft(
            np.fft.rfft(x, 2 * LENGTH) * np.fft.rfft(room / 12, 2 * LENGTH), 2 * LENGTH
        )[:, :LENGTH]

    def drops(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        lost = rng.integers(0, LENGTH - 300, (len(x), 5, 1))
        at = np.arange(LENGTH)
        return np.where(((at >= lost) & (at < lost + 300)).any(axis=1), 0.0, x)

    return {
        "clipping": lambda x, rng: np.clip(x, -0.04, 0.04),
        "reverb": reverb,
        "hum": lambda x, rng: (
            x + 0.05 * np.sin(200 * np.pi * time) + 0.03 * np.sin(600 * np.pi * time)
        ),
        "high-pass": lambda x, rng: band(x, bins > 900),
        "faster": lambda x, rng: np.stack(
            [np.interp(np.arange(LENGTH) * 1.2, np.arange(LENGTH), one, right=0) for one in x]
        ),
        "drops": drops,
        "rumble": lambda x, rng: x + band(rng.normal(0, 0.3, x.shape), bins < 250),
        "band with noise": lambda x, rng: band(
            x + rng.normal(0, 0.03, x.shape), abs(bins - 1800) < 1400
        ),
        "late start": lambda x, rng: np.roll(x, 600, axis=1) * (np.arange(LENGTH) >= 600),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--draws", type=int, default=2)
    given = parser.parse_args()
    silence_warnings()
    print(HEAD)
    study("speech", speech(given.folder), given.draws, apart=UNSEEN)


if __name__ == "__main__":
    main()
