"""Dirichlet calibration with off-diagonal and intercept regularisation, Dir-ODIR (Kull et al., 2019)."""

from __future__ import annotations

from typing import ClassVar, Literal

from recal.calibrators.matrix import MatrixScaling


class DirichletCalibration(MatrixScaling):
    """Mix the log-probabilities linearly, softmax(W log p + b): calibrates Dirichlet-shaped answers exactly (Dir-ODIR).

    The same objective, search, parameters and attributes as `MatrixScaling`; only what is mixed differs, so that the
    answer depends on the model's probabilities and not on a constant added to all logits of a sample.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.calibrators import DirichletCalibration
    >>> rng = np.random.default_rng(0)
    >>> honest = rng.normal(size=(300, 3))
    >>> y = (honest + rng.gumbel(size=(300, 3))).argmax(axis=1)
    >>> model = DirichletCalibration(penalty=1.0, intercept_penalty=1.0).fit(3.0 * honest, y)
    >>> shifted = 3.0 * honest + rng.normal(size=(300, 1))
    >>> bool(np.allclose(model.predict_proba(shifted), model.predict_proba(3.0 * honest)))
    True
    """

    short_name: ClassVar[str] = "dir-odir"
    features: ClassVar[Literal["logits", "log-probabilities"]] = "log-probabilities"
