"""Transformations of sounds and of other signals in time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.transforms import arrays
from recal.transforms.arrays import Array
from recal.transforms.base import Strengths, content_keys, uniforms
from recal.transforms.series import SeriesTransform, along_time

_STEEPNESS = 12


class SoundTransform(SeriesTransform):
    """Passes the deviation from silence to `_sound`."""

    modality = "audio"

    def _series(self, x: Array, dtype: str) -> Array:
        silence = silence_of(dtype)
        return self._sound(x - silence) + silence

    def _sound(self, sound: Array) -> Array:
        """Transform floats of the shape (n, time, ...) that are 0 in silence."""
        raise NotImplementedError


def silence_of(dtype: str) -> float:
    """Return the value of silence: the middle of the range for unsigned samples, zero for all
    others.
    """
    return 2.0 ** (np.iinfo(dtype).bits - 1) if dtype.startswith("uint") else 0.0


def _filter(x: Array, gain: Array) -> Array:
    """Multiply the spectrum by gains.

    The signal is mirrored so that its end does not leak into its beginning.
    """
    xp, length = arrays.numpy_or_torch(x), int(x.shape[1])
    spectrum = xp.fft.rfft(xp.concatenate([x, xp.flip(x, (1,))], 1), 2 * length, 1)
    return xp.fft.irfft(spectrum * gain, 2 * length, 1)[:, :length]


@dataclass(frozen=True)
class LowPass(SoundTransform):
    """Damp frequencies above `cutoff`, a share of the highest one (half the sampling rate).

    The damping is smooth (half the amplitude at the cut-off, 72 dB per octave), keeps phases, and
    mirrors the signal at its ends, so that the end does not leak into the beginning.
    """

    kind = "lowpass"
    assumes = "the label does not rest on the highest frequencies alone"
    strengths = Strengths(0.9, 0.05, identity=1, ends="(]")

    cutoff: float
    axis: int = -1

    def _series(self, x: Array, dtype: str) -> Array:
        length = int(x.shape[1])
        if arrays.is_tensor(x) and length <= 512:
            # In a graph, use a matrix product, of at most a megabyte in float32: Fourier transforms
            # differ between runtimes.
            filtered = x.swapaxes(1, -1) @ arrays.constant(_filter_matrix(self, length).T, x)
            return filtered.swapaxes(1, -1)
        gain = 1 / (1 + (np.linspace(0, 1, length + 1) / self.cutoff) ** _STEEPNESS)
        return _filter(x, arrays.constant(along_time(gain[None], x), x))


@lru_cache(maxsize=32)
def _filter_matrix(lowpass: LowPass, length: int) -> NDArray[np.float64]:
    """Return the filter for a series of this length as a matrix, (length, length)."""
    matrix: NDArray[np.float64] = lowpass._series(np.eye(length)[None], "float64")[0]
    return matrix


@dataclass(frozen=True)
class Bits(SoundTransform):
    """Keep `bits` bits of each value: floats are rounded to multiples of ``2 * full / 2**bits`` and
    clipped there.

    Floats run from -`full` to `full`, whole numbers over their dtype. 32 bits change nothing.
    """

    kind = "bits"
    assumes = "the label does not rest on the quietest parts of the sound"
    strengths = Strengths(12, 2, identity=32, domain=(1, 32), whole=True)

    bits: float
    full: float = 1.0
    axis: int = -1

    def full_scale(self, dtype: str) -> float | None:
        return None if "int" in dtype else self.full

    def _series(self, x: Array, dtype: str) -> Array:
        if "int" in dtype:
            limits = np.iinfo(dtype)
            low, high, full = float(limits.min), float(limits.max), 2.0 ** (limits.bits - 1)
            if self.bits >= limits.bits:
                return x
        else:
            low, high, full = -self.full, self.full, self.full
            remedy = "Give the full scale, for instance 'bits:8:full=32768', or divide by it first."
            arrays.check_full_scale(x, full, self.kind, remedy)
        step = full * 2.0 ** (1 - self.bits)
        return (x / step).round().clip(np.ceil(low / step), np.floor(high / step)) * step


@dataclass(frozen=True)
class TimeMask(SoundTransform):
    """Silence one stretch of ``round(share * time)`` samples, at least one and never all, in all
    channels.

    Its position follows from `seed` and the sound itself.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.transforms import TimeMask
    >>> int((TimeMask(0.25)(np.ones((1, 8))) == 0).sum())
    2
    """

    kind = "timemask"
    assumes = "the label does not rest on a single stretch of the sound"
    strengths = Strengths(0.05, 0.6, identity=0)
    traceable = False

    share: float
    seed: int = 0
    axis: int = -1

    def _series(self, x: NDArray[Any], dtype: str) -> NDArray[Any]:
        length = x.shape[1]
        width = min(max(round(self.share * length), 1), length - 1)
        starts = uniforms(content_keys(x, self.kind, self.seed), 1) * (length - width + 1)
        places = np.arange(length) - np.floor(starts).astype(np.intp)
        masked = along_time((places >= 0) & (places < width), x)
        return np.where(masked, x.dtype.type(silence_of(dtype)), x)


@dataclass(frozen=True)
class Quieter(SoundTransform):
    """Multiply the amplitude by `gain`: 0.5 is 6 dB quieter. Whole numbers are rounded.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.transforms import Quieter
    >>> Quieter(0.5)(np.array([[100, -40, 7]], dtype=np.int16))
    array([[ 50, -20,   4]], dtype=int16)
    """

    kind = "quieter"
    assumes = "how loud a recording is says nothing about its label"
    strengths = Strengths(0.9, 0.05, identity=1, ends="(]")

    gain: float
    axis: int = -1

    def _sound(self, sound: Array) -> Array:
        return sound * self.gain


@dataclass(frozen=True)
class Noise(SoundTransform):
    """Add white noise at a signal-to-noise ratio of `snr` decibels, measured over each sound; 100
    changes nothing.

    The noise follows from `seed` and the sound itself. Silence stays silent, and whole numbers are
    clipped.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.transforms import Noise
    >>> tone = np.sin(np.arange(4000.0))[None]
    >>> added = Noise(20)(tone) - tone
    >>> round(10 * np.log10((tone**2).mean() / (added**2).mean()))
    20
    """

    kind = "noise"
    assumes = "the label does not rest on the quietest parts of the sound"
    strengths = Strengths(40, 0, identity=100, domain=(0, 100), whole=True)
    traceable = False

    snr: float
    seed: int = 0
    axis: int = -1

    def _series(self, x: NDArray[Any], dtype: str) -> NDArray[Any]:
        silence = silence_of(dtype)
        sound = (x - silence).reshape(len(x), -1).astype(np.float64)
        keys = content_keys(x, self.kind, self.seed)
        # The Box-Muller transform gives the same normal numbers on every machine and in any batch.
        even, angle = (uniforms(keys, sound.shape[1], stream=stream) for stream in (0, 1))
        noise = np.sqrt(-2 * np.log1p(-even)) * np.cos(2 * np.pi * angle)
        power, raw = (sound**2).mean(1, keepdims=True), (noise**2).mean(1, keepdims=True)
        scale = np.sqrt(power / np.maximum(raw, 1e-300) / 10 ** (self.snr / 10))
        return (sound + scale * noise + silence).reshape(x.shape).astype(x.dtype)


@dataclass(frozen=True)
class HighPass(SoundTransform):
    """Damp frequencies below `cutoff`, a share of the highest one (half the sampling rate), as a
    small speaker does.

    The damping is smooth (half the amplitude at the cut-off, 72 dB per octave), keeps phases, and
    mirrors the signal at its ends. The mean is damped, too.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.transforms import HighPass
    >>> bool(np.abs(HighPass(0.2)(np.ones((1, 100)))).max() < 1e-12)
    True
    """

    kind = "highpass"
    assumes = "the label does not rest on the lowest frequencies alone"
    strengths = Strengths(0.05, 0.6, identity=0)
    traceable = False

    cutoff: float
    axis: int = -1

    def _sound(self, sound: NDArray[Any]) -> NDArray[Any]:
        powers = (np.linspace(0, 1, sound.shape[1] + 1) / self.cutoff) ** _STEEPNESS
        filtered: NDArray[Any] = _filter(sound, along_time((powers / (1 + powers))[None], sound))
        return filtered


@dataclass(frozen=True)
class Clip(SoundTransform):
    """Clip samples louder than `level` times the loudest sample of the sound, as an overdriven
    microphone does.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.transforms import Clip
    >>> Clip(0.5)(np.array([[100, -40, 7]], dtype=np.int16))
    array([[ 50, -40,   7]], dtype=int16)
    """

    kind = "clip"
    assumes = "the label does not rest on the loudest moments of the sound"
    strengths = Strengths(0.8, 0.05, identity=1, ends="(]")
    traceable = False

    level: float
    axis: int = -1

    def _sound(self, sound: NDArray[Any]) -> NDArray[Any]:
        limit = self.level * np.abs(sound).max(axis=tuple(range(1, sound.ndim)), keepdims=True)
        return np.clip(sound, -limit, limit)


@dataclass(frozen=True)
class Faster(SoundTransform):
    """Play the sound `speed` times as fast, which also raises its pitch; silence fills the end.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.transforms import Faster
    >>> Faster(2)(np.array([[1.0, 2.0, 3.0, 4.0]]))
    array([[1., 3., 0., 0.]])
    """

    kind = "faster"
    assumes = "the label does not rest on the speed or the pitch of the sound"
    strengths = Strengths(1.01, 1.5, identity=1, domain=(1, 4))
    traceable = False

    speed: float
    axis: int = -1

    def _sound(self, sound: NDArray[Any]) -> NDArray[Any]:
        length = sound.shape[1]
        places = np.arange(length) * self.speed
        left = np.minimum(places.astype(np.intp), length - 1)
        part = along_time((places - left)[None], sound)
        played = sound[:, left] * (1 - part) + sound[:, np.minimum(left + 1, length - 1)] * part
        return np.where(along_time((places < length)[None], sound), played, 0.0)


@dataclass(frozen=True)
class Echo(SoundTransform):
    """Add five repeats of the sound, each `loudness` times as loud as the one before, as a room
    does.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.transforms import Echo
    >>> Echo(0.5)(np.eye(1, 100))[0, [0, 3, 7, 12]]
    array([1.   , 0.5  , 0.25 , 0.125])
    """

    kind = "echo"
    assumes = "the label does not rest on where sounds end"
    strengths = Strengths(0.2, 0.9, identity=0)
    traceable = False

    loudness: float
    axis: int = -1

    def _sound(self, sound: NDArray[Any]) -> NDArray[Any]:
        length, result = sound.shape[1], sound.copy()
        # Shares of the sound's length. The gaps grow, so the repeats do not sound like a tone.
        for number, share in enumerate((0.03, 0.07, 0.12, 0.18, 0.25), start=1):
            delay = max(round(share * length), 1)
            result[:, delay:] += self.loudness**number * sound[:, : length - delay]
        return result
