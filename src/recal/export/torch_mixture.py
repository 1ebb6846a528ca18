"""An ensemble's members on tensors: the maps of `recal.calibrators`, in float64, as in the reference."""

from __future__ import annotations

from typing import Any

import numpy as np

from recal.calibrators.base import Calibrator
from recal.calibrators.ensemble.ensemble import CalibrationEnsemble
from recal.calibrators.ensemble.members import READS, needed_for
from recal.export.torch_blend import Tensor, torch, wide_dtype
from recal.plan import Blend, Plan

_SMALLEST = float(np.finfo(np.float64).tiny)
# Of chance in an ensemble without views, whose mixture is the answer: too little to be seen.
_EPSILON = 1e-12


def ensemble_of(source: Any) -> CalibrationEnsemble | None:
    """Return the ensemble that a calibrator is or has chosen, a single member as one; None for anything else."""
    while isinstance(getattr(source, "calibrator_", None), Calibrator):
        source = source.calibrator_
    if not isinstance(source, Calibrator) or not hasattr(source, "classes_"):
        return None
    if isinstance(source, CalibrationEnsemble):
        return source
    if source.short_name not in _MAPS or hasattr(source, "plan_"):
        return None
    alone = CalibrationEnsemble(answers="kept" if source.keeps_accuracy else "free")
    alone.members_, alone.weights_ = {source.short_name: source}, {source.short_name: 1.0}
    alone.classes_ = source.classes_
    return alone


def plan_of_ensemble(ensemble: CalibrationEnsemble) -> Plan:
    """Return the ensemble's plan; one that gives the mixture itself where it uses no views."""
    plan = getattr(ensemble, "plan_", None)
    if plan is not None:
        return plan
    return Plan(blend=Blend(0.0, (), (), _EPSILON, answers=ensemble.answers, mixture=1.0))


class Mixture(torch.nn.Module):
    """The weighted mean of what the members answer to logits, (n, K)."""

    def __init__(self, ensemble: CalibrationEnsemble) -> None:
        super().__init__()
        self.weights, self.parts = dict(ensemble.weights_), dict(ensemble.members_)

    def forward(self, logits: Tensor) -> Tensor:
        wide = logits.to(wide_dtype(logits))
        answers: dict[str, Tensor] = {}
        for name in needed_for(self.weights):
            source = READS.get(name)
            given = wide if source is None else answers[source].clamp(min=_SMALLEST).log()
            member = self.parts[name]
            answers[name] = _MAPS[member.short_name](given, member)
        total = torch.zeros_like(wide)
        for name, weight in self.weights.items():
            total = total + weight * answers[name]
        return total


def _tensor(values: Any, like: Tensor) -> Tensor:
    return torch.tensor(np.asarray(values, dtype=np.float64), dtype=like.dtype, device=like.device)


def _scaled(logits: Tensor, beta: float) -> Tensor:
    """softmax(beta z), safe for logits of any size."""
    return ((logits - logits.amax(1, keepdim=True)) * beta).softmax(1)


def _temperature(logits: Tensor, member: Any) -> Tensor:
    return _scaled(logits, float(member.beta_))


def _ensemble_temperature(logits: Tensor, member: Any) -> Tensor:
    scaled, own, uniform = (float(weight) for weight in member.weights_)
    mixed = scaled * _scaled(logits, float(member.beta_)) + own * _scaled(logits, 1.0)
    return mixed + uniform / logits.shape[1]


def _robust(logits: Tensor, member: Any) -> Tensor:
    share = 1.0 / (member.n_fitted_ + 1.0)
    return (_scaled(logits, float(member.beta_)) * (1.0 - share) + share / logits.shape[1]).log()


def _structured_vector(logits: Tensor, member: Any) -> Tensor:
    scores = _robust(logits, member) * _tensor(member.scales_, logits) + _tensor(member.shifts_, logits)
    return scores.softmax(1)


def _structured_matrix(logits: Tensor, member: Any) -> Tensor:
    scores = _robust(logits, member) @ _tensor(member.weights_, logits).T + _tensor(member.intercept_, logits)
    return scores.softmax(1)


def _log_odds(logits: Tensor) -> Tensor:
    """log(p / (1 - p)) of each class, from the others' logits where p is large."""
    if logits.shape[1] == 2:
        margin = logits[:, 1:] - logits[:, :1]
        return torch.cat([-margin, margin], 1)
    logs = logits - logits.amax(1, keepdim=True)
    logs = logs - logs.exp().sum(1, keepdim=True).log()
    top = logits.argmax(1, keepdim=True)
    probs = logs.exp().scatter(1, top, 0.0)
    rest = (-probs).log1p()
    others = logs.scatter(1, top, -torch.inf)
    return logs - rest.scatter(1, top, others.logsumexp(1, keepdim=True))


def _beta(logits: Tensor, member: Any) -> Tensor:
    scores, limit = _log_odds(logits), float(member.limit_)
    log_p = torch.nn.functional.logsigmoid(scores)
    a, b, c = (_tensor(row, logits) for row in member.coefficients_)
    mapped = log_p.clamp(min=-limit) * a + (scores - log_p).clamp(max=limit) * b + c
    return torch.nn.functional.logsigmoid(mapped).softmax(1)


def _isotonic(logits: Tensor, member: Any) -> Tensor:
    scores = _log_odds(logits)
    columns = []
    for k in range(logits.shape[1]):
        part = slice(int(member.offsets_[k]), int(member.offsets_[k + 1]))
        columns.append(_line(scores[:, k].contiguous(), member.knots_[part], member.values_[part]))
    values = torch.stack(columns, 1)
    total = values.sum(1, keepdim=True)
    return torch.where(total > 0, values / total.clamp(min=_SMALLEST), 1.0 / logits.shape[1])


def _line(scores: Tensor, knots: Any, values: Any) -> Tensor:
    """Linear between knots, constant outside, as numpy's interp."""
    x, y = _tensor(knots, scores), _tensor(values, scores)
    if len(x) == 1:
        return y.expand(scores.shape)
    right = torch.searchsorted(x, scores, right=True).clamp(1, len(x) - 1)
    left = right - 1
    share = ((scores - x[left]) / (x[right] - x[left])).clamp(0.0, 1.0)
    return y[left] + share * (y[right] - y[left])


_MAPS = {
    "ts": _temperature,
    "ets": _ensemble_temperature,
    "svs": _structured_vector,
    "sms": _structured_matrix,
    "beta": _beta,
    "isotonic": _isotonic,
}
