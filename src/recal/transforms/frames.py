"""Tables with named columns as numbers and back; pandas is never imported here: whoever passes a frame has done so.

A column of numbers is its values, a categorical one its codes. Words without a list of categories are refused: what
stands in for a lost word could not be named by a number.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.errors import InputError


def is_frame(value: Any) -> bool:
    """Whether `value` is a pandas DataFrame."""
    frame = getattr(sys.modules.get("pandas"), "DataFrame", None)  # another thread may be loading pandas just now
    return frame is not None and isinstance(value, frame)


def is_category(column: Any) -> bool:
    return hasattr(column, "cat") and str(column.dtype) == "category"


def to_numbers(frame: Any) -> NDArray[np.float64]:
    """Return the columns as floats, (n_samples, n_features); codes for categories, NaN for what is missing."""
    table = np.empty(frame.shape, dtype=np.float64)
    for place, name in enumerate(frame.columns):
        column = frame.iloc[:, place]
        if is_category(column):
            codes = column.cat.codes.to_numpy()
            table[:, place] = np.where(codes < 0, np.nan, codes)
        elif getattr(column.dtype, "kind", "O") in "iufb":
            table[:, place] = column.to_numpy(dtype=np.float64, na_value=np.nan)
        else:
            raise InputError(
                f"The column {name!r} holds {column.dtype}; a table's transformations take numbers and categories. "
                f"Make it one with .astype('category'), with the categories of the training set."
            )
    return table


def with_numbers(frame: Any, table: NDArray[np.float64], changed: NDArray[np.bool_]) -> Any:
    """Return a copy of `frame` in which the cells marked in `changed` hold what `table` says, in their columns' dtypes.

    A NaN is a missing value; a column of whole numbers becomes floats where it gets one.
    """
    pandas, result = sys.modules["pandas"], frame.copy()
    for place in np.flatnonzero(changed.any(axis=0)):
        column, hit, values = frame.iloc[:, place], changed[:, place], table[:, place]
        if is_category(column):
            codes = np.where(hit, np.where(np.isnan(values), -1, values), column.cat.codes.to_numpy()).astype(np.int64)
            new: Any = pandas.Categorical.from_codes(codes, dtype=column.dtype)
        else:
            whole = column.dtype.kind in "iub"
            mixed = np.where(hit, np.rint(values) if whole else values, column.to_numpy(np.float64, na_value=np.nan))
            new = mixed if np.isnan(mixed).any() and whole else mixed.astype(_plain(column.dtype))
        result.isetitem(int(place), pandas.Series(new, index=frame.index))
    return result


def _plain(dtype: Any) -> Any:
    return getattr(dtype, "numpy_dtype", dtype)
