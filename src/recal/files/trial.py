"""Whether a calibrator that came from a file answers as its class does: a trial on made-up logits before it is used.

What belongs together (so many offsets for so many classes, weights that sum to 1, slopes that keep the order) is known
to each method's own code. So that code is asked, once, instead of repeating its rules here: a new calibrator is
checked without a line of its own.
"""

from __future__ import annotations

import inspect
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from recal.errors import FileError
from recal.plan import Plan
from recal.transforms import Transform
from recal.views import Views

if TYPE_CHECKING:
    from recal.calibrators.base import Calibrator

# From no difference between the classes to a thousand times what any float can tell from certainty.
_SCALES = (0.0, *np.geomspace(1e-3, 50.0, 40).tolist(), 1e4)
_TOPS = 8
_TOLERANCE = 1e-6
_KINDS: dict[str, tuple[type, ...]] = {"int": (int, np.integer), "float": (float, int, np.number), "bool": (bool,)}


def check_kinds(family: type[Calibrator], state: dict[str, Any]) -> None:
    """Refuse values of another kind than the class's annotations say, endless numbers, and two betas that disagree."""
    for base in family.__mro__:
        for name, hint in inspect.get_annotations(base).items():
            kinds = _KINDS.get(str(hint))
            if kinds is not None and name in state and not _is(state[name], kinds):
                raise FileError(f"`{name}` must be a {hint}, got {type(state[name]).__name__}")
    for name, value in state.items():
        if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
            continue
        # The last bin of all may reach to infinity.
        if np.isnan(value).any() or (name != "edges_" and np.isinf(value).any()):
            raise FileError(f"`{name}` holds a number that is not finite")
        if name == "values_" and value.size and not 0.0 <= value.min() <= value.max() <= 1.0:
            raise FileError(f"`{name}` must hold probabilities, and reaches from {value.min():g} to {value.max():g}")
    plan, beta = state.get("plan_"), state.get("beta_")
    if isinstance(plan, Plan) and beta is not None and not (_is(beta, _KINDS["float"]) and plan.start == beta):
        raise FileError(f"`beta_` is {beta!r} and `plan_` begins with {plan.start!r}")
    specs = state.get("transforms_", [])
    if not isinstance(specs, list | tuple) or not all(isinstance(spec, str | Transform) for spec in specs):
        raise FileError("`transforms_` must be a list of transformations")
    if len({str(spec) for spec in specs}) != len(specs):
        raise FileError("`transforms_` names a transformation twice")


def _is(value: Any, kinds: tuple[type, ...]) -> bool:
    return isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))


def check_answers(calibrator: Calibrator) -> None:
    """Refuse a calibrator whose answers are no probabilities, or whose parts do not belong together."""
    name = type(calibrator).__name__
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            views = _made_up(len(calibrator.classes_), calibrator.needed_transforms())
            raw, answers = calibrator._predict_proba(views), calibrator.predict_proba(views)
            alone = calibrator.predict_proba(views[3:4])
    except MemoryError:
        raise
    except Exception as error:
        raise FileError(f"the parts of this {name} do not belong together ({error})") from error
    if not isinstance(raw, np.ndarray) or raw.shape != answers.shape or alone.shape != answers[:1].shape:
        raise FileError(f"the parts of this {name} do not belong together (it answers with the shape {np.shape(raw)})")
    # A sum is off by what a method rounds, not by more.
    wrong = ~np.isfinite(raw).all(axis=1) | (np.abs(raw.sum(axis=1) - 1) > _TOLERANCE) | (raw.min(axis=1) < -_TOLERANCE)
    if wrong.any():
        row = raw[int(np.argmax(wrong))]
        raise FileError(f"this {name} answers with numbers that are no probabilities: a row sums to {row.sum():.6g}")
    if calibrator.keeps_accuracy and not hasattr(calibrator, "answers"):
        _check_order(views.logits, raw, name)


def _check_order(logits: NDArray[Any], raw: NDArray[Any], name: str) -> None:
    """Refuse a method that keeps the model's answers and here would change them."""
    rows = np.arange(len(raw))
    if (raw[rows, logits.argmax(axis=1)] < raw.max(axis=1) - _TOLERANCE).any():
        raise FileError(f"this {name} would change the model's answers, which {name} never does")


def _made_up(n_classes: int, transforms: tuple[Transform, ...]) -> Views:
    """Logits of many sizes, with several classes on top, and other ones for each view."""
    rng = np.random.default_rng(0)
    rows = [rng.normal(0.0, scale, n_classes) for scale in _SCALES]
    rows += [rng.normal(0.0, 1.0, n_classes) for _ in range(min(_TOPS, n_classes))]
    logits = np.array(rows)
    for top in range(len(logits) - len(_SCALES)):
        logits[len(_SCALES) + top, top] += 6.0
    return Views(logits, {transform: 0.5 * logits + rng.normal(0.0, 1.0, logits.shape) for transform in transforms})
