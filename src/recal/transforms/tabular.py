"""Tables: features forgotten."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.errors import InputError
from recal.transforms import arrays
from recal.transforms.arrays import Array
from recal.transforms.base import BuiltIn
from recal.transforms.content import choose, content_keys


@dataclass(frozen=True, slots=True)
class MedianFill(BuiltIn):
    """Replace ``round(share * n_features)`` features of each row by their medians: at least one, never all.

    The medians are part of the value and of its spec (to 9 digits), so a saved calibrator brings them along and never
    depends on the data of the day. Take them from the training inputs: ``MedianFill.of(X, 0.3)`` or
    ``pool("median:0.1-0.9:5", data=X)``. Which features are replaced follows from `seed` and the row itself.

    Examples
    --------
    >>> from recal.transforms import MedianFill
    >>> str(MedianFill.of([[1.0, 10.0], [2.0, 20.0], [9.0, 60.0]], 0.5))
    'median:0.5:medians=2;20'
    """

    kind: ClassVar[str] = "median"
    assumes: ClassVar[str] = "the label does not rest on single features"
    modality: ClassVar[str] = "tabular"
    identity: ClassVar[float] = 0.0
    strengths: ClassVar[tuple[float, float]] = (0.05, 0.9)
    domain: ClassVar[tuple[float, float]] = (0.0, 1.0)
    traceable: ClassVar[bool] = False

    share: float
    medians: tuple[float, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        BuiltIn.__post_init__(self)
        if not self.medians or not np.isfinite(self.medians).all():
            raise InputError(
                "median carries the features' medians, one finite number each; take them from the training inputs with "
                f"MedianFill.of(X, share) or pool('median:0.1-0.9:5', data=X). Got {self.medians!r}."
            )

    @classmethod
    def of(cls, data: ArrayLike, share: float, seed: int = 0) -> Self:
        """Return the transformation with the medians of `data`, (n_samples, n_features); NaN is left out."""
        return cls(share, seed=seed, **cls.options_from(data))

    @classmethod
    def options_from(cls, data: Any) -> dict[str, Any]:
        table = np.asarray(data)
        if table.ndim != 2 or table.dtype.kind not in "fiub" or not len(table):
            raise InputError(
                "Medians are taken from numbers of the shape (n_samples, n_features), "
                f"got dtype {table.dtype}, shape {table.shape}."
            )
        return {"medians": tuple(np.nanmedian(table.astype(np.float64), axis=0).tolist())}

    def __call__(self, rows: Array, /) -> Array:
        return arrays.apply(self._rows, rows, traceable=False)

    def _rows(self, rows: NDArray) -> NDArray:
        arrays.check_numeric(rows, "Rows")
        if rows.ndim != 2 or rows.shape[1] != len(self.medians):
            raise InputError(f"This median knows {len(self.medians)} features; rows have the shape {rows.shape}.")
        if self.is_identity:
            return rows.copy()
        lost = choose(content_keys(rows, self.kind, self.seed), rows.shape[1], self.share)
        return np.where(lost, arrays.from_working(np.array(self.medians), str(rows.dtype)), rows)
