"""The ensemble of calibrators: a weighted mean of simple methods, plus views if they are worth
their forward passes.
"""

from __future__ import annotations

from typing import Any, ClassVar, get_type_hints

import numpy as np

from recal.calibrators.base import Calibrator, from_fit
from recal.calibrators.ensemble_fit import (
    FAMILIES,
    Evidence,
    FittedEnsemble,
    fit_ensemble,
    places_read,
    without_counts,
)
from recal.calibrators.samples import Samples
from recal.calibrators.stacking import Gate, report_of
from recal.errors import InputError
from recal.maps.aggregation import Mixture
from recal.maps.base import Map
from recal.maps.blend import Answers, Blend
from recal.schema import Instance, RandomState, Size, check
from recal.transforms.base import short_spec


class CalibrationEnsemble(Calibrator):
    """Mix the probabilities of several simple calibrators, with weights chosen on samples left out.

    The members are temperature scaling (`ts`), ensemble temperature scaling (`ets`), structured
    vector and matrix scaling (`svs`, `sms`), beta calibration, isotonic regression, and structured
    scaling of the result of `ets` (`ets-svs`, `ets-sms`). With p_m the probabilities of member m,
    the ensemble predicts

        p = sum of w_m p_m,   w_m >= 0, sum of w_m = 1.

    The weights maximise the likelihood of cross-fitted probabilities. Pseudo-counts of half a
    sample are added for each member except `beta` and `isotonic`, and for `ts` also 30 divided by
    the number of mistakes, so that few mistakes lead to temperature scaling. Members with a weight
    below a thousandth are dropped. With at least 200 mistakes, the best member is used alone if the
    mixture has no lower loss on samples left out; members other than `ts` and `ets` also need half
    of the weight.

    If there are views, the log-probabilities of the mixture, of temperature scaling and of a few
    views are weighted together, as in `ViewStacking`, if samples left out show that views are worth
    their forward passes. With views, structured matrix scaling replaces the mixture if that has a
    lower loss. If there are two samples for each entry of a matrix of weights per view, such
    matrices are tried, shrunk towards the single weight of `ViewStacking`. They are used if they
    gain more than one standard error on samples left out. With at most eight candidates, all of
    them may then be used.

    Parameters
    ----------
    answers : {"kept", "free"}
        "kept": predictions never change. "free": they may change if another class is more likely.
    max_views : int, optional
        The largest number of views; 0 uses none. By default 3, or up to 8 with class-wise weights.
    gate : float in (0, 1], "auto" or None
        Samples with at least this confidence (after temperature scaling) need no views, as in
        `ViewStacking`.
    random_state : int, Generator or None
        Seed of the folds.

    Attributes
    ----------
    weights_ : dict of str to float
        The weight of each member in use, the largest first.
    members_ : dict of str to Map
        The maps of the members in use, and of those that they read.
    reason_ : str
        One sentence: which members were mixed, and the gain.
    plan_ : Blend, if views are used
        Their weights and the gate; the mixture is part of it.
    views_report_ : list of dict
        A record of the search for views, as in `ViewStacking`.

    Notes
    -----
    With more than 256 classes, `sms`, `ets-sms` and `isotonic` are left out: a matrix of weights
    would be slow to fit, and a curve for each class would get too few samples. With fewer than 50
    samples, or if the model makes no mistake, only `ts` is fitted. Weights and views are chosen on
    at most 50,000 samples and 5 million logits, and members are fitted to at most 25 million
    logits, drawn at random.

    Examples
    --------
    >>> from recal.calibrators import CalibrationEnsemble
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 3, 500)
    >>> ensemble = CalibrationEnsemble().fit(4 * (np.eye(3)[y] + rng.normal(size=(500, 3))), y)
    >>> round(sum(ensemble.weights_.values()), 6)
    1.0
    """

    short_name: ClassVar[str] = "ensemble"
    reads_views: ClassVar[bool] = True
    takes_weights: ClassVar[bool] = True

    answers: Answers = "kept"
    max_views: Size | None = None
    gate: Gate = 0.99
    random_state: RandomState = 0

    map_: Mixture = from_fit()
    reason_: str = from_fit()
    views_report_: list[dict[str, Any]] = from_fit()

    def _fit(self, samples: Samples) -> dict[str, Any]:
        rng = np.random.default_rng(self.random_state)
        return record_of(fit_ensemble(self, without_counts(samples), rng))

    @property
    def weights_(self) -> dict[str, float]:
        weights = sorted(
            zip(self.map_.names, self.map_.weights.tolist()), key=lambda item: -item[1]
        )
        return {name: weight for name, weight in weights if weight > 0.0}

    @property
    def members_(self) -> dict[str, Map]:
        return dict(zip(self.map_.names, self.map_.members))

    @property
    def plan_(self) -> Blend:
        if self.map_.plan is None:
            raise AttributeError("This CalibrationEnsemble uses no views and has no plan_.")
        return self.map_.plan

    def _check_state(self, n_classes: int) -> None:
        check(vars(self).get("map_"), Instance(Mixture), "map_")
        for name, member in self.members_.items():
            if name not in FAMILIES or not isinstance(
                member, get_type_hints(FAMILIES[name])["map_"]
            ):
                raise InputError(f"holds under {name!r} another method", argument="map_")


def record_of(fitted: FittedEnsemble) -> dict[str, Any]:
    """Return the fitted attributes of an ensemble."""
    names = tuple(fitted.members)
    mixture = Mixture(
        names=names,
        members=tuple(member.map_ for member in fitted.members.values()),
        weights=np.array([fitted.weights.get(name, 0.0) for name in names]),
        reads=np.array(places_read(names)),
        plan=fitted.plan,
    )
    report: list[dict[str, Any]] = []
    if fitted.choice is not None:
        report = report_of(fitted.candidates, fitted.choice, fitted.plan)
    return {"map_": mixture, "reason_": sentence(fitted), "views_report_": report}


def sentence(fitted: FittedEnsemble) -> str:
    """Describe an ensemble and its gain in one sentence."""
    shares = {
        name: weight for name, weight in fitted.weights.items() if weight >= 0.005
    }  # others would show as 0 %
    parts = [f"{name} ({100 * weight:.0f} %)" for name, weight in shares.items()]
    mixed = (
        f"Mixes {', '.join(parts[:-1])} and {parts[-1]}"
        if len(parts) > 1
        else f"Uses {parts[0].split(' ')[0]} alone"
    )
    evidence = fitted.evidence
    if evidence is None:
        return f"{mixed}: there are too few samples, or no mistakes, to choose by."
    if fitted.plan is not None:
        used = ", ".join(short_spec(transform) for transform in fitted.plan.transforms)
        by_class = ", with weights for each class," if fitted.plan.matrices else ""
        mixed += f", and stacks {used}{by_class} on top for {evidence.passes:.2f} more forward passes per answer"
    return f"{mixed}: on samples left out, its NLL is {_beside_temperature(evidence)}."


def _beside_temperature(evidence: Evidence) -> str:
    gain = evidence.gain()
    share = (
        100.0
        * gain.mean
        / float(np.average(evidence.losses["ts"], weights=evidence.samples.weights))
    )
    change = f"{abs(share):.1f} % {'lower' if share >= 0.0 else 'higher'}"
    if abs(gain.mean) < 2.0 * gain.error:
        return f"about that of temperature scaling ({change}, which chance explains)"
    return f"{change} than that of temperature scaling"
