"""Transformations of time series and videos: they drop or move parts of the time axis, or make
values coarser.

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
from recal.transforms.base import BuiltIn, Strengths, choose, content_keys


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
        return arrays.apply(self._values, series, traceable=self.traceable)

    def _values(self, series: Array) -> Array:
        arrays.check_numeric(series, "Series")
        if series.ndim < 2 or not (
            1 <= self.axis < series.ndim or 1 - series.ndim <= self.axis < 0
        ):
            raise InputError(
                f"{self.kind} needs samples along the first axis and time along axis {self.axis}, got the shape "
                f"{tuple(series.shape)}. For a single series pass series[None]; for another time axis pass axis=."
            )
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

    A lost sample becomes zero, repeats the last value kept, or is interpolated between its
    neighbours. The choice of samples follows from `seed` and the series' own content.
    """

    kind = "drop"
    assumes = "the label does not rest on single moments of the series"
    strengths = Strengths(0.05, 0.9, identity=0)
    traceable = False

    share: float
    fill: Literal["zero", "hold", "interpolate"] = "interpolate"
    seed: int = 0
    axis: int = -1

    def _series(self, x: NDArray[Any], dtype: str) -> NDArray[Any]:
        lost = choose(content_keys(x, self.kind, self.seed), x.shape[1], self.share)
        if self.fill == "zero":
            return np.where(along_time(lost, x), x.dtype.type(0), x)
        filled: NDArray[Any] = _fill(x, lost, self.fill)
        return filled


@dataclass(frozen=True)
class DropFrames(DropSamples):
    """Lose ``round(share * frames)`` frames of each video: each is replaced by the last frame kept,
    or by black.
    """

    kind = "frames"
    assumes = "the label does not rest on single frames"
    modality = "video"
    strengths = Strengths(0.1, 0.9, identity=0)

    fill: Literal["hold", "zero", "interpolate"] = "hold"
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
class Quantise(SeriesTransform):
    """Round values to steps of `share` of the channel's range in this sample, counted from its
    minimum.
    """

    kind = "quantise"
    assumes = "the label does not rest on small differences in value"
    strengths = Strengths(0.02, 0.5, identity=0)

    share: float
    axis: int = -1

    def _series(self, x: Array, dtype: str) -> Array:
        xp = arrays.numpy_or_torch(x)
        least, most = xp.amin(x, 1)[:, None], xp.amax(x, 1)[:, None]
        step = (most - least) * arrays.scalar_like(self.share, x)
        step = xp.where(step > 0, step, xp.ones_like(step))
        rounded = least + ((x - least) / step).round() * step
        return xp.minimum(rounded, most + xp.zeros_like(x))


@dataclass(frozen=True)
class TimeShift(SeriesTransform):
    """Move a series by ``round(share * time)`` samples, at least one; what leaves at one end comes
    back at the other.

    `fill` puts something else into the free places: ``hold`` repeats the end value, ``zero`` is
    silence.

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
    direction: Literal["later", "earlier"] = "later"
    fill: Literal["wrap", "hold", "zero"] = "wrap"
    axis: int = -1

    def _series(self, x: Array, dtype: str) -> Array:
        by = max(1, round(self.share * x.shape[1]))
        return arrays.shift(x, 1 - x.ndim, by, self.fill, forward=self.direction == "later")
