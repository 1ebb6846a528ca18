"""Does a rule's promise hold on fresh labelled rows?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from recal.checks import as_array
from recal.clusters import check_clusters, effective_count
from recal.decisions.rule import DecisionRule, check_share


@dataclass(frozen=True)
class PromiseCheck:
    """How many accepted answers are wrong, and whether that refutes the promise.

    Attributes
    ----------
    risk : the promised largest share of wrong answers among the accepted ones
    n_samples, n_accepted, n_errors : int
    p_value : float
        The probability of at least as many errors if exactly the promised share is wrong. Below
        `alpha` the promise is refuted.
    interval : 95 % interval of the share of errors
    """

    risk: float
    n_samples: int
    n_accepted: int
    n_errors: int
    p_value: float
    interval: tuple[float, float]
    alpha: float
    n_clusters: int | None = None

    @property
    def refuted(self) -> bool:
        return self.p_value < self.alpha

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "holds": not self.refuted,
            "risk": self.risk,
            "samples": self.n_samples,
            "accepted": self.n_accepted,
            "errors": self.n_errors,
            "error_rate": self.n_errors / self.n_accepted if self.n_accepted else None,
            "interval": list(self.interval) if self.n_accepted else None,
            "p_value": self.p_value,
            "alpha": self.alpha,
            "clusters": self.n_clusters,
        }

    def __str__(self) -> str:
        if not self.n_accepted:
            return f"The rule accepts none of these {self.n_samples:,} rows, so nothing is tested."
        low, high = self.interval
        counts = (
            f"{self.n_errors:,} of {self.n_accepted:,} accepted answers are wrong "
            f"({self.n_errors / self.n_accepted:.1%}, 95 % interval {low:.1%} to {high:.1%})"
        )
        if self.refuted:
            return (
                f"Refuted: {counts}, and at most {self.risk:.3g} were promised. If the promise "
                f"held, so many errors would have a probability of at most {self.p_value:.2g}."
            )
        return (
            f"The promise of at most {self.risk:.3g} holds: {counts}. If exactly the promised "
            f"share were wrong, at least so many errors would have the probability "
            f"{self.p_value:.2g}."
        )


def check_promise(
    rule: DecisionRule,
    accepted: ArrayLike,
    correct: ArrayLike,
    clusters: ArrayLike | None = None,
    *,
    alpha: float = 0.05,
) -> PromiseCheck:
    """Test on fresh labelled rows whether at most the promised share of accepted answers is wrong.

    Rows of one cluster are not independent: counts are those of as many independent rows as the
    clusters are worth, which is estimated from these rows.

    Examples
    --------
    >>> import numpy as np
    >>> from recal import decide
    >>> from recal.workflow.promise import check_promise
    >>> rule = decide(np.linspace(0, 1, 500), np.arange(500) > 100, risk=0.1).rule
    >>> check_promise(rule, np.ones(200, bool), np.arange(200) >= 60).refuted
    True
    """
    from scipy.stats import beta, binom

    check_share(alpha, "alpha")
    taken = as_array(accepted, "accepted").astype(bool)
    wrong = ~as_array(correct, "correct").astype(bool)[taken]
    n_accepted, n_errors = len(wrong), int(wrong.sum())
    n, n_clusters = float(n_accepted), None
    if clusters is not None and n_accepted:
        names = check_clusters(clusters, len(taken))[taken]
        n_clusters = len(np.unique(names))
        n = effective_count(wrong.astype(np.float64), names)
    k = n_errors * n / max(1, n_accepted)
    p_value = float(binom.sf(np.floor(k) - 1, max(1, round(n)), rule.risk)) if n_errors else 1.0
    low = float(beta.ppf(0.025, k, n - k + 1)) if n_errors else 0.0
    high = float(beta.ppf(0.975, k + 1, n - k)) if n_errors < n_accepted else 1.0
    return PromiseCheck(
        rule.risk, len(taken), n_accepted, n_errors, p_value, (low, high), alpha, n_clusters
    )
