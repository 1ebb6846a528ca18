"""The error of an estimator that is not fitted, which is scikit-learn's as well.

Loading scikit-learn takes a second, so this module is imported only to raise the error.
"""

from __future__ import annotations

from sklearn.exceptions import NotFittedError as SklearnNotFittedError

from recal.errors import NotFittedError


class UnfittedError(NotFittedError, SklearnNotFittedError):
    """An estimator was used before it was fitted."""
