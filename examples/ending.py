"""How each example ends: which method, whether views were worth it, and what can be automated at 1 and 5 % error."""

from __future__ import annotations

import inspect
import warnings

import numpy as np

from recal import Views, decide, metrics
from recal.calibrators.names import find_method
from recal.errors import RecalError

# Without views, and with them.
PLAIN, WITH_VIEWS = ("ts", "ets", "spline", "auto"), ("recal", "stack", "stack (free)")
SPLITS = 5
NAMES = {"auto": "auto (without views)"}


def end_in_a_decision(views: Views, *, what: str = "answers") -> None:
    """Fit on one random half and decide on the other, several times; print means over the splits.

    `decide` promises: among accepted answers, at most 1 (or 5) % are wrong, with 95 % confidence.
    """
    rows = {name: _judge(name, views) for name in ("as it is", *PLAIN, *WITH_VIEWS)}
    rows = {name: row for name, row in rows.items() if row is not None}
    print(f"\n{views}. Fitted on half, judged on the other half, {SPLITS} times.\n")
    print(f"{'':<22}{'error':>8}{'ECE':>8}{'NLL':>8}{'automated at 1 %':>18}{'at 5 %':>8}")
    for name, (error, ece, nll, strict, loose) in rows.items():
        print(f"{NAMES.get(name, name):<22}{error:>8.3f}{ece:>8.4f}{nll:>8.4f}{strict:>17.1%}{loose:>9.1%}")
    plain = min((name for name in PLAIN if name in rows), key=lambda name: rows[name][2])
    best = min((name for name in WITH_VIEWS if name in rows), key=lambda name: rows[name][2])
    gain, more = rows[plain][2] - rows[best][2], rows[best][4] - max(rows[name][4] for name in PLAIN if name in rows)
    worth = gain > 0.002 * max(1.0, rows[plain][2]) or more > 0.01
    print(
        f"\nViews {'were' if worth else 'were not'} worth their passes: NLL {rows[best][2]:.4f} with them ({best}), "
        f"{rows[plain][2]:.4f} without ({plain}); {100 * more:+.1f} points of answers automated at 5 %."
    )
    winner = best if worth else plain
    strict, loose = rows[winner][3:]
    print(f"Decision: with {winner}, {strict:.0%} of {what} can be automated at 1 % error and {loose:.0%} at 5 %.")


def _judge(name: str, views: Views) -> tuple[float, ...] | None:
    """Return error, ECE, NLL and what can be automated at 1 and 5 %; None where the method cannot be fitted here."""
    found = []
    for split in range(SPLITS):
        order = np.random.default_rng(split).permutation(views.n_samples)
        fit, test = views[np.sort(order[::2])], views[np.sort(order[1::2])]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of few mistakes: several splits are shown instead
                probs = _probs(name, fit, test)
        except RecalError as error:
            print(f"{name} is left out: {error}")
            return None
        automated = [decide(probs, test.labels, risk=risk).coverage for risk in (0.01, 0.05)]
        scores = [
            metrics.error_rate(probs, test.labels),
            metrics.ece(probs, test.labels),
            metrics.nll(probs, test.labels),
        ]
        found.append([*scores, *automated])
    return tuple(np.mean(found, axis=0).tolist())


def _probs(name: str, fit: Views, test: Views) -> np.ndarray:
    if name == "as it is":
        shifted = np.exp(test.logits.astype(float) - test.logits.max(1, keepdims=True))
        return shifted / shifted.sum(1, keepdims=True)
    method, options = find_method(name)
    if "random_state" in inspect.signature(method).parameters:
        options["random_state"] = 0
    if name in PLAIN:  # what can be had without a single further pass
        fit, test = Views(fit.logits, labels=fit.labels), Views(test.logits, labels=test.labels)
    return method(**options).fit(fit).predict_proba(test)
