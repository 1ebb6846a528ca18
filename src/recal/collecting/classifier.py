"""A classifier with scikit-learn's methods that calibrates a trained model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone

from recal.calibrators.auto import AutoCalibration
from recal.calibrators.base import Calibrator
from recal.calibrators.unfitted import UnfittedError
from recal.checks import ASIDES
from recal.collecting import collect
from recal.collecting.local import Predictions, apply, open_as_fitted, open_source
from recal.collecting.models import as_model
from recal.collecting.models.base import Model
from recal.collecting.preflight import as_pool
from recal.errors import InputError
from recal.transforms import Transform
from recal.transforms.preprocessing import Outputs


class CalibratedClassifier(ClassifierMixin, BaseEstimator):
    """Calibrate a trained model of any kind.

    The model is never trained or changed, and a clone shares it. For new inputs, only the
    transformations that the fitted calibrator needs are computed.

    Parameters
    ----------
    model : anything that `recal.collect` takes
    calibrator : Calibrator, optional
        The default is ``AutoCalibration()``. It is cloned, not changed.
    pool : str or sequence of transformations, optional
        The transformations that the calibrator may use, as in `recal.pool`. The default is chosen
        by the type of the inputs. If that is ambiguous (rows of numbers may be a table, a series or
        a sound), an error asks.
    preprocess : callable, optional
        Turns a transformed batch into the model's input.
    batch_size : int
    outputs : {"logits", "probabilities", "votes"}
        What the model returns.
    device : optional
        Where a torch model runs.
    random_state : int
        For drawing the pool.
    progress : bool
        Show a bar, if this is a terminal.
    engine : {"local", "ray"} or RayEngine
        Where the model runs. A saved file does not keep it.

    Attributes
    ----------
    calibrator_ : Calibrator
        The fitted calibrator; save it with `recal.save`.
    classes_ : ndarray of shape (n_classes,)
    n_features_in_ : int
        The number of features, if the inputs were a table.
    pool_ : tuple of transformations
    passes_per_answer_ : float
        The mean number of forward passes per answer in the last `predict_proba`.

    Examples
    --------
    >>> import numpy as np
    >>> from recal import CalibratedClassifier, TemperatureScaling
    >>> rng = np.random.default_rng(0)
    >>> images, y = rng.integers(0, 256, (50, 8, 8), dtype=np.uint8), np.arange(50) % 2
    >>> def model(batch):
    ...     return np.asarray(batch, dtype=float).reshape(len(batch), -1)[:, :2] / 50
    >>> classifier = CalibratedClassifier(model, TemperatureScaling()).fit(images, y)
    >>> classifier.predict_proba(images).shape
    (50, 2)
    """

    def __init__(
        self,
        model: Any,
        calibrator: Calibrator | None = None,
        *,
        pool: str | Sequence[Transform | str] | None = None,
        preprocess: Any = None,
        batch_size: int = 256,
        outputs: Outputs = "logits",
        device: Any = None,
        random_state: int = 0,
        progress: bool = False,
        engine: Any = "local",
    ) -> None:
        self.model = model
        self.calibrator = calibrator
        self.pool = pool
        self.preprocess = preprocess
        self.batch_size = batch_size
        self.outputs = outputs
        self.device = device
        self.random_state = random_state
        self.progress = progress
        self.engine = engine

    def __sklearn_clone__(self) -> CalibratedClassifier:
        # scikit-learn's own clone would return an untrained copy of the model.
        parameters = self.get_params(deep=False)
        if self.calibrator is not None:
            parameters["calibrator"] = clone(self.calibrator)
        return type(self)(**parameters)

    def fit(
        self,
        X: Any,
        y: ArrayLike | None = None,
        *,
        classes: Sequence[Any] | None = None,
        sample_weight: ArrayLike | None = None,
        clusters: ArrayLike | None = None,
    ) -> Self:
        """Learn the calibration from held-out inputs.

        Parameters
        ----------
        X : anything that `recal.collect` takes
            Inputs that the model was not trained on, not yet normalised.
        y : labels, optional if the inputs have labels
        classes : sequence, optional
            The model's columns in order, if labels are not column indices.
        sample_weight : array-like of shape (n_samples,), optional
            How often each sample counts, as in the calibrator's `fit`.
        clusters : array-like of shape (n_samples,), optional
            Names of inputs that belong together, such as frames of one video. By default those of
            the source.
        """
        calibrator = AutoCalibration() if self.calibrator is None else clone(self.calibrator)
        source = open_source(X, None, {}, self._adapter())
        self.pool_: tuple[Transform, ...] = ()
        if calibrator.needs_views or calibrator.reads_views:
            pool = "auto" if self.pool is None else self.pool
            self.pool_ = as_pool(pool, self.random_state, source, self._adapter())
        views = collect(self.model, source, self.pool_, labels=y, classes=classes, **self._how())
        calibrator.fit(views, sample_weight=sample_weight, clusters=clusters)
        self.calibrator_: Calibrator = calibrator
        self.classes_ = self.calibrator_.classes_
        self.__dict__.pop("n_features_in_", None)
        if len(getattr(X, "shape", ())) == 2:
            self.n_features_in_ = X.shape[1]
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return calibrated probabilities, (n_samples, n_classes)."""
        return self._apply(X).probs

    def predict_confidence(self, X: Any) -> NDArray[np.float64]:
        """Return the chance that the answer of `predict` is right, (n_samples,); see the
        calibrator's method.
        """
        confidences = self._apply(X).confidences
        assert confidences is not None
        return confidences

    def _apply(self, X: Any) -> Predictions:
        self._check_fitted(X)
        applied = apply(self.calibrator_, self.model, X, transforms=self.pool_, **self._how())
        self.passes_per_answer_ = applied.passes_per_answer
        return applied

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable class of each sample, or the model's own prediction if the
        calibrator keeps it.
        """
        self._check_fitted(X)
        if self.calibrator_.keeps_accuracy:  # no views are needed
            source = open_as_fitted(self.calibrator_, self._adapter(), X, None, {})
            views = collect(self.model, source, None, preflight=False, **self._how())
            return self.calibrator_.predict(views.logits)
        return self.classes_[self.predict_proba(X).argmax(axis=1)]

    def accept(self, X: Any) -> NDArray[np.bool_]:
        """Return whether the rule in `calibrator_.decision_` accepts the answer to each input."""
        self._check_fitted(X)
        rule, applied = self.calibrator_.rule(), self._apply(X)
        return np.asarray(rule.accept(applied.probs, applied.confidences))

    def _adapter(self) -> Model:
        return as_model(self.model, outputs=self.outputs, device=self.device)

    def _how(self) -> dict[str, Any]:
        names = ("preprocess", "batch_size", "outputs", "device", "progress", "engine")
        return {name: getattr(self, name) for name in names}

    def _check_fitted(self, X: Any) -> None:
        if not hasattr(self, "calibrator_"):
            raise UnfittedError("This CalibratedClassifier is not fitted; call fit(X, y) first.")
        shape: Any = getattr(X, "shape", ())
        expected = getattr(self, "n_features_in_", None)
        if expected is not None and len(shape) == 2 and shape[1] != expected:
            rule = f"The classifier was fitted on {expected} features, got {shape[1]}"
            aside = ASIDES["width"].format(shape[1], type(self).__name__, expected)
            raise InputError(rule, remedy=aside)
