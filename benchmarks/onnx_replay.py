"""What ReCal's replay costs in ONNX Runtime, beside the compiled reference: python -m benchmarks.onnx_replay views.npz

A plan of 200 steps is fitted on half of the views and replayed on the other half, one sample and 64 at a time, on one
thread, in CPU milliseconds. The largest difference of the probabilities stands beside them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
import onnxruntime

from recal import ReCal, Views, read_views
from recal.engine.replay import calibrate_arrays
from recal.runtime.onnx.heads import Head, head_model

RUNS = 200


def main(path: str) -> None:
    views = read_views(path)
    order = np.random.default_rng(0).permutation(views.n_samples)
    half = len(order) // 2
    plan = ReCal(tol=0, random_state=0).fit(views[np.sort(order[:half])]).plan_
    rows = np.sort(order[half:])[:640]
    test: Views = views[rows]
    logits = np.ascontiguousarray(test.logits, dtype=np.float32)
    seen = np.stack([np.asarray(test.transformed(t), dtype=np.float32) for t in plan.transforms])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    model = head_model(Head(plan), test.n_classes)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    print(f"{path}: {test.n_classes} classes, {len(plan.steps)} steps, {len(plan.transforms)} views")
    for n in (1, 64):
        batches = [(logits[i : i + n], np.ascontiguousarray(seen[:, i : i + n])) for i in range(0, len(logits), n)]
        runs = [batches[i % len(batches)] for i in range(max(10, RUNS // n))]

        def by_onnx(batch: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
            probs: np.ndarray = session.run(None, {"logits": batch[0], "transformed": batch[1]})[0]
            return probs

        def by_numpy(batch: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
            return calibrate_arrays(plan, *batch)

        worst = max(float(np.abs(by_onnx(batch) - by_numpy(batch)).max()) for batch in batches)
        took = [timed(function, runs) for function in (by_onnx, by_numpy)]
        print(f"  {n:>2} at a time: ONNX {took[0]:.3f} ms, numpy {took[1]:.3f} ms; differ by {worst:.1e}")


def timed(function: Callable[[tuple[np.ndarray, np.ndarray]], np.ndarray], runs: list) -> float:
    """Return CPU milliseconds a run."""
    begun = time.process_time()
    for batch in runs:
        function(batch)
    return 1000 * (time.process_time() - begun) / len(runs)


if __name__ == "__main__":
    main(sys.argv[1])
