"""Time series, video and audio: time axis lost in part, values made coarser.

The first axis counts samples. Time is the last axis, (n, time) or (n, channels, time), unless ``axis=`` says otherwise
(1 for arrays of the shape (n, time, channels)); frames of a video lie along axis 1. Series of different lengths come as
a list, or an object array, of arrays.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from recal.errors import InputError
from recal.transforms import arrays
from recal.transforms.arrays import Array
from recal.transforms.base import BuiltIn
from recal.transforms.randomness import choose, content_keys


class SeriesTransform(BuiltIn):
    """Hands floats with time along axis 1 to `_series`, and returns to shape and dtype."""

    __slots__ = ()

    axis: int
    modality: ClassVar[str] = "series"

    def __call__(self, series: Array, /) -> Array:
        if _is_ragged(series):
            changed = np.empty(len(series), dtype=object)
            changed[:] = [self(item[None])[0] for item in series]
            return changed if isinstance(series, np.ndarray) else list(changed)
        return arrays.apply(self._values, series, traceable=self.traceable)

    def _values(self, series: Array) -> Array:
        arrays.check_numeric(series, "Series")
        if series.ndim < 2 or not (1 <= self.axis < series.ndim or 1 - series.ndim <= self.axis < 0):
            raise InputError(
                f"{self.kind} needs samples along the first axis and time along axis {self.axis}, got the shape "
                f"{tuple(series.shape)}. For a single series pass series[None]; for another time axis pass axis=."
            )
        if self.is_identity or 0 in series.shape:
            return arrays.copy(series)
        xp, dtype = arrays.namespace(series), arrays.dtype_name(series)
        timed = arrays.contiguous(xp.moveaxis(series, self.axis, 1))
        result = arrays.from_working(self._series(arrays.to_working(timed), dtype), dtype)
        return arrays.contiguous(xp.moveaxis(result, 1, self.axis))

    @abstractmethod
    def _series(self, x: Array, dtype: str) -> Array:
        """Transform floats of the shape (n, time, ...); `dtype` is that of the user's series."""


@dataclass(frozen=True, slots=True)
class DropSamples(SeriesTransform):
    """Lose ``round(share * time)`` samples of each series (at least one, never all), in all channels at once.

    What is lost becomes zero, or holds the last value kept, or is interpolated between its neighbours. Which are lost
    follows from `seed` and the series' own content.
    """

    kind: ClassVar[str] = "drop"
    assumes: ClassVar[str] = "the label does not rest on single moments of the series"
    identity: ClassVar[float] = 0.0
    strengths: ClassVar[tuple[float, float]] = (0.05, 0.9)
    domain: ClassVar[tuple[float, float]] = (0.0, 1.0)
    traceable: ClassVar[bool] = False

    share: float
    fill: Literal["zero", "hold", "interpolate"] = "interpolate"
    seed: int = 0
    axis: int = -1

    def _series(self, x: NDArray[Any], dtype: str) -> NDArray[Any]:
        lost = choose(content_keys(x, self.kind, self.seed), x.shape[1], self.share)
        return _fill(x, lost, self.fill)


@dataclass(frozen=True, slots=True)
class DropFrames(SeriesTransform):
    """Lose ``round(share * frames)`` frames of each video: the last one kept stays on, or the screen goes black."""

    kind: ClassVar[str] = "frames"
    assumes: ClassVar[str] = "the label does not rest on single frames"
    modality: ClassVar[str] = "video"
    identity: ClassVar[float] = 0.0
    strengths: ClassVar[tuple[float, float]] = (0.1, 0.9)
    domain: ClassVar[tuple[float, float]] = (0.0, 1.0)
    traceable: ClassVar[bool] = False

    share: float
    fill: Literal["hold", "zero", "interpolate"] = "hold"
    seed: int = 0
    axis: int = 1

    def _series(self, x: NDArray[Any], dtype: str) -> NDArray[Any]:
        lost = choose(content_keys(x, self.kind, self.seed), x.shape[1], self.share)
        return _fill(x, lost, self.fill)


@dataclass(frozen=True, slots=True)
class Coarse(SeriesTransform):
    """Sample at `rate` of the original rate; what lies between is interpolated, or held."""

    kind: ClassVar[str] = "coarse"
    assumes: ClassVar[str] = "the label does not rest on the fastest changes alone"
    identity: ClassVar[float] = 1.0
    strengths: ClassVar[tuple[float, float]] = (0.9, 0.05)
    domain: ClassVar[tuple[float, float]] = (0.0, 1.0)
    positive: ClassVar[bool] = True

    rate: float
    fill: Literal["interpolate", "hold"] = "interpolate"
    axis: int = -1

    def _series(self, x: Array, dtype: str) -> Array:
        length = x.shape[1]
        lost = np.ones((1, length), dtype=bool)
        lost[0, np.unique((np.arange(0, length, 1 / self.rate)).astype(np.intp))] = False
        before, after, weight = (part[0] for part in _neighbours(lost))
        if self.fill == "hold":
            return x[:, before]
        blend = arrays.constant(weight.reshape((1, -1) + (1,) * (x.ndim - 2)), x)
        return x[:, before] * (1 - blend) + x[:, after] * blend


@dataclass(frozen=True, slots=True)
class Quantise(SeriesTransform):
    """Round values to multiples of `share` of the range that the sample's channel spans, counted from its least."""

    kind: ClassVar[str] = "quantise"
    assumes: ClassVar[str] = "the label does not rest on small differences in value"
    identity: ClassVar[float] = 0.0
    strengths: ClassVar[tuple[float, float]] = (0.02, 0.5)
    domain: ClassVar[tuple[float, float]] = (0.0, 1.0)

    share: float
    axis: int = -1

    def _series(self, x: Array, dtype: str) -> Array:
        xp = arrays.namespace(x)
        least, most = xp.amin(x, 1)[:, None], xp.amax(x, 1)[:, None]
        step = (most - least) * arrays.number(self.share, x)
        step = xp.where(step > 0, step, xp.ones_like(step))
        rounded = least + ((x - least) / step).round() * step
        return xp.minimum(rounded, most + xp.zeros_like(x))


def _is_ragged(series: Any) -> bool:
    """Whether these are series of different lengths: arrays in a list or in an object array."""
    if isinstance(series, np.ndarray) and (series.dtype != object or series.ndim != 1):
        return False
    return isinstance(series, list | np.ndarray) and all(isinstance(item, np.ndarray) and item.ndim for item in series)


def _neighbours(lost: NDArray[np.bool_]) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float64]]:
    """Return for each place the kept one before it, the kept one after it, and the weight of the latter.

    A kept place is its own neighbour; beyond the first or last kept one there is only that one.
    """
    length = lost.shape[1]
    places = np.arange(length)
    before = np.maximum.accumulate(np.where(lost, -1, places), axis=1)
    after = np.minimum.accumulate(np.where(lost, length, places)[:, ::-1], axis=1)[:, ::-1]
    before, after = np.where(before < 0, after, before), np.where(after == length, before, after)
    gap = after - before
    return before, after, np.where(gap > 0, (places - before) / np.maximum(gap, 1), 0.0)


def _fill(x: NDArray[Any], lost: NDArray[np.bool_], fill: str) -> NDArray[Any]:
    inner = (1,) * (x.ndim - 2)
    if fill == "zero":
        return np.where(lost.reshape(lost.shape + inner), x.dtype.type(0), x)
    before, after, weight = _neighbours(lost)
    rows = np.arange(len(x))[:, None]
    if fill == "hold":
        return x[rows, before]
    blend = weight.reshape(weight.shape + inner).astype(x.dtype)
    return x[rows, before] * (1 - blend) + x[rows, after] * blend


@dataclass(frozen=True, slots=True)
class TimeShift(SeriesTransform):
    """Move a series by ``round(share * time)`` samples, at least one; what leaves at one end comes back at the other.

    `fill` puts something else where the series moved away from: ``hold`` repeats its end value, ``zero`` is silence.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.transforms import TimeShift
    >>> TimeShift(0.25)(np.array([[1.0, 2.0, 3.0, 4.0]]))
    array([[4., 1., 2., 3.]])
    """

    kind: ClassVar[str] = "timeshift"
    assumes: ClassVar[str] = "when in the recording something happens says nothing about its label"
    keeps_information: ClassVar[bool] = True
    identity: ClassVar[float] = 0.0
    strengths: ClassVar[tuple[float, float]] = (0.01, 0.2)
    domain: ClassVar[tuple[float, float]] = (0.0, 1.0)

    share: float
    direction: Literal["later", "earlier"] = "later"
    fill: Literal["wrap", "hold", "zero"] = "wrap"
    axis: int = -1

    def _series(self, x: Array, dtype: str) -> Array:
        xp, length = arrays.namespace(x), x.shape[1]
        by = max(1, round(self.share * length))
        by = by % length if self.fill == "wrap" else min(by, length)
        if by == 0:
            return x
        later = self.direction == "later"
        if self.fill == "wrap":
            new = x[:, length - by :] if later else x[:, :by]
        elif self.fill == "zero":
            new = xp.zeros_like(x[:, :by])
        else:
            new = xp.concatenate([x[:, :1] if later else x[:, length - 1 :]] * by, 1)
        return xp.concatenate([new, x[:, : length - by]] if later else [x[:, by:], new], 1)
