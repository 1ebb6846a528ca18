"""The contract of every calibrator. A new method is one map, one file with one method, and one
line in the family.

class MyMethod(Calibrator):
    short_name = "mine"            # its name in tables; METHODS lists those of recal's own
    keeps_accuracy = True          # whether predict() always returns the model's own prediction

    penalty: Strength = 1.0        # a parameter; the annotation says what is allowed
    loss_: float = from_fit()      # an attribute that the fit sets, and that files store

    def _fit(self, samples):
        ...
        return {"map_": a map (`recal.maps`), which predicts, "loss_": loss}
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Annotated, Any, ClassVar, Literal, Self, cast, dataclass_transform

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.calibrators import METHODS
from recal.calibrators.group_offsets import GroupOffsets, fit_group_offsets
from recal.calibrators.samples import Samples, as_views, check_samples, refuse_fractions
from recal.checks import (
    ASIDES,
    as_array,
    check_classes,
    check_form,
    check_labels,
    check_weights,
    is_array,
    is_single_column,
    looks_like_probabilities,
    need_labels,
)
from recal.copies import MOST_HASHES, count_fitted, row_hashes, sampled_rows
from recal.errors import InputError, NotFittedError
from recal.maps.base import Map, namespace
from recal.maps.blend import Answers, Blend
from recal.maps.guard import answer_array, answer_views, check_tensor
from recal.maps.steps import Plan
from recal.schema import Count, Instance, Integers, Kind, check, check_parameters, field_kinds
from recal.transforms import Transform
from recal.transforms.preprocessing import Preprocessing
from recal.views import Views

# The kind of the attribute `decision_`.
RULE = Instance("DecisionRule", hint="Pass decision.rule, not the decision itself")


def from_fit(*, init: Literal[False] = False) -> Any:
    """Declare an attribute that the fit sets: `loss_: float = from_fit()`."""
    return field(init=init)


def _is_fitted(name: str) -> bool:
    return name.endswith("_") and not name.startswith("_")


@dataclass_transform(kw_only_default=True, eq_default=False, field_specifiers=(from_fit,))
class Estimator:
    """scikit-learn's conventions without its import: parameters are the fields of a dataclass with
    keywords only, and names that end in "_" belong to the fit.

    Inheriting from its BaseEstimator would load scikit-learn, scipy.stats and pandas with every
    command and every saved calibration: two seconds, ten times as long as everything else.
    """

    _estimator_type = "classifier"  # scikit-learn before 1.6 reads this instead of the tags below

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in vars(cls).get("__annotations__", {}):
            if name.endswith("_") and name not in vars(cls):
                setattr(cls, name, from_fit())
        dataclass(kw_only=True, eq=False, repr=False)(cls)

    @classmethod
    def parameter_names(cls) -> list[str]:
        """Return the constructor's arguments in their order."""
        return list(inspect.signature(cls).parameters)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name.

        `deep` changes nothing, since no parameter is itself an estimator.
        """
        return {name: getattr(self, name) for name in self.parameter_names()}

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name."""
        names = self.parameter_names()
        for name, value in params.items():
            if name not in names:
                raise InputError(
                    f"{type(self).__name__} has no parameter {name!r}; it has: {', '.join(names)}."
                )
            setattr(self, name, value)
        return self

    @classmethod
    def fitted_kinds(cls) -> dict[str, Kind]:
        """Return the declared kind of each fitted attribute; files can contain no others."""
        family: Any = cls
        kinds = field_kinds(family).items()
        # A property is not stored.
        return {name: kind for name, kind in kinds if _is_fitted(name) and not hasattr(cls, name)}

    def state(self) -> dict[str, Any]:
        """Return the fitted attributes by name: all that a file needs besides the parameters."""
        self._check_fitted()
        return {name: value for name, value in vars(self).items() if _is_fitted(name)}

    def set_state(self, state: Mapping[str, Any]) -> Self:
        """Replace all fitted attributes by these: what an earlier fit left is gone."""
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)
        for name, value in state.items():
            setattr(self, name, value)
        return self

    def check_state(self) -> None:
        """Refuse fitted attributes that differ from their declarations.

        Called after reading a file.
        """
        self._check_fitted()
        for name, kind in self.fitted_kinds().items():
            if name in vars(self):
                check(vars(self)[name], kind, name)

    def rule(self) -> Any:
        """Return the rule in `decision_`; if none was set, the error explains how to set one."""
        self._check_fitted()
        if not hasattr(self, "decision_"):
            raise NotFittedError(
                f"This {type(self).__name__} has no decision rule; set decision_ = "
                "recal.decide(probs, y).rule."
            )
        return check(self.decision_, RULE, "decision_")

    def _check_fitted(self) -> None:
        if not hasattr(self, "map_"):
            from recal.calibrators.unfitted import UnfittedError  # loads scikit-learn

            raise UnfittedError(f"This {type(self).__name__} is not fitted yet; call fit first.")

    def _check_groups(self, groups: Any) -> None:
        if groups is not None and not hasattr(self, "group_offsets_"):
            raise InputError(
                f"This {type(self).__name__} was fitted without groups",
                argument="groups",
                remedy="Fit with fit(..., groups=groups) (--group COLUMN), or leave groups out",
            )

    def __repr__(self) -> str:
        """Show the parameters that are not at their defaults, as scikit-learn does."""
        defaults = inspect.signature(type(self)).parameters
        changed = [
            f"{name}={value!r}"
            for name, value in self.get_params().items()
            if repr(value) != repr(defaults[name].default)
        ]
        return f"{type(self).__name__}({', '.join(changed)})"

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=True),
            classifier_tags=ClassifierTags(),
            input_tags=InputTags(),
        )


class Calibrator(Estimator, ABC):
    """Maps a classifier's logits to calibrated probabilities.

    Attributes
    ----------
    map_ : Map
        What the fit learned: a frozen value that turns logits into probabilities (`recal.maps`).
    classes_ : ndarray of shape (n_classes,)
        The names of the columns; column indices if labels were integers.
    n_fitted_ : int
        The number of samples of the fit.
    row_hashes_, prob_hashes_ : ndarray of uint64
        Hashes of the logits of the fit and of their probabilities; `fitted_rows` uses them to
        recognise these rows.
    decision_ : DecisionRule, if one was set
        Which predictions `accept` accepts; see `recal.decide`.
    sets_ : PredictionSets, if they were set
        Which classes are in each prediction set; see `recal.prediction_sets`.
    profile_ : Profile, if one was set
        What inputs looked like at the fit; see `recal.decisions.watch`. All three are saved with
        the calibrator, and a new fit removes them.
    preprocessing_ : Preprocessing, if the views of the fit have it
        How inputs were prepared for the model; code that applies or exports the calibrator does the
        same.
    group_offsets_ : GroupOffsets, after a fit with groups
        One offset per group on the log-odds of the confidence.
    """

    short_name: ClassVar[str]
    keeps_accuracy: ClassVar[bool]
    """Whether `predict` always returns the model's own prediction."""
    needs_views: ClassVar[bool] = False
    takes_weights: ClassVar[bool] = False
    """Whether `sample_weight` may contain any numbers, not only whole ones."""
    reads_views: ClassVar[bool] = False
    """Whether the fit can use views but does not need them. If so, it is worth collecting some."""

    map_: Map = from_fit()
    classes_: NDArray[Any] = from_fit()
    n_fitted_: Count = from_fit()
    row_hashes_: Annotated[NDArray[np.uint64], Integers(None)] = from_fit()
    prob_hashes_: Annotated[NDArray[np.uint64], Integers(None)] = from_fit()
    decision_: Annotated[Any, RULE] = from_fit()
    sets_: Annotated[Any, Instance("PredictionSets")] = from_fit()
    profile_: Annotated[Any, Instance("Profile")] = from_fit()
    preprocessing_: Preprocessing = from_fit()
    group_offsets_: GroupOffsets = from_fit()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for short_name, name in METHODS.items():
            if cls.__name__ == name:
                cls.short_name = short_name

    def fit(
        self,
        X: Views | ArrayLike,
        y: ArrayLike | None = None,
        *,
        classes: Sequence[Any] | None = None,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        clusters: ArrayLike | None = None,
    ) -> Self:
        """Learn the map from held-out logits and their labels.

        Parameters
        ----------
        X : Views, or logits of shape (n_samples, n_classes)
            Log-odds of the second of two classes may have the shape (n_samples,) or (n_samples, 1).
        y : labels of shape (n_samples,), optional if the views have labels
            Integers are column indices; anything else needs `classes`.
        classes : sequence of length n_classes, optional
            The names of the columns, in order.
        sample_weight : array-like of shape (n_samples,), optional
            How often each sample counts. Any numbers if the method `takes_weights`; otherwise whole
            numbers, and each sample is repeated that often.
        groups : array-like of shape (n_samples,), optional
            The subject, customer or camera of each sample. One offset per group is added to the
            log-odds of `predict_confidence(X, groups)`, shrunk by cross-validation; probabilities
            and predictions do not change. By default the groups of the views.
        clusters : array-like of shape (n_samples,), optional
            Names of rows that belong together, such as frames of one video or samples of one
            patient. Cross-validation never divides a cluster, and its standard errors count
            clusters instead of rows. By default those of the views.
        """
        check_parameters(self)
        name = type(self).__name__
        views = as_views(X, needs_views=self.needs_views, method=name)
        count, labels = views.n_classes, views.labels
        names = views.classes if classes is None else classes
        if y is not None:
            labels = check_labels(y, views.n_samples, count, names)
        labels = need_labels(labels, "fit", ASIDES["no y"].format(name))
        clusters = views.clusters if clusters is None else clusters
        groups = views.groups if groups is None else groups
        columns = np.arange(count) if names is None else check_classes(names, count)
        samples = Samples.checked(views, labels, sample_weight, clusters, groups, columns)
        # Exponentials of classes far below the largest underflow. A decorator would hide the caller
        # from warnings.
        with np.errstate(under="ignore"):
            check_samples(samples)
            used = samples.without_zeros()
            if not self.takes_weights:
                refuse_fractions(samples.weights, name)
                used = samples.repeated()
            record = self._fit(used)
            self.set_state({"classes_": samples.classes, "n_fitted_": len(used), **record})
            self._attach(samples)
        return self

    def _attach(self, samples: Samples) -> None:
        """Set what every fit leaves beside its map: hashes, preprocessing, offsets of groups."""
        views = samples.views
        hashes = row_hashes(views.logits)
        self.row_hashes_ = np.sort(hashes)[:MOST_HASHES]
        probs = self._answer(views[sampled_rows(hashes)])[0]
        self.prob_hashes_ = np.sort(row_hashes(probs))
        if views.preprocessing is not None:
            self.preprocessing_ = views.preprocessing
        if samples.groups is not None:
            probs, confidence = self._answer(views)
            right = probs.argmax(axis=1) == samples.labels
            self.group_offsets_ = fit_group_offsets(
                confidence, right, samples.groups, samples.weights, clusters=samples.clusters
            )

    def predict_proba(self, X: Views | ArrayLike) -> NDArray[np.float64]:
        """Return calibrated probabilities, (n_samples, n_classes), strictly inside (0, 1); rows sum
        to 1.

        Logits, and those of `Views`, may be arrays of another library, such as torch tensors on any
        device. The probabilities are then arrays of the same library on the same device.
        """
        return self.predict_both(X)[0]

    def predict_confidence(
        self, X: Views | ArrayLike, groups: ArrayLike | None = None
    ) -> NDArray[np.float64]:
        """Return the probability that the prediction of `predict` is right, (n_samples,).

        If predictions may change, this is the largest probability. If they are kept, the method may
        find another class likelier than the model's prediction. `predict_proba` then raises the
        prediction to the top, and this is its probability before that. It separates right from
        wrong predictions better than the largest probability: use it to rank and to accept
        predictions. With `groups`, by default those of the views, the offsets of a fit with groups
        are added; groups that were not in the fit have no offset.

        Examples
        --------
        >>> from recal.calibrators import VectorScaling
        >>> logits = np.tile([[2.0, 0.0], [0.0, 2.0]], (20, 1))
        >>> scaled = VectorScaling(answers="kept").fit(logits, np.tile([1, 1, 1, 1, 0, 1], 7)[:40])
        >>> scaled.predict_proba(logits[:1]).round(2).tolist()
        [[0.5, 0.5]]
        >>> scaled.predict_confidence(logits[:1]).round(2).tolist()
        [0.3]
        """
        return self.predict_both(X, groups)[1]

    def predict_both(
        self, X: Views | ArrayLike, groups: ArrayLike | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the results of `predict_proba` and `predict_confidence` at the cost of one."""
        self._check_groups(groups)
        self._check_width(X)
        with np.errstate(under="ignore"):
            tensors = X.tensors if isinstance(X, Views) else {None: X} if is_array(X) else None
            if tensors is None:
                probs, confidence = self._answer(X if isinstance(X, Views) else Views(X))
            else:
                arrays = {key: check_tensor(array) for key, array in tensors.items()}
                how: dict[str, Any] = {"kept": self.keeps_accuracy, "method": type(self).__name__}
                probs, confidence = answer_array(self.map_, arrays.pop(None), arrays, **how)
        if groups is None and isinstance(X, Views):
            groups = X.groups
        if groups is None or not hasattr(self, "group_offsets_"):
            return probs, confidence
        return probs, self.group_offsets_.apply(confidence, groups)

    def fitted_rows(self, X: Views | ArrayLike) -> int:
        """Return about how many of these samples the calibrator was fitted on, according to their
        hashes.

        X are views, logits, or probabilities from this calibrator.
        """
        self._check_width(X)
        rows = X.logits if isinstance(X, Views) else check_form(X, "X", single="log-odds")
        are_probs = not isinstance(X, Views) and looks_like_probabilities(rows)
        # The method chosen by AutoCalibration keeps no hashes.
        name = "prob_hashes_" if are_probs else "row_hashes_"
        hashes = getattr(self, name, np.empty(0, np.uint64))
        return count_fitted(rows, hashes, getattr(self, "n_fitted_", 0))

    def _answer(self, views: Views) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return answer_views(self.map_, views, kept=self.keeps_accuracy)

    def _predict_proba(self, views: Views) -> NDArray[np.float64]:
        """Return the map's own probabilities, before predictions are kept."""
        return answer_views(self.map_, views, kept=False)[0]

    def predict(self, X: Views | ArrayLike) -> NDArray[Any]:
        """Return the most probable class of each sample."""
        self._check_width(X)
        if self.keeps_accuracy:
            scores = as_views(X, needs_views=False, method=type(self).__name__).logits
        else:
            scores = self.predict_proba(X)
        return self.classes_[as_array(namespace(scores).argmax(scores, axis=1), "predictions")]

    def score(
        self, X: Views | ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> float:
        """Return the share of right predictions."""
        answers = self.predict(X)
        labels = check_labels(y, len(answers), len(self.classes_), self.classes_)
        weights = None if sample_weight is None else check_weights(sample_weight, len(answers))
        return float(np.average(answers == self.classes_[labels], weights=weights))

    @property
    def plan_(self) -> Plan | Blend:
        """The steps, blend or temperature that the map is made of. Not every method has a plan."""
        if self.map_.plan is None:
            raise AttributeError(f"This {type(self).__name__} has no plan_.")
        return self.map_.plan

    @property
    def n_features_in_(self) -> int:
        """The number of columns of the logits, which is the number of classes."""
        return len(self.classes_)

    def accept(self, X: Views | ArrayLike, groups: ArrayLike | None = None) -> NDArray[np.bool_]:
        """Return whether the rule in `decision_` accepts each prediction.

        `groups` are needed if the rule has a threshold per group or the calibrator was fitted with
        groups. By default they are those of the views.
        """
        rule = self.rule()
        groups = X.groups if groups is None and isinstance(X, Views) else groups
        both = self.predict_both(X, groups if hasattr(self, "group_offsets_") else None)
        return np.asarray(rule.accept(*both, groups))

    def needed_transforms(self) -> tuple[Transform, ...]:
        """Return the transformations whose logits are read; new inputs need no others."""
        self._check_fitted()
        return self.map_.transforms

    @abstractmethod
    def _fit(self, samples: Samples) -> Mapping[str, Any]:
        """Return the fitted attributes by name: `map_`, and those that the method declares.

        Weights are None unless the method `takes_weights`. With `samples.near`, the map of a fit to
        nearly the same samples, the fit may start there and stop within 1e-5 of the lowest loss.
        """

    def learn(self, samples: Samples) -> Self:
        """Fit to samples that were checked before, as part of another fit."""
        self.set_state({"n_fitted_": len(samples), **self._fit(samples)})
        return self

    def _repr_html_(self) -> str:
        # Import by name, because reporting imports calibrators, not the other way round.
        return str(import_module("recal.reporting.notebook").calibrator_html(self))

    def check_state(self) -> None:
        """Refuse fitted attributes that no fit produces: wrong shapes or kinds, or numbers that are
        not finite.
        """
        super().check_state()
        classes = self.classes_
        if classes.ndim != 1 or len(set(classes.tolist())) < max(2, len(classes)):
            raise InputError(
                "must name at least two classes, and only distinct classes", argument="classes_"
            )
        if not isinstance(getattr(self, "map_", None), Map):
            raise InputError("is missing", argument="map_")
        for name in ("map_", "decision_", "sets_", "profile_"):
            if hasattr(self, name):
                getattr(self, name).check_classes(len(classes))

    def _check_width(self, X: Views | ArrayLike) -> None:
        """Refuse logits with a different number of classes, before any other check."""
        self._check_fitted()
        shape = tuple(getattr(X, "shape", ()))
        if isinstance(X, Views):
            shape = X.n_samples, X.n_classes
        name, expected = type(self).__name__, len(self.classes_)
        given = 2 if is_single_column(shape) else shape[-1] if len(shape) == 2 else expected
        if given != expected:
            width = ASIDES["width"].format(shape[-1], name, expected)
            aside = width if len(shape) == 2 else ASIDES["shape"]
            raise InputError(
                f"This {name} was fitted on {expected} classes, got {given} columns",
                argument="X",
                remedy=f"Fit a calibration on logits of this model. {aside}",
            )


class _KeptAnswers:
    """Whether predictions are kept, from the option `answers` of an instance or from its default in
    the class.
    """

    def __get__(self, instance: Any, owner: Any) -> bool:
        return bool((owner if instance is None else instance).answers == "kept")


class GuardedCalibrator(Calibrator):
    """A method that may change predictions.

    Parameters
    ----------
    answers : {"free", "kept"}
        "free": predictions may change if another class is more likely. "kept": predictions never
        change: a guard keeps the model's prediction the likeliest class at the lowest cost.
    """

    keeps_accuracy: ClassVar[bool] = cast(bool, _KeptAnswers())

    answers: Answers = "free"
