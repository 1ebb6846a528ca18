"""View stacking against temperature scaling, paired over random halves; and whether it ever does
harm.

    python -m benchmarks.stacking_halves halves VIEWS.npz ... [--sizes 300 1000 5000] [--answers
    kept] [--halves 10] python -m benchmarks.stacking_halves guard VIEWS.npz ...       # what each
    method loses by keeping answers python -m benchmarks.stacking_halves no-harm [--models 20]     #
    made-up models, calibrated or not; needs no file

Each half has its own seed, the same for all methods. Numbers are per cent of temperature scaling's
mean score; negative is better. "worst" is the worst single half.
"""

from __future__ import annotations

import argparse
import warnings
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from recal import Blend, TemperatureScaling, Views, ViewStacking, metrics, read_views
from recal.calibrators import CALIBRATORS, StructuredMatrixScaling, name_of
from recal.calibrators.base import Calibrator

SCORES: tuple[Callable[..., float], ...] = (
    metrics.nll, metrics.brier, metrics.aurc, metrics.ece, metrics.error_rate
)  # fmt: skip
HEAD = "| {} | n | NLL | Brier | AURC | error | ECE, TS | ECE | extra passes | worst NLL/Brier/AURC | views |"


def halves(views: Views, size: int, count: int) -> Iterator[tuple[Views, Views]]:
    """Yield fitting rows, at most `size` of one half, and the whole other half."""
    middle = len(views) // 2
    for seed in range(count):
        order = np.random.default_rng(seed).permutation(len(views))
        yield views[np.sort(order[: min(size, middle)])], views[np.sort(order[middle:])]


def scores(calibrator: Calibrator, test: Views) -> list[float]:
    probs = calibrator.predict_proba(test)
    return [float(score(probs, test.labels)) for score in SCORES]


def passes(calibrator: Calibrator, test: Views) -> float:
    needed, plan = len(calibrator.needed_transforms()), getattr(calibrator, "plan_", None)
    return needed * (1.0 if plan is None else float(plan.needs_views(test.logits).mean()))


def row(
    name: str, n: int, plain: NDArray, found: NDArray, extra: list[float], used: Counter[str]
) -> str:
    change = 100 * (found.mean(axis=0) / np.maximum(plain.mean(axis=0), 1e-12) - 1)
    worst = 100 * ((found / np.maximum(plain, 1e-12)).max(axis=0) - 1)
    picked = ", ".join(f"{view} ({count})" for view, count in used.most_common(3))
    return (
        f"| {name} | {n} | {change[0]:+.2f} | {change[1]:+.2f} | {change[2]:+.2f} | {change[4]:+.2f} "
        f"| {plain[:, 3].mean():.4f} | {found[:, 3].mean():.4f} | {np.mean(extra):.2f} "
        f"| {worst[0]:+.2f}/{worst[1]:+.2f}/{worst[2]:+.2f} | {picked} |"
    )


def what_was_used(calibrator: Calibrator) -> str:
    plan = getattr(calibrator, "plan_", None)
    views = "+".join(str(transform) for transform in calibrator.needed_transforms())
    return views or ("offsets" if isinstance(plan, Blend) else "none")


def judge(methods: list[Calibrator], views: Views, name: str, size: int, count: int) -> None:
    cuts = list(halves(views, size, count))
    plain = np.array([scores(TemperatureScaling().fit(fit), test) for fit, test in cuts])
    for method in methods:
        found, extra, used = [], [], Counter[str]()
        for fit, test in cuts:
            method.fit(fit)
            found.append(scores(method, test))
            extra.append(passes(method, test))
            used[what_was_used(method)] += 1
        print(
            row(f"{name}, {name_of(method)}", len(cuts[0][0]), plain, np.array(found), extra, used),
            flush=True,
        )


def without_lossless(views: Views) -> Views:
    lossy = [t for t in views.transforms if str(t).split(":")[0] not in ("flip", "shift")]
    return Views(views.logits, {t: views.transformed(t) for t in lossy}, views.labels)


def made_up(kind: str, n: int, seed: int, n_classes: int = 10) -> Views:
    """A model whose truth is known. honest: labels are drawn from its own probabilities; sharp: it
    is twice too sure; saturated: five times; skewed: honest, with few classes common; helpful: a
    view that sees something new."""
    rng = np.random.default_rng(seed)
    honest = rng.normal(size=(n, n_classes)) * 2.0
    honest[np.arange(n), rng.integers(0, n_classes, n)] += 4.0
    if kind == "skewed":
        honest -= 0.5 * np.arange(n_classes)
    labels = (honest + rng.gumbel(size=honest.shape)).argmax(axis=1)
    scale = {"sharp": 2.0, "saturated": 5.0}.get(kind, 1.0)
    views = {
        f"zoom:0.{90 - 5 * view}": scale
        * (0.9**view * honest + 0.4 * view * rng.normal(size=honest.shape))
        for view in range(8)
    }
    views["flip"] = scale * (honest + rng.normal(size=honest.shape))
    if kind == "helpful":
        views["flip"] = scale * (
            0.7 * honest + 2.0 * np.eye(n_classes)[labels] + rng.normal(size=honest.shape)
        )
    return Views(scale * honest, views, labels)


def no_harm(count: int, sizes: list[int]) -> None:
    print("| made-up model | n | accepted | offsets | mean change of NLL, Brier, AURC, % | worst |")
    print("|---|---|---|---|---|---|")
    for kind in ("honest", "sharp", "saturated", "skewed", "helpful"):
        for n in sizes:
            changes, accepted, offsets = [], 0, 0
            for seed in range(count):
                fit, test = made_up(kind, n, seed), made_up(kind, 20_000, seed + 10_000)
                stack = ViewStacking().fit(fit)
                accepted += stack.accepted_
                offsets += isinstance(stack.plan_, Blend) and not stack.accepted_
                plain = scores(TemperatureScaling().fit(fit), test)
                changes.append(100 * (np.array(scores(stack, test)) / plain - 1)[:3])
            mean, worst = np.mean(changes, axis=0), np.max(changes, axis=0)
            shown = " | ".join(
                "/".join(f"{value:+.2f}" for value in values) for values in (mean, worst)
            )
            print(
                f"| {kind} | {n} | {accepted}/{count} | {offsets}/{count} | {shown} |", flush=True
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=["halves", "guard", "no-harm"])
    parser.add_argument("views", nargs="*")
    parser.add_argument("--sizes", type=int, nargs="+", default=[300, 1000, 5000])
    parser.add_argument("--answers", choices=["kept", "free"], default="kept")
    parser.add_argument("--max-views", type=int, default=3)
    parser.add_argument("--worth", type=float)
    parser.add_argument("--lossy", action="store_true", help="leave out mirror and shift")
    parser.add_argument("--halves", type=int, default=10)
    parser.add_argument("--models", type=int, default=20)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    if given.part == "no-harm":
        no_harm(given.models, given.sizes)
        return
    print(HEAD.format("file, method"), "|---|---|---|---|---|---|---|---|---|---|---|", sep="\n")
    for path in given.views:
        views, name = read_views(path), path.rsplit("/", 1)[-1].removesuffix(".npz")
        views = without_lossless(views) if given.lossy else views
        sizes = [size for size in given.sizes if size <= len(views) // 2] or [len(views) // 2]
        for size in sizes:
            methods: list[Calibrator] = [
                ViewStacking(given.answers, given.max_views, worth=given.worth)
            ]
            if given.part == "guard":
                may_change = [
                    method
                    for method in CALIBRATORS
                    if not method.keeps_accuracy and not method.needs_views
                ]
                methods = [
                    method(answers=answers) for method in may_change for answers in ("free", "kept")
                ]  # type: ignore[call-arg]
            elif given.answers == "free":
                methods.append(StructuredMatrixScaling())
            judge(methods, views, name, size, given.halves)


if __name__ == "__main__":
    main()
