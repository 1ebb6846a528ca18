"""CPU seconds of processes from start to end: python -m benchmarks.start_up"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from benchmarks.ratios import Ratio, table


def cpu(*command: str, cache: str | None = None) -> float:
    environment = {**os.environ, **({"NUMBA_CACHE_DIR": cache} if cache else {})}
    before = os.times()
    subprocess.run(
        [sys.executable, *command], check=True, stdout=subprocess.DEVNULL, env=environment
    )
    after = os.times()
    return (
        after.children_user + after.children_system - before.children_user - before.children_system
    )


def first_fit(n_classes: int) -> str:
    """Sharp logits, as many as need compiled code."""
    return (
        f"import numpy as np; from recal import ReCal, Views; r = np.random.default_rng(0); k = {n_classes};"
        "n = 120_000 // k; y = r.integers(0, k, n); z = (r.normal(size=(n, k)) * 9 + 9 * np.eye(k)[y]).astype('f4');"
        "v = Views(z, {'zoom:0.5': z * np.float32(0.9)}, y); c = ReCal(random_state=0, max_iter=20, tol=0).fit(v);"
        "c.predict_proba(v)"
    )


def ratios(small: bool) -> list[Ratio]:
    turns = range(1 if small else 3)
    sklearn = min(cpu("-c", "import sklearn.calibration") for _ in turns)
    part, beside = "Start-up", "import sklearn.calibration"
    found = []
    for what, command, target in (
        ("import recal", ("-c", "import recal"), 1 / 3),
        ("recal --help", ("-m", "recal", "--help"), None),
    ):
        found.append(Ratio(part, what, beside, min(cpu(*command) for _ in turns), sklearn, target))
    with tempfile.TemporaryDirectory() as fresh:
        first = cpu("-c", first_fit(10), cache=fresh)
        again = min(cpu("-c", first_fit(10), cache=fresh) for _ in turns)
    found.append(
        Ratio(
            part,
            "first fit and answer of ReCal, empty cache of compiled code",
            "5 s",
            first,
            5.0,
            1.0,
            2.3,
        )
    )
    found.append(Ratio(part, "the same in a further process", beside, again, sklearn))
    return found


if __name__ == "__main__":
    print("\n".join(table(ratios("--small" in sys.argv))))
