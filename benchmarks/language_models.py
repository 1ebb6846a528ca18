"""Language models: makes the tables of docs/results/language-models.md from the given files.

    python -m benchmarks.language_models --options OPTIONS.npz --prompts PROMPTS.npz \\
        --signals SIGNALS.npz --out PAGE.md

Each file holds one set of arrays per model:

OPTIONS  MODEL/direct, MODEL/reasoned (n, K) probabilities with NaN for options that were not
         returned; MODEL/labels (n,); MODEL/subject (n,). Made from aMa2210/LLM_MCQ_LogProbs.
PROMPTS  MODEL/logits (n_prompts, n, K), MODEL/labels (n,). Made from
         colts661/LLM-Uncertainty-Bench.
SIGNALS  MODEL/signals (n, d) with NaN for missing values, MODEL/correct (n,), MODEL/category (n,);
         the first signal is the stated confidence. Made from Linwei94/LLM-Calibration-Study.
"""

from __future__ import annotations

import csv
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.measuring import describe
from recal import AutoCalibration, SignalCalibration, TemperatureScaling, Views
from recal.answers.scores import OptionScores, join_scores
from recal.checks import Vector
from recal.comparison.results import markdown_table
from recal.decisions import decide_crossfitted

Scores = tuple[float, ...]


def models_of(arrays: Any) -> list[str]:
    return sorted({name.rpartition("/")[0] for name in arrays.files})


def halves(n: int, n_fit: int, draw: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    order = np.random.default_rng(200 + draw).permutation(n)
    return order[:n_fit], order[n_fit:]


def automated(confidence: Vector, right: NDArray[np.bool_], risk: float) -> float:
    """Return the largest share of answers, most confident first, of which at most a share `risk` is
    wrong.
    """
    wrong = np.cumsum(~right[np.argsort(-confidence, kind="stable")]) / np.arange(1, len(right) + 1)
    fine = np.flatnonzero(wrong <= risk)
    return float(fine[-1] + 1) / len(right) if len(fine) else 0.0


def graded_scores(confidence: Vector, right: NDArray[np.bool_], risks: tuple[float, ...]) -> Scores:
    """Return NLL of right or wrong, ECE, AUROC and the shares that can be automated."""
    sure = np.clip(confidence, 1e-12, 1.0 - 1e-12)
    nll = -float(np.mean(np.log(np.where(right, sure, 1.0 - sure))))
    bins = np.minimum((15 * sure).astype(int), 14)
    gaps = np.bincount(bins, sure, 15) - np.bincount(bins, right, 15)
    ranks = np.empty(len(sure))
    _, inverse, counts = np.unique(sure, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2.0)[inverse]
    n_right = int(right.sum())
    auroc = (ranks[right].sum() - n_right * (n_right + 1) / 2) / (n_right * (len(right) - n_right))
    shares = (automated(sure, right, risk) for risk in risks)
    return (nll, float(np.abs(gaps).sum()) / len(sure), float(auroc), *shares)


def table(header: list[str], rows: list[list[str]]) -> str:
    return "\n".join(markdown_table(header, rows))


# (a) Options scored in two ways


def options_table(path: Path, draws: int, n_fit: int = 1000) -> str:
    arrays, rows = np.load(path), []
    for model in models_of(arrays):
        labels = arrays[f"{model}/labels"]
        ids = tuple(map(str, range(len(labels))))
        reasoned, direct = (
            OptionScores(ids, np.log(arrays[f"{model}/{name}"])) for name in ("reasoned", "direct")
        )
        views = join_scores(reasoned, {"direct": direct}).views
        results: dict[str, list[Scores]] = {}
        for draw in range(draws):
            fit, test = halves(len(labels), n_fit, draw)
            for name, scores in _option_methods(
                views, labels, arrays[f"{model}/subject"], fit, test
            ):
                results.setdefault(name, []).append(scores)
        for name, each in results.items():
            nll, ece, auroc, five, ten = np.mean(each, axis=0)
            shares = f"{five:.0%} / {ten:.0%}"
            rows.append([model, name, f"{nll:.3f}", f"{ece:.3f}", f"{auroc:.3f}", shares])
    return table(["model", "method", "NLL", "ECE", "AUROC", "automated at 5 % / 10 % errors"], rows)


def _option_methods(
    views: Views, labels: Any, subject: Any, fit: Any, test: Any
) -> Iterator[tuple[str, Scores]]:
    right = views.logits[test].argmax(axis=1) == labels[test]
    alone = TemperatureScaling().fit(views.logits[fit], labels[fit])
    stacked = AutoCalibration().fit(views[fit], labels[fit], groups=subject[fit])
    both = {
        "temperature scaling": (
            alone.predict_proba(views.logits[test]),
            alone.predict_confidence(views.logits[test]),
        ),
        "default, direct answer as a view": stacked.predict_both(views[test]),
        "the same, with subjects": stacked.predict_both(views[test], subject[test]),
    }
    for name, (probs, sure) in both.items():
        nll = -float(np.mean(np.log(probs[np.arange(len(test)), labels[test]])))
        yield name, (nll, *graded_scores(sure, right, (0.05, 0.1))[1:])


# (b) Several prompts


def prompts_table(path: Path, draws: int, sizes: tuple[int, ...] = (500, 2000)) -> str:
    arrays, rows = np.load(path), []
    for model in models_of(arrays):
        logits, labels = arrays[f"{model}/logits"].astype(np.float64), arrays[f"{model}/labels"]
        logits = logits - np.logaddexp.reduce(logits, axis=2, keepdims=True)
        results: dict[str, dict[int, list[tuple[float, float]]]] = {}
        for n_fit in sizes:
            for draw in range(draws):
                fit, test = halves(len(labels), n_fit, draw)
                for name, probs in _prompt_methods(logits, labels, fit, test):
                    nll = -float(np.mean(np.log(probs[np.arange(len(test)), labels[test]])))
                    accuracy = float((probs.argmax(axis=1) == labels[test]).mean())
                    results.setdefault(name, {}).setdefault(n_fit, []).append((nll, accuracy))
        for name, by_size in results.items():
            means = [np.mean(by_size[n_fit], axis=0) for n_fit in sizes]
            rows.append([model, name, *(f"{nll:.3f} ({accuracy:.3f})" for nll, accuracy in means)])
    return table(["model", "method", *(f"{n:,} labels: NLL (accuracy)" for n in sizes)], rows)


def _prompt_methods(
    logits: Vector, labels: Any, fit: Any, test: Any
) -> Iterator[tuple[str, Vector]]:
    from sklearn.linear_model import LogisticRegression

    rows = np.arange(len(fit))
    losses = []
    for one in logits:
        scaled = TemperatureScaling().fit(one[fit], labels[fit]).predict_proba(one[fit])
        losses.append(-np.log(scaled[rows, labels[fit]]).mean())
    best = int(np.argmin(losses))
    others = {f"prompt {place}": one for place, one in enumerate(logits) if place != best}
    views = Views(logits[best], others)
    alone = TemperatureScaling().fit(logits[best][fit], labels[fit])
    yield "temperature scaling, best prompt", alone.predict_proba(logits[best][test])
    for answers in ("kept", "free"):
        fitted = AutoCalibration(answers=answers).fit(views[fit], labels[fit])
        yield f"default with prompts, answers {answers}", fitted.predict_proba(views[test])
    features = np.hstack(list(logits))
    regression = LogisticRegression(max_iter=500).fit(features[fit], labels[fit])
    yield "logistic regression on all prompts", regression.predict_proba(features[test])


# (c) Graded answers with signals


def signals_table(path: Path, draws: int, sizes: tuple[int, ...], part: str) -> str:
    """Return the table for MMLU-Pro; medians over models."""
    arrays = np.load(path)
    parts = {"all": slice(None), "first": slice(0, None, 2), "second": slice(1, None, 2)}
    problems = [
        Graded(
            arrays[f"{model}/signals"].astype(np.float64),
            arrays[f"{model}/correct"].astype(bool),
            arrays[f"{model}/category"],
        )
        for model in models_of(arrays)[parts[part]]
    ]
    return graded_table(problems, draws, sizes, np.median)


def free_text_table(path: Path, draws: int, sizes: tuple[int, ...]) -> str:
    """Return the table for free text: one model, four tasks; means over random splits."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = [name for name in rows[0] if name not in ("task", "right")]
    signals = np.array([[float(row[name] or "nan") for name in names] for row in rows])
    right = np.array([row["right"] == "1" for row in rows])
    task = np.array([row["task"] for row in rows])
    return graded_table([Graded(signals, right, task)], draws, sizes, np.mean)


@dataclass(frozen=True)
class Graded:
    """Signals, grades and the category of each answer; the first signal is a stated confidence."""

    signals: Vector
    right: NDArray[np.bool_]
    category: NDArray[Any]


def graded_table(
    problems: list[Graded], draws: int, sizes: tuple[int, ...], summary: Callable[..., Any]
) -> str:
    rows = []
    for n_fit in sizes:
        results: dict[str, list[Scores]] = {}
        started = time.process_time()
        for problem in problems:
            for draw in range(draws):
                for name, scores in _signal_methods(problem, n_fit, draw):
                    results.setdefault(name, []).append(scores)
        seconds = (time.process_time() - started) / (len(problems) * draws)
        best = np.array(results["Platt scaling, best signal"])[:, 0]
        for name, each in results.items():
            nll, ece, auroc, share, *promised = summary(each, axis=0)
            worst = float((np.array(each)[:, 0] / best - 1.0).max())
            numbers = [f"{nll:.3f}", f"{ece:.3f}", f"{auroc:.3f}", f"{share:.1%}"]
            shares = [f"{one:.1%}" for one in promised] or [""]
            rows.append([f"{n_fit:,}", name, *numbers, *shares, f"{worst:+.1%}"])
        print(f"{n_fit} graded answers: {seconds:.2f} s of CPU for each model and draw", flush=True)
    header = ["graded", "confidence from", "NLL", "ECE", "AUROC", "automated at 20 % errors"]
    return table([*header, "promised at 95 %", "worst NLL against Platt"], rows)


def _signal_methods(data: Graded, n_fit: int, draw: int) -> Iterator[tuple[str, Scores]]:
    fit, test = halves(len(data.right), n_fit, draw)
    signals, right, category = data.signals, data.right, data.category

    def score(confidence: Vector) -> Scores:
        return graded_scores(confidence, right[test], (0.2,))

    stated = np.clip(signals[:, 0], 0.005, 0.995)
    stated = np.where(np.isnan(stated), np.nanmean(stated[fit]), stated)
    yield "the stated confidence", score(stated[test])
    columns = _platt_columns(signals)
    fits = [_regression(each, right, fit) for each in columns]
    yield "Platt scaling, stated confidence", score(fits[0][1][test])
    yield "Platt scaling, best signal", score(min(fits, key=lambda each: each[0])[1][test])
    every = _all_columns(signals, category, fit)
    yield (
        "logistic regression, all signals and categories",
        score(_regression(every, right, fit)[1][test]),
    )
    alone = SignalCalibration().fit(signals[fit], right[fit])
    yield "SignalCalibration", score(alone.predict_confidence(signals[test]))
    rows, how = (signals[fit], right[fit]), {"groups": category[fit], "one_rule": True}
    grouped, _ = decide_crossfitted(SignalCalibration(), *rows, risk=0.2, folds=5, **how)
    confidence = grouped.predict_confidence(signals[test], category[test])
    promised = float(grouped.accept(signals[test], category[test]).mean())
    yield "SignalCalibration with categories", (*score(confidence), promised)


def _platt_columns(signals: Vector) -> list[Vector]:
    """Return each signal with an indicator of missing values; log-odds of probabilities."""
    columns = []
    for signal in signals.T:
        inside = np.nanmin(signal, initial=0.0) >= 0.0 and np.nanmax(signal, initial=1.0) <= 1.0
        share = np.clip(signal, 0.005, 0.995)
        value = np.log(share) - np.log1p(-share) if inside else signal
        missing = np.isnan(signal)
        columns.append(np.column_stack([np.where(missing, 0.0, value), missing]))
    return columns


def _all_columns(signals: Vector, category: NDArray[Any], fit: NDArray[np.intp]) -> Vector:
    """Return all signals, indicators of missing values, and one column per category."""
    missing = np.isnan(signals)
    mean = np.nan_to_num(np.nanmean(signals[fit], axis=0))
    filled = np.where(missing, mean, signals)
    return np.hstack([filled, missing, category[:, None] == np.unique(category)])


def _regression(
    columns: Vector, right: NDArray[np.bool_], fit: NDArray[np.intp]
) -> tuple[float, Vector]:
    """Return the loss on the rows of the fit, and the probabilities of all rows."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    probs = model.fit(columns[fit], right[fit]).predict_proba(columns)[:, 1]
    likelihood = np.where(right, probs, 1.0 - probs)[fit]
    return -float(np.mean(np.log(likelihood))), probs


def main() -> None:
    parser = describe(__doc__)
    for name in ("options", "prompts", "signals", "free-text"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--sizes", default="50,100,300,1000", help="numbers of graded answers")
    parser.add_argument("--part", choices=("all", "first", "second"), default="all")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    sizes = tuple(int(size) for size in given.sizes.split(","))
    parts: dict[str, tuple[Path | None, Callable[..., str], list[Any]]] = {
        "Options scored in two ways": (given.options, options_table, []),
        "Several prompts": (given.prompts, prompts_table, []),
        "Graded answers with signals": (given.signals, signals_table, [sizes, given.part]),
        "Free text with many signals": (given.free_text, free_text_table, [sizes]),
    }
    sections = [
        "# Language models: results",
        f"Made by `benchmarks/language_models.py`, {given.draws} random splits.",
    ]
    for title, (path, make, more) in parts.items():
        if path is not None:
            sections += [f"## {title}", make(path, given.draws, *more)]
            print(f"{sections[-2]}\n\n{sections[-1]}\n", flush=True)
    if given.out is not None:
        given.out.write_text("\n\n".join(sections) + "\n")


if __name__ == "__main__":
    main()
