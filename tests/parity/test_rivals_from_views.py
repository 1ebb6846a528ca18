"""Rivals that learn from views, beside slow and obvious versions of themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import optimize

from recal import Views
from recal.calibrators import MATTA, VATTA, ConsistencyCalibration, LearnedAggregation
from recal.calibrators.aggregation import allowed_share
from recal.maps.arrays import softmax
from tests.problems import views as views_of


def stacked(views: Views) -> np.ndarray:
    return np.stack([views.transformed(transform) for transform in views.transforms], axis=1)


def test_the_share_falls_step_by_step_until_the_answer_wins() -> None:
    rng = np.random.default_rng(1)
    own, other = softmax(rng.normal(0, 1, (500, 4))), softmax(rng.normal(0, 2, (500, 4)))
    top = own.argmax(axis=1)
    for share in (1.0, 0.737, 0.05, 0.0):
        slow = np.empty(500)
        for i in range(500):
            slow[i] = share
            while (
                slow[i] > 1e-9 and ((1 - slow[i]) * own[i] + slow[i] * other[i]).argmax() != top[i]
            ):
                slow[i] = max(slow[i] - 0.01, 0.0)
        np.testing.assert_allclose(
            allowed_share(own, other, top[:, None], share)[:, 0], slow, atol=1e-9
        )


@pytest.mark.parametrize("method", [VATTA, MATTA])
def test_adaptive_mixtures_follow_torch_step_by_step(method: type) -> None:
    """The published objective, written with torch's own softmax, gradients and Adam, sample by
    sample.
    """
    views = views_of(60, 4, noise=0.75, transforms=("flip", "zoom:0.8"), keep=0.7, blur=2.0)
    z, own, y = stacked(views), torch.from_numpy(softmax(views.logits)), views.labels
    assert y is not None
    k = views.n_classes
    weights = torch.nn.Parameter(
        torch.full((2, k if method is MATTA else 1), 1 / k, dtype=torch.float64)
    )
    omega = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
    optimiser = torch.optim.Adam([weights, omega], lr=0.01, weight_decay=1e-5)
    rng = np.random.default_rng(0)
    for _ in range(6):
        order = rng.permutation(len(y))
        for start in range(0, len(y), 25):
            rows = order[start : start + 25]
            optimiser.zero_grad()
            losses = []
            for i in rows:
                other = torch.softmax((weights * torch.from_numpy(z[i])).sum(0), 0)
                share = omega.clamp(0, 1)
                mixed = (1 - share) * own[i] + share * other
                while mixed.argmax() != own[i].argmax() and share > 1e-9:
                    share = (share - 0.01).clamp(min=0)
                    mixed = (1 - share) * own[i] + share * other
                losses.append(-torch.log(mixed[y[i]]))
            torch.stack(losses).mean().backward()
            optimiser.step()
    fitted = method(epochs=6, batch_size=25, learning_rate=0.01, random_state=0).fit(views)
    np.testing.assert_allclose(fitted.weights_, weights.detach().numpy(), atol=1e-8)
    assert fitted.share_ == pytest.approx(float(omega.detach().clamp(0, 1)), abs=1e-8)


@pytest.mark.parametrize("per_class", [False, True])
def test_learned_aggregation_finds_the_minimum(per_class: bool) -> None:
    views = views_of(300, 4, noise=0.75, transforms=("flip", "zoom:0.8"), keep=0.7, blur=2.0)
    fitted = LearnedAggregation(per_class=per_class, penalty=1e-3).fit(views)
    layers = fitted.beta_ * np.concatenate([views.logits[:, None], stacked(views)], axis=1)
    y = views.labels
    assert y is not None

    def loss(flat: np.ndarray) -> float:
        weights = flat.reshape(3, -1)
        scores = (layers * weights[None]).sum(axis=1)
        total = np.log(np.exp(scores - scores.max(1, keepdims=True)).sum(1)) + scores.max(1)
        return float((total - scores[np.arange(len(y)), y]).mean() + 0.5e-3 * (weights**2).sum())

    found = fitted.weights_.ravel()
    assert (found >= 0).all()
    slow = optimize.minimize(
        loss, np.full(len(found), 0.3), method="SLSQP", bounds=[(0, None)] * len(found), tol=1e-12
    )
    assert loss(found) <= slow.fun + 1e-8
    expected = softmax((layers * fitted.weights_[None]).sum(axis=1))
    np.testing.assert_allclose(fitted.predict_proba(views), expected, atol=1e-12)


def test_consistency_counts_votes() -> None:
    views = views_of(40, 4, noise=0.75, transforms=("flip", "zoom:0.8"), keep=0.7, blur=2.0)
    fitted = ConsistencyCalibration(draws=30, random_state=3).fit(views)
    added = fitted.noise_ * np.random.default_rng(fitted.seed_).standard_normal((30, 4))
    layers = [views.logits, *(views.transformed(transform) for transform in views.transforms)]
    votes = np.full((40, 4), 0.25)
    for draw in range(30):
        for i in range(40):
            votes[i, (layers[draw % 3][i] + added[draw]).argmax()] += 1
    np.testing.assert_allclose(fitted.predict_proba(views), votes / 31, atol=1e-12)
