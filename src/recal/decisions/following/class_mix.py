"""Another class mix than at the fit: estimated from a batch or given, and what it does to probabilities.

If inputs of each class are as they were and only their shares have changed, Bayes' rule says what becomes of calibrated
probabilities: each is multiplied by its class's share today over that at the fit. The shares of a batch without labels
are found by expectation maximisation on probabilities whose class shares are right at the fit (bias-corrected
temperature scaling; Alexandari, Kundaje and Shrikumar, 2020). Damage changes the mix of *predicted* classes, too, and
must not be taken for it: a test asks whether the class mix alone explains the batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.calibrators.machinery.probabilities import softmax
from recal.checks import Floats, check_logits, check_probs
from recal.decisions.following.prior_shift import class_shares
from recal.decisions.following.statistics import RowNumbers, row_numbers
from recal.errors import InputError

if TYPE_CHECKING:
    from recal.decisions.profiles import Profile

Vector = NDArray[np.float64]

# Of samples per class with the fit's mix that a batch's own samples are averaged with: rare classes are not ruled out.
_PRIOR = 5.0
# One-sided normal quantiles: from 1 % on another mix is looked for, and from 10 % on "the mix explains the batch" is
# given up. To miss another mix costs a gain, and to take damage for one does harm.
_SURPRISE = 2.326
_DOUBT = 1.2816
# Following that changes the temperature by more than this takes the batch for damaged.
_DAMAGED = 1.1
SMALLEST_BATCH = 50
# From so few samples the fit's own shares and offsets are too uncertain: the first test would often reject them.
SMALLEST_FIT = 500
_MAX_ROWS = 20_000
_ROUNDS = 200
_OFFSET_ROWS = 5000
# Of samples of the usual inputs that each class's own are averaged with.
_USUAL = 5.0
_N_NUMBERS = 4
_LEAST = 1e-300
_MORE = "more than the class mix has changed, so the inputs may be damaged"


@dataclass(frozen=True)
class ClassMix:
    """The share of each class, today and at the fit; made by `class_mix`.

    Attributes
    ----------
    shares, at_fit : tuples of n_classes numbers
    changed : bool
        Whether `adapt_to_class_mix` changes anything.
    reason : str
        What the shares rest on, or why those of the fit stay.
    """

    shares: tuple[float, ...]
    at_fit: tuple[float, ...]
    changed: bool
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**vars(self), "shares": list(self.shares), "at_fit": list(self.at_fit)}

    def moves(self, classes: Sequence[Any] | None = None) -> str:
        """The three classes whose share changed most, with both shares; `classes` are the names of the columns."""
        moved = np.argsort(-np.abs(np.subtract(self.shares, self.at_fit)), kind="stable")[:3]
        named = [f"class {k}" if classes is None else str(classes[k]) for k in moved]
        return ", ".join(f"{name} {self.at_fit[k]:.1%} -> {self.shares[k]:.1%}" for name, k in zip(named, moved))

    def describe(self, classes: Sequence[Any] | None = None) -> str:
        """One sentence for a person: which mix is used, and why."""
        if not self.changed:
            return f"The class mix of the fit is used: {self.reason}."
        return f"Another class mix than at the fit is used ({self.reason}): {self.moves(classes)}."

    def __str__(self) -> str:
        return self.describe()


@dataclass(frozen=True, eq=False)
class ByClass:
    """What the samples of a fit show of each class: all that another mix is judged by.

    Parameters
    ----------
    offsets : array of shape (n_classes,)
        Factors that give temperature-scaled probabilities the class shares of the fit.
    numbers : array of shape (n_classes, 4)
        Mean confidence, share above ATC's cut, largest centred logit and log squared norm of each class's samples.
    spread : array of shape (4, 4)
        Covariance of these numbers within classes.
    """

    offsets: Vector
    numbers: Vector
    spread: Vector

    def check(self, n_classes: int) -> None:
        """Refuse what cannot belong to a profile of so many classes."""
        shapes = {"offsets": (n_classes,), "numbers": (n_classes, _N_NUMBERS), "spread": (_N_NUMBERS, _N_NUMBERS)}
        for name, shape in shapes.items():
            array = getattr(self, name)
            if np.shape(array) != shape or not np.isfinite(array).all():
                raise InputError(f"`{name}` must be finite and have the shape {shape}, got {np.shape(array)}.")
        if not (self.offsets > 0).all():
            raise InputError("must be above 0", argument="offsets")


def learn_classes(logits: Floats, labels: NDArray[np.intp], beta: float, cut: float) -> ByClass:
    """Read off labelled samples what `class_mix` needs."""
    n_classes = logits.shape[1]
    values = _numbers(row_numbers(logits, beta, math.nan), cut)
    counts = np.bincount(labels, minlength=n_classes)
    sums = np.zeros((n_classes, values.shape[1]))
    np.add.at(sums, labels, values)
    means = (sums + _USUAL * values.mean(axis=0)) / (counts + _USUAL)[:, None]
    within = values - means[labels]
    some = slice(None, None, -(-len(labels) // _OFFSET_ROWS))
    offsets = _offsets(softmax(np.asarray(logits[some]), beta), np.bincount(labels[some], minlength=n_classes))
    return ByClass(offsets, means, within.T @ within / len(within))


def _offsets(probs: Vector, counts: NDArray[np.intp]) -> Vector:
    """Factors by which probabilities get the class shares of their samples: the biases of greatest likelihood.

    A class that no sample gives a probability above 0, such as one that a model masks, keeps its own.
    """
    expected = probs.mean(axis=0)
    target = (counts + _USUAL * expected) / (len(probs) + _USUAL)
    factors = np.ones(len(counts))
    for _ in range(_ROUNDS):
        given = factors * (probs.T @ (1.0 / (probs @ factors))) / len(probs)
        step = np.where(given > _LEAST, target / np.maximum(given, _LEAST), 1.0)
        factors = factors * step
        if np.abs(step - 1).max() < 1e-6:
            break
    return np.asarray(factors / factors.mean())


def class_mix(
    profile: Profile,
    logits: Floats | None = None,
    *,
    shares: Mapping[Any, float] | ArrayLike | None = None,
    impossible: Iterable[Any] = (),
    classes: Sequence[Any] | None = None,
) -> ClassMix:
    """Return the class mix of new inputs: estimated from their logits, or as given.

    An estimate is used only where the fit had 500 samples and the batch has 50 inputs or more, where the mix of the fit
    does not explain the batch (1 % level), where another mix alone does (a second test, at 10 %), and where following
    would leave the temperature as it is, within 10 %. Damaged inputs fail the second test or the third.

    Parameters
    ----------
    profile : Profile
        Made with labels.
    logits : array of shape (n_samples, n_classes), optional
        Of the new inputs. Without them `shares`, or those of the fit, are taken.
    shares : mapping of class to share, or array of shape (n_classes,), optional
        Shares that you know. Classes that a mapping does not name divide the rest as at the fit.
    impossible : classes
        Classes that cannot occur.
    classes : sequence, optional
        Names of the columns, where `shares` and `impossible` name classes. Column numbers where not given.

    Examples
    --------
    >>> import numpy as np
    >>> from recal import profile
    >>> from recal.decisions import adapt_to_class_mix, class_mix
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 3, 900)
    >>> logits = 3 * np.eye(3)[y] + rng.normal(0, 1.5, (900, 3))
    >>> kept = profile(logits, y)
    >>> mix = class_mix(kept, impossible=[2])
    >>> adapt_to_class_mix([[0.3, 0.3, 0.4]], mix).round(1)
    array([[0.5, 0.5, 0. ]])
    """
    at_fit = _at_fit(profile)
    names = list(range(profile.n_classes)) if classes is None else list(classes)
    possible = np.ones(profile.n_classes)
    possible[[_column(name, names) for name in impossible]] = 0.0
    if not possible.any():
        raise InputError("must leave one class at least", argument="impossible", came="got all of them")
    asked = "classes that cannot occur" if not possible.all() else ""
    if shares is not None:
        return _mix(_given(shares, at_fit, names, possible), at_fit, True, "as given")
    start = at_fit * possible / (at_fit @ possible)
    if logits is None or profile.by_class is None:
        old = "" if profile.by_class is not None else "the profile is of an earlier version"
        return _mix(start, at_fit, bool(asked), asked or old or "no other was given")
    if (n_fitted := len(profile.answers)) < SMALLEST_FIT:
        few = f"an estimate needs {SMALLEST_FIT} labelled samples at the fit, and there were {n_fitted}"
        return _mix(start, at_fit, bool(asked), asked or few)
    found, why = _estimated(profile, profile.by_class, logits, start)
    if found is None:
        return _mix(start, at_fit, bool(asked), asked or why)
    return _mix(found, at_fit, True, why)


def adapt_to_class_mix(probs: ArrayLike, mix: ClassMix) -> Vector:
    """Return the probabilities for another class mix: each times its class's share today over that at the fit.

    **Predictions can change**, also those of calibrators that keep them: a class that has become rare is a less likely
    answer. A rule of `decide` was made for the mix of its own samples, and its guarantee is for that mix.

    Parameters
    ----------
    probs : array-like of shape (n_samples, n_classes)
        Of any calibrator.
    mix : ClassMix
        From `class_mix`, which has an example.
    """
    array = np.asarray(check_probs(probs), dtype=np.float64)
    if array.shape[1] != len(mix.shares):
        raise InputError(f"The class mix is of {len(mix.shares)} classes, got probabilities of {array.shape[1]}.")
    if not mix.changed:
        return array
    weighted = np.maximum(array, np.finfo(np.float64).tiny) * np.divide(mix.shares, mix.at_fit)
    return np.asarray(weighted / weighted.sum(axis=1, keepdims=True))


def _mix(shares: Vector, at_fit: Vector, changed: bool, reason: str) -> ClassMix:
    return ClassMix(tuple(shares.tolist()), tuple(at_fit.tolist()), changed, reason)


def _at_fit(profile: Profile) -> Vector:
    if profile.class_shares is None:
        raise InputError("A class mix needs a profile that was made with labels: profile(views, y).")
    n = len(profile.answers)
    return np.asarray((profile.class_shares * n + 0.5) / (n + 0.5 * profile.n_classes))


def _column(name: Any, names: list[Any]) -> int:
    for column, one in enumerate(names):
        if one == name or str(one) == str(name):
            return column
    raise InputError(f"There is no class {name!r}; the classes are {', '.join(map(str, names[:10]))}.")


def _given(shares: Mapping[Any, float] | ArrayLike, at_fit: Vector, names: list[Any], possible: Vector) -> Vector:
    """Check shares that a person gave, and fill in those of classes that were not named."""
    found = np.full(len(at_fit), np.nan)
    if isinstance(shares, Mapping):
        for name, share in shares.items():
            found[_column(name, names)] = share
    else:
        found = np.array(shares, dtype=np.float64)
        if found.shape != at_fit.shape:
            raise InputError(f"`shares` must hold {len(at_fit)} numbers, one per class, got the shape {found.shape}.")
        if np.isnan(found).any():
            raise InputError("must be numbers", argument="shares", came="got NaN")
    open_, total = np.isnan(found), float(np.nansum(found))
    if not np.isfinite(total) or np.nanmin(found, initial=0.0) < 0 or total > 1 + 1e-6:
        raise InputError("must lie in 0..1 and sum to at most 1", argument="shares", came=f"their sum is {total:.4g}")
    rest = np.where(open_, at_fit * possible, 0.0)
    if not rest.sum() and abs(total - 1) > 1e-6:
        raise InputError(
            "must sum to 1 where all classes have one", argument="shares", came=f"their sum is {total:.4g}"
        )
    found = np.where(open_, rest * (1 - total) / (rest.sum() or 1.0), found) * possible
    if not found.sum():
        raise InputError("must leave a class with a share above 0", argument="shares")
    return np.asarray(found / found.sum())


def _estimated(profile: Profile, by_class: ByClass, logits: Floats, start: Vector) -> tuple[Vector | None, str]:
    """The shares that explain a batch best, and what they rest on; None, and why, where they are not to be used."""
    logits = check_logits(logits)
    profile.check_classes(logits.shape[1])
    n, n_fit = len(logits), len(profile.answers)
    if n < SMALLEST_BATCH:
        return None, f"{n} inputs are too few to judge by; {SMALLEST_BATCH} are needed"
    rows = np.asarray(logits[:: -(-n // _MAX_ROWS)])
    probs = softmax(rows, profile.beta) * by_class.offsets
    probs /= probs.sum(axis=1, keepdims=True)
    at_fit, n = _at_fit(profile), len(rows)
    found = class_shares(probs, at_fit, start=start, prior=_PRIOR * len(start))
    # A row that is surely of a class that cannot occur speaks for no mix.
    after, before = (np.log(np.maximum(probs @ (mix / at_fit), _LEAST)).sum() for mix in (found, start))
    gain = 2 * float(after - before)
    free = max(int((start > 0).sum()) - 1, 1)
    if normal_of_chi_square(gain / (1 + n / n_fit), free) < _SURPRISE:
        return None, "it explains these inputs well enough"
    freely = class_shares(probs, at_fit, start=start)
    values = _numbers(row_numbers(rows, profile.beta, math.nan), profile.cut)
    apart = values.mean(axis=0) - freely @ by_class.numbers
    counts = np.maximum(profile.class_shares * n_fit, 1.0)  # type: ignore[operator]
    spread = np.cov(values.T) / n + by_class.spread * float((freely**2 / counts).sum())
    spread[np.diag_indices(len(apart))] += 1e-9
    if normal_of_chi_square(float(apart @ np.linalg.solve(spread, apart)), len(apart)) >= _DOUBT:
        return None, _MORE
    if abs(math.log(profile.condition(rows).ratio)) > math.log(_DAMAGED):
        return None, _MORE
    return found, f"estimated from {n:,} inputs"


def _numbers(rows: RowNumbers, cut: float) -> Vector:
    """The numbers of each row whose means by class are compared, (n_samples, 4)."""
    confidence, top, norm = rows.values[:, 0], rows.values[:, 5], rows.values[:, 7]
    return np.column_stack([confidence, confidence > cut, top, norm])


def normal_of_chi_square(value: float, degrees: int) -> float:
    """The normal quantile of a chi-square value (Wilson and Hilferty, 1931): 2.326 is the upper 1 %."""
    part = 2 / (9 * degrees)
    return float((np.cbrt(max(value, 0.0) / degrees) - (1 - part)) / math.sqrt(part))
