"""A class mix that differs from the fit: estimated from a batch or given by the user, and applied
to probabilities.

If the inputs of each class are as before and only the class shares have changed, Bayes' rule
applies: each calibrated probability is multiplied by its class's share today divided by its share
at the fit. The shares of a batch without labels are estimated by expectation maximisation on
probabilities whose class shares are right at the fit (bias-corrected temperature scaling;
Alexandari, Kundaje and Shrikumar, 2020). Damage changes the mix of *predicted* classes, too. A test
therefore asks whether the class mix alone explains the batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import Floats, Vector, check_logits, check_probs
from recal.decisions.damage import SMALLEST_BATCH, row_numbers, too_few
from recal.errors import InputError
from recal.maps.arrays import softmax
from recal.schema import Floats as FloatArray
from recal.schema import Record

if TYPE_CHECKING:
    from recal.decisions.profiles import Profile


# The numbers of each class are averaged with this many average samples, and a batch with this many
# samples per class of the fit's mix, so that rare classes are not ruled out.
_USUAL = 5.0
_LEAST = 1e-300
_FLOAT = np.finfo(np.float64)


@dataclass(frozen=True)
class ClassMix:
    """The share of each class, today and at the fit; made by `class_mix`.

    Attributes
    ----------
    shares, at_fit : tuples of n_classes numbers
    changed : bool
        Whether `adapt_to_class_mix` changes anything.
    reason : str
        What the shares are based on, or why those of the fit stay.
    """

    shares: tuple[float, ...]
    at_fit: tuple[float, ...]
    changed: bool
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**vars(self), "shares": list(self.shares), "at_fit": list(self.at_fit)}

    def moves(self, classes: Sequence[Any] | None = None) -> str:
        """The three classes whose share changed most, with both shares; `classes` are the names of
        the columns.
        """
        moved = np.argsort(-np.abs(np.subtract(self.shares, self.at_fit)), kind="stable")[:3]
        named = [f"class {k}" if classes is None else str(classes[k]) for k in moved]
        return ", ".join(
            f"{name} {self.at_fit[k]:.1%} -> {self.shares[k]:.1%}" for name, k in zip(named, moved)
        )

    def describe(self, classes: Sequence[Any] | None = None) -> str:
        """One sentence: which mix is used, and why."""
        if not self.changed:
            return f"The class mix of the fit is used: {self.reason}."
        return f"Another class mix than at the fit is used ({self.reason}): {self.moves(classes)}."

    def __str__(self) -> str:
        return self.describe()


class ByClass(Record):
    """Numbers about the samples of each class of a fit that `class_mix` needs.

    Parameters
    ----------
    offsets : array of shape (n_classes,)
        Factors that give temperature-scaled probabilities the class shares of the fit.
    numbers : array of shape (n_classes, 4)
        Mean confidence, share above ATC's cut, largest centred logit and log squared norm of each
        class's samples.
    spread : array of shape (4, 4)
        Covariance of these numbers within classes.
    """

    offsets: Annotated[Vector, FloatArray("classes", low=_FLOAT.tiny, high=_FLOAT.max)]
    numbers: Annotated[Vector, FloatArray("classes", 4)]
    spread: Annotated[Vector, FloatArray(4, 4)]


def learn_classes(logits: Floats, labels: NDArray[np.intp], beta: float, cut: float) -> ByClass:
    """Compute what `class_mix` needs from labelled samples."""
    n_classes = logits.shape[1]
    values = class_numbers(logits, beta, cut)
    counts = np.bincount(labels, minlength=n_classes)
    sums = np.zeros((n_classes, values.shape[1]))
    np.add.at(sums, labels, values)
    means = (sums + _USUAL * values.mean(axis=0)) / (counts + _USUAL)[:, None]
    within = values - means[labels]
    some = slice(None, None, -(-len(labels) // 5000))
    offsets = _offsets(
        softmax(np.asarray(logits[some]), beta), np.bincount(labels[some], minlength=n_classes)
    )
    return ByClass(offsets, means, within.T @ within / len(within))


def _offsets(probs: Vector, counts: NDArray[np.intp]) -> Vector:
    """Return factors that give probabilities the class shares of their samples (maximum likelihood
    biases).

    A class without any probability above 0, such as one that the model masks, keeps its factor.
    """
    expected = probs.mean(axis=0)
    target = (counts + _USUAL * expected) / (len(probs) + _USUAL)
    factors = np.ones(len(counts))
    for _ in range(200):
        shares = _expected_counts(probs, factors) / len(probs)
        step = np.where(shares > _LEAST, target / np.maximum(shares, _LEAST), 1.0)
        factors = factors * step
        if np.abs(step - 1).max() < 1e-6:
            break
    return np.asarray(factors / factors.mean())


def _expected_counts(probs: Vector, factors: Vector) -> Vector:
    """Return the sums of the probabilities of each class after multiplying them by factors."""
    return np.asarray(factors * (probs.T @ (1.0 / np.maximum(probs @ factors, _LEAST))))


def class_shares(
    probs: Vector, shares: Vector, *, start: Vector | None = None, prior: float = 0.0
) -> Vector:
    """Return the class shares that explain calibrated probabilities best, by expectation
    maximisation.

    Saerens, Latinne and Decaestecker (2002). `shares` are those of the samples of the calibration.
    `start` are initial shares; a class with share 0 keeps it. `prior` is a number of pseudo-samples
    with the mix of `start`.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.decisions.class_shares import class_shares
    >>> class_shares(np.array([[0.9, 0.1], [0.9, 0.1], [0.1, 0.9]]), np.array([0.5, 0.5])).round(2)
    array([0.71, 0.29])
    """
    base = np.maximum(shares, 1e-12)
    first = base / base.sum() if start is None else start
    current = first
    for _ in range(500):
        counts = _expected_counts(probs, current / base)
        after = (counts + prior * first) / (counts.sum() + prior)
        moved = float(np.abs(after - current).max())
        current = after
        if moved < 1e-7:
            break
    return np.asarray(current)


def class_mix(
    profile: Profile,
    logits: Floats | None = None,
    *,
    shares: Mapping[Any, float] | ArrayLike | None = None,
    impossible: Iterable[Any] = (),
    classes: Sequence[Any] | None = None,
) -> ClassMix:
    """Return the class mix of new inputs: estimated from their logits, or given by the user.

    An estimate is used only if the fit had at least 500 samples and the batch has at least 50
    inputs, if the mix of the fit does not explain the batch (1 % level), if another mix alone does
    (a second test, at 10 %), and if following would change the temperature by at most 10 %. Damaged
    inputs fail the second test or the third.

    Parameters
    ----------
    profile : Profile
        Made with labels.
    logits : array of shape (n_samples, n_classes), optional
        Logits of the new inputs. Without them, `shares` or the shares of the fit are used.
    shares : mapping of class to share, or array of shape (n_classes,), optional
        Known shares. Classes that a mapping does not name share the rest as at the fit.
    impossible : classes
        Classes that cannot occur.
    classes : sequence, optional
        Names of the columns, if `shares` and `impossible` use names. Default: column numbers.

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
        raise InputError("must leave one class at least, got all of them", argument="impossible")
    if shares is not None:
        return _mix(_check_shares(shares, at_fit, names, possible), at_fit, True, "as given")
    start = at_fit * possible / (at_fit @ possible)
    estimate, why = _estimate(profile, logits, start)
    if estimate is not None:
        return _mix(estimate, at_fit, True, why)
    if possible.all():
        return _mix(start, at_fit, False, why)
    return _mix(start, at_fit, True, "classes that cannot occur")


def adapt_to_class_mix(probs: ArrayLike, mix: ClassMix) -> Vector:
    """Return probabilities for another class mix.

    **Predictions can change**, even for calibrators that keep them: a class that has become rare is
    a less likely prediction. The guarantee of a rule from `decide` holds for the class mix of its
    own samples.

    Parameters
    ----------
    probs : array-like of shape (n_samples, n_classes)
        Probabilities from any calibrator.
    mix : ClassMix
        From `class_mix`, which has an example.
    """
    array = np.asarray(check_probs(probs), dtype=np.float64)
    if array.shape[1] != len(mix.shares):
        raise InputError(
            f"The class mix is of {len(mix.shares)} classes, got probabilities of {array.shape[1]}."
        )
    if not mix.changed:
        return array
    weighted = np.maximum(array, _FLOAT.tiny) * np.divide(mix.shares, mix.at_fit)
    return np.asarray(weighted / weighted.sum(axis=1, keepdims=True))


def _mix(shares: Vector, at_fit: Vector, changed: bool, reason: str) -> ClassMix:
    return ClassMix(tuple(shares.tolist()), tuple(at_fit.tolist()), changed, reason)


def _at_fit(profile: Profile) -> Vector:
    if profile.class_shares is None:
        raise InputError(
            "A class mix needs a profile that was made with labels: profile(views, y)."
        )
    n = len(profile.answers)
    return np.asarray((profile.class_shares * n + 0.5) / (n + 0.5 * profile.n_classes))


def _column(name: Any, names: list[Any]) -> int:
    for column, one in enumerate(names):
        if one == name or str(one) == str(name):
            return column
    raise InputError(
        f"There is no class {name!r}; the classes are {', '.join(map(str, names[:10]))}."
    )


def _check_shares(
    shares: Mapping[Any, float] | ArrayLike, at_fit: Vector, names: list[Any], possible: Vector
) -> Vector:
    """Check the user's shares, and fill in those of classes that were not named."""
    full = np.full(len(at_fit), np.nan)
    if isinstance(shares, Mapping):
        for name, share in shares.items():
            full[_column(name, names)] = share
    else:
        full = np.array(shares, dtype=np.float64)
        if full.shape != at_fit.shape or np.isnan(full).any():
            problem = f"must hold {len(at_fit)} numbers, one per class, got {full.tolist()}"
            raise InputError(problem, argument="shares")
    open_, total = np.isnan(full), float(np.nansum(full))
    rest = np.where(open_, at_fit * possible, 0.0)
    fits = abs(total - 1) <= 1e-6 or (total < 1 and rest.sum() > 0)
    if not (np.nanmin(full, initial=0.0) >= 0 and fits):
        rule = "must lie in 0..1 and sum to 1, or to less if classes are left open"
        problem = f"{rule}; their sum is {total:.4g}"
        raise InputError(problem, argument="shares")
    full = np.where(open_, rest * (1 - total) / (rest.sum() or 1.0), full) * possible
    if not full.sum():
        raise InputError("must leave a class with a share above 0", argument="shares")
    return np.asarray(full / full.sum())


def _estimate(profile: Profile, logits: Floats | None, start: Vector) -> tuple[Vector | None, str]:
    """Return the shares that explain a batch best and their basis, or None and the reason."""
    n_fit, by_class = len(profile.answers), profile.by_class
    if logits is None or by_class is None:
        return None, "no other was given"
    if n_fit < 500:
        # Shares and offsets would be so uncertain that the first test often rejects them.
        return None, f"an estimate needs 500 labelled samples at the fit, and there were {n_fit}"
    logits = check_logits(logits)
    profile.check_classes(logits.shape[1])
    n = len(logits)
    if n < SMALLEST_BATCH:
        return None, too_few(n)
    rows = np.asarray(logits[:: -(-n // 20_000)])
    probs = softmax(rows, profile.beta) * by_class.offsets
    probs /= probs.sum(axis=1, keepdims=True)
    at_fit, n = _at_fit(profile), len(rows)
    best = class_shares(probs, at_fit, start=start, prior=_USUAL * len(start))
    # A row that certainly belongs to an impossible class supports no mix.
    after, before = (
        np.log(np.maximum(probs @ (mix / at_fit), _LEAST)).sum() for mix in (best, start)
    )
    gain = 2 * float(after - before)
    free = max(int((start > 0).sum()) - 1, 1)
    # Another mix is considered if the fit's mix is rejected at 1 %, and dropped if that mix is
    # rejected at 10 %. Missing another mix only costs a gain; mistaking damage for another mix does
    # harm. A batch whose temperature would change by more than 10 % counts as damaged, too.
    if normal_of_chi_square(gain / (1 + n / n_fit), free) < 2.326:
        return None, "it explains these inputs well enough"
    freely = class_shares(probs, at_fit, start=start)
    values = class_numbers(rows, profile.beta, profile.cut)
    apart = values.mean(axis=0) - freely @ by_class.numbers
    counts = np.maximum(profile.class_shares * n_fit, 1.0)  # type: ignore[operator]
    spread = np.cov(values.T) / n + by_class.spread * float((freely**2 / counts).sum())
    spread[np.diag_indices(len(apart))] += 1e-9
    surprise = normal_of_chi_square(float(apart @ np.linalg.solve(spread, apart)), len(apart))
    if surprise >= 1.2816 or abs(math.log(profile.condition(rows).ratio)) > math.log(1.1):
        return None, "more than the class mix has changed, so the inputs may be damaged"
    return best, f"estimated from {n:,} inputs"


def class_numbers(logits: Floats, beta: float, cut: float) -> Vector:
    """Return the numbers of each row whose means by class are compared, (n_samples, 4)."""
    confidence, top, norm = row_numbers(logits, beta, math.nan)[:, [0, 5, 7]].T
    return np.column_stack([confidence, confidence > cut, top, norm])


def normal_of_chi_square(value: float, degrees: int) -> float:
    """Convert a chi-square value to a normal quantile (Wilson and Hilferty, 1931): 2.326 is the
    upper 1 %. It spares `watch` the import of scipy.
    """
    part = 2 / (9 * degrees)
    return float((np.cbrt(max(value, 0.0) / degrees) - (1 - part)) / math.sqrt(part))
