"""Several systems: one confidence from three simulated language models, then a cascade.

The answers are simulated, so it runs without network. With your own systems, start at the fit. Run
it with `python examples/panels.py`, or cell by cell in an editor or a notebook. It takes about ten
seconds.
"""

# %% 4,000 questions with free-text answers, and the confidence that each model states
import numpy as np

from recal import PanelCalibration, plan_cascade

rng = np.random.default_rng(0)
words = np.array([f"answer {number}" for number in range(200)], dtype=object)
truth = rng.choice(words, 4000)
difficulty = rng.normal(size=4000)
answers, signals = {}, {}
for name, skill in {"small": 0.8, "medium": 1.3, "large": 2.2}.items():
    sure = 1 / (1 + np.exp(difficulty + rng.normal(0, 1, 4000) - skill))
    answers[name] = np.where(rng.random(4000) < sure, truth, rng.choice(words, 4000))
    signals[name] = {"stated": sure**0.3, "length": rng.poisson(40, 4000)}


def rows(columns, some):
    """Select rows of all columns."""
    if isinstance(columns, dict):
        return {name: rows(column, some) for name, column in columns.items()}
    return columns[some]


# %% Fit a panel on 500 questions with known answers; systems in the order in which to ask them
fit, labelled, new = slice(0, 500), slice(500, 2000), slice(2000, None)
costs = {"small": 0.1, "medium": 0.5, "large": 4.0}
panel = PanelCalibration().fit(rows(answers, fit), truth[fit], rows(signals, fit))
print(panel.reason_)

# %% One answer and one confidence per question
answer, confidence = panel.predict_both(rows(answers, new), rows(signals, new))
right = answer == truth[new]
large = answers["large"][new] == truth[new]
print(f"Accuracy of the panel {right.mean():.1%}, of the large model alone {large.mean():.1%}.")
print(f"Mean confidence {confidence.mean():.1%}.")

# %% A cascade: at most 5 % errors among accepted answers, at 95 % confidence
rule = plan_cascade(
    panel,
    rows(answers, labelled),
    truth[labelled],
    rows(signals, labelled),
    costs=costs,
    review_cost=100.0,
    risk=0.05,
)
print(rule)

# %% What to do next with a question that only the small model has answered
print(rule.next({"small": ["answer 7"]}, {"small": {"stated": [0.97], "length": [35]}}))
outcome = rule.apply(rows(answers, new), rows(signals, new))
accepted = outcome.next == "accept"
wrong = outcome.answer != truth[new]
print(f"New questions: {accepted.mean():.1%} accepted, {wrong[accepted].mean():.1%} of them wrong.")
