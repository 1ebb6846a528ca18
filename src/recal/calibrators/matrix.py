"""Matrix scaling with off-diagonal and intercept regularisation, MS-ODIR (Guo et al., 2017; Kull et al., 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from recal.calibrators.base import Calibrator, from_map, kept_by_answers
from recal.calibrators.machinery.common_scale import fit_beta
from recal.calibrators.machinery.odir import candidates, fit_map, make_folds, search
from recal.calibrators.machinery.parameters import check_choice, check_count, check_random_state, warn_if_few
from recal.checks import Labels
from recal.maps.base import wide
from recal.maps.scaling import Linear, linear_features
from recal.plan import Answers
from recal.views import Views

# Powers of ten per weight and per intercept that suit 10 to 1,000 classes; the answer depends little on mu.
_LAMBDA_DECADES = (-4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0)
_MU_DECADES = (-4.0, -2.5, -1.0, 0.5, 2.0)
# With very many classes a fit takes long, and weak penalties only over-fit.
_MANY_CLASSES = 200
_FEW_LAMBDA_DECADES = (0.0, 1.0, 2.0, 3.0)
_FEW_MU_DECADES = (-1.0, 2.0)


class MatrixScaling(Calibrator):
    """Mix the logits linearly, softmax(W z + b), with the penalties' strengths found by cross-validation (MS-ODIR).

    Minimises the mean NLL + lambda * mean of the squared off-diagonal weights + mu * mean of the squared intercepts.

    Parameters
    ----------
    penalty, intercept_penalty : float or sequence of float, optional
        The strengths lambda and mu to try. By default eight lambdas from 1e-4 to 1e3 times K(K-1), which is 1e-4 to 1e3
        for each weight, and five mus from 1e-4 to 1e2 times K; with more than 200 classes, where one fit takes long,
        four lambdas from 1 to 1e3 times K(K-1) and two mus, 0.1 and 100 times K. With one value of each there is no
        search.
    n_folds : int
        Stratified folds of the search, which keeps the pair with the least held-out NLL.
    final : {"average", "refit"}
        Answer with the mean of the probabilities of the folds' maps at the best pair, as in the original experiments,
        or with one map fitted to all samples. Without a search there is always one map.
    random_state : int, optional
        Seed of the folds.
    answers : {"free", "kept"}
        "kept": where the likeliest class is not the model's own answer, a guard makes it so, at the least cost.

    Attributes
    ----------
    weights_ : ndarray of shape (n_maps, n_classes, n_classes)
        W of each map; row k gives the score of class k. n_maps is the number of folds, or 1.
    intercepts_ : ndarray of shape (n_maps, n_classes)
    lambda_, mu_ : float
        The strengths of the answer.
    search_ : dict
        The grid: ``"lambdas"`` and ``"mus"``, strongest first, and the held-out ``"nll"`` as a list of rows, one row
        for each lambda. None where a path was left because its loss had risen by a tenth. Empty without a search.

    Notes
    -----
    The cost of a fit grows with n K^2 and nothing larger than the logits is held: 25,000 x 1,000 takes half a minute
    and 2 GB. A search is some two hundred fits: seconds at 5,000 x 10, half a minute at 5,000 x 100, more than a minute
    at 1,000 x 1,000; for more, give one value of each, or use `StructuredMatrixScaling`, which needs no search. The
    diagonal is free, as published: with fewer than some ten samples per class it overfits whatever lambda and mu are.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.calibrators import MatrixScaling
    >>> rng = np.random.default_rng(0)
    >>> honest = rng.normal(size=(300, 3))
    >>> y = (honest + rng.gumbel(size=(300, 3))).argmax(axis=1)
    >>> model = MatrixScaling(random_state=0).fit(3.0 * honest, y)
    >>> model.weights_.shape
    (5, 3, 3)
    """

    short_name: ClassVar[str] = "ms-odir"
    keeps_accuracy: ClassVar[bool] = kept_by_answers("free")
    features: ClassVar[Literal["logits", "log-probabilities"]] = "logits"

    map_: Linear
    lambda_: float
    mu_: float
    search_: dict[str, Any]
    weights_ = from_map("weights")
    intercepts_ = from_map("intercepts")

    def __init__(
        self,
        *,
        answers: Answers = "free",
        penalty: float | Sequence[float] | None = None,
        intercept_penalty: float | Sequence[float] | None = None,
        n_folds: int = 5,
        final: Literal["average", "refit"] = "average",
        random_state: int | None = 0,
    ) -> None:
        self.penalty = penalty
        self.intercept_penalty = intercept_penalty
        self.n_folds = n_folds
        self.final = final
        self.random_state = random_state
        self.answers = answers

    def _fit(self, views: Views, labels: Labels) -> None:
        final = check_choice("final", self.final, ("average", "refit"))
        n_folds, rng = check_count("n_folds", self.n_folds, least=2), check_random_state(self.random_state)
        warn_if_few(self, len(labels), views.n_classes)
        count = views.n_classes
        many = count > _MANY_CLASSES
        decades = (_FEW_LAMBDA_DECADES, _FEW_MU_DECADES) if many else (_LAMBDA_DECADES, _MU_DECADES)
        lambdas = candidates(self.penalty, "penalty", count * (count - 1), decades[0])
        mus = candidates(self.intercept_penalty, "intercept_penalty", count, decades[1])
        features = linear_features(wide(views.logits), self.features)
        beta = fit_beta(features, labels)
        # One sample cannot be held out: it gets the strongest penalties.
        self.lambda_, self.mu_, self.search_ = lambdas[0], mus[0], {}
        folds: list[np.ndarray] = [np.ones(len(labels), dtype=bool)]
        if len(lambdas) * len(mus) > 1 and len(labels) > 1:
            fold = make_folds(labels, n_folds, rng)
            found = search(features, labels, fold, beta, lambdas, mus)
            self.search_, (self.lambda_, self.mu_) = found.as_json(), found.best
            if final == "average":
                folds = [fold != held for held in range(int(fold.max()) + 1)]
        maps = np.stack([fit_map(features[rows], labels[rows], beta, self.lambda_, self.mu_) for rows in folds])
        self.map_ = Linear(maps[:, :, :-1], maps[:, :, -1], self.features)
