"""The cost of ReCal's replay in ONNX Runtime, next to the compiled code: python -m
benchmarks.onnx_replay views.npz

A plan of 162 steps is fitted on half of the views and replayed on the other half, one sample and 64
at a time, on one thread. The times are CPU milliseconds, the best of some repetitions, shown with
the largest difference of the probabilities. As a worst case, plans with random betas follow, from
calm to wild, which no fit would make. If an ONNX file is the second argument, one forward pass of
that network is timed, too.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
import onnxruntime

from recal import Plan, ReCal, Step, Views, read_views
from recal.export.calibration import calibration_of
from recal.export.calibration_file import calibration_model
from recal.maps.guard import answer

STEPS, REPEATS = 162, 9


def main(path: str, network: str | None = None) -> None:
    views = read_views(path)
    order = np.random.default_rng(0).permutation(views.n_samples)
    half = len(order) // 2
    plan = ReCal(tol=0, max_iter=STEPS, random_state=0).fit(views[np.sort(order[:half])]).plan_
    test: Views = views[np.sort(order[half:])[:320]]
    logits = np.ascontiguousarray(test.logits, dtype=np.float32)
    seen = np.stack([np.asarray(test.transformed(t), dtype=np.float32) for t in plan.transforms])
    print(
        f"{path}: {test.n_classes} classes, {len(plan.steps)} steps, {len(plan.transforms)} views"
    )
    for n in (1, 64):
        compare(plan, logits, seen, n)
    for spread in (0.05, 0.1, 0.2, 0.7):
        rng = np.random.default_rng(0)
        specs = [f"zoom:0.{digit}" for digit in range(1, 9)]
        betas = np.exp(rng.normal(0, spread, (STEPS, 4))).tolist()
        wild = Plan(tuple(Step(str(rng.choice(specs)), tuple(four)) for four in betas))  # type: ignore[arg-type]
        made_up = (rng.normal(size=(20, test.n_classes)) * 2).astype(np.float32)
        others = (made_up + rng.normal(size=(len(wild.transforms), *made_up.shape))).astype(
            np.float32
        )
        print(f"random plan, log betas of {spread:g}:", end="")
        compare(wild, made_up, others, 1)
    if network is not None:
        session = open_session(network)
        given = session.get_inputs()[0]
        shape = [size if isinstance(size, int) else 1 for size in given.shape]
        batch = np.random.default_rng(0).random(shape, dtype=np.float32)
        print(
            f"{network}: one forward pass {best(lambda: session.run(None, {given.name: batch}), 5):.2f} ms"
        )


def open_session(model: str | bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def compare(plan: Plan, logits: np.ndarray, seen: np.ndarray, n: int) -> None:
    """Print what n rows at a time cost."""
    session = open_session(
        calibration_model(calibration_of(plan), logits.shape[1]).SerializeToString()
    )
    batches = [
        (logits[i : i + n], np.ascontiguousarray(seen[:, i : i + n]))
        for i in range(0, len(logits), n)
    ]
    feeds = [{"logits": own, "transformed": views} for own, views in batches]
    worst = max(
        float(
            np.abs(session.run(None, feed)[0] - answer(plan, own, list(views), kept=True)[0]).max()
        )
        for feed, (own, views) in zip(feeds, batches)
    )

    def by_onnx() -> None:
        for feed in feeds:
            session.run(None, feed)

    def by_numpy() -> None:
        for own, views in batches:
            answer(plan, own, list(views), kept=True)

    took = [best(function, REPEATS) / len(batches) for function in (by_onnx, by_numpy)]
    print(
        f"  {n:>2} at a time: ONNX {took[0]:.3f} ms, numpy {took[1]:.3f} ms; differ by {worst:.1e}"
    )


def best(function: Callable[[], object], repeats: int) -> float:
    """Return the least CPU milliseconds of some calls: others on the machine can only make it more."""
    taken = []
    for _ in range(repeats):
        begun = time.process_time()
        function()
        taken.append(time.process_time() - begun)
    return 1000 * min(taken)


if __name__ == "__main__":
    main(*sys.argv[1:])
