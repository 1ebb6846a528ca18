"""scikit-learn's conventions without its import.

Inheriting from its BaseEstimator would load scikit-learn, scipy.stats and pandas with every command
and every saved calibration: two seconds, ten times as long as everything else. scikit-learn's tools
need little of an estimator, and this module provides it without importing them.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self, dataclass_transform

from recal.errors import InputError, NotFittedError
from recal.schema import Instance, Kind, check, field_kinds

# The kind of the attribute `decision_`.
RULE = Instance("DecisionRule", hint="Pass decision.rule, not the decision itself")


def from_fit(*, init: Literal[False] = False) -> Any:
    """Declare an attribute that the fit sets: `loss_: float = from_fit()`."""
    return field(init=init)


def _is_fitted(name: str) -> bool:
    return name.endswith("_") and not name.startswith("_")


@dataclass_transform(kw_only_default=True, eq_default=False, field_specifiers=(from_fit,))
class Estimator:
    """Parameters are the fields of a dataclass with keywords only; names that end in "_" belong to
    the fit.
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

    def stored_params(self) -> dict[str, Any]:
        """Return the parameters that a file holds."""
        return self.get_params(deep=False)

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

    def _check_fitted(self) -> None:
        if "map_" not in vars(self):
            raise NotFittedError(f"This {type(self).__name__} is not fitted yet; call fit first.")

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
