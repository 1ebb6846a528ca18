"""scikit-learn classifiers, and all that have their methods."""

from __future__ import annotations

from shlex import quote
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.collecting.fingerprint import digest
from recal.collecting.models.base import Model
from recal.errors import InputError, Remedy
from recal.transforms.preprocessing import Outputs

# Their probabilities are shares of trees, of neighbours or of the samples in a leaf.
_VOTING = {"ForestClassifier", "KNeighborsClassifier", "RadiusNeighborsClassifier", "DecisionTreeClassifier"}


class EstimatorModel(Model):
    """A fitted scikit-learn classifier.

    Logits are its `decision_function`; one number per sample is the log-odds of the second class. Where it has none, or
    ``outputs="probabilities"`` asks for them, the logarithms of `predict_proba`. Those of forests, trees and neighbours
    are shares of votes, also at the end of a pipeline or a search: ``outputs="votes"``.
    Batches of more than two dimensions are flattened to rows where the classifier was fitted on rows of that length.
    """

    def __init__(self, estimator: Any, *, outputs: Outputs = "logits") -> None:
        self.estimator = estimator
        self.name = type(estimator).__name__
        classes = getattr(estimator, "classes_", None)
        if classes is None:
            raise InputError(f"{self.name} is not fitted (it has no classes_); fit it on the training set first.")
        if isinstance(classes, list):
            raise InputError(f"{self.name} has several outputs; recal calibrates one classifier at a time.")
        self.classes = np.asarray(classes)
        self.method = "decision_function" if outputs == "logits" and self._can("decision_function") else "predict_proba"
        if not self._can(self.method):
            raise InputError(
                f"{self.name} has no {self.method}",
                remedy=Remedy(
                    "Pass outputs='logits' to use its decision_function",
                    typed="Use --outputs logits for its decision_function",
                ),
            )

        self.gives_probs = self.method == "predict_proba"
        self.gives_logits = not self.gives_probs

    def returns(self, outputs: Outputs) -> Outputs:
        return "votes" if self.gives_probs and outputs in ("logits", "probabilities") and self._votes() else outputs

    def _votes(self) -> bool:
        last = getattr(self.estimator, "best_estimator_", self.estimator)
        last = last.steps[-1][1] if hasattr(last, "steps") else last
        return any(kind.__name__ in _VOTING for kind in type(last).__mro__)

    def _can(self, method: str) -> bool:
        # An SVC's one-vs-one margins are one per pair of classes, not one per class.
        if method == "decision_function" and getattr(self.estimator, "decision_function_shape", None) == "ovo":
            if len(self.classes if self.classes is not None else ()) > 2 and not hasattr(
                self.estimator, "predict_proba"
            ):
                raise InputError(
                    f"{self.name} gives one margin per pair of classes; set decision_function_shape='ovr'."
                )
            return len(self.classes if self.classes is not None else ()) <= 2
        return hasattr(self.estimator, method)

    def fingerprint(self) -> str:
        return digest([self.method, self.estimator])

    def answer(self, batch: Any) -> NDArray[Any]:
        rows = self._rows(batch)
        values = np.asarray(getattr(self.estimator, self.method)(rows))
        if values.dtype.kind != "f":
            values = values.astype(np.float64)
        return values

    def _rows(self, batch: Any) -> Any:
        if hasattr(batch, "columns"):
            self._check_columns(batch)
        if isinstance(batch, list) or (hasattr(batch, "columns") and hasattr(self.estimator, "feature_names_in_")):
            return batch  # texts, and frames for a model that knows its columns by name
        batch = np.asarray(batch.detach().cpu() if hasattr(batch, "detach") else batch)
        try:
            expected = self.estimator.n_features_in_
        except AttributeError:  # a pipeline whose first step takes what it is given
            return batch
        found = int(np.prod(batch.shape[1:]))
        if batch.ndim > 2 and batch.shape[-1] in (3, 4) and expected * batch.shape[-1] == found:
            raise InputError(
                f"{self.name} was fitted on rows of {expected} numbers, and an input of the shape {batch.shape[1:]} "
                f"has {found}",
                remedy=Remedy("In grey it would fit: pixels='gray'", typed="In grey it would fit: --pixels gray"),
            )
        if batch.ndim <= 2 or expected != found:
            return batch
        return batch.reshape(len(batch), -1)

    def _check_columns(self, frame: Any) -> None:
        """Refuse a table with columns that the model was not fitted on, or with words where it takes texts."""
        known = getattr(self.estimator, "feature_names_in_", None)
        if known is not None:
            strangers = [str(name) for name in frame.columns if name not in set(known)]
            if strangers and set(known) <= set(frame.columns):
                raise InputError(
                    f"{self.name} was not fitted on the column{'s' * (len(strangers) > 1)} {', '.join(strangers)}",
                    remedy=Remedy(
                        f"Name that of the labels, label_column={strangers[-1]!r}; take others out",
                        typed=f"Name that of the labels, --label-column {quote(strangers[-1])}; take others out",
                    ),
                )
            return
        words = [str(name) for name in frame.columns if not _is_number(frame[name].dtype)]
        if words and not hasattr(self.estimator, "n_features_in_"):
            raise InputError(
                f"{self.name} knows no columns by name and was given the columns {', '.join(map(str, frame.columns))}",
                remedy=Remedy(
                    f"If it takes texts, say which column holds them: text_column={words[0]!r}",
                    typed=f"If it takes texts, say which column holds them: --text-column {quote(words[0])}",
                ),
            )


def _is_number(dtype: Any) -> bool:
    return getattr(dtype, "kind", "O") in "biuf"
