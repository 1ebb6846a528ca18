"""A plan replayed on tensors: steps here, blends in `blend`.

Arithmetic follows the reference step by step, in float64, so that both sort samples into the same groups. Only the
comparison of confidences is in float32, because the rule says so, and its sum in numpy's order, for the same reason.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from recal.engine.replay import calibrate_arrays, calibrated_logits
from recal.export.torch_blend import Tensor, blended, needs_views, torch, wide_dtype
from recal.export.torch_mixture import Mixture, ensemble_of, plan_of_ensemble
from recal.plan import Plan, Rule, plan_of
from recal.runtime.reference import SCALE_RANGE
from recal.runtime.summation import BLOCK, half_of, lanes
from recal.transforms.arrays import is_plain

_PLAIN_DTYPES = (torch.float16, torch.float32, torch.float64)


class Replay(torch.nn.Module):
    """Replays a plan on logits.

    Plain tensors on a CPU are given to the reference, which is compiled; on other devices, under a trace or where a
    gradient is wanted, the same is done by torch operations.
    """

    def __init__(self, plan: Plan | Any) -> None:
        super().__init__()
        self.ensemble = ensemble_of(plan)
        self.plan = plan_of(plan) if self.ensemble is None else plan_of_ensemble(self.ensemble)
        self.members = None if self.ensemble is None else Mixture(self.ensemble)
        self.scale = _one_scale(self.plan)

    def forward(self, logits: Tensor, transformed: Tensor) -> Tensor:
        """Return calibrated logits, (n, n_classes), the largest of each row at 0.

        Parameters
        ----------
        logits : (n, n_classes)
        transformed : (m, n, n_classes), the logits through each of `plan.transforms`
        """
        if self.scale is not None:
            return _scaled(logits, self.scale)
        plain = is_plain(logits) and is_plain(transformed) and logits.dtype in _PLAIN_DTYPES
        # A model's NaN must come out as NaN; the reference refuses it.
        if plain and len(logits) and bool(logits.isfinite().all()) and bool(transformed.isfinite().all()):
            return self.by_reference(logits, transformed)
        return self.by_torch(logits, transformed)

    def confidence(self, logits: Tensor, transformed: Tensor) -> Tensor:
        """Return the chance that each answer is right, (n,): its probability before any guard lifts it."""
        blend, free = self.plan.blend, self.plan.unguarded
        own = (self if free is self.plan else self._with(free))(logits, transformed).softmax(1)
        if blend is not None and blend.answers == "free":
            return own.amax(1)
        return own.gather(1, logits.argmax(1, keepdim=True))[:, 0]

    @property
    def source(self) -> Any:
        """What is replayed: the plan, or the ensemble that it is part of."""
        return self.plan if self.ensemble is None else self.ensemble

    def _with(self, plan: Plan) -> Replay:
        """Return the same with another plan."""
        other = Replay(Plan())
        other.plan, other.ensemble, other.members = plan, self.ensemble, self.members
        other.scale = _one_scale(plan)
        return other

    def needs_views(self, logits: Tensor) -> Tensor:
        """Say of each sample whether its views must be computed, (n,): its confidence is below the plan's gate."""
        if is_plain(logits) and logits.dtype in _PLAIN_DTYPES:
            return torch.from_numpy(self.plan.needs_views(logits.detach().numpy()))
        return needs_views(logits, self.plan)

    def by_reference(self, logits: Tensor, transformed: Tensor) -> Tensor:
        """Replay by the numpy runtime."""
        rows, views = logits.detach().numpy(), transformed.detach().numpy()
        if self.plan.blend is not None:
            mixed = None if self.ensemble is None else self.ensemble.mixture(rows)
            return _as_logits(torch.from_numpy(calibrate_arrays(self.plan, rows, views, mixed)), logits)
        return torch.from_numpy(calibrated_logits(self.plan, rows, views)).to(_answer_dtype(logits))

    def by_torch(self, logits: Tensor, transformed: Tensor) -> Tensor:
        """Replay by torch operations."""
        plan = self.plan
        wide = wide_dtype(logits)
        if plan.blend is not None:
            mixed = None if self.members is None else self.members(logits)
            return _as_logits(blended(logits, transformed, plan, mixed), logits)
        original = _start(logits.to(wide), plan)
        column = logits.argmax(1, keepdim=True)
        views = {t: _start(transformed[index].to(wide), plan) for index, t in enumerate(plan.transforms)}
        own = {t: transformed[index].argmax(1, keepdim=True) for index, t in enumerate(plan.transforms)}
        for step in plan.steps:
            if step.is_neutral:
                continue
            view, view_column = views[step.transform], own[step.transform]
            at = view_column if plan.rule.confidence_at == "own" else column
            fell = _did_not_rise(original.now(), column, view.now(), at, plan.rule)
            kept = column == view_column
            group = 2 * kept.to(torch.int64) + fell.to(torch.int64)
            factors = torch.tensor(step.betas, dtype=wide, device=logits.device)[group]
            original.rescale(factors)
            view.rescale(factors)
        original.rescale(plan.finish)
        return original.now().to(_answer_dtype(logits))


def _one_scale(plan: Plan) -> float | None:
    """Return the number that a plan multiplies logits by, where that is all it does."""
    if plan.blend is not None or plan.transforms or plan.rule.floor is not None:
        return None
    least, most = SCALE_RANGE
    return min(max(min(max(plan.start, least), most) * plan.finish, least), most)


def _scaled(logits: Tensor, scale: float) -> Tensor:
    wide = logits.to(wide_dtype(logits))
    return ((wide - wide.amax(1, keepdim=True)) * scale).to(_answer_dtype(logits))


def _as_logits(probs: Tensor, logits: Tensor) -> Tensor:
    """Return logarithms, the largest of each row at 0, in the dtype of the answer."""
    logs = probs.log()
    return (logs - logs.amax(1, keepdim=True)).to(_answer_dtype(logits))


def _answer_dtype(logits: Tensor) -> torch.dtype:
    return torch.float64 if logits.dtype == torch.float64 else torch.float32


class _Scaled:
    """Rows of logits below their largest, each with a scale of its own."""

    def __init__(self, logits: Tensor) -> None:
        self.drop = logits - logits.amax(1, keepdim=True)
        self.scale = torch.ones_like(self.drop[:, :1])

    def rescale(self, factors: Tensor | float) -> None:
        self.scale = (self.scale * factors).clamp(*SCALE_RANGE)

    def now(self) -> Tensor:
        return self.scale * self.drop


class _Floored(_Scaled):
    """Log-probabilities that never fall below log(floor): written anew at each rescaling."""

    def __init__(self, logits: Tensor, floor: float) -> None:
        super().__init__(logits)
        self.least = math.log(floor)
        self.rescale(1.0)

    def rescale(self, factors: Tensor | float) -> None:
        logs = (self.drop * factors).log_softmax(1).clamp(min=self.least)
        self.drop = logs - logs.amax(1, keepdim=True)


def _start(logits: Tensor, plan: Plan) -> _Scaled:
    state = _Scaled(logits) if plan.rule.floor is None else _Floored(logits, plan.rule.floor)
    state.rescale(plan.start)
    return state


def _did_not_rise(original: Tensor, column: Tensor, view: Tensor, at: Tensor, rule: Rule) -> Tensor:
    """Whether p >= p_t, by the rule for ties: (n, 1)."""
    confidence = _log_odds if rule.ties == "exact" else _confidence32
    return confidence(original, column) >= confidence(view, at)


def _confidence32(rows: Tensor, column: Tensor) -> Tensor:
    """Return a float32 softmax at `column`: each exp rounded to float32, divided in float32 by their float32 sum."""
    weights = rows.exp().to(torch.float32)
    return weights.gather(1, column) / _sum32(weights)


def _log_odds(rows: Tensor, column: Tensor) -> Tensor:
    """Return log(p / (1 - p)) at `column` without ever forming p, so that nothing saturates."""
    others = rows.scatter(1, column, -math.inf)
    return rows.gather(1, column) - others.logsumexp(1, keepdim=True)


def _sum32(values: Tensor) -> Tensor:
    """Sum float32 rows in numpy's order of pairs, so that ties are numpy's to the bit: (n, K) to (n, 1)."""
    count = values.shape[1]
    if count < 8:
        return _in_turn(values.unbind(1))[:, None]
    places = lanes(count)
    padded = torch.nn.functional.pad(values, (0, 1))  # the zero that fills up short blocks
    in_lanes = padded[:, torch.tensor(places.reshape(-1), device=values.device)].reshape((-1, *places.shape))
    totals = _in_turn([in_lanes[:, :, row] for row in range(places.shape[1])])
    for _ in range(3):  # eight lanes, summed in pairs
        totals = totals[..., 0::2] + totals[..., 1::2]
    sums = list(totals[..., 0].unbind(1))
    sums[-1] = _in_turn([sums[-1], *values.unbind(1)[count - count % 8 :]])
    return _in_pairs(sums, count)[:, None]


def _in_turn(parts: Sequence[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _in_pairs(sums: list[Tensor], count: int) -> Tensor:
    """Add up the blocks' sums along the tree of halves; takes its blocks from the front of the list."""
    if count <= BLOCK:
        return sums.pop(0)
    left = _in_pairs(sums, half_of(count))
    return left + _in_pairs(sums, count - half_of(count))
