"""Synthetic classification problems shared by the tests: `from tests.problems import views`."""

from __future__ import annotations

import csv

import numpy as np

from recal import Views
from recal.maps.arrays import softmax

ZOOMS = ("zoom:0.3", "zoom:0.5", "zoom:0.7")
OPTIONS = np.array(list("ABCDEFGH"))


def logits_and_labels(
    n=300, n_classes=4, seed=0, *, spread=1.5, scale=3.0, tilt=0.0, dtype=np.float64
):
    """Return logits that are too large by `scale` and labels drawn from the unscaled logits.

    A larger `spread` means fewer mistakes. `tilt` favours the later classes, so that methods with
    one parameter per class have something to correct.
    """
    rng = np.random.default_rng(seed)
    calibrated = spread * rng.normal(size=(n, n_classes))
    labels = (calibrated + rng.gumbel(size=calibrated.shape)).argmax(axis=1)
    return (scale * (calibrated + tilt * np.arange(n_classes))).astype(dtype), labels


def views(
    n=300,
    n_classes=3,
    seed=0,
    *,
    transforms=ZOOMS,
    scale=4.0,
    noise=0.6,
    keep=0.5,
    blur=1.0,
    classes=None,
    dtype=float,
):
    """Return labelled views: a noisy, overconfident model, and its logits for inputs with less
    information.

    Logits are `scale` at the label plus noise. A view keeps a share of them and adds noise of the
    size `blur`.
    """
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, n_classes, n)
    logits = (scale * (np.eye(n_classes)[labels] + rng.normal(0, noise, (n, n_classes)))).astype(
        dtype
    )
    transformed = {
        name: (keep * logits + rng.normal(0, blur, logits.shape)).astype(dtype)
        for name in transforms
    }
    names = labels if classes is None else np.array(classes)[labels]
    return Views(logits, transformed, names, classes=classes)


def looks(n=300, n_classes=4, seed=0, *, strength=3.0, scale=1.5, transforms=None, mix=None):
    """Return labelled views that see the label independently; the noise of a look does not depend
    on the others.

    Logits are ``scale * (strength * eye[label] + noise)``, with `strength` times a share for the
    transformations. Less strength means more mistakes. `mix` are the frequencies of the classes.
    """
    rng = np.random.default_rng(seed)
    labels = rng.choice(n_classes, n, p=mix)
    kept = {"zoom:0.8": 0.8, "brightness:0.5": 0.7} if transforms is None else transforms
    shares = {"": 1.0, **kept}
    logits = {
        name: scale
        * (strength * share * np.eye(n_classes)[labels] + rng.normal(size=(n, n_classes)))
        for name, share in shares.items()
    }
    return Views(logits.pop(""), logits, labels)


def extreme_views(n_classes, n=500):
    """Return labelled views of two transformations: overconfident logits, some saturated, some
    tied.
    """
    rng = np.random.default_rng(n_classes)
    calibrated = rng.normal(size=(n, n_classes)) * 1.5
    labels = (calibrated + rng.gumbel(size=calibrated.shape)).argmax(1)
    logits = (calibrated * rng.choice([1, 3, 12], (n, 1))).astype(np.float32)
    logits[-20:] = np.round(logits[-20:])
    logits[-1] = logits[-2] = 0.0
    logits[-3] *= 1e4
    noise = rng.normal(size=(2, *logits.shape)).astype(np.float32)
    return Views(logits, dict(zip(("flip", "zoom:0.5"), logits + noise)), labels)


def probs_and_labels(n=600, n_classes=4, seed=0, *, spread=1.5, sharpness=2.0, favour=0.0):
    """Return probabilities and labels; the probabilities are calibrated for a `sharpness` of 1,
    above overconfident.

    `favour` makes the first class more frequent than the others.
    """
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, n_classes)) * spread
    logits[:, 0] += favour
    true, odds = np.exp(logits), np.exp(sharpness * logits)
    true /= true.sum(1, keepdims=True)
    labels = (true.cumsum(1) > rng.random((n, 1))).argmax(1)
    return odds / odds.sum(1, keepdims=True), labels


def probs_with_ties(n=400, n_classes=7, seed=0, dtype=np.float64):
    """Return probabilities and unrelated labels; some rows are certain, tied, or lie on the edge of
    a bin.
    """
    rng = np.random.default_rng(seed)
    odds = np.exp(3 * rng.normal(size=(n, n_classes)))
    probs = odds / odds.sum(1, keepdims=True)
    probs[:20] = np.eye(n_classes)[rng.integers(0, n_classes, 20)]
    probs[20:30] = 1 / n_classes
    probs[30:40] = [0.3, 0.7, *[0] * (n_classes - 2)]
    return probs.astype(dtype), rng.integers(0, n_classes, n)


def falling_looks(n=300, n_classes=4, seed=0, *, n_views=3):
    """Return log-probabilities of views that see the label ever worse, (n_views, n, n_classes), and
    labels.

    The last view points away from the truth and deserves no weight.
    """
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, n_classes, n)
    signal = 2.0 * np.eye(n_classes)[labels]
    logits = [
        signal + rng.normal(size=signal.shape) * noise for noise in np.linspace(1.5, 4.0, n_views)
    ]
    logits[-1] = rng.normal(size=signal.shape) - signal
    logs = np.array([view - np.log(np.exp(view).sum(1, keepdims=True)) for view in logits])
    return logs.astype(np.float32), labels


def second_look(n=800, n_classes=4, seed=0, *, useful=True, tilt=0.0, scale=1.0):
    """Return views with one transformation, and labels.

    If it is useful, model and view see the label independently. Otherwise labels are drawn from the
    model's calibrated logits, and the view is a noisy copy. `scale` and `tilt` make the model's
    logits miscalibrated afterwards.
    """
    rng = np.random.default_rng(seed)
    if useful:
        labels = rng.integers(0, n_classes, n)
        own, view = (
            3.0 * np.eye(n_classes)[labels] + rng.normal(size=(n, n_classes)) * 2 for _ in range(2)
        )
    else:
        own = rng.normal(size=(n, n_classes)) * 2.5
        labels = np.array([rng.choice(n_classes, p=row) for row in softmax(own)])
        view = 0.7 * own + rng.normal(size=own.shape)
    return Views(scale * own + tilt * np.arange(n_classes), {"zoom:0.5": view}), labels


def waves(n=300, n_classes=5):
    """Return overconfident logits that mix neighbouring classes, and labels, by arithmetic without
    random numbers.

    Numbers that other programs computed from them stay valid with every version of numpy.
    """
    i, j = np.arange(n)[:, None], np.arange(n_classes)
    labels = (np.arange(n) * 7 + np.arange(n) // 11) % n_classes
    logits = 2.2 * np.sin(1.3 * i + 2.1 * j + 0.17 * i * j) + 1.1 * np.cos(0.37 * i * (j + 1.0))
    at_truth = 2.5 * (j == labels[:, None]) + 1.2 * (j == (labels[:, None] + 1) % n_classes)
    return 1.8 * (logits + at_truth) + 0.3 * j, labels


def lossy_views(n_samples, n_classes, n_views=4, sharpness=3.0, seed=0, dtype=np.float32):
    """Return (logits, views, labels) as plain arrays.

    A larger `sharpness` saturates the confidences.
    """
    rng = np.random.default_rng(seed)
    y = rng.integers(0, n_classes, n_samples)
    evidence = rng.normal(0, 1, (n_samples, n_classes))
    evidence[np.arange(n_samples), y] += 1.0 + np.log(n_classes) * 0.7
    transformed = [
        evidence * keep + rng.normal(0, 0.7, evidence.shape) * (1 - keep)
        for keep in np.linspace(0.4, 0.95, n_views)
    ]
    # Add some wrong labels so that no group is separable: a separable group has no finite best
    # temperature.
    wrong = rng.random(n_samples) < 0.15
    y[wrong] = rng.integers(0, n_classes, wrong.sum())
    return (
        (sharpness * evidence).astype(dtype),
        [(sharpness * view).astype(dtype) for view in transformed],
        y,
    )


def nll(probs, labels):
    """Return the mean negative log-likelihood, computed plainly."""
    return float(-np.log(probs[np.arange(len(labels)), labels]).mean())


def graded_answers(n=500, seed=0, *, strength=1.0):
    """Return signals by name, whether each answer is right, groups, and the true probability of
    being right.

    The judge's score tells most and is missing in a fifth of the rows; the length tells nothing.
    """
    rng = np.random.default_rng(seed)
    skill = rng.normal(size=n)
    kind, groups = rng.choice(["essay", "list"], n), rng.choice(["law", "physics", "poetry"], n)
    log_odds = strength * (
        1.2 * skill + np.where(kind == "list", 0.7, -0.3) + np.where(groups == "law", -0.8, 0.4)
    )
    truth = 1 / (1 + np.exp(-log_odds))
    stated = 1 / (1 + np.exp(-(2.0 + 0.7 * skill + rng.normal(size=n))))
    judge = np.where(rng.random(n) < 0.2, np.nan, skill + 0.6 * rng.normal(size=n))
    tokens = np.round(rng.lognormal(5, 1, n)) + 1
    signals = {"stated": stated, "tokens": tokens, "judge": judge, "kind": kind}
    return signals, rng.random(n) < truth, groups, truth


def prompts(n=1500, n_classes=4, seed=0, *, n_views=5):
    """Return views that each tell one class from the others and little else, and labels: prompts of
    a language model.

    Weights by class use what each view knows; one number per view cannot.
    """
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, n_classes, n)
    logits = [
        1.2 * np.eye(n_classes)[labels] + 1.5 * rng.normal(size=(n, n_classes))
        for _ in range(1 + n_views)
    ]
    for number, view in enumerate(logits[1:]):
        known = number % n_classes
        view[:, known] += 2.5 * (labels == known)
        view += 1.5 * rng.normal(size=n_classes)
    return Views(
        logits[0], {f"prompt{number}": view for number, view in enumerate(logits[1:], 1)}
    ), labels


def asked(n, accuracies, *, seed=0, options=OPTIONS):
    """Answers of systems with these accuracies; the signal of each tells a little about them."""
    rng = np.random.default_rng(seed)
    truth = rng.choice(options, n)
    hard = rng.normal(size=n)
    answers, signals = {}, {}
    for name, accuracy in accuracies.items():
        level = np.log(accuracy / (1 - accuracy)) - hard
        sure = 1 / (1 + np.exp(-1.3 * level))
        right = rng.random(n) < sure
        answers[name] = np.where(right, truth, rng.choice(options, n)).astype(object)
        signals[name] = {"stated": np.clip(sure + rng.normal(0, 0.15, n), 0, 1)}
    return truth, answers, signals


def rows_of(columns, rows):
    """Return some rows of columns, which may be mappings of columns."""
    if isinstance(columns, dict):
        return {name: rows_of(column, rows) for name, column in columns.items()}
    return columns[rows]


def seeded(method):
    """Return a calibrator of this class that draws the same numbers each time."""
    return method(random_state=0) if "random_state" in method().get_params() else method()


def nll_of_graded(confidence, correct):
    """Return the mean negative log-likelihood of confidences, given which answers are right."""
    return float(-np.log(np.where(correct, confidence, 1 - confidence)).mean())


def graded_confidences(n, seed=0, error=0.3):
    """Return calibrated confidences and which answers are right; `error` is the largest doubt."""
    rng = np.random.default_rng(seed)
    doubt = error * rng.random(n)
    return 1 - doubt, rng.random(n) >= doubt


def write_questions(path, n, seed, *, later=True):
    """Write questions with the answers of two systems; right ones are stated with confidence."""
    rng = np.random.default_rng(seed)
    truth = rng.choice(list("ABCDE"), n)
    lines = ["id,key,small_answer,small_stated,large_answer,large_stated"]
    for row, key in enumerate(truth):
        small, large = (key if rng.random() < p else rng.choice(list("ABCDE")) for p in (0.7, 0.85))
        stated = np.clip(rng.normal(0.8 if small == key else 0.5, 0.15), 0.01, 0.99)
        lines.append(f"{row:04},{key},{small},{stated:.3f},{large if later else ''},")
    path.write_text("\n".join(lines) + "\n")


def write_graded(path, n=900, seed=0, shift=0.0):
    """Write a table of graded answers whose confidence is `stated`, too high by `shift`."""
    rng = np.random.default_rng(seed)
    stated = rng.beta(4, 1.5, n)
    right = rng.random(n) < np.clip(stated - shift, 0, 1)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["stated", "length", "right", "account"])
        rows = zip(stated, rng.integers(1, 90, n), right.astype(int), np.arange(n) // 3)
        writer.writerows(rows)
    return path
