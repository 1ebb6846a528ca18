"""What a microphone, a room or a player does to a sound. Time is the last axis, (n, time) or (n, channels, time)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from recal.transforms.series import SeriesTransform
from recal.transforms.sound import silence_of

_STEEPNESS = 12
# Where a room's repeats begin, in shares of the sound: at growing distances, so that they do not sound like a tone.
_REPEATS = (0.03, 0.07, 0.12, 0.18, 0.25)


@dataclass(frozen=True, slots=True)
class HighPass(SeriesTransform):
    """Damp frequencies below `cutoff`, a share of the highest one (half the sampling rate), as a small speaker does.

    The damping is smooth (half the amplitude at the cut-off, 72 dB per octave), keeps phases, and mirrors the signal
    at its ends. The mean is damped, too.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.transforms import HighPass
    >>> bool(np.abs(HighPass(0.2)(np.ones((1, 100)))).max() < 1e-12)
    True
    """

    kind: ClassVar[str] = "highpass"
    assumes: ClassVar[str] = "the label does not rest on the lowest frequencies alone"
    modality: ClassVar[str] = "audio"
    identity: ClassVar[float] = 0.0
    strengths: ClassVar[tuple[float, float]] = (0.05, 0.6)
    domain: ClassVar[tuple[float, float]] = (0.0, 1.0)
    traceable: ClassVar[bool] = False

    cutoff: float
    axis: int = -1

    def _series(self, x: NDArray[Any], dtype: str) -> NDArray[Any]:
        length, silence = x.shape[1], silence_of(dtype)
        mirrored = np.concatenate([x, x[:, ::-1]], axis=1) - silence
        powers = (np.linspace(0, 1, length + 1) / self.cutoff) ** _STEEPNESS
        gain = (powers / (1 + powers)).reshape((1, -1) + (1,) * (x.ndim - 2))
        return np.fft.irfft(np.fft.rfft(mirrored, axis=1) * gain, 2 * length, axis=1)[:, :length] + silence


@dataclass(frozen=True, slots=True)
class Clip(SeriesTransform):
    """Cut off what is louder than `level` times the loudest sample of the sound, as an overdriven microphone does.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.transforms import Clip
    >>> Clip(0.5)(np.array([[100, -40, 7]], dtype=np.int16))
    array([[ 50, -40,   7]], dtype=int16)
    """

    kind: ClassVar[str] = "clip"
    assumes: ClassVar[str] = "the label does not rest on the loudest moments of the sound"
    modality: ClassVar[str] = "audio"
    identity: ClassVar[float] = 1.0
    strengths: ClassVar[tuple[float, float]] = (0.8, 0.05)
    domain: ClassVar[tuple[float, float]] = (0.0, 1.0)
    positive: ClassVar[bool] = True
    traceable: ClassVar[bool] = False

    level: float
    axis: int = -1

    def _series(self, x: NDArray[Any], dtype: str) -> NDArray[Any]:
        silence = silence_of(dtype)
        sound = x - silence
        limit = self.level * np.abs(sound).max(axis=tuple(range(1, x.ndim)), keepdims=True)
        return np.clip(sound, -limit, limit) + silence


@dataclass(frozen=True, slots=True)
class Faster(SeriesTransform):
    """Play the sound `speed` times as fast, and so higher; silence fills the end.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.transforms import Faster
    >>> Faster(2)(np.array([[1.0, 2.0, 3.0, 4.0]]))
    array([[1., 3., 0., 0.]])
    """

    kind: ClassVar[str] = "faster"
    assumes: ClassVar[str] = "the label does not rest on the speed or the pitch of the sound"
    modality: ClassVar[str] = "audio"
    identity: ClassVar[float] = 1.0
    strengths: ClassVar[tuple[float, float]] = (1.01, 1.5)
    domain: ClassVar[tuple[float, float]] = (1.0, 4.0)
    traceable: ClassVar[bool] = False

    speed: float
    axis: int = -1

    def _series(self, x: NDArray[Any], dtype: str) -> NDArray[Any]:
        length, silence = x.shape[1], silence_of(dtype)
        places = np.arange(length) * self.speed
        left = np.minimum(places.astype(np.intp), length - 1)
        across = (1, -1) + (1,) * (x.ndim - 2)
        part = (places - left).reshape(across)
        played = x[:, left] * (1 - part) + x[:, np.minimum(left + 1, length - 1)] * part
        return np.where((places < length).reshape(across), played, silence)


@dataclass(frozen=True, slots=True)
class Echo(SeriesTransform):
    """Add five repeats of the sound, each `loudness` times as loud as the one before, as a room does.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.transforms import Echo
    >>> Echo(0.5)(np.eye(1, 100))[0, [0, 3, 7, 12]]
    array([1.   , 0.5  , 0.25 , 0.125])
    """

    kind: ClassVar[str] = "echo"
    assumes: ClassVar[str] = "the label does not rest on where sounds end"
    modality: ClassVar[str] = "audio"
    identity: ClassVar[float] = 0.0
    strengths: ClassVar[tuple[float, float]] = (0.2, 0.9)
    domain: ClassVar[tuple[float, float]] = (0.0, 1.0)
    traceable: ClassVar[bool] = False

    loudness: float
    axis: int = -1

    def _series(self, x: NDArray[Any], dtype: str) -> NDArray[Any]:
        length, silence = x.shape[1], silence_of(dtype)
        sound = x - silence
        result = np.array(sound)
        for number, share in enumerate(_REPEATS, start=1):
            delay = max(round(share * length), 1)
            result[:, delay:] += self.loudness**number * sound[:, : length - delay]
        return result + silence
