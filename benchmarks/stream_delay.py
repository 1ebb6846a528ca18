"""How soon does a stream raise an alarm after a long clean history, and how often is the alarm
false?

    python -m benchmarks.stream_delay cifar10_resnet32.npz cifar10_resnet32_damaged.npz

Profile and clean stream are drawn with replacement from all rows of the first file, so they do not
differ. Then inputs with one kind of damage follow. The table shows the median number of damaged
inputs until the alarm at alpha 1 %, after each number of clean inputs, and the share of clean
streams with a false alarm at alpha 5 %.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from recal import read_views
from recal.decisions import StreamWatch, profile

HISTORIES = (0, 100, 1_000, 10_000)
LONGEST = 1_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("views", type=Path)
    parser.add_argument("damaged", type=Path)
    parser.add_argument("--kinds", default="dark,fog,jpeg,noise")
    parser.add_argument("--streams", type=int, default=20)
    parser.add_argument("--clean", type=int, default=500, help="clean streams of 1,000 inputs")
    given = parser.parse_args()
    logits = read_views(given.views).logits
    with np.load(given.damaged) as file:
        names, damaged = file["names"].tolist(), file["logits"].astype(np.float32)
    rng = np.random.default_rng(0)

    def draw(rows: np.ndarray, n: int) -> np.ndarray:
        return rows[rng.integers(len(rows), size=n)]

    alarms = [
        StreamWatch(profile(draw(logits, 300)), alpha=0.05, random_state=seed)
        .update(draw(logits, 1_000))
        .alarm
        for seed in range(given.clean)
    ]
    print(
        f"false alarms within 1,000 clean inputs, 5 % allowed: {np.mean(alarms):.1%} of {given.clean} streams"
    )
    for name in (
        next(name for name in names if name.startswith(kind)) for kind in given.kinds.split(",")
    ):
        changed, shown = damaged[names.index(name)], []
        for history in HISTORIES:
            delays = []
            for seed in range(given.streams):
                stream = StreamWatch(profile(draw(logits, 2_000)), random_state=seed)
                if history:
                    stream.update(draw(logits, history))
                if stream.alarm:
                    continue
                while not stream.alarm and stream.n_seen < history + LONGEST:
                    stream.update(draw(changed, 1))
                delays.append(stream.n_seen - history)
            shown.append(f"{history:,}: {np.median(delays):.0f}")
        print(f"{name:20} clean inputs: inputs until the alarm   {'   '.join(shown)}", flush=True)


if __name__ == "__main__":
    main()
