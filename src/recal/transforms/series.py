"""Transformations of time series, videos and sounds: they drop or move parts of the time axis,
filter, or add noise.

The first axis counts samples. Time is the last axis, (n, time) or (n, channels, time), unless
``axis=`` says otherwise (1 for arrays of the shape (n, time, channels)); frames of a video lie
along axis 1. Series of different lengths come as a list, or an object array, of arrays.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from recal.errors import InputError
from recal.transforms import arrays
from recal.transforms.arrays import Array
from recal.transforms.base import BuiltIn, Strengths, choose, content_keys, count_of, uniforms


class SeriesTransform(BuiltIn):
    """Passes floats with time along axis 1 to `_series`, and restores shape and dtype."""

    axis: int
    modality = "series"

    def __call__(self, series: Array, /) -> Array:
        listed = isinstance(series, list) or (
            isinstance(series, np.ndarray) and (series.dtype, series.ndim) == (object, 1)
        )
        if listed and all(isinstance(item, np.ndarray) and item.ndim for item in series):
            changed = np.empty(len(series), dtype=object)
            changed[:] = [self(item[None])[0] for item in series]
            return changed if isinstance(series, np.ndarray) else list(changed)
        return arrays.compute(self._values, series, traceable=self.traceable)

    def _values(self, series: Array) -> Array:
        arrays.check_numeric(series, "Series")
        axes = (*range(1, series.ndim), *range(1 - series.ndim, 0))  # those after the samples
        if self.axis not in axes:
            rule = f"{self.kind} needs samples along the first axis and time along axis {self.axis}"
            remedy = "For a single series pass series[None]; for another time axis pass axis="
            raise InputError(f"{rule}, got the shape {tuple(series.shape)}", remedy=remedy)
        if self.is_identity or 0 in series.shape:
            return arrays.copy(series)
        xp, dtype = arrays.numpy_or_torch(series), arrays.dtype_name(series)
        timed = arrays.contiguous(xp.moveaxis(series, self.axis, 1))
        result = arrays.from_working(self._series(arrays.to_working(timed), dtype), dtype)
        return arrays.contiguous(xp.moveaxis(result, 1, self.axis))

    @abstractmethod
    def _series(self, x: Array, dtype: str) -> Array:
        """Transform floats of the shape (n, time, ...); `dtype` is that of the user's series."""


def along_time(values: NDArray[Any], x: Array) -> NDArray[Any]:
    """Return numbers of the shape (time,) or (n, time) with further axes, so that they broadcast to
    (n, time, ...).
    """
    return values.reshape((*values.shape[:-1], values.shape[-1], *(1,) * (x.ndim - 2)))


@dataclass(frozen=True)
class DropSamples(SeriesTransform):
    """Lose ``round(share * time)`` samples of each series (at least one, never all), in all
    channels at once.

    A lost sample is interpolated between its neighbours, or repeats the last value kept. The choice
    of samples follows from `seed` and the series' own content.
    """

    kind = "drop"
    assumes = "the label does not rest on single moments of the series"
    strengths = Strengths(0.05, 0.9, identity=0)
    traceable = False

    share: float
    fill: Literal["interpolate", "hold"] = "interpolate"
    seed: int = 0
    axis: int = -1

    def _series(self, x: NDArray[Any], dtype: str) -> NDArray[Any]:
        lost = choose(content_keys(x, self.kind, self.seed), x.shape[1], self.share)
        return np.asarray(_fill(x, lost, self.fill))


@dataclass(frozen=True)
class DropFrames(DropSamples):
    """Lose ``round(share * frames)`` frames of each video: each shows the last frame kept."""

    kind = "frames"
    assumes = "the label does not rest on single frames"
    modality = "video"
    strengths = Strengths(0.1, 0.9, identity=0)

    fill: Literal["interpolate", "hold"] = "hold"
    axis: int = 1


@dataclass(frozen=True)
class Coarse(SeriesTransform):
    """Sample at `rate` of the original rate; the values in between are interpolated or repeat the
    last sample.
    """

    kind = "coarse"
    assumes = "the label does not rest on the fastest changes alone"
    strengths = Strengths(0.9, 0.05, identity=1, ends="(]")

    rate: float
    fill: Literal["interpolate", "hold"] = "interpolate"
    axis: int = -1

    def _series(self, x: Array, dtype: str) -> Array:
        lost = np.ones((1, x.shape[1]), dtype=bool)
        lost[0, np.arange(0, x.shape[1], 1 / self.rate).astype(np.intp)] = False
        return _fill(x, lost, self.fill)


def _fill(x: Array, lost: NDArray[np.bool_], fill: str) -> Array:
    """Replace lost values with the last kept value ("hold"), or interpolate between the kept values
    around them.

    `lost` has one row for each series, or one for all. Before the first and after the last kept
    value there is only one neighbour.
    """
    length = lost.shape[1]
    places = np.arange(length)
    before = np.maximum.accumulate(np.where(lost, -1, places), axis=1)
    after = np.minimum.accumulate(np.where(lost, length, places)[:, ::-1], axis=1)[:, ::-1]
    before, after = np.where(before < 0, after, before), np.where(after == length, before, after)
    weight = np.where(after > before, (places - before) / np.maximum(after - before, 1), 0.0)
    rows: Any = np.arange(len(lost))[:, None]
    if len(lost) == 1:  # a trace does not know the number of series
        rows, before, after = slice(None), before[0], after[0]
    if fill == "hold":
        return x[rows, before]
    blend = arrays.constant(along_time(weight, x), x)
    return x[rows, before] * (1 - blend) + x[rows, after] * blend


@dataclass(frozen=True)
class TimeShift(SeriesTransform):
    """Move a series by ``round(share * time)`` samples, at least one; what leaves at the end comes
    back at the beginning.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.transforms import TimeShift
    >>> TimeShift(0.25)(np.array([[1.0, 2.0, 3.0, 4.0]]))
    array([[4., 1., 2., 3.]])
    """

    kind = "timeshift"
    assumes = "when in the recording something happens says nothing about its label"
    keeps_information = True
    strengths = Strengths(0.01, 0.2, identity=0)

    share: float
    axis: int = -1

    def _series(self, x: Array, dtype: str) -> Array:
        return arrays.roll(x, 1 - x.ndim, max(1, round(self.share * x.shape[1])))


def silence_of(dtype: str) -> float:
    """Return the value of silence: the middle of the range if unsigned, otherwise zero."""
    return 2.0 ** (np.iinfo(dtype).bits - 1) if dtype.startswith("uint") else 0.0


@dataclass(frozen=True)
class LowPass(SeriesTransform):
    """Damp frequencies above `cutoff`, a share of the highest one (half the sampling rate).

    The damping is smooth (half the amplitude at the cut-off, 72 dB per octave), keeps phases, and
    mirrors the signal at its ends, so that the end does not leak into the beginning.
    """

    kind = "lowpass"
    modality = "audio"
    assumes = "the label does not rest on the highest frequencies alone"
    strengths = Strengths(0.9, 0.05, identity=1, ends="(]")

    cutoff: float
    axis: int = -1

    def _series(self, x: Array, dtype: str) -> Array:
        length = int(x.shape[1])
        gain = 1 / (1 + (np.linspace(0, 1, length + 1) / self.cutoff) ** 12)
        xp = arrays.numpy_or_torch(x)
        spectrum = xp.fft.rfft(xp.concatenate([x, xp.flip(x, (1,))], 1), 2 * length, 1)
        filtered = spectrum * arrays.constant(along_time(gain[None], x), x)
        return xp.fft.irfft(filtered, 2 * length, 1)[:, :length]


@dataclass(frozen=True)
class Bits(SeriesTransform):
    """Keep `bits` bits of each value: floats are rounded to multiples of ``2 / 2**bits`` and
    clipped there.

    Floats run from -1 to 1, whole numbers over their dtype. 32 bits change nothing.
    """

    kind = "bits"
    modality = "audio"
    assumes = "the label does not rest on the quietest parts of the sound"
    strengths = Strengths(12, 2, identity=32, domain=(1, 32), whole=True)

    bits: float
    axis: int = -1

    def _series(self, x: Array, dtype: str) -> Array:
        if "int" in dtype:
            limits = np.iinfo(dtype)
            low, high, full = float(limits.min), float(limits.max), 2.0 ** (limits.bits - 1)
            if self.bits >= limits.bits:
                return x
        else:
            low, high, full = -1.0, 1.0, 1.0
            arrays.check_full_scale(x, full, self.kind, "Divide by the full scale first")
        step = full * 2.0 ** (1 - self.bits)
        return (x / step).round().clip(np.ceil(low / step), np.floor(high / step)) * step


@dataclass(frozen=True)
class TimeMask(SeriesTransform):
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
    modality = "audio"
    assumes = "the label does not rest on a single stretch of the sound"
    strengths = Strengths(0.05, 0.6, identity=0)
    traceable = False

    share: float
    seed: int = 0
    axis: int = -1

    def _series(self, x: NDArray[Any], dtype: str) -> NDArray[Any]:
        length = x.shape[1]
        width = count_of(self.share, length)
        starts = uniforms(content_keys(x, self.kind, self.seed), 1) * (length - width + 1)
        places = np.arange(length) - np.floor(starts).astype(np.intp)
        masked = along_time((places >= 0) & (places < width), x)
        return np.where(masked, x.dtype.type(silence_of(dtype)), x)


@dataclass(frozen=True)
class Quieter(SeriesTransform):
    """Multiply the amplitude by `gain`: 0.5 is 6 dB quieter. Whole numbers are rounded.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.transforms import Quieter
    >>> Quieter(0.5)(np.array([[100, -40, 7]], dtype=np.int16))
    array([[ 50, -20,   4]], dtype=int16)
    """

    kind = "quieter"
    modality = "audio"
    assumes = "how loud a recording is says nothing about its label"
    strengths = Strengths(0.9, 0.05, identity=1, ends="(]")

    gain: float
    axis: int = -1

    def _series(self, x: Array, dtype: str) -> Array:
        silence = silence_of(dtype)
        return (x - silence) * self.gain + silence


@dataclass(frozen=True)
class Noise(SeriesTransform):
    """Add white noise at a signal-to-noise ratio of `snr` decibels, measured over each sound.

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
    modality = "audio"
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
