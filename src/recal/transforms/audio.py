"""Audio: high frequencies or bits lost. Time is the last axis, (n, time) or (n, channels, time)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from recal.transforms import arrays
from recal.transforms.arrays import Array
from recal.transforms.series import SeriesTransform

_STEEPNESS = 12
# Up to this length a traced filter is a matrix, of at most a megabyte in float32.
_LONGEST_MATRIX = 512


@dataclass(frozen=True, slots=True)
class LowPass(SeriesTransform):
    """Damp frequencies above `cutoff`, a share of the highest one (half the sampling rate).

    The damping is smooth (half the amplitude at the cut-off, 72 dB per octave), keeps phases, and mirrors the signal
    at its ends, so that the end does not leak into the beginning.
    """

    kind: ClassVar[str] = "lowpass"
    assumes: ClassVar[str] = "the label does not rest on the highest frequencies alone"
    modality: ClassVar[str] = "audio"
    identity: ClassVar[float] = 1.0
    strengths: ClassVar[tuple[float, float]] = (0.9, 0.05)
    domain: ClassVar[tuple[float, float]] = (0.0, 1.0)
    positive: ClassVar[bool] = True

    cutoff: float
    axis: int = -1

    def _series(self, x: Array, dtype: str) -> Array:
        xp, length = arrays.namespace(x), int(x.shape[1])
        if arrays.is_tensor(x) and length <= _LONGEST_MATRIX:
            # What is traced becomes a graph, and graph runtimes differ in what their Fourier transforms are worth.
            filtered = x.swapaxes(1, -1) @ arrays.constant(_filter_matrix(self, length).T, x)
            return filtered.swapaxes(1, -1)
        mirrored = xp.concatenate([x, xp.flip(x, (1,))], 1)
        spectrum = xp.fft.rfft(mirrored, 2 * length, 1)
        gain = 1 / (1 + (np.linspace(0, 1, length + 1) / self.cutoff) ** _STEEPNESS)
        shaped = spectrum * arrays.constant(gain.reshape((1, -1) + (1,) * (x.ndim - 2)), x)
        return xp.fft.irfft(shaped, 2 * length, 1)[:, :length]


@lru_cache(maxsize=32)
def _filter_matrix(lowpass: LowPass, length: int) -> NDArray[np.float64]:
    """Return the filter along a series of this length as a matrix, (length, length)."""
    matrix: NDArray[np.float64] = lowpass._series(np.eye(length)[None], "float64")[0]
    return matrix


@dataclass(frozen=True, slots=True)
class Bits(SeriesTransform):
    """Keep `bits` bits of each value: floats are rounded to multiples of ``2 * full / 2**bits`` and clipped there.

    Floats run from -`full` to `full`, whole numbers over their dtype. 32 bits change nothing.
    """

    kind: ClassVar[str] = "bits"
    assumes: ClassVar[str] = "the label does not rest on the quietest parts of the sound"
    modality: ClassVar[str] = "audio"
    identity: ClassVar[float] = 32
    strengths: ClassVar[tuple[float, float]] = (12, 2)
    domain: ClassVar[tuple[float, float]] = (1, 32)
    step: ClassVar[float] = 1

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
            remedy = "Say what full scale is, for instance 'bits:8:full=32768', or divide by it first."
            arrays.check_full_scale(x, full, self.kind, remedy)
        step = full * 2.0 ** (1 - self.bits)
        return (x / step).round().clip(np.ceil(low / step), np.floor(high / step)) * step
