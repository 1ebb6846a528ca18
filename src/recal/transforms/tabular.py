"""Transformations of tables: arrays of features, and data frames with numbers and categories."""

from __future__ import annotations

import sys
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from recal.errors import InputError
from recal.transforms import arrays
from recal.transforms.arrays import Array
from recal.transforms.base import BuiltIn, Keys, Numbers, Strengths, choose, content_keys, uniforms


def is_frame(value: Any) -> bool:
    """Whether `value` is a pandas DataFrame."""
    # Another thread may be loading pandas just now.
    frame = getattr(sys.modules.get("pandas"), "DataFrame", None)
    return frame is not None and isinstance(value, frame)


def is_category(column: Any) -> bool:
    return hasattr(column, "cat") and str(column.dtype) == "category"


def to_numbers(frame: Any) -> NDArray[np.float64]:
    """Return the columns as floats, (n_samples, n_features); codes for categories, NaN for what is
    missing.
    """
    table = np.empty(frame.shape, dtype=np.float64)
    for place, name in enumerate(frame.columns):
        column = frame.iloc[:, place]
        if is_category(column):
            codes = column.cat.codes.to_numpy()
            table[:, place] = np.where(codes < 0, np.nan, codes)
        elif getattr(column.dtype, "kind", "O") in "iufb":
            table[:, place] = column.to_numpy(dtype=np.float64, na_value=np.nan)
        else:
            rule = f"The column {name!r} holds {column.dtype}, neither numbers nor categories"
            remedy = "Use .astype('category'), with the categories of the training set"
            raise InputError(rule, remedy=remedy)
    return table


def with_numbers(frame: Any, table: NDArray[np.float64], changed: NDArray[np.bool_]) -> Any:
    """Return a copy of `frame` with the cells marked in `changed` taken from `table`, in their
    columns' dtypes.

    A NaN is a missing value; a column of whole numbers becomes floats if it gets one.
    """
    pandas, result = sys.modules["pandas"], frame.copy()
    for place in np.flatnonzero(changed.any(axis=0)):
        column, hit, values = frame.iloc[:, place], changed[:, place], table[:, place]
        if is_category(column):
            given = np.where(np.isnan(values), -1, values)
            codes = np.where(hit, given, column.cat.codes.to_numpy()).astype(np.int64)
            new: Any = pandas.Categorical.from_codes(codes, dtype=column.dtype)
        else:
            whole = column.dtype.kind in "iub"
            given = np.rint(values) if whole else values
            mixed = np.where(hit, given, column.to_numpy(np.float64, na_value=np.nan))
            dtype = getattr(column.dtype, "numpy_dtype", column.dtype)
            new = mixed if np.isnan(mixed).any() and whole else mixed.astype(dtype)
        result.isetitem(int(place), pandas.Series(new, index=frame.index))
    return result


_LEVELS = 11  # of each feature's distribution, from its minimum to its maximum


class TableTransform(BuiltIn):
    """Chooses features of each row from its content; subclasses say what replaces them."""

    share: float
    seed: int
    modality = "tabular"
    assumes = "the label does not rest on single features"
    strengths = Strengths(0.05, 0.6, identity=0)
    traceable = False
    numbers_only = False
    """Whether a frame's categories stay as they are."""
    per_feature = 0
    """How many numbers of each feature it learns from training inputs."""
    learned: ClassVar[str] = ""
    """The name of the field that holds them, feature by feature."""

    def __call__(self, rows: Array, /) -> Array:
        if not is_frame(rows):
            return arrays.compute(self._rows, rows, traceable=False)
        table = to_numbers(rows)
        if self.is_identity or not len(table):
            return rows.copy()
        lost, keys = self._lost(table)
        if self.numbers_only:
            words = [is_category(rows.iloc[:, place]) for place in range(table.shape[1])]
            lost = lost & ~np.array(words)
        return with_numbers(rows, np.where(lost, self._instead(table, keys), table), lost)

    def _rows(self, rows: NDArray[Any]) -> NDArray[Any]:
        arrays.check_numeric(rows, "Rows")
        if rows.ndim != 2:
            raise InputError(f"{self.kind} takes rows of features, got the shape {rows.shape}.")
        lost, keys = self._lost(rows)
        if self.is_identity or not rows.size:
            return rows.copy()
        return np.where(lost, arrays.from_working(self._instead(rows, keys), str(rows.dtype)), rows)

    def _lost(self, rows: NDArray[Any]) -> tuple[NDArray[np.bool_], Keys]:
        width = rows.shape[1]
        if self.per_feature and (known := self._n_learned() / self.per_feature) != width:
            rule = f"This {self.kind} knows {known:g} features"
            raise InputError(f"{rule}; these rows have {width}.")
        keys = content_keys(rows, self.kind, self.seed)
        return choose(keys, width, self.share), keys

    def _n_learned(self) -> int:
        return len(getattr(self, self.learned))

    def __post_init__(self) -> None:
        BuiltIn.__post_init__(self)
        if self.per_feature and (not self._n_learned() or self._n_learned() % self.per_feature):
            raise InputError(
                f"{self.kind} learns {self.per_feature} number(s) of each feature; take them from "
                f"the training inputs with pool('{self.kind}:0.1-0.5:5', data=X)."
            )

    @abstractmethod
    def _instead(self, rows: NDArray[Any], keys: Keys) -> NDArray[np.float64]:
        """Return what replaces lost features, in a shape that broadcasts to (n, features)."""


@dataclass(frozen=True)
class MedianFill(TableTransform):
    """Replace ``round(share * n_features)`` features of each row by their medians: at least one,
    never all.

    The medians are part of the transformation and its spec (to 9 digits), so a saved calibrator
    contains them and never depends on new data. Take them from the training inputs:
    ``pool("median:0.1-0.9:5", data=X)``. For a category, the most frequent value is used. The
    choice of features follows from `seed` and the row itself.

    Examples
    --------
    >>> from recal import pool
    >>> str(pool("median:0.5", data=[[1.0, 10.0], [2.0, 20.0], [9.0, 60.0]])[0])
    'median:0.5:medians=2;20'
    """

    kind = "median"
    per_feature = 1
    learned = "medians"
    strengths = Strengths(0.05, 0.9, identity=0)

    share: float
    medians: Numbers = ()
    seed: int = 0

    @classmethod
    def options_from(cls, data: Any) -> dict[str, Any]:
        table = _feature_table(data, "Medians")
        medians = np.nanmedian(table, axis=0)
        if is_frame(data):
            for place in range(table.shape[1]):
                if is_category(data.iloc[:, place]):
                    codes = table[:, place][~np.isnan(table[:, place])].astype(np.intp)
                    medians[place] = np.bincount(codes).argmax()
        return {"medians": tuple(medians.tolist())}

    def _instead(self, rows: NDArray[Any], keys: Keys) -> NDArray[np.float64]:
        return np.array(self.medians)


@dataclass(frozen=True)
class Permute(TableTransform):
    """Replace ``round(share * n_features)`` features of each row by values that other rows have
    there.

    Each value is drawn from eleven levels of the feature's distribution, from its minimum to its
    maximum. The transformation stores them in `levels`, feature by feature. The effect is that of
    shuffling the column, but a row changes in the same way alone. Take the levels from the training
    inputs: ``pool("permute:0.1-0.5:5", data=X)``.

    Examples
    --------
    >>> import numpy as np
    >>> from recal import pool
    >>> (shuffled,) = pool("permute:0.5", data=np.arange(20.0).reshape(10, 2))
    >>> shuffled(np.array([[4.0, 5.0]])).shape
    (1, 2)
    """

    kind = "permute"
    per_feature = _LEVELS
    learned = "levels"

    share: float
    levels: Numbers = ()
    seed: int = 0

    @classmethod
    def options_from(cls, data: Any) -> dict[str, Any]:
        table = _feature_table(data, "Levels")
        levels = np.nanquantile(table, np.linspace(0, 1, _LEVELS), axis=0, method="nearest")
        return {"levels": tuple(levels.T.ravel().tolist())}

    def _instead(self, rows: NDArray[Any], keys: Keys) -> NDArray[np.float64]:
        levels = np.array(self.levels).reshape(-1, _LEVELS)
        drawn = (uniforms(keys, rows.shape[1], stream=1) * _LEVELS).astype(np.intp)
        return levels[np.arange(rows.shape[1]), drawn]


@dataclass(frozen=True)
class Missing(TableTransform):
    """Leave out ``round(share * n_features)`` features of each row: NaN, or a frame's missing
    value.

    For models that accept missing values, such as boosted trees and pipelines with an imputer. Rows
    must be floats, since whole numbers have no missing value; a frame's columns of whole numbers
    become floats.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.transforms import Missing
    >>> int(np.isnan(Missing(0.5)(np.ones((1, 4)))).sum())
    2
    """

    kind = "missing"
    assumes = "the label does not rest on single features, and the model knows missing values"

    share: float
    seed: int = 0

    def _rows(self, rows: NDArray[Any]) -> NDArray[Any]:
        if rows.dtype.kind != "f" and not self.is_identity:
            rule = f"missing needs floats, since {rows.dtype} has no missing value"
            raise InputError(rule, remedy="Pass X.astype('float64')")
        return TableTransform._rows(self, rows)

    def _instead(self, rows: NDArray[Any], keys: Keys) -> NDArray[np.float64]:
        return np.full(rows.shape[1], np.nan)


@dataclass(frozen=True)
class Rescale(TableTransform):
    """Multiply ``round(share * n_features)`` features of each row by `factor`: another unit, or a
    worn sensor.

    The choice of features follows from `seed` and the row itself. A frame's categories stay as they
    are.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.transforms import Rescale
    >>> float(Rescale(0.5)(np.ones((1, 4))).sum())
    8.0
    """

    kind = "rescale"
    numbers_only = True

    share: float
    factor: float = 3.0
    seed: int = 0

    def _instead(self, rows: NDArray[Any], keys: Keys) -> NDArray[np.float64]:
        return np.asarray(rows, np.float64) * self.factor


def _feature_table(data: Any, what: str) -> NDArray[np.float64]:
    if is_frame(data) and len(data):
        table, names = to_numbers(data), [repr(name) for name in data.columns]
    else:
        values = np.asarray(data)
        if values.ndim != 2 or values.dtype.kind not in "fiub" or not len(values):
            raise InputError(
                f"{what} are taken from numbers of the shape (n_samples, n_features), "
                f"got dtype {values.dtype}, shape {values.shape}."
            )
        table, names = values.astype(np.float64), [str(place) for place in range(values.shape[1])]
    empty = np.flatnonzero(np.isnan(table).all(axis=0))
    if len(empty):
        rule = f"The column {names[empty[0]]} holds no value, so it has no {what.lower()}"
        remedy = "Fill it in, or pass pool=None (--pool none) to do without views of the table"
        raise InputError(rule, remedy=remedy)
    return table
