"""Sounds masked in time, made quieter, or heard in noise. Time is the last axis, (n, time) or (n, channels, time)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from recal.transforms.arrays import Array
from recal.transforms.content import content_keys, uniforms
from recal.transforms.series import SeriesTransform


@dataclass(frozen=True, slots=True)
class TimeMask(SeriesTransform):
    """Silence one stretch of ``round(share * time)`` samples, at least one and never all, in all channels.

    Where it lies follows from `seed` and the sound itself.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.transforms import TimeMask
    >>> int((TimeMask(0.25)(np.ones((1, 8))) == 0).sum())
    2
    """

    kind: ClassVar[str] = "timemask"
    assumes: ClassVar[str] = "the label does not rest on a single stretch of the sound"
    modality: ClassVar[str] = "audio"
    identity: ClassVar[float] = 0.0
    strengths: ClassVar[tuple[float, float]] = (0.05, 0.6)
    domain: ClassVar[tuple[float, float]] = (0.0, 1.0)
    traceable: ClassVar[bool] = False

    share: float
    seed: int = 0
    axis: int = -1

    def _series(self, x: NDArray[Any], dtype: str) -> NDArray[Any]:
        length = x.shape[1]
        width = min(max(round(self.share * length), 1), length - 1)
        starts = uniforms(content_keys(x, self.kind, self.seed), 1)[:, 0] * (length - width + 1)
        places = np.arange(length) - np.floor(starts).astype(np.intp)[:, None]
        lost = (places >= 0) & (places < width)
        silence = silence_of(dtype)
        return np.where(lost.reshape(lost.shape + (1,) * (x.ndim - 2)), x.dtype.type(silence), x)


@dataclass(frozen=True, slots=True)
class Quieter(SeriesTransform):
    """Multiply the amplitude by `gain`: 0.5 is 6 dB quieter. What whole numbers cannot hold is rounded away.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.transforms import Quieter
    >>> Quieter(0.5)(np.array([[100, -40, 7]], dtype=np.int16))
    array([[ 50, -20,   4]], dtype=int16)
    """

    kind: ClassVar[str] = "quieter"
    assumes: ClassVar[str] = "how loud a recording is says nothing about its label"
    modality: ClassVar[str] = "audio"
    identity: ClassVar[float] = 1.0
    strengths: ClassVar[tuple[float, float]] = (0.9, 0.05)
    domain: ClassVar[tuple[float, float]] = (0.0, 1.0)
    positive: ClassVar[bool] = True

    gain: float
    axis: int = -1

    def _series(self, x: Array, dtype: str) -> Array:
        silence = silence_of(dtype)
        return (x - silence) * self.gain + silence


@dataclass(frozen=True, slots=True)
class Noise(SeriesTransform):
    """Add white noise at a signal-to-noise ratio of `snr` decibels, measured over each sound; 100 changes nothing.

    The noise follows from `seed` and the sound itself. Silence stays silent, and whole numbers are clipped.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.transforms import Noise
    >>> tone = np.sin(np.arange(4000.0))[None]
    >>> added = Noise(20)(tone) - tone
    >>> round(10 * np.log10((tone**2).mean() / (added**2).mean()))
    20
    """

    kind: ClassVar[str] = "noise"
    assumes: ClassVar[str] = "the label does not rest on the quietest parts of the sound"
    modality: ClassVar[str] = "audio"
    identity: ClassVar[float] = 100
    strengths: ClassVar[tuple[float, float]] = (40, 0)
    domain: ClassVar[tuple[float, float]] = (0, 100)
    step: ClassVar[float] = 1
    traceable: ClassVar[bool] = False

    snr: float
    seed: int = 0
    axis: int = -1

    def _series(self, x: NDArray[Any], dtype: str) -> NDArray[Any]:
        silence = silence_of(dtype)
        sound = (x - silence).reshape(len(x), -1).astype(np.float64)
        keys = content_keys(x, self.kind, self.seed)
        # Box and Muller's way from two even draws to one normal: the same on every machine and for any batch.
        even, angle = (uniforms(keys, sound.shape[1], stream=stream) for stream in (0, 1))
        noise = np.sqrt(-2 * np.log1p(-even)) * np.cos(2 * np.pi * angle)
        power, raw = (sound**2).mean(1, keepdims=True), (noise**2).mean(1, keepdims=True)
        scale = np.sqrt(power / np.maximum(raw, 1e-300) / 10 ** (self.snr / 10))
        return (sound + scale * noise + silence).reshape(x.shape).astype(x.dtype)


def silence_of(dtype: str) -> float:
    """Unsigned samples rest at the middle of their range, all others at zero."""
    return 2.0 ** (np.iinfo(dtype).bits - 1) if dtype.startswith("uint") else 0.0
