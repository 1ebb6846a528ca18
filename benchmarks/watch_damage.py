"""`recal watch` on growing damage: how soon it raises an alarm, how well it estimates accuracy,
what following gains.

    python -m benchmarks.damage_views --data FOLDER --out damage/
    python -m benchmarks.watch_damage damage/

For every kind and strength, the table shows the share of batches of 100 inputs that raise an alarm
at 1 % (with views, and with only confidence and class mix), the number of inputs until a stream's
alarm, the error of each accuracy estimate over 5,000 inputs, and the calibration error before and
after following.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from benchmarks.accuracy_estimators import AccuracyEstimators
from recal import TemperatureScaling, Views, ViewStacking, evaluate, read_views
from recal.decisions import (
    Profile,
    StreamWatch,
    evaluate_sets,
    prediction_sets,
    profile,
    to_the_power,
    watch,
)

BATCH = 100


def alarms(kept: Profile, views: Views, batches: int) -> float:
    rng = np.random.default_rng(0)
    found = [
        watch(kept, views[rng.choice(len(views), BATCH, replace=False)], permutations=99).alarm
        for _ in range(batches)
    ]
    return float(np.mean(found))


def delay(
    kept: Profile, views: Views, use_views: bool, streams: int = 3, longest: int = 1000
) -> str:
    """The median number of inputs until a stream's alarm; '-' where there is none."""
    rng, needed = np.random.default_rng(0), []
    for seed in range(streams):
        stream = StreamWatch(kept, use_views=use_views, random_state=seed)
        order = rng.permutation(len(views))[:longest]
        for start in range(0, longest, 100):
            if stream.update(views[order[start : start + 100]]).alarm:
                break
        needed.append(stream.alarm_at if stream.alarm_at is not None else 10 * longest)
    middle = float(np.median(needed))
    return "-" if middle > longest else f"{middle:,.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument(
        "--every", type=int, default=1, help="leave out strengths: only every so many are studied"
    )
    arguments = parser.parse_args()
    fit = read_views(arguments.folder / "fit.npz")
    with_views, without = profile(fit), profile(Views(fit.logits, labels=fit.labels))
    calibrator, estimators = (
        TemperatureScaling().fit(fit),
        AccuracyEstimators(fit.logits, fit.labels),
    )
    names = [path.stem for path in arguments.folder.glob("*-*.npz")]
    kinds = sorted(
        names, key=lambda name: (name.split("-")[0], -_accuracy(arguments.folder, name))
    )[:: arguments.every]
    errors: dict[str, list[float]] = {}
    print(
        "| damage | accuracy | alarms: views | alone | stream: views | alone | recal | AC | DoC | ATC | prior "
        "| ECE | followed |"
    )
    print("|---|" + "---|" * 12)
    for name in ["clean", *kinds]:
        views = read_views(arguments.folder / f"{name}.npz")
        plain = Views(views.logits)
        truth = float((views.logits.argmax(1) == views.labels).mean())
        result = with_views.condition(views.logits)
        ratio = result.ratio
        known = {"recal": result.accuracy, **estimators(views.logits)}
        for key, value in known.items():
            errors.setdefault(key, []).append(value - truth)
        probs = calibrator.predict_proba(views)
        ece = [evaluate(one, views.labels)["ece"] for one in (probs, to_the_power(probs, ratio))]
        cells = [
            f"{truth:.3f}",
            f"{alarms(with_views, views, arguments.batches):.0%}",
            f"{alarms(without, plain, arguments.batches):.0%}",
            delay(with_views, views, True),
            delay(without, plain, False),
            *(f"{value - truth:+.3f}" for value in known.values()),
            *(f"{value:.3f}" for value in ece),
        ]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    print("\n| estimate | mean absolute error | largest |\n|---|---|---|")
    for key, found in errors.items():
        print(f"| {key} | {np.mean(np.abs(found)):.3f} | {np.max(np.abs(found)):.3f} |")
    _sets(fit, read_views(arguments.folder / "clean.npz"))


def _accuracy(folder: Path, name: str) -> float:
    views = read_views(folder / f"{name}.npz")
    return float((views.logits.argmax(1) == views.labels).mean())


def _sets(fit: Views, clean: Views) -> None:
    """Sizes of prediction sets with and without views: half of the clean inputs make the sets, half
    measure them.
    """
    half = len(clean) // 2
    print("\n| probabilities | sets | coverage | mean size | one class |\n|---|---|---|---|---|")
    for name, calibrator in (
        ("temperature scaling", TemperatureScaling()),
        ("view stacking", ViewStacking()),
    ):
        probs = calibrator.fit(fit).predict_proba(clean)
        for method in ("lac", "aps", "raps"):
            sets = prediction_sets(probs[:half], clean.labels[:half], 0.95, method)
            found = evaluate_sets(sets, probs[half:], clean.labels[half:])
            print(
                f"| {name} | {method} | {found.coverage:.3f} | {found.mean_size:.3f} | {found.single:.1%} |"
            )


if __name__ == "__main__":
    main()
