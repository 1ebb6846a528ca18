"""scikit-learn classifiers, and all models with the same methods."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.collecting.fingerprint import digest
from recal.collecting.models.base import Model, as_array
from recal.errors import InputError, in_both
from recal.transforms.preprocessing import Outputs

# The probabilities of these classifiers are shares of trees, of neighbours or of the samples in a
# leaf.
_VOTING = {
    "ForestClassifier",
    "KNeighborsClassifier",
    "RadiusNeighborsClassifier",
    "DecisionTreeClassifier",
}


class EstimatorModel(Model):
    """A fitted scikit-learn classifier.

    Logits come from `decision_function`; one number per sample is the log-odds of the second class.
    Without that method, or with ``outputs="probabilities"``, they are the logarithms of
    `predict_proba`. Probabilities of forests, trees and neighbours are shares of votes
    (``outputs="votes"``), also at the end of a pipeline or a search. Batches of more than two
    dimensions are flattened if the classifier was fitted on rows of that length.
    """

    def __init__(self, estimator: Any, *, outputs: Outputs = "logits") -> None:
        self.estimator = estimator
        self.name = type(estimator).__name__
        classes = getattr(estimator, "classes_", None)
        if classes is None:
            raise InputError(
                f"{self.name} is not fitted (it has no classes_); fit it on the training set first."
            )
        if isinstance(classes, list):
            raise InputError(
                f"{self.name} has several outputs; recal calibrates one classifier at a time."
            )
        self.classes = np.asarray(classes)
        # An SVC with one-vs-one margins returns one per pair of classes, not one per class.
        pairs = (
            getattr(estimator, "decision_function_shape", None) == "ovo" and len(self.classes) > 2
        )
        if pairs and not hasattr(estimator, "predict_proba"):
            raise InputError(
                f"{self.name} gives one margin per pair of classes; set decision_function_shape='ovr'."
            )
        is_scorer = outputs == "logits" and hasattr(estimator, "decision_function") and not pairs
        self.method = "decision_function" if is_scorer else "predict_proba"
        if not hasattr(estimator, self.method):
            remedy = f"Use {in_both(outputs='logits')} for its decision_function"
            raise InputError(f"{self.name} has no {self.method}", remedy=remedy)
        # LightGBM has its own attribute, and invents names for columns without any.
        names = getattr(estimator, "feature_names_in_", getattr(estimator, "feature_name_", None))
        if names is not None and not all(re.fullmatch(r"Column_\d+", str(name)) for name in names):
            self.features = tuple(map(str, names))
        self.n_features = getattr(estimator, "n_features_in_", None)
        self.gives_probs = self.method == "predict_proba"
        self.gives_logits = not self.gives_probs

    def returns(self, outputs: Outputs) -> Outputs:
        last = getattr(self.estimator, "best_estimator_", self.estimator)
        last = last.steps[-1][1] if hasattr(last, "steps") else last
        votes = self.gives_probs and any(kind.__name__ in _VOTING for kind in type(last).__mro__)
        return "votes" if votes and outputs in ("logits", "probabilities") else outputs

    def fingerprint(self) -> str:
        return digest([self.method, self.estimator])

    def answer(self, batch: Any) -> NDArray[Any]:
        values = np.asarray(getattr(self.estimator, self.method)(self._rows(batch)))
        return values if values.dtype.kind == "f" else values.astype(np.float64)

    def _rows(self, batch: Any) -> Any:
        is_frame = hasattr(batch, "columns")
        if isinstance(batch, list) or (is_frame and self.features is not None):
            return batch  # texts, or a frame for a model that knows its columns by name
        expected = self.n_features
        if is_frame and expected is None:
            self._refuse_words(batch)
        batch = as_array(batch)
        if expected is None:  # a pipeline whose first step takes any input
            return batch
        size = int(np.prod(batch.shape[1:]))
        if batch.ndim > 2 and batch.shape[-1] in (3, 4) and expected * batch.shape[-1] == size:
            raise InputError(
                f"{self.name} was fitted on rows of {expected} numbers, and an input of the shape {batch.shape[1:]} "
                f"has {size}",
                remedy=f"In grey it would fit: {in_both(pixels='gray')}",
            )
        if batch.ndim <= 2 or expected != size:
            return batch
        return batch.reshape(len(batch), -1)

    def _refuse_words(self, frame: Any) -> None:
        """Refuse a table with words for a model that takes texts."""
        kinds = {str(name): getattr(frame[name].dtype, "kind", "O") for name in frame.columns}
        words = [name for name, kind in kinds.items() if kind not in "biuf"]
        if words:
            raise InputError(
                f"{self.name} knows no columns by name and was given the columns "
                f"{', '.join(kinds)}",
                remedy=f"If it takes texts, say which column holds them: {in_both(text_column=words[0])}",
            )
