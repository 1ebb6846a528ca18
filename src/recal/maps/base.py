"""A map turns logits, and the logits of a few views, into probabilities. It is data and one pure
function.

`probs` is written once, against the Python array API: numpy and torch run it, and ONNX export
traces it. The fields are declared by annotations (`recal.schema`), which also check a map that is
built or read from a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from recal.errors import InputError
from recal.schema import Record
from recal.transforms import Transform
from recal.transforms.arrays import Array as Array

if TYPE_CHECKING:
    from recal.maps.blend import Blend
    from recal.maps.steps import Plan

ViewLogits = Sequence[Array]


class Map(Record):
    """The base of all maps. A subclass declares its fields and defines `probs`; it becomes a frozen
    dataclass.
    """

    keeps_order: ClassVar[bool] = False
    """Whether the largest probability always belongs to the largest logit, except for rounding."""
    in_parts: ClassVar[bool] = True
    """Whether a large numpy array is evaluated a few rows at a time, in float64. False if
    `compiled` reads it directly.
    """

    def probs(self, z: Array, views: ViewLogits = ()) -> Array:
        """Return the method's own probabilities, (n_samples, n_classes), before predictions are
        kept.

        Parameters
        ----------
        z : (n_samples, n_classes) float64
            The logits.
        views : one such array for each of `transforms`
            May be left out if no sample needs its views.
        """
        raise NotImplementedError

    def compiled(self, z: Array, views: ViewLogits) -> tuple[Array, Array] | None:
        """Return probabilities and confidences of a large numpy array by compiled loops; None if
        the map has no loops.

        Only maps that keep the order of logits have such a shortcut. `maps.guard.answer` uses it.
        """
        return None

    @property
    def transforms(self) -> tuple[Transform, ...]:
        """The transformations whose logits `probs` reads."""
        return ()

    def needed_transforms(self) -> tuple[Transform, ...]:
        """Return the transformations whose logits must be computed for new inputs."""
        return self.transforms

    @property
    def gate(self) -> float | None:
        """Samples with at least this confidence need no views; None if there is no gate."""
        return None

    @property
    def plan(self) -> Plan | Blend | None:
        """The plan or the blend that the map is or contains; None if there is none."""
        return None

    @property
    def keeps_answers(self) -> bool:
        """Whether predictions never change where the map is used by itself."""
        return self.keeps_order

    def needs_views(self, logits: Array) -> Array:
        """Return for each sample whether its views must be computed, (n_samples,)."""
        xp = namespace(logits)
        return xp.full((logits.shape[0],), bool(self.transforms), **_device(logits))

    def passes(self, logits: Array) -> NDArray[np.int64]:
        """Return the number of forward passes for each sample, (n_samples,)."""
        return 1 + len(self.transforms) * np.asarray(self.needs_views(logits)).astype(np.int64)

    @property
    def n_classes(self) -> int | None:
        """The number of classes that the fields are for; None if the map accepts any."""
        return self._sizes.get("K")  # type: ignore[attr-defined]

    def check_classes(self, n_classes: int) -> None:
        """Refuse logits with a different number of classes."""
        if self.n_classes not in (None, n_classes):
            raise InputError(
                f"The map was fitted on {self.n_classes} classes, got logits of {n_classes}."
            )


def namespace(z: Array) -> Any:
    """Return the namespace of an array: numpy itself, torch through array-api-compat, or the one
    the array names.
    """
    # A tuple of types, because torch.compile cannot trace their union.
    if isinstance(z, (np.ndarray, np.generic)):
        return np
    if hasattr(z, "__array_namespace__"):
        return z.__array_namespace__()
    from array_api_compat import array_namespace

    return array_namespace(z)


def wide(z: Array) -> Array:
    """Return logits in float64, in which maps are evaluated, or in float32 on devices without
    float64.

    In numpy, rows become contiguous: the order of summation along a row must not depend on how it
    was stored.
    """
    if isinstance(z, np.ndarray):
        return np.ascontiguousarray(z, dtype=np.float64)
    xp = namespace(z)
    dtype = xp.float32 if getattr(getattr(z, "device", None), "type", "") == "mps" else xp.float64
    return xp.astype(z, dtype, copy=False)


def like(z: Array, values: Any) -> Array:
    """Return a constant as an array with the library, dtype and device of z."""
    if isinstance(z, np.ndarray):
        return np.asarray(values, dtype=z.dtype)
    return namespace(z).asarray(values, dtype=z.dtype, **_device(z))


def indices(z: Array, values: Any) -> Array:
    """Return whole numbers as an array with the library and device of z."""
    if isinstance(z, np.ndarray):
        return np.asarray(values, dtype=np.int64)
    xp = namespace(z)
    return xp.asarray(values, dtype=xp.int64, **_device(z))


def _device(z: Array) -> dict[str, Any]:
    device = getattr(z, "device", None)
    return {} if device is None or isinstance(z, np.ndarray) else {"device": device}
