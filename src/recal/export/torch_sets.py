"""Prediction sets as a torch module: from probabilities to the classes that stay in play, on any device."""

from __future__ import annotations

from recal.decisions.sets import PredictionSets, content_uniforms
from recal.export.torch_blend import Tensor, torch


class SetsModule(torch.nn.Module):
    """Say of each class whether it stays in play, as `PredictionSets.predict` does.

    Examples
    --------
    >>> import torch
    >>> from recal.decisions import PredictionSets
    >>> from recal.export.torch_sets import SetsModule
    >>> SetsModule(PredictionSets("lac", 0.9, (0.7,)))(torch.tensor([[0.6, 0.35, 0.05]])).tolist()
    [[True, True, False]]
    """

    limits: Tensor

    def __init__(self, sets: PredictionSets) -> None:
        super().__init__()
        self.sets = sets
        self.register_buffer("limits", torch.tensor(sets.limits, dtype=torch.float64), persistent=False)

    def forward(self, probs: Tensor) -> Tensor:
        """Return a bool tensor of the shape of `probs`, (n, n_classes)."""
        self.sets.check_classes(probs.shape[1])
        wide = probs.to(torch.float64)
        kept: Tensor = self._scores(wide) <= self.limits
        if self.sets.at_least_one:
            likeliest = torch.zeros_like(kept).scatter(1, wide.argmax(1, keepdim=True), True)
            kept = kept | (likeliest & ~kept.any(1, keepdim=True))
        return kept

    def _scores(self, probs: Tensor) -> Tensor:
        sets = self.sets
        if sets.method == "lac":
            return 1.0 - probs
        falling, order = probs.sort(dim=1, descending=True, stable=True)
        scores = falling.cumsum(1)
        if sets.randomised:
            parts = torch.from_numpy(content_uniforms(probs.detach().cpu().numpy())).to(probs.device)
            scores = scores - (1.0 - parts[:, None]) * falling
        if sets.method == "raps":
            ranks = torch.arange(1, probs.shape[1] + 1, device=probs.device, dtype=torch.float64)
            scores = scores + sets.penalty * (ranks - sets.free_ranks).clamp(min=0)
        return torch.empty_like(scores).scatter(1, order, scores)
